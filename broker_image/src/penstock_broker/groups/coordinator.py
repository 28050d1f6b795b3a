"""One coordinator's shell: loads the log, appends what the machine decides, then lets it be told.

    replica led, high watermark at the log's end ─▶ read all records ─▶ machine starts
    event ─▶ Ready ─┬─ records ─▶ [ unsent ] ─ one append at a time ─▶ replica (acks=ALL)
                    └─ outputs ─▶ [ waiting ] ─ high watermark has passed ─▶ streams, requests

While an append is under way the next one grows: under load batches get larger, not more. An
append that fails, or a leadership that ends, ends this object: everyone waiting hears that the
coordinator is elsewhere or loads anew, and whoever leads builds another from the log (I16).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from time import time_ns
from typing import Final

from penstock.core.batch import Batch
from penstock.core.encode import encode_columns
from penstock.core.groups import GroupConfig, GroupCoordinator
from penstock.core.groups.contract import (
    NOTHING,
    Answer,
    Catalog,
    Event,
    Output,
    Ready,
    Reply,
    Request,
    StreamBroken,
    Tick,
    TopicsChanged,
)
from penstock.core.records import build_batch, decode_batch
from penstock.core.replication.contract_leader import ProduceReply, ProduceRequested
from penstock.core.types import Acks, LeaderEpoch, Offset, Sync
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.groups.streams import MemberStream
from penstock_broker.observability import EventLog
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet

APPEND_BYTES_MAX: Final = 4 * 1024 * 1024
"""Aimed at, half of what the topic allows: the records of one event stay together."""
_PAUSE_PER_READY_S: Final = 0.0025
_PAUSE_MAX_S: Final = 0.01
_APPEND_TIMEOUT_MS: Final = 600_000
_ANSWER_TIMEOUT_MS: Final = 30_000
_READ_BYTES: Final = 1024 * 1024
_REQUEST_IDS: Final = count(-1, -1)
"""Below 0: never those of producers."""
_events = EventLog("groups")

Records = tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request and whoever waits for its answer, until `until_ms` of the machines' clock."""

    answered: asyncio.Future[Answer | PenstockError]
    until_ms: int

    def answer(self, answer: Answer | PenstockError) -> None:
        """The first answer counts; nobody may be there any more."""
        if not self.answered.done():
            self.answered.set_result(answer)


class Coordinator:
    """The groups of one offsets partition, for one leadership of it."""

    def __init__(
        self,
        replica: Replica,
        replicas: ReplicaSet,
        config: GroupConfig,
        on_ready: Callable[[Ready], None],
    ) -> None:
        """`on_ready` hears of every Ready, for metrics."""
        self.replica = replica
        self.leader_epoch: LeaderEpoch = replica.marks.leader_epoch
        self.loaded = False
        self.closed: PenstockError | None = None
        self._replicas = replicas
        self._on_ready = on_ready
        now_ms = replicas.now_ms()
        self.machine = GroupCoordinator(config, time_ns() // 1_000_000 - now_ms)
        self._streams: dict[int, MemberStream] = {}
        self._requests: dict[int, _Asked] = {}
        """In the order in which they were asked."""
        self._ids = count(1)
        self._moved = asyncio.Event()
        self._unsent: deque[Records] = deque()
        self._waiting: deque[tuple[int, tuple[Output, ...]]] = deque()
        # Readys with records: handed out by the machine, appended, committed.
        self._handed = self._sent = self._durable = 0
        self._flushing = False
        self._next_flush_s = 0.0

    @property
    def partition(self) -> int:
        return self.replica.key.partition

    @property
    def broker_id(self) -> int:
        return self._replicas.broker_id

    def __str__(self) -> str:
        return f"{self.replica} in epoch {self.leader_epoch}"

    # ------------------------------------------------------------ loading

    async def load(self, reader: LogReader, catalog: Callable[[], Catalog]) -> None:
        """Reads the log and starts; raises PenstockError, or returns at once when closed."""
        started = asyncio.get_running_loop().time()
        end = self.replica.marks.log_end_offset
        while self.replica.marks.high_watermark < end:
            self._moved.clear()
            await self._moved.wait()
            if self.closed:
                return
        records = await self._read(reader, end)
        if self.closed:
            return
        try:
            ready = self.machine.start(catalog(), self._replicas.now_ms())
        except AssertionError as error:
            _events.defect("coordinator did not start", error, partition=str(self))
            raise ClusterError(
                f"{self} holds a state that cannot be: {error}", ErrorCode.DATA_CORRUPTED
            ) from error
        self._obey(ready)
        self.loaded = True
        _events.info(
            "coordinator loaded",
            partition=str(self),
            records=records,
            groups=len(self.machine.groups),
            seconds=round(asyncio.get_running_loop().time() - started, 3),
        )

    async def _read(self, reader: LogReader, end: Offset) -> int:
        """Feeds the machine every record below `end`."""
        records = 0
        offset = self.replica.marks.log_start_offset
        while offset < end and not self.closed:
            batches = await reader.read(self.replica, offset, _READ_BYTES, end)
            if not batches:
                break  # compaction left nothing up to the end
            for batch in batches:
                records += self._feed(batch)
                await asyncio.sleep(0)  # a long log must not hold up everyone else
            offset = batches[-1].next_offset
        return records

    def _feed(self, batch: Batch) -> int:
        columns = decode_batch(batch)
        for key, value in zip(columns.keys(), columns.values(), strict=True):
            self.machine.load(key, value)
        return columns.record_count

    def moved(self) -> None:
        """The replica's marks changed."""
        self._moved.set()

    # ------------------------------------------------------------ events

    def handle(self, event: Event) -> None:
        """Lets the machine decide and carries it out. Raises what `check` raises."""
        self.check()
        try:
            ready = self.machine.handle(event, self._replicas.now_ms())
        except Exception as error:  # noqa: BLE001 - half of an event may be done: start anew
            _events.defect("coordinator stopped", error, partition=str(self))
            self.close(self._loading("it stopped for a defect; the broker's log has it"))
            return
        if ready is not NOTHING:  # a heartbeat without news ends here
            self._obey(ready)

    def check(self) -> None:
        """Raises ClusterError: NOT_COORDINATOR when closed, COORDINATOR_LOADING."""
        if self.closed is not None:
            raise self.closed
        if not self.loaded:
            raise self._loading("it has yet to be read")

    def _loading(self, why: str) -> ClusterError:
        return ClusterError(
            f"the coordinator's log, {self}, is being loaded: {why}; try again in a moment",
            ErrorCode.COORDINATOR_LOADING,
        )

    def topics_changed(self, catalog: Catalog) -> None:
        if self.loaded and self.closed is None:
            self.handle(TopicsChanged(catalog))

    def tick(self, now_ms: int) -> None:
        """Called often; costs nothing while nothing is due."""
        self._give_up_late(now_ms)
        if self.loaded and self.closed is None and self.machine.next_wake_ms <= now_ms:
            self.handle(Tick())

    async def ask(self, make: Callable[[int], Request]) -> Answer:
        """The answer to a request, once all that it builds on is committed.

        Raises PenstockError; REQUEST_TIMED_OUT: the outcome is unknown.
        """
        request_id = next(self._ids)
        asked = _Asked(
            asyncio.get_running_loop().create_future(),
            self._replicas.now_ms() + _ANSWER_TIMEOUT_MS,
        )
        self._requests[request_id] = asked
        try:
            self.handle(make(request_id))
            answer = await asked.answered
        finally:
            self._requests.pop(request_id, None)
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def _give_up_late(self, now_ms: int) -> None:
        """Requests that wait too long; one look at the oldest, instead of a timer for each."""
        for asked in self._requests.values():
            if asked.until_ms > now_ms:
                return
            asked.answer(
                ClusterError(
                    f"no answer from {self} within {_ANSWER_TIMEOUT_MS // 1000} s: its replicas do "
                    "not keep up; the outcome is unknown",
                    ErrorCode.REQUEST_TIMED_OUT,
                )
            )

    def add_stream(self, stream: MemberStream) -> None:
        self._streams[stream.stream_id] = stream

    def drop_stream(self, stream: MemberStream) -> None:
        """The stream is over, whoever ended it: nothing more is told on it."""
        self._streams.pop(stream.stream_id, None)
        if self.loaded and self.closed is None:
            self.handle(StreamBroken(stream.stream_id))

    # ------------------------------------------------------------ out

    def _obey(self, ready: Ready) -> None:
        if ready.records:
            self._handed += 1
            self._unsent.append(ready.records)
        if ready.outputs:
            self._waiting.append((self._handed, ready.outputs))
        for decision in ready.decisions:
            _events.info(decision.event, partition=self.partition, **decision.fields)
        self._on_ready(ready)
        self._flush_soon()
        self._release()

    def _flush_soon(self) -> None:
        """At the end of this turn of the loop, or a moment after an append that many shared.

        What comes until then rides along: an append costs the broker as much as a call does. A
        single client that waits for each of its commits never waits for this.
        """
        under_way = self._sent > self._durable
        if self._unsent and not under_way and not self._flushing:
            self._flushing = True
            loop = asyncio.get_running_loop()
            loop.call_at(max(self._next_flush_s, loop.time()), self._flush)

    def _release(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._durable:
            for output in self._waiting.popleft()[1]:
                self._tell(output)

    def _tell(self, output: Output) -> None:
        if isinstance(output, Reply):
            asked = self._requests.get(output.request_id)
            if asked is not None:
                asked.answer(output.answer)
            return
        stream = self._streams.get(output.stream_id)
        if stream is not None and not stream.put(output):
            stream.fail(
                ClusterError(
                    "the member does not read what the coordinator tells it; join again",
                    ErrorCode.OVERLOADED,
                )
            )

    def _flush(self) -> None:
        """Appends what is unsent, as one batch of as many Readys as fit."""
        self._flushing = False
        if self.closed is not None or not self._unsent:
            return
        before = self._sent
        records: list[tuple[bytes, bytes | None]] = []
        size_bytes = 0
        while self._unsent:
            size_bytes += sum(len(key) + len(value or b"") for key, value in self._unsent[0])
            if records and size_bytes > APPEND_BYTES_MAX:
                break
            records += self._unsent.popleft()
            self._sent += 1
        pause_s = min((self._sent - before - 1) * _PAUSE_PER_READY_S, _PAUSE_MAX_S)
        self._next_flush_s = asyncio.get_running_loop().time() + pause_s
        self._append(records)

    def _append(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        request_id = next(_REQUEST_IDS)
        self.replica.pending[request_id] = self._appended
        columns = encode_columns(
            [value for _, value in records],
            [key for key, _ in records],
            timestamps_ms=time_ns() // 1_000_000,
        )
        self._replicas.handle(
            self.replica,
            ProduceRequested(
                request_id=request_id,
                batch=build_batch(columns),
                acks=Acks.ALL,
                sync=Sync.OS,
                deadline_ms=self._replicas.now_ms() + _APPEND_TIMEOUT_MS,
                expected_epoch=self.leader_epoch,
            ),
        )

    def _appended(self, reply: ProduceReply) -> None:
        if self.closed is not None:
            return
        if reply.error is not None:
            _events.warning(
                "coordinator ends: its append failed", partition=str(self), reason=reply.error
            )
            self.close(self._loading(f"an append failed ({reply.error})"))
            return
        self._durable = self._sent
        self._release()
        self._flush_soon()

    # ------------------------------------------------------------ end

    def close(self, error: PenstockError) -> None:
        """Everyone waiting hears `error`, which is retriable."""
        if self.closed is not None:
            return
        self.closed = error
        self._waiting.clear()
        self._unsent.clear()
        for asked in self._requests.values():
            asked.answer(error)
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()
        self._moved.set()
