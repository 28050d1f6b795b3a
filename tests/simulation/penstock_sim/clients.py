"""Producers that retry and time out as real ones do, and consumers that check what they read.

An idempotent producer keeps up to five batches in flight; after any doubt it opens another
connection and sends everything unacknowledged again, in order, while older copies may still arrive.
What it may then conclude from an answer is checked: I7, I8, I9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.core.batch import Batch, BatchHeader
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract_leader import ProduceReply
from penstock.core.types import NO_PRODUCER, Acks, LeaderEpoch, Offset, ProducerId, ReplicaKey, Sync
from penstock.errors import TRAITS, Applied, ErrorCode
from penstock_sim.batches import sealed
from penstock_sim.compaction import some_keys, some_values
from penstock_sim.producer_ids import NOBODY, Identifying, Identity
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

_TIMEOUT_MS: Final = 200
IDENTIFIED_EVERY: Final = 8
"""In one of this many seeds, idempotent producers request their ids from brokers (InitProducer)."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """One batch of a producer, from creation to its outcome."""

    batch: Batch
    acked: bool = False
    abandoned: bool = False
    doubtful: bool = False
    attempts: int = 0
    oldest: bool = False
    """When it was last sent, everything before it had been acknowledged."""
    copied: bool = False
    """The network delivers a copy of it at any moment."""


@dataclass(slots=True)
class Plan:
    """The kind of a producer."""

    idempotent: bool
    acks: Acks
    sync: Sync
    retries: bool
    pause_ms: float


class Producer:
    """Writes to one partition."""

    def __init__(self, world: World, number: int, key: ReplicaKey, plan: Plan) -> None:
        self.world = world
        self.name = f"p{number}"
        self.key = key
        self.plan = plan
        self.sent: list[Outgoing] = []
        self.restarted = False
        self._number = number
        self._asks = plan.idempotent and world.seed % IDENTIFIED_EVERY == 6
        self._identifying = False
        self._producer_id = ProducerId(number * 1000) if plan.idempotent else NO_PRODUCER
        self._epoch = 0
        self._sequence = 0
        self._queue: list[Outgoing] = []
        self._connection = 0
        self._reconnecting = False
        self._leader_epoch = 0
        self._last_arrival_ms = 0.0
        world.scheduler.after(world.scheduler.between(0, 60), self._produce)
        if self._asks:
            self._identify(NOBODY)

    @property
    def idle(self) -> bool:
        return not self._queue

    # ------------------------------------------------------------ sending

    def _produce(self) -> None:
        scheduler = self.world.scheduler
        if not self.world.chaotic:
            return
        limit = 5 if self.plan.idempotent else 3
        if len(self._queue) < limit and not self._identifying:
            outgoing = self._new_outgoing()
            self.sent.append(outgoing)
            self._queue.append(outgoing)
            if not self._reconnecting:
                self._send(outgoing, self._connection)
        likely = 0.02 if self._asks else 0.004
        if self.plan.idempotent and not self._identifying and scheduler.chance(likely):
            self._restart()
        scheduler.after(scheduler.between(0.2, 2) * self.plan.pause_ms, self._produce)

    def _new_outgoing(self) -> Outgoing:
        return Outgoing(self._new_batch())

    def _new_batch(self) -> Batch:
        count = self.world.scheduler.random.randrange(1, 6)
        text = f"{self.name}:{len(self.sent)}"
        if self.world.has_real_records:
            return self._real_batch(text, count)
        payload = text.encode()
        header = BatchHeader(
            count,
            0,
            0,
            len(payload),
            0,
            producer_id=self._producer_id,
            producer_epoch=self._epoch if self.plan.idempotent else -1,
            base_sequence=self._sequence if self.plan.idempotent else -1,
        )
        self._sequence += count
        return sealed(header, payload)

    def _real_batch(self, text: str, count: int) -> Batch:
        """A batch with real records: members of groups decode what they read."""
        columns = encode_columns(
            some_values(self.world, [f"{text}:{index}" for index in range(count)]),
            some_keys(self.world, count),
            timestamps_ms=self.world.scheduler.wall_ms,
        )
        sequence, self._sequence = self._sequence, self._sequence + count
        return build_batch(
            columns,
            producer_id=self._producer_id,
            producer_epoch=self._epoch if self.plan.idempotent else -1,
            base_sequence=sequence if self.plan.idempotent else -1,
        )

    def _restart(self) -> None:
        """Another instance takes over the producer id: older requests must be fenced."""
        self.restarted = True
        if self._asks:
            self._identify((self._producer_id, self._epoch))
        self._epoch += 1
        self._forget_queue()

    def _identify(self, known: Identity) -> None:
        """Asks for an id, or for the next epoch of its id; sends nothing until it has one."""
        self._identifying = True
        Identifying(self.world, self.name, known, self._identified)

    def _identified(self, identity: Identity) -> None:
        self._identifying = False
        self._producer_id, self._epoch = identity

    def _forget_queue(self) -> None:
        self._sequence = 0
        self._connection += 1
        self._reconnecting = False
        for outgoing in self._queue:
            outgoing.abandoned = True
            outgoing.doubtful = True
        self._queue.clear()

    def _send(self, outgoing: Outgoing, connection: int) -> None:
        world, scheduler = self.world, self.world.scheduler
        outgoing.attempts += 1
        outgoing.oldest = outgoing is self._queue[0]
        broker, epoch = world.find_leader(self.key)
        if self.plan.idempotent:
            # A deposed leader does not know what this producer had acknowledged since: it must not
            # check the producer's sequences.
            epoch = LeaderEpoch(max(epoch, self._leader_epoch))
        elif scheduler.chance(0.5):
            epoch = LeaderEpoch(0)
        request = {
            "batch": outgoing.batch,
            "acks": self.plan.acks,
            "sync": self.plan.sync,
            "timeout_ms": _TIMEOUT_MS,
            "expected_epoch": epoch,
        }
        now = scheduler.now_us / 1000
        self._last_arrival_ms = max(self._last_arrival_ms + 0.001, now + world.net.delay_ms())
        scheduler.after(
            self._last_arrival_ms - now, self._arrive, broker, request, outgoing, connection
        )
        scheduler.after(_TIMEOUT_MS * 1.5, self._timed_out, outgoing, outgoing.attempts, connection)
        if scheduler.chance(0.02):
            # The network delivers it twice, the second time at any moment.
            outgoing.copied = True
            scheduler.after(scheduler.between(1, 600), self._arrive, broker, request, outgoing, -1)

    def _arrive(
        self, broker: SimBroker, request: dict[str, Any], outgoing: Outgoing, connection: int
    ) -> None:
        if connection == -1 and not self.plan.idempotent:
            return
        incarnation, replica = broker.incarnation, broker.replicas.get(self.key)

        def respond(reply: ProduceReply) -> None:
            if reply.error is None:
                if replica is None:
                    raise RuleError(f"I21: {broker.name} takes records of {self.key}, not its own")
                self.world.checks.acknowledged(broker, replica, outgoing.batch, reply)
            if connection != -1 and broker.incarnation == incarnation:
                delay_ms = self.world.net.delay_ms()
                self.world.scheduler.after(delay_ms, self._answered, outgoing, connection, reply)

        broker.produce(self.key, request, respond)

    # ------------------------------------------------------------ answers

    def _answered(self, outgoing: Outgoing, connection: int, reply: ProduceReply) -> None:
        if outgoing.acked or outgoing.abandoned:
            return
        if reply.error is None:
            self._leader_epoch = max(self._leader_epoch, reply.leader_epoch)
            outgoing.acked = True
            self._queue.remove(outgoing)
            return
        code = reply.error.code
        self.world.scheduler.note(self.name, "error", outgoing.batch.payload, code.name)
        if TRAITS[code].applied is not Applied.NO:
            outgoing.doubtful = True
        if code is ErrorCode.PRODUCER_FENCED:
            raise RuleError(f"I10: {self.name} epoch {self._epoch} is fenced: {reply.error}")
        if not TRAITS[code].retriable and code is not ErrorCode.OUT_OF_ORDER_SEQUENCE:
            raise RuleError(f"I24: {self.name} is refused for good: {reply.error}")
        if connection != self._connection:
            return
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE and outgoing.oldest:
            self._out_of_order(outgoing, reply)
        elif self.plan.retries:
            self._reconnect()
        else:
            outgoing.abandoned = True
            self._queue.remove(outgoing)

    def _out_of_order(self, outgoing: Outgoing, reply: ProduceReply) -> None:
        """The oldest unacknowledged batch does not continue the sequence: something was lost."""
        promised = self.plan.acks is Acks.ALL and self.key not in self.world.checks.lossy
        if promised and self.key not in self.world.resets:
            raise RuleError(f"I9: {self.name} sent {outgoing.batch.header} in order: {reply.error}")
        self.restarted = True
        if self._asks:
            self._identify((self._producer_id, self._epoch))
        self._producer_id = ProducerId(self._producer_id + 1)
        self._epoch = 0
        self._forget_queue()

    def _timed_out(self, outgoing: Outgoing, attempt: int, connection: int) -> None:
        if outgoing.acked or outgoing.abandoned or outgoing.attempts != attempt:
            return
        outgoing.doubtful = True
        if not self.plan.retries:
            outgoing.abandoned = True
            self._queue.remove(outgoing)
        elif connection == self._connection:
            self._reconnect()

    def _reconnect(self) -> None:
        """Sends everything unacknowledged again, in order, on a new connection."""
        self._connection += 1
        self._reconnecting = True
        delay_ms = self.world.scheduler.between(5, 50)
        self.world.scheduler.after(delay_ms, self._resend, self._connection)

    def _resend(self, connection: int) -> None:
        if connection == self._connection:
            self._reconnecting = False
            for outgoing in self._queue:
                outgoing.doubtful = True
                self._send(outgoing, connection)


@dataclass(slots=True)
class Consumer:
    """Reads one partition from its leader, and never believes a deposed one."""

    world: World
    name: str
    key: ReplicaKey
    position: Offset = Offset(0)
    epoch: int = 0
    high_watermark: int = 0
    read: list[Batch] = field(default_factory=list)

    def start(self) -> None:
        self.world.scheduler.after(self.world.scheduler.between(5, 40), self._poll)

    def _poll(self) -> None:
        broker, _ = self.world.find_leader(self.key)
        replica = broker.replicas.get(self.key) if broker.up else None
        if replica is not None:
            marks = replica.machine.marks
            deposed = self.world.checks.unclean.is_deposed(self.key, marks)
            if marks.is_leader and marks.leader_epoch >= self.epoch and not deposed:
                self._fetch(broker, replica, marks)
        self.start()

    def _fetch(self, broker: SimBroker, replica: Any, marks: Any) -> None:
        self.epoch = marks.leader_epoch
        if marks.high_watermark >= marks.epoch_start_offset:
            if marks.high_watermark < self.high_watermark:
                raise RuleError(
                    f"I2: {self.name} saw high watermark {self.high_watermark}, now {marks}"
                )
            self.high_watermark = marks.high_watermark
        self.position = max(self.position, marks.log_start_offset)
        if self.position < marks.high_watermark:
            batches = broker.read(replica, self.position, marks.high_watermark, 8)
            self.world.checks.consumed(self.key, batches, f"{broker.name} to {self.name}")
            if batches:
                self.position = batches[-1].next_offset

    def rewind(self, end: int) -> None:
        """A loss beyond the promise: what it saw no longer counts."""
        self.position = Offset(min(self.position, end))
        self.high_watermark = 0
