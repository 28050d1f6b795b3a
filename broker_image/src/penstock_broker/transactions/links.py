"""Sends joins and Ends to the leaders that they are for, according to the image.

    join(entry, heard) ─▶ leader of the id's partition ──┐            ┌─ own broker: `Here`, no gRPC
    send(end, stored) ──▶ leader of the participant ─────┴─▶ a lane ──┴─ other brokers: `Peers`

One lane per broker and direction (`lane`). One attempt each: the coordinator's machine resends an
End, and the producer that wants to write retries a join. The producer gets the error of a refused
join, so connection errors become COORDINATOR_LOADING: retriable, and nothing was written.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from penstock.core.groups.contract import SendAbort, SendJoin
from penstock.core.transactions.contract import End, JoinRequested
from penstock.core.transactions.orphans import Answer, Transaction
from penstock.core.transactions.records import GroupParticipant, Participant
from penstock.core.types import BrokerId, ReplicaKey
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.logged.finding import Finder
from penstock_broker.metadata.image import ClusterView
from penstock_broker.observability import EventLog
from penstock_broker.transactions.lane import Heard, Lane

_FINAL: Final = frozenset(
    {
        ErrorCode.INVALID_REQUEST,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.TRANSACTION_ABORTED,
        ErrorCode.INVALID_TRANSACTION_STATE,
        ErrorCode.UNKNOWN_TRANSACTIONAL_ID,
        ErrorCode.TRANSACTION_TOO_LARGE,
        ErrorCode.OVERLOADED,
    }
)
"""The coordinator's own answers to a join; other errors come from the connection."""
_ABORTS_MAX: Final = 1_000
_events = EventLog("transactions")
Results = Sequence[PenstockError | None]


class Peer(Protocol):
    """A broker that accepts entries (`here.Here`, `transport.RemotePeer`)."""

    async def join(self, entries: Sequence[JoinRequested]) -> Results: ...
    async def end(self, entries: Sequence[End]) -> Results: ...
    async def abort(self, abort: SendAbort) -> None:
        """Asks the coordinator there. Raises PenstockError."""

    async def find(self, transactions: frozenset[Transaction]) -> Answer:
        """What the coordinators there know of these. Raises PenstockError."""


class Peers(Protocol):
    """Calls to other brokers."""

    def peer(self, broker_id: BrokerId) -> Peer:
        """A broker; each call uses its address in the image at that moment."""


class TransactionLinks:
    """See the module. Created before the coordinators, so `serve` sets `own` and the finders."""

    def __init__(self, broker_id: BrokerId, view: ClusterView, peers: Peers, clock: Clock) -> None:
        self._broker_id = broker_id
        self._view = view
        self._peers = peers
        self._clock = clock
        self._tasks: asyncio.TaskGroup | None = None
        self._aborting = 0
        self._joins: dict[BrokerId, Lane[JoinRequested]] = {}
        self._ends: dict[BrokerId, Lane[End]] = {}
        self._own: Peer | None = None
        self._ids: Finder | None = None
        self._groups: Finder | None = None

    def serve(self, own: Peer, ids: Finder, groups: Finder) -> None:
        """`own`: this broker; `ids` and `groups` find transactional ids and groups."""
        self._own, self._ids, self._groups = own, ids, groups

    async def run(self) -> None:
        """Owns the running calls, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                while True:
                    await self._view.next_image()
                    self._forget_gone()
            finally:
                self._tasks = None

    def _forget_gone(self) -> None:
        """Removes idle lanes of brokers that are not in the image."""
        for lanes in (self._joins, self._ends):
            for broker_id in [b for b in lanes if b not in self._view.brokers]:
                if lanes[broker_id].idle:
                    del lanes[broker_id]

    # ------------------------------------------------------------ joins

    def join(self, entry: JoinRequested, heard: Heard) -> None:
        """`heard` is called once, later: None, or the reason why the participant must not write."""
        assert self._ids is not None, "serve comes first"
        try:
            leader = self._ids.leader(entry.transactional_id)
            if leader is None:
                raise ClusterError("its partition has no leader", ErrorCode.LEADER_NOT_AVAILABLE)
        except PenstockError as error:
            refusal = _as_heard(entry, error)
            self._clock.call_at(self._clock.now_s(), lambda: heard(refusal))
            return

        def answered(error: PenstockError | None) -> None:
            heard(None if error is None else _as_heard(entry, error))

        self._lane_of_joins(leader).put(entry, answered)

    def _lane_of_joins(self, broker_id: BrokerId) -> Lane[JoinRequested]:
        if broker_id not in self._joins:
            call = self._peer(broker_id).join
            self._joins[broker_id] = Lane(f"broker {broker_id}", call, self._clock, self._spawn)
        return self._joins[broker_id]

    # ------------------------------------------------------------ ends

    def send(self, end: End, stored: Callable[[], None]) -> None:
        """`coordinator.Ends`: one attempt at the participant's current leader."""
        leader = self._leader(end.participant)
        if leader is None:
            return  # the machine resends it, at once after an image
        if leader not in self._ends:
            call = self._peer(leader).end
            self._ends[leader] = Lane(f"broker {leader}", call, self._clock, self._spawn)

        def heard(error: PenstockError | None) -> None:
            if error is None:
                stored()
            elif not error.retriable:
                _events.warning(
                    "a participant does not accept the end of a transaction",
                    participant=str(end.participant),
                    transactional_id=end.transactional_id,
                    producer_epoch=end.producer_epoch,
                    reason=error,
                )

        self._ends[leader].put(end, heard)

    def _leader(self, participant: Participant) -> BrokerId | None:
        assert self._groups is not None, "serve comes first"
        if not isinstance(participant, GroupParticipant):
            return self._view.leader(ReplicaKey(participant.topic_id, participant.partition))
        try:
            return self._groups.leader(participant.group_id)
        except PenstockError:
            return None

    # ------------------------------------------------------------ aborts

    def abort(self, abort: SendAbort) -> None:
        """Best effort: the transaction's timeout does the same later, also beyond the limit."""
        if self._aborting < _ABORTS_MAX:
            self._aborting += 1
            self._spawn(self._abort(abort))

    async def _abort(self, abort: SendAbort) -> None:
        assert self._ids is not None, "serve comes first"
        try:
            leader = self._ids.leader(abort.transactional_id)
            if leader is not None:
                await self._peer(leader).abort(abort)
        except PenstockError as error:
            _events.info(
                "a transaction is left to its timeout",
                transactional_id=abort.transactional_id,
                reason=error,
            )
        finally:
            self._aborting -= 1

    # ------------------------------------------------------------ questions

    def coordinator_brokers(self) -> dict[int, int]:
        """The leader of each partition of the internal topic, negative = none; {} = no topic."""
        assert self._ids is not None, "serve comes first"
        return {
            partition: -1 if leader is None else leader
            for partition, leader in enumerate(self._ids.leaders())
        }

    async def find(self, transactions: frozenset[Transaction], broker_id: BrokerId) -> Answer:
        """What the coordinators of one broker know of these. Raises PenstockError."""
        return await self._peer(broker_id).find(transactions)

    # ------------------------------------------------------------ peers

    def _spawn(self, call: Coroutine[Any, Any, None]) -> None:
        """Starts a call; none while the broker stops: then callers get other errors."""
        if self._tasks is None:
            call.close()
        else:
            self._tasks.create_task(call, name="a call about transactions")

    def _peer(self, broker_id: BrokerId) -> Peer:
        if broker_id != self._broker_id:
            return self._peers.peer(broker_id)
        assert self._own is not None, "serve comes first"
        return self._own


class GroupLink:
    """The links as groups use them (`groups.transactions.TransactionLink`)."""

    def __init__(self, links: TransactionLinks) -> None:
        self._links = links

    def join(self, join: SendJoin, joined: Heard) -> None:
        """Makes the group a participant."""
        entry = JoinRequested(
            request_id=0,
            transactional_id=join.transactional_id,
            producer_id=join.producer_id,
            producer_epoch=join.producer_epoch,
            participant=GroupParticipant(join.group_id),
        )
        self._links.join(entry, joined)

    def abort(self, abort: SendAbort) -> None:
        """Aborts the transaction that a member left open."""
        self._links.abort(abort)


def _as_heard(entry: JoinRequested, error: PenstockError) -> PenstockError:
    if error.code in _FINAL:
        return error
    return ClusterError(
        f"the coordinator of transactional id {entry.transactional_id!r} cannot be reached now: "
        f"{error}; nothing was written, try again",
        ErrorCode.COORDINATOR_LOADING,
    )
