"""Groups as participants of transactions: the calls of their coordinators, and to them.

    group coordinator ─ SendJoin ──▶ coordinator of the id, one attempt ─▶ TransactionJoined
                      └ SendAbort ─▶ the same, best effort: a member left
    coordinator ─ End to a group ──▶ its coordinator ─ "ended", committed ─▶ FinishedHeard

As in `penstock_broker.transactions.links` and `here`. Calls get lost, arrive twice or late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.core.groups import contract as gc
from penstock.core.transactions import contract as tc
from penstock.core.transactions.records import EndReason, GroupParticipant
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.groups.transactions import Joined
from penstock_sim.coordinator import OFFSETS_KEY
from penstock_sim.scheduler import RuleError
from penstock_sim.transactions import CALL_TIMEOUT_MS, LATE_MS, ask_coordinator

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker

_ON_THE_WAY: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOADING,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class GroupLink:
    """The links of one broker: to transaction coordinators, and from them to groups."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self._world = broker.world

    def join(self, join: gc.SendJoin, joined: Joined) -> None:
        """Asks once; what went wrong on the way there is retriable for whoever commits."""
        settled, shell = False, self._broker.shell
        assert shell is not None

        def heard(answer: tc.Joined | PenstockError) -> None:
            nonlocal settled
            if settled:
                return
            settled = True
            error = answer if isinstance(answer, PenstockError) else None
            if error is not None and error.code in _ON_THE_WAY:
                error = ClusterError(str(error), ErrorCode.COORDINATOR_LOADING)
            if not shell.loop.dead:
                shell.loop.run(lambda: joined(error))

        self._ask(
            lambda number: tc.JoinRequested(
                request_id=number,
                transactional_id=join.transactional_id,
                producer_id=join.producer_id,
                producer_epoch=join.producer_epoch,
                participant=GroupParticipant(join.group_id),
            ),
            heard,
        )
        late = ClusterError("no coordinator answers", ErrorCode.REQUEST_TIMED_OUT)
        self._world.scheduler.after(CALL_TIMEOUT_MS, heard, late)

    def abort(self, abort: gc.SendAbort) -> None:
        """Aborts what a member that left has open; the timeout does the same later."""
        self._ask(
            lambda number: tc.AbortRequested(
                request_id=number,
                transactional_id=abort.transactional_id,
                reason=EndReason.MEMBER_GONE,
                comment=abort.reason,
            ),
            _ignore,
        )

    def _ask(self, make: Callable[[int], tc.Request], heard: Callable[[Any], None]) -> None:
        ask_coordinator(self._world, int(self._broker.id), make, heard)

    def end(self, end: tc.End, heard: Callable[[tc.End], None]) -> None:
        """One attempt, perhaps twice, at the broker that seems to coordinate the group."""
        world, source = self._world, int(self._broker.id)
        target = world.find_leader(OFFSETS_KEY)[0]

        def stored(answer: gc.EndStored | PenstockError) -> None:
            if not isinstance(answer, PenstockError):
                world.net.call(int(target.id), source, heard, end)
            elif not answer.retriable and not world.group_checks.void:
                raise RuleError(f"I11: {target.name} refuses {end}: {answer}")

        def arrive() -> None:
            assert isinstance(end.participant, GroupParticipant)
            if target.coordinators is not None:
                request = gc.TransactionEnded(
                    request_id=world.next_request(),
                    group_id=end.participant.group_id,
                    producer_id=end.producer_id,
                    producer_epoch=end.producer_epoch,
                    commit=end.commit,
                )
                target.coordinators.ask(request, stored)

        world.net.call(source, int(target.id), arrive)
        if world.scheduler.chance(0.05):
            late_ms = world.scheduler.between(1, LATE_MS)
            world.scheduler.after(late_ms, world.net.call, source, int(target.id), arrive)


def _ignore(_answer: Any) -> None:
    """No caller waits for it."""
