"""The client's transactional producer in virtual time: carries out its machine and its lanes.

    begin ─▶ send, send … ─▶ store offsets ─▶ commit or abort ─▶ `done(error or None)`

The production `Transactions` and `Lane` decide; this is the client's `transaction/manager.py` and
`producer/sender.py` with callbacks instead of awaits. `Written` records what a transaction wrote
and which outcome was reported; `transaction_checks` checks it, and readers compare what they see
with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.client.producer.lane import Entry, Lane
from penstock.client.transaction.contract import (
    Abort,
    BatchLost,
    Begin,
    Commit,
    End,
    EndAnswered,
    EndFailed,
    Event,
    Flushed,
    Identified,
    OffsetsLost,
    Ready,
)
from penstock.client.transaction.machine import State, Transactions
from penstock.core.batch import BatchFlags
from penstock.core.columns import Columns
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract_leader import ProduceReply
from penstock.core.transactions import contract as tc
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    ProducerId,
    ProducerIdentity,
    ReplicaKey,
)
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_sim.process import Process
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock_sim.world import World

Done = Callable[[PenstockError | None], None]
Who = tuple[ProducerId, int]
DELIVERY_MS: Final = 500
_END_MS: Final = 400
_TICK_MS: Final = 40
_BACKOFF_MS: Final = 5
_BACKOFF_MAX_MS: Final = 60
_ELSEWHERE: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTION_ABORTED})


@dataclass(slots=True, eq=False)
class Written:
    """One transaction. `lines`: the values of its records, in order; `offsets`: of its group.

    `name` begins each of its values. `told`: the outcome that its producer got, None: none.
    """

    name: str
    who: Who
    lines: dict[ReplicaKey, list[bytes]] = field(default_factory=dict)
    asked: bool | None = None
    told: bool | None = None


@dataclass(slots=True, eq=False)
class Outgoing:
    """Records that are sent as one batch."""

    columns: Columns
    deadline_ms: int


class SimProducer(Process):
    """One process's producer; `open` creates another producer object."""

    def __init__(
        self, world: World, name: str, node: int, transactional_id: str, timeout_ms: int
    ) -> None:
        super().__init__(world, name, node)
        self.transactional_id = transactional_id
        self.instance = ""
        self._timeout_ms = timeout_ms
        self._in_flight = world.scheduler.random.choice((1, 2, 5))
        self._objects = self._inits = self._count = 0
        self.open()

    def open(self) -> None:
        """Creates another object; of the last one only requests in flight remain."""
        self._objects += 1
        self._life += 1
        self.machine = Transactions(self.transactional_id, _BACKOFF_MS, _BACKOFF_MAX_MS)
        self.written: Written | None = None
        self._lanes: dict[ReplicaKey, Lane[Outgoing]] = {}
        self._waiting: dict[ReplicaKey, deque[Outgoing]] = {}
        self._flushing: Callable[[int], None] | None = None
        self._unstored = 0

    # ------------------------------------------------------------ the user's calls

    def begin(self, done: Done) -> None:
        """Opens a transaction."""

        def again(error: PenstockError | None) -> None:
            if error is not None or self.machine.state is State.OPEN:
                done(error)
            else:
                self.begin(done)

        self._obey(Begin(self._ms() + _END_MS), again)

    def send(self, key: ReplicaKey, records: list[tuple[bytes, bytes]]) -> None:
        """Sends pairs of key and value as one batch; the transaction tracks its outcome."""
        if self.machine.refusal is not None:
            return  # the transaction has failed meanwhile, and will be aborted
        written = self.written
        assert written is not None
        written.lines.setdefault(key, []).extend(value for _, value in records)
        if key not in self._lanes:
            self._lanes[key] = Lane(
                self._in_flight,
                True,
                _BACKOFF_MS,
                _BACKOFF_MAX_MS,
                transactional=True,
                identity=self.machine.identity,
            )
            self._waiting[key] = deque()
        columns = encode_columns(
            [value for _, value in records],
            [key for key, _ in records],
            timestamps_ms=self.world.scheduler.wall_ms,
        )
        self._waiting[key].append(Outgoing(columns, self._ms() + DELIVERY_MS))
        self._pump(key)

    def is_held_up(self, key: ReplicaKey) -> bool:
        """Another batch would have to wait: its lane has as many on their way as it may have."""
        return bool(self._waiting.get(key))

    def store(self, store: Callable[[Who, Done], None]) -> None:
        """Has a group store offsets for the transaction: `store` reports the result."""
        identity = self.machine.identity
        if identity is None or self.machine.refusal is not None:
            return
        self._unstored += 1
        life = self._life

        def stored(error: PenstockError | None) -> None:
            if life != self._life:
                return
            self._unstored -= 1
            if error is not None and self.machine.identity == identity and self.machine.may_abort:
                self._handle(OffsetsLost(error))
            self._settled()

        store((identity.producer_id, identity.epoch), stored)

    def commit(self, done: Done) -> None:
        """`done` gets None: it is committed."""
        wait_visible = self.world.scheduler.chance(0.2)
        self._obey(Commit(self._ms() + _END_MS, wait_visible), done)

    def abort(self, done: Done) -> None:
        """`done` gets None: it is aborted."""
        self._obey(Abort(self._ms() + _END_MS), done)

    def resolve(self, done: Done) -> None:
        """Asks again, or gives up, until the machine is READY or FENCED."""

        def again(error: PenstockError | None) -> None:
            if self.machine.state in (State.READY, State.FENCED):
                done(error)
            else:
                self._later(1, self.resolve, done)

        written = self.written
        if self.machine.state in (State.READY, State.FENCED):
            done(self.machine.refusal if self.machine.state is State.FENCED else None)
        elif self.machine.may_abort or written is None or not written.asked:
            self.abort(again)
        else:
            self.commit(again)

    # ------------------------------------------------------------ the machine

    def _ms(self) -> int:
        return int(self._now_ms())

    def _handle(self, event: Event) -> Ready:
        ready = self.machine.handle(event, self._ms())
        if ready.discard is not None:
            for lane in self._lanes.values():
                lane.discard()
            for waiting in self._waiting.values():
                waiting.clear()
        if ready.adopt is not None:
            for lane in self._lanes.values():
                lane.adopt(ready.adopt)
            self._count += 1
            name = f"{self.name}.{self._objects}.{self._count}"
            self.written = Written(name, (ready.adopt.producer_id, ready.adopt.epoch))
            self.world.ledger.begun(self.written)
            self.world.scheduler.note(self.name, "begins", name, self.written.who)
            self._later(_TICK_MS, self._tick, self._count)
        return ready

    def _obey(self, event: Event, done: Done) -> None:
        try:
            ready = self._handle(event)
        except PenstockError as refusal:
            done(refusal)
        else:
            self._follow(ready, done)

    def _follow(self, ready: Ready, done: Done) -> None:
        """As `TransactionManager._obey`."""
        if ready.identify:
            self._init(done)
        elif ready.flush:
            self._flush(lambda unsettled: self._follow(self._handle(Flushed(unsettled)), done))
        elif ready.end is not None:
            pause_ms = max(0.01, ready.end.not_before_ms - self._now_ms())
            self._later(pause_ms, self._end, ready.end, done)
        else:
            done(ready.error)

    def _init(self, done: Done) -> None:
        self._inits += 1
        self.instance = instance = f"{self.name}.{self._objects}.{self._inits}"

        def initialized(answer: tc.ProducerInitialized | PenstockError) -> None:
            if isinstance(answer, PenstockError):
                self._judge(answer)
                done(answer)
                return
            self._granted(answer.producer_id, answer.producer_epoch)
            identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            self._follow(self._handle(Identified(identity)), done)

        self._ask(
            lambda number: tc.InitRequested(
                request_id=number,
                transactional_id=self.transactional_id,
                instance_id=instance,
                fresh_producer_id=ProducerId(TRANSACTIONAL_PRODUCER_BIT + number),
                timeout_ms=self._timeout_ms,
                client_id=self.name,
            ),
            initialized,
        )

    def _granted(self, producer_id: ProducerId, epoch: int) -> None:
        owner = f"{self.name}.{self._objects}"
        self.world.transaction_checks.granted((producer_id, epoch), owner)

    def _judge(self, error: PenstockError) -> None:
        """Checks the errors for which the coordinator may refuse a producer."""
        if error.retriable or self.world.transaction_checks.void:
            return
        if error.code not in _ELSEWHERE:
            raise RuleError(f"I10: {self.name} hears {error.code.name}: {error}")
        if error.code is ErrorCode.PRODUCER_FENCED:
            self.world.transaction_checks.fenced(self)

    # ------------------------------------------------------------ the end

    def _flush(self, flushed: Callable[[int], None]) -> None:
        self._flushing = flushed
        self._settled()
        if self._flushing is flushed:
            self._later(_END_MS, self._flush_late, flushed)

    def _flush_late(self, flushed: Callable[[int], None]) -> None:
        if self._flushing is flushed:
            self._flushing = None
            flushed(self._unsettled())

    def _unsettled(self) -> int:
        waiting = sum(len(waiting) for waiting in self._waiting.values())
        sent = sum(not entry.ghost for lane in self._lanes.values() for entry in lane.window)
        return waiting + sent + self._unstored

    def _settled(self) -> None:
        """A batch is settled: checks whether all are, for `_flush`."""
        if self._flushing is not None and not self._unsettled():
            flushed, self._flushing = self._flushing, None
            flushed(0)

    def _end(self, end: End, done: Done) -> None:
        written, identity = self.written, end.identity
        assert written is not None
        written.asked = end.commit

        def answered(answer: tc.Ended | PenstockError) -> None:
            if isinstance(answer, PenstockError):
                self._judge(answer)
                self._follow(self._handle(EndFailed(answer)), done)
                return
            written.told = end.commit if answer.error is None else False
            self.world.transaction_checks.told(self, written, answer)
            self._granted(answer.producer_id, answer.producer_epoch)
            following = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            event = EndAnswered(following, answer.error, answer.visible)
            self._follow(self._handle(event), done)

        self._ask(
            lambda number: tc.EndRequested(
                request_id=number,
                transactional_id=self.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                commit=end.commit,
                wait_visible_ms=min(end.wait_visible_ms, 60),
            ),
            answered,
            until_ms=self._now_ms(),
        )

    # ------------------------------------------------------------ batches

    def _pump(self, key: ReplicaKey) -> None:
        """Sends what may be sent now, as `Sender._next_batch`; runs again when more may be sent."""
        lane, waiting, now_ms = self._lanes[key], self._waiting[key], self._ms()
        while True:
            entry = lane.resend(now_ms)
            if entry is None and waiting and lane.can_take(now_ms):
                outgoing = waiting.popleft()
                count = outgoing.columns.record_count
                entry = lane.take(outgoing, count, outgoing.deadline_ms)
            if entry is None:
                break
            self._send(key, lane, entry)
        if not lane.outstanding and (lane.window or waiting):
            self._later(max(1, lane.retry_at_ms - now_ms), self._pump, key)

    def _send(self, key: ReplicaKey, lane: Lane[Outgoing], entry: Entry[Outgoing]) -> None:
        assert entry.identity is not None
        batch = build_batch(
            entry.batch.columns,
            producer_id=entry.identity.producer_id,
            producer_epoch=entry.identity.epoch,
            base_sequence=entry.sequence,
            flags=BatchFlags.TRANSACTIONAL,
        )
        answered = partial(self._answered, key, lane, entry)
        self._deliver(key, batch, self.transactional_id, answered)

    def _answered(
        self,
        key: ReplicaKey,
        lane: Lane[Outgoing],
        entry: Entry[Outgoing],
        reply: ProduceReply | None,
    ) -> None:
        error: Any = ClusterError("no answer", ErrorCode.REQUEST_TIMED_OUT)
        if reply is not None:
            error = reply.error
        if error is None:
            lane.succeeded(entry)
        else:
            ghost = entry.ghost
            if lane.failed(entry, error, self._ms()) and not ghost:
                self._handle(BatchLost(error))
        self._settled()
        self._pump(key)

    def _tick(self, number: int) -> None:
        """Fails what was not delivered in time."""
        if number != self._count or not self._unsettled():
            if number == self._count and self.machine.state is State.OPEN:
                self._later(_TICK_MS, self._tick, number)
            return
        late = ClusterError("not delivered in time", ErrorCode.DELIVERY_TIMED_OUT)
        for key, lane in self._lanes.items():
            waiting = self._waiting[key]
            expired = len(lane.expire(self._ms()))
            while waiting and waiting[0].deadline_ms <= self._ms():
                waiting.popleft()
                expired += 1
            for _ in range(expired):
                self._handle(BatchLost(late))
        self._settled()
        self._later(_TICK_MS, self._tick, number)
