"""A client's process: it can die at any step or freeze; its requests in flight are unaffected.

later ─▶ a step, unless it has died meanwhile; once it is not frozen
ask ─▶ the transactions' coordinator, until there is an answer that is not retriable
deliver ─▶ a batch to the leader, perhaps twice; one answer, or None
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.core.batch import Batch
from penstock.core.replication.contract_leader import ProduceReply
from penstock.core.transactions import contract as tc
from penstock.core.types import Acks, LeaderEpoch, ReplicaKey, Sync
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_sim.transactions import CALL_TIMEOUT_MS, LATE_MS, ask_coordinator

if TYPE_CHECKING:
    from penstock_sim.world import World

_PRODUCE_TIMEOUT_MS: Final = 150


class Process:
    """`_life` counts its runs: steps and calls of an earlier run are dropped."""

    def __init__(self, world: World, name: str, node: int) -> None:
        self.world = world
        self.name = name
        self.node = node
        self._life = 0
        self._steps_left = 0
        """Steps until it dies by itself, while the world is chaotic; 0 = it does not."""
        self._frozen_until_ms = 0.0

    def freeze(self, ms: float) -> None:
        """Does nothing for this long, then continues as if nothing had happened."""
        self._frozen_until_ms = max(self._frozen_until_ms, self._now_ms() + ms)

    def _now_ms(self) -> float:
        return self.world.scheduler.now_us / 1000

    def _die(self) -> None:
        """Dies; requests in flight continue without it."""
        self.world.scheduler.note(self.name, "dies")
        self._life += 1

    def _later(self, delay_ms: float, callback: Callable[..., None], *args: object) -> None:
        self.world.scheduler.after(delay_ms, self._run, self._life, callback, args)

    def _run(self, life: int, callback: Callable[..., None], args: tuple[object, ...]) -> None:
        if life != self._life:
            return
        frozen_ms = self._frozen_until_ms - self._now_ms()
        if frozen_ms > 0:
            self.world.scheduler.after(frozen_ms, self._run, life, callback, args)
            return
        self._steps_left -= 1
        if self._steps_left == 0 and self.world.chaotic:
            self._die()
            return
        callback(*args)

    # ------------------------------------------------------------ calls

    def _ask(
        self,
        make: Callable[[int], tc.Request],
        answered: Callable[[Any], None],
        until_ms: float | None = None,
    ) -> None:
        """`answered` gets an answer, or a permanent error, or, after `until_ms` (None: never), the
        last error."""
        settled, life = False, self._life

        def heard(answer: Any) -> None:
            nonlocal settled
            if settled or life != self._life:
                return
            settled = True
            self.world.scheduler.note(self.name, "hears", answer)
            again = isinstance(answer, PenstockError) and answer.retriable
            if again and (until_ms is None or self._now_ms() < until_ms):
                pause_ms = self.world.scheduler.between(5, 50)
                self._later(pause_ms, self._ask, make, answered, until_ms)
            else:
                self._later(0.01, answered, answer)

        def late() -> None:
            nonlocal settled
            if settled:
                return
            settled = True
            if until_ms is None or self._now_ms() < until_ms:
                self._ask(make, answered, until_ms)
            else:
                answered(ClusterError("no answer", ErrorCode.REQUEST_TIMED_OUT))

        ask_coordinator(self.world, self.node, make, heard)
        self._later(CALL_TIMEOUT_MS, late)

    def _deliver(
        self,
        key: ReplicaKey,
        batch: Batch,
        transactional_id: str,
        answered: Callable[[ProduceReply | None], None],
    ) -> None:
        """Sends to the broker that seems to lead; `answered` gets its reply, or None after a
        timeout.

        Perhaps twice, the second time at any moment, to the leader at that time.
        """
        world, scheduler, life = self.world, self.world.scheduler, self._life
        broker, epoch = world.find_leader(key)
        settled = False
        request = {
            "batch": batch,
            "acks": Acks.ALL,
            "sync": Sync.OS,
            "timeout_ms": _PRODUCE_TIMEOUT_MS,
            "expected_epoch": epoch if scheduler.chance(0.5) else LeaderEpoch(0),
            "transactional_id": transactional_id,
        }

        def heard(reply: ProduceReply | None) -> None:
            nonlocal settled
            if not settled:
                settled = True
                answered(reply)

        def respond(reply: ProduceReply) -> None:
            if reply.error is None:
                world.checks.acknowledged(broker, broker.replicas[key], batch, reply)
            scheduler.after(world.net.delay_ms(), self._run, life, heard, (reply,))

        world.net.call(self.node, int(broker.id), broker.produce, key, request, respond)
        if scheduler.chance(0.08):
            copy = {**request, "expected_epoch": LeaderEpoch(0)}
            scheduler.after(scheduler.between(1, LATE_MS), self._deliver_copy, key, copy)
        self._later(_PRODUCE_TIMEOUT_MS * 1.2, heard, None)

    def _deliver_copy(self, key: ReplicaKey, request: dict[str, Any]) -> None:
        self.world.find_leader(key)[0].produce(key, request, lambda _reply: None)
