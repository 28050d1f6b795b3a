"""A topic's max.message.bytes goes up and down while producers send small and large batches.

    batch ─▶ leader: appended ─▶ acknowledged      a retry under a lower limit ─▶ acknowledged, too
              └─ larger than the limit of now ─▶ refused: split in two, or given up

A refusal is final, and proves that nothing was appended by the request (I8). What was accepted is
copied, compacted and read whatever the limit is by then. Producers are of their own, in half of the
histories with changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract_leader import ProduceRequested
from penstock.core.types import NO_PRODUCER, Acks, ReplicaKey, Sync
from penstock.errors import ErrorCode
from penstock_sim.clients import Outgoing, Plan, Producer
from penstock_sim.compaction import some_keys, some_values
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from penstock.core.batch import Batch
    from penstock.core.replication.contract import Ready
    from penstock.core.replication.contract_leader import ProduceReply
    from penstock_broker.replication.replica import Replica
    from penstock_sim.world import World

LIMIT: Final = "max.message.bytes"
_LIMITS: Final = ("1024", "1024", "1800", "4000")
"""Batches of other producers, and markers, are always smaller than the least that can be set."""
_FIRST_PRODUCER: Final = 800
_PADS: Final = (0, 40, 500, 900, 1_500, 3_000)
_IN: Final = 0.5
_CHANGED: Final = 0.6
_SPLIT: Final = 0.6
_DISK: Final = 0.3


@dataclass(slots=True, eq=False)
class Sized(Outgoing):
    """A batch that can be split. `sequence`: of its first record."""

    values: Sequence[bytes | None] = ()
    keys: Sequence[bytes | None] | None = None
    sequence: int = 0


class SizedProducer(Producer):
    """Its batches may be larger than the topic allows."""

    def __init__(
        self, world: World, number: int, key: ReplicaKey, plan: Plan, limits: Limits
    ) -> None:
        super().__init__(world, number, key, plan)
        self._limits = limits

    def _new_outgoing(self) -> Outgoing:
        chance, world = self._limits.random, self.world
        texts = [f"{self.name}:{len(self.sent)}:{at}" for at in range(chance.choice((1, 1, 2, 4)))]
        values = [
            None if value is None else value + b":" + b"x" * chance.choice(_PADS)
            for value in some_values(world, texts)
        ]
        sequence, self._sequence = self._sequence, self._sequence + len(values)
        return self._sized(values, some_keys(world, len(values)), sequence)

    def _sized(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, sequence: int
    ) -> Sized:
        """One batch of these."""
        wall_ms, plan = self.world.scheduler.wall_ms, self.plan
        batch = build_batch(
            encode_columns(values, keys, timestamps_ms=wall_ms),
            producer_id=self._producer_id,
            producer_epoch=self._epoch if plan.idempotent else -1,
            base_sequence=sequence if plan.idempotent else -1,
        )
        return Sized(batch, values=values, keys=keys, sequence=sequence)

    def _answered(self, outgoing: Outgoing, connection: int, reply: ProduceReply) -> None:
        code = None if reply.error is None else reply.error.code
        is_over = outgoing.acked or outgoing.abandoned
        if code is not ErrorCode.RECORD_TOO_LARGE or is_over:
            super()._answered(outgoing, connection, reply)
        elif connection == self._connection:
            self._too_large(outgoing)

    def _resend(self, connection: int) -> None:
        fresh = [one for one in self._queue if not one.attempts and not one.doubtful]
        super()._resend(connection)
        for one in fresh:
            one.doubtful = False

    def _too_large(self, outgoing: Outgoing) -> None:
        """As `Lane`: whether it is split depends on whether an attempt may have been stored."""
        assert isinstance(outgoing, Sized)
        outgoing.doubtful = outgoing.doubtful or outgoing.copied
        outgoing.abandoned = True
        self._limits.refused += 1
        self.world.scheduler.note(self.name, "is refused for the size", outgoing.sequence)
        count, at = len(outgoing.values), self._queue.index(outgoing)
        self._queue.remove(outgoing)
        split = count > 1 and not outgoing.doubtful and self._limits.random.random() < _SPLIT
        if split and outgoing.values[count // 2] is not None:
            for part in self._halves(outgoing):
                self.sent.append(part)
                self._queue.insert(at, part)
                at += 1
            self._limits.split += 1
            self._reconnect()
        elif self.plan.idempotent:  # a gap is left: the next epoch begins
            self._restart()

    def _halves(self, outgoing: Sized) -> tuple[Sized, Sized]:
        half, keys = len(outgoing.values) // 2, outgoing.keys
        first, second = (None, None) if keys is None else (keys[:half], keys[half:])
        return (
            self._sized(outgoing.values[:half], first, outgoing.sequence),
            self._sized(outgoing.values[half:], second, outgoing.sequence + half),
        )


class Limits:
    """Of one history with changes."""

    def __init__(self, world: World) -> None:
        self.random: Random = world.scheduler.generator("limits")
        self.refused = 0
        self.split = 0
        self.larger = 0
        """So many batches that were accepted are larger than the least limit."""
        self._world = world
        self.is_used = self.random.random() < _IN

    def draw(self) -> dict[str, str | None]:
        """What a request is to change of it."""
        if not self.is_used or self.random.random() >= _CHANGED:
            return {}
        return {LIMIT: None if self.random.random() < 0.3 else self.random.choice(_LIMITS)}

    def start(self) -> None:
        """The producers."""
        chance, world = self.random, self._world
        for number, key in enumerate(world.keys if self.is_used else (), _FIRST_PRODUCER):
            acks = chance.choice((Acks.ALL, Acks.ALL, Acks.ALL, Acks.LEADER))
            plan = Plan(
                idempotent=chance.random() < 0.8,
                acks=acks,
                sync=Sync.DISK if chance.random() < _DISK else Sync.OS,
                retries=True,
                pause_ms=chance.choice((8, 20, 40)),
            )
            world.producers.append(SizedProducer(world, number, key, plan, self))

    # ------------------------------------------------------------ checks

    def handled(self, replica: Replica, event: ProduceRequested, ready: Ready) -> None:
        """A leader has been asked to append."""
        size, limit = event.batch.size_bytes, replica.config.max_message_bytes
        if not ready.append:
            return
        if event.refusal is not None or size > limit:
            raise RuleError(
                f"I23: {replica.key} takes {event.batch.header} of {size} bytes, the limit is "
                f"{limit}: {event.refusal}"
            )
        self.larger += size > int(_LIMITS[0])

    def answered(self, replica: Replica, batch: Batch, reply: Any) -> None:
        """A refusal of a leader that knows all that is committed proves that the batch is not."""
        if reply.error is None or reply.error.code is not ErrorCode.RECORD_TOO_LARGE:
            return
        checks, key, marks = self._world.checks, replica.key, replica.machine.marks
        if batch.header.producer_id == NO_PRODUCER or self._world.is_deleted(key):
            return
        is_newest = marks.leader_epoch >= checks.stored[key].state.leader_epoch
        if marks.is_leader and is_newest and batch.payload in checks.canon(key).payloads:
            raise RuleError(f"I8: {batch.header} of {key} is committed, and refused: {reply.error}")
