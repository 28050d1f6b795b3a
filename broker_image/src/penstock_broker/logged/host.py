"""One machine's host: loads the log, appends what the machine decides, then sends its answers.

    replica led, high watermark at the log's end ─▶ read all records ─▶ machine starts
    event ─▶ Ready ─┬─ records ─▶ [ unsent ] ─ one append at a time ─▶ log (acks=ALL)
                    └─ outputs ─▶ [ waiting ] ─ high watermark has passed ─▶ `tell`

While one append is in flight, the next one grows: under load, batches get larger, not more. If an
append fails, the leadership ends or the machine raises, this object ends: all waiting requests get
a retriable error (the coordinator has moved, or is loading), and the leader builds a new host from
the log (I16). After each await here, the state is checked again: `closed` says that this object has
ended.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, Generic, TypeVar

from penstock.core.batch import Batch
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch, decode_batch
from penstock.core.types import LeaderEpoch, Offset
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.logged.log import PartitionLog
from penstock_broker.logged.machine import Machine, Ready, Records
from penstock_broker.observability import EventLog
from penstock_broker.serving.edge import waiting_for_others

APPEND_BYTES_MAX: Final = 4 * 1024 * 1024
"""A target, a quarter of what the topic allows: the records of one event stay together."""
_PAUSE_PER_READY_S: Final = 0.0025
_PAUSE_MAX_S: Final = 0.01
_ANSWER_TIMEOUT_MS: Final = 30_000

EventT = TypeVar("EventT")
ReadyT = TypeVar("ReadyT", bound=Ready)
AnswerT = TypeVar("AnswerT")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Asked(Generic[AnswerT]):
    """A request whose caller waits for its answer, until `until_ms` of the machines' clock."""

    answered: asyncio.Future[AnswerT | PenstockError]
    until_ms: int
    patient: bool

    def answer(self, answer: AnswerT | PenstockError) -> None:
        """The first answer counts; the caller may no longer be waiting."""
        if not self.answered.done():
            self.answered.set_result(answer)


class MachineHost(ABC, Generic[EventT, ReadyT, AnswerT]):
    """A machine on one partition's log, for one leadership of it.

    Each kind of machine adds how it starts (`begin`), where its outputs go (`tell`) and who else is
    told of the end (`ended`).
    """

    def __init__(
        self,
        log: PartitionLog,
        clock: Clock,
        machine: Machine[EventT, ReadyT],
        tick: EventT,
        events: EventLog,
    ) -> None:
        """`tick`: the machine's event for "time has passed"."""
        self.log = log
        self.leader_epoch: LeaderEpoch = log.marks.leader_epoch
        self.loaded = False
        self.closed: PenstockError | None = None
        self.append_bytes = APPEND_BYTES_MAX
        self._clock = clock
        self._hosted = machine
        self._tick = tick
        self._events = events
        self._requests: dict[int, _Asked[AnswerT]] = {}
        """In the order in which they arrived."""
        self._ids = count(1)
        self._moved = asyncio.Event()
        self._unsent: deque[Records] = deque()
        self._waiting: deque[tuple[int, ReadyT]] = deque()
        # Readys with records: returned by the machine, appended, committed.
        self._handed = self._sent = self._durable = 0
        self._flushing = False
        self._next_flush_s = 0.0

    @property
    def partition(self) -> int:
        return self.log.partition

    @property
    def broker_id(self) -> int:
        return self.log.broker_id

    def __str__(self) -> str:
        return f"{self.log} in epoch {self.leader_epoch}"

    # ------------------------------------------------------------ what a kind of machine adds

    @abstractmethod
    def begin(self, now_ms: int) -> ReadyT:
        """Everything is loaded: starts the machine. Raises ClusterError(DATA_CORRUPTED)."""

    @abstractmethod
    def decided(self, ready: ReadyT) -> None:
        """The machine took a step, which may not be committed yet. For metrics."""

    @abstractmethod
    def tell(self, ready: ReadyT) -> None:
        """Sends the outputs of a step: everything that they depend on is committed."""

    @abstractmethod
    def ended(self, error: PenstockError) -> None:
        """The host has ended: gives `error` to those who wait in other ways than `ask`."""

    # ------------------------------------------------------------ loading

    async def load(self) -> None:
        """Reads the log and starts the machine; raises PenstockError; returns at once when
        closed."""
        started_s = self._clock.now_s()
        end = self.log.marks.log_end_offset
        while self.closed is None and self.log.marks.high_watermark < end:
            self._moved.clear()
            await self._moved.wait()
        records = await self._read(end)
        if self.closed is not None:
            return
        self._sound("start", self._start)
        self._events.info(
            "coordinator loaded",
            partition=str(self),
            records=records,
            seconds=round(self._clock.now_s() - started_s, 3),
        )

    def _start(self) -> None:
        ready = self.begin(self._now_ms())
        self.loaded = True
        self._obey(ready)

    async def _read(self, end: Offset) -> int:
        """Feeds the machine every record below `end`."""
        records = 0
        offset = self.log.marks.log_start_offset
        while offset < end and self.closed is None:
            batches = await self.log.read(offset, end)
            if not batches:
                break  # compaction has removed the rest
            for batch in batches:
                records += self._sound("load", partial(self._feed, batch))
                await self._clock.sleep(0)  # a long log must not block everything else
            offset = batches[-1].next_offset
        return records

    def _feed(self, batch: Batch) -> int:
        columns = decode_batch(batch)
        for key, value in zip(columns.keys(), columns.values(), strict=True):
            self._hosted.load(key, value)
        return columns.record_count

    def _sound(self, what: str, step: Callable[[], _T]) -> _T:
        """A step before the machine serves. A defect in it is one of the log or of the code."""
        try:
            return step()
        except PenstockError:
            raise
        except Exception as error:
            self._events.defect(f"coordinator did not {what}", error, partition=str(self))
            raise ClusterError(
                f"{self} holds a state that cannot be: {error}", ErrorCode.DATA_CORRUPTED
            ) from error

    def moved(self) -> None:
        """The replica's marks changed."""
        self._moved.set()

    # ------------------------------------------------------------ events

    def handle(self, event: EventT) -> None:
        """Lets the machine decide and carries out its decision. Raises what `check` raises."""
        self.check()
        try:
            ready = self._hosted.handle(event, self._now_ms())
            if ready.stopped is not None:
                self.tell(ready)  # answers only this event's sender; `ended` is for all others
                self._stop("coordinator stopped", ready.stopped.__cause__ or ready.stopped)
            elif ready.records or ready.outputs or ready.decisions:  # most heartbeats end here
                self._obey(ready)
        except Exception as error:  # noqa: BLE001 - half of an event may be done: start over
            self._stop("coordinator stopped", error)

    def _now_ms(self) -> int:
        """The time of an event. The wall clock is read again: it may have been set."""
        now_ms, wall = self._clock.now_ms(), self._clock.wall.look()
        self._hosted.set_wall(wall.ms - now_ms, is_trusted=wall.is_trusted)
        return now_ms

    def check(self) -> None:
        """Raises ClusterError: NOT_COORDINATOR when closed, COORDINATOR_LOADING."""
        if self.closed is not None:
            raise self.closed
        if not self.loaded:
            raise self.loading("it has yet to be read")

    def loading(self, why: str) -> ClusterError:
        """The retriable error of a coordinator that is unavailable for a moment."""
        return ClusterError(
            f"the coordinator's log, {self}, is being loaded: {why}; try again in a moment",
            ErrorCode.COORDINATOR_LOADING,
        )

    @property
    def serving(self) -> bool:
        """Loaded, and not closed."""
        return self.loaded and self.closed is None

    def tick(self, now_ms: int) -> None:
        """Called often; costs nothing unless something is due."""
        self._give_up_late(now_ms)
        if self.serving and self._due(now_ms):
            self.handle(self._tick)

    def _due(self, now_ms: int) -> bool:
        try:
            return self._hosted.next_wake_ms <= now_ms
        except Exception as error:  # noqa: BLE001 - as in `handle`
            self._stop("coordinator stopped", error)
            return False

    async def ask(self, make: Callable[[int], EventT], *, patience_ms: int = 0) -> AnswerT:
        """The answer to a request, once all that it depends on is committed.

        `make` gets the request's number. `patience_ms`: how long the machine itself may take.
        Raises PenstockError; REQUEST_TIMED_OUT: the outcome is unknown.
        """
        request_id = next(self._ids)
        asked: _Asked[AnswerT] = _Asked(
            asyncio.get_running_loop().create_future(),
            self._clock.now_ms() + _ANSWER_TIMEOUT_MS + patience_ms,
            patient=patience_ms > 0,
        )
        self._requests[request_id] = asked
        try:
            self.handle(make(request_id))
            with waiting_for_others():
                answer = await asked.answered
        finally:
            self._requests.pop(request_id, None)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def answer(self, request_id: int, answer: AnswerT | PenstockError) -> None:
        """Passes a machine's answer to the caller, if it is still waiting."""
        asked = self._requests.get(request_id)
        if asked is not None:
            asked.answer(answer)

    def _give_up_late(self, now_ms: int) -> None:
        """Fails requests that wait too long; checks the oldest, instead of a timer for each."""
        for asked in self._requests.values():
            if asked.until_ms > now_ms:
                if asked.patient:
                    continue
                return
            asked.answer(
                ClusterError(
                    f"no answer from {self} within {_ANSWER_TIMEOUT_MS // 1000} s: its replicas do "
                    "not keep up; the outcome is unknown",
                    ErrorCode.REQUEST_TIMED_OUT,
                )
            )

    # ------------------------------------------------------------ out

    def _obey(self, ready: ReadyT) -> None:
        if ready.records and not self._is_last_unsent(ready.records):
            self._handed += 1
            self._unsent.append(ready.records)
        if ready.outputs:
            self._waiting.append((self._handed, ready))
        for decision in ready.decisions:
            self._events.info(decision.event, partition=self.partition, **decision.fields)
        self.decided(ready)
        self._flush_soon()
        self._release()

    def _is_last_unsent(self, records: Records) -> bool:
        """Whether they would repeat what is appended next anyway: then outputs wait for that.

        So answers that only need a confirmation share one record, however many are waiting.
        """
        return bool(self._unsent) and self._unsent[-1] == records

    def _flush_soon(self) -> None:
        """Flushes at the end of this turn of the loop, or shortly after an append that many shared.

        Records that come until then are appended with it: an append costs the broker as much as a
        call. A single client that waits for each of its commits never waits for this delay.
        """
        under_way = self._sent > self._durable
        if self._unsent and not under_way and not self._flushing:
            self._flushing = True
            self._clock.call_at(max(self._next_flush_s, self._clock.now_s()), self._flush)

    def _release(self) -> None:
        try:
            while self._waiting and self._waiting[0][0] <= self._durable:
                self.tell(self._waiting.popleft()[1])
        except Exception as error:  # noqa: BLE001 - part of it may have been sent: start over
            self._stop("coordinator stopped while it sent what is committed", error)

    def _flush(self) -> None:
        """Appends the unsent records, as one batch of as many Readys as fit."""
        self._flushing = False
        if self.closed is not None or not self._unsent:
            return
        before = self._sent
        records: list[tuple[bytes, bytes | None]] = []
        size_bytes = 0
        while self._unsent:
            size_bytes += sum(len(key) + len(value or b"") for key, value in self._unsent[0])
            if records and size_bytes > self.append_bytes:
                break
            records += self._unsent.popleft()
            self._sent += 1
        pause_s = min((self._sent - before - 1) * _PAUSE_PER_READY_S, _PAUSE_MAX_S)
        self._next_flush_s = self._clock.now_s() + pause_s
        try:
            batch = self._batch(records)
        except Exception as error:  # noqa: BLE001 - in a timer: nothing else would report it
            self._stop("coordinator stopped: its records cannot be encoded as a batch", error)
            return
        self.log.append(batch, self.leader_epoch, self._appended)

    def _batch(self, records: Sequence[tuple[bytes, bytes | None]]) -> Batch:
        columns = encode_columns(
            [value for _, value in records],
            [key for key, _ in records],
            timestamps_ms=self._clock.wall.look().ms,
        )
        return build_batch(columns)

    def _appended(self, error: PenstockError | None) -> None:
        if self.closed is not None:
            return
        if error is not None:
            self._events.warning(
                "coordinator ends: its append failed", partition=str(self), reason=error
            )
            self.close(self.loading(f"an append failed ({error})"))
            return
        self._durable = self._sent
        self._release()
        self._flush_soon()

    # ------------------------------------------------------------ end

    def _stop(self, what: str, error: BaseException) -> None:
        self._events.defect(what, error, partition=str(self))
        self.close(self.loading("it stopped because of a defect; see the broker's log"))

    def close(self, error: PenstockError) -> None:
        """Gives `error`, which is retriable, to all waiting requests."""
        if self.closed is not None:
            return
        self.closed = error
        self._waiting.clear()
        self._unsent.clear()
        for asked in self._requests.values():
            asked.answer(error)
        self.ended(error)
        self._moved.set()
