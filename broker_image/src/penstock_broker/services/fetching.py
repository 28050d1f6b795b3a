"""Fetch: reads the records that are there, or waits until the reader's end of the log moves.

    collect ─ enough, an error, or no time left ─▶ answer
       ▲ └─ not enough ─▶ waits on the requested replicas ──────┐
       └── Replica.wake: high watermark or stable offset, role ◀──┘

Only records below the high watermark are returned; with the default isolation level,
`read_committed`, only those below the last stable offset, and nothing of an aborted transaction
(I11, `core.isolation`). Markers are never returned.

Nothing polls: a waiting fetch costs an entry in a set per replica, and the number of fetches is
bounded (I23). A session holds at most one answer in memory, bounded by the request's and the
broker's limits; at least one batch is always returned, however large, so that a reader never gets
stuck.

After a failover, the high watermark of the new leader can be behind the one that consumers saw,
until the ISR has confirmed the leader's log: a fetch at an offset in between is not out of range,
it waits.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.authorization import Operation
from penstock.core.batch import Batch
from penstock.core.isolation import Isolation, visible, with_end_covered
from penstock.core.quotas import Limit
from penstock.core.replication.contract import Marks
from penstock.core.topic import refuse_internal
from penstock.core.types import Offset
from penstock.errors import (
    OffsetOutOfRangeError,
    OffsetRange,
    OverloadedError,
    PenstockError,
)
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.channel import MAX_MESSAGE_BYTES
from penstock.rpc.errors import error_to_wire
from penstock_broker.counts import Flow
from penstock_broker.metrics import Metrics
from penstock_broker.replication.reads import LogReader, waiting_for_others
from penstock_broker.replication.replica import Replica
from penstock_broker.services.limits import (
    PARTITIONS_MAX,
    ByteBudget,
    Bytes,
    begins_slice,
    check_count,
)
from penstock_broker.services.locate import Locator
from penstock_broker.serving.callers import caller
from penstock_broker.serving.edge import note_wait
from penstock_broker.serving.quotas import Quotas

DEFAULT_PARTITION_BYTES: Final = 1024 * 1024
DEFAULT_ANSWER_BYTES: Final = 50 * 1024 * 1024
_MAX_WAIT_MS: Final = 60_000
# One batch may exceed the limit; the message must still fit into the channel's.
_ANSWER_BYTES_MAX: Final = min(DEFAULT_ANSWER_BYTES, MAX_MESSAGE_BYTES - 2**20)
_ERROR_BYTES: Final = 512
"""Of one error, beside its text."""
_HIDDEN_BYTES_MAX: Final = 4 * 1024 * 1024
_HIDDEN_S: Final = 0.005
"""Limits on what is scanned for one answer while all of it is hidden from the reader."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One partition's part of an answer: its marks or an error, and perhaps batches."""

    topic: str
    partition: int
    topic_id: str = ""
    marks: Marks | None = None
    batches: tuple[Batch, ...] = ()
    error: PenstockError | None = None
    flow: Flow | None = None
    """Where its topic's batches are counted."""

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)

    @property
    def kept_bytes(self) -> int:
        """What it takes in memory until it is sent: its batches, or about what an error takes."""
        if self.error is None:
            return self.size_bytes
        return _ERROR_BYTES + len(self.topic) + len(self.error.message)

    def head(self) -> pb.FetchResult:
        """The message without its batches."""
        if self.error is not None or self.marks is None:
            assert self.error is not None, "a slice has marks or an error"
            return pb.FetchResult(
                topic=self.topic,
                topic_id=self.topic_id,
                partition=self.partition,
                error=error_to_wire(self.error),
                high_watermark=-1,
                log_start_offset=-1,
                last_stable_offset=-1,
            )
        return pb.FetchResult(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            high_watermark=self.marks.high_watermark,
            log_start_offset=self.marks.log_start_offset,
            last_stable_offset=self.marks.last_stable_offset,
            leader_epoch=self.marks.leader_epoch,
        )


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """What a fetch found: results without their batches, with these beside them.

    `taken_bytes`: from `budget`.
    """

    results: Sequence[tuple[pb.FetchResult, Sequence[Batch]]]
    taken_bytes: int
    budget: Bytes

    def sent(self) -> None:
        """Gives the bytes back: call it once the answer is sent, or nobody waits for it."""
        self.budget.give(self.taken_bytes)


class Parking:
    """A reader that waits for changes of replicas; `replica.Waiter`."""

    def __init__(self, isolation: Isolation) -> None:
        self.isolation = isolation
        self._replicas: dict[Replica, list[int]] = {}
        self._dirty: dict[int, None] = {}
        self._news = asyncio.Event()

    def add(self, replica: Replica, index: int) -> None:
        """Watches a replica for the reader's partition `index`."""
        self._replicas.setdefault(replica, []).append(index)
        if self.isolation is Isolation.COMMITTED:
            replica.stable_waiters.add(self)
        else:
            replica.waiters.add(self)

    def wake(self, replica: Replica) -> None:
        """Marks the partitions of this replica as changed."""
        self._dirty.update(dict.fromkeys(self._replicas.get(replica, ())))
        self._news.set()

    async def news(self, timeout_s: float) -> list[int]:
        """Partitions that changed, after waiting for at least one; none after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return []
        self._news.clear()
        changed, self._dirty = list(self._dirty), {}
        return changed

    def remove(self, replica: Replica) -> None:
        """Stops watching this one."""
        del self._replicas[replica]
        replica.waiters.discard(self)
        replica.stable_waiters.discard(self)

    def leave(self) -> None:
        """Stops watching."""
        for replica in tuple(self._replicas):
            self.remove(replica)


class Fetching:
    """Answers fetches, and reads partitions for subscriptions."""

    def __init__(
        self,
        locator: Locator,
        reader: LogReader,
        budget: ByteBudget,
        metrics: Metrics,
        *,
        parked_max: int,
    ) -> None:
        self._locator = locator
        self._reader = reader
        self._budget = budget
        self._metrics = metrics
        self._parked_max = parked_max
        self.parked = 0

    @property
    def quotas(self) -> Quotas:
        """What users may take here."""
        return self._locator.access.quotas

    async def fetch(self, request: pb.FetchRequest) -> "FetchAnswer":
        """The caller calls the answer's `sent` once it is sent."""
        check_count("partitions", len(request.partitions), PARTITIONS_MAX)
        who, wait_ms = caller(), min(request.max_wait_ms, _MAX_WAIT_MS)
        budget = self._budget.of(who)
        debt_ms = self.quotas.debt_ms(who, Limit.FETCH, Limit.REQUEST)
        if debt_ms:
            waits_ms = min(debt_ms, wait_ms)
            began_s = asyncio.get_running_loop().time()
            try:
                await asyncio.sleep(waits_ms / 1000)
            finally:  # given up, it has waited less: a longer wait would pay its caller's debt
                note_wait(asyncio.get_running_loop().time() - began_s)
            if debt_ms > wait_ms:
                return FetchAnswer([], 0, budget)
            wait_ms -= int(waits_ms)
        fetch = _Fetch(self, request, budget)
        try:
            await fetch.collect(range(len(request.partitions)))
            timed_out = True
            if not fetch.is_enough:
                timed_out = await self._park(fetch, wait_ms / 1000)
            answer = await fetch.answer(everything=timed_out and not fetch.is_enough)
        except BaseException as error:
            budget.give(fetch.taken_bytes)
            if isinstance(error, OverloadedError):
                self._metrics.overloads.inc()
            raise
        self.quotas.take(who, Limit.FETCH, fetch.size_bytes)
        return answer

    async def _park(self, fetch: "_Fetch", wait_s: float) -> bool:
        """Waits for enough bytes; True if time ran out."""
        if wait_s <= 0:
            return True
        if self.parked >= self._parked_max:
            raise OverloadedError(
                f"{self.parked} fetches are waiting for records, the limit is {self._parked_max} "
                "(fetch.parked.max); try again later, or request more partitions in one fetch"
            )
        self.parked += 1
        parking = Parking(fetch.isolation)
        try:
            return await self._wait(fetch, parking, wait_s)
        finally:
            self.parked -= 1
            parking.leave()

    async def _wait(self, fetch: "_Fetch", parking: Parking, wait_s: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        await fetch.watch(parking)
        # The end may have moved between the first read and `watch`.
        await fetch.collect(range(len(fetch.request.partitions)))
        waited_s = 0.0
        try:
            while not fetch.is_enough:
                began = loop.time()
                try:
                    changed = await parking.news(max(deadline - began, 0))
                finally:
                    waited_s += loop.time() - began
                if not changed:
                    return True
                await fetch.collect(changed)
            return False
        finally:
            note_wait(waited_s)
            self._metrics.fetch_wait_seconds.observe(waited_s)

    def locate(self, part: pb.FetchPartition) -> Replica | None:
        """The replica to read a partition from; None if it is not led here now."""
        try:
            return self._locator.led(part.topic, part.topic_id, part.partition, 0, Operation.READ)[
                0
            ]
        except PenstockError:
            return None

    async def read(self, part: pb.FetchPartition, max_bytes: int, isolation: Isolation) -> Slice:
        """Reads a partition from its offset on; `max_bytes` 0: marks only."""
        try:
            refuse_internal(part.topic, "read by clients")
            replica, marks = self._locator.led(
                part.topic, part.topic_id, part.partition, part.leader_epoch, Operation.READ
            )
            offset = Offset(part.offset)
            _check_offset(replica, marks, offset)
            batches: list[Batch] = []
            end = readable_end(marks, isolation)
            if max_bytes > 0 and offset < end:
                with waiting_for_others(replica):
                    batches = await self._visible(replica, offset, max_bytes, end, isolation)
            # Reading may have waited; take the marks as of now, so that a lost leadership, or a
            # rule that is gone, is noticed.
            marks = self._locator.led(part.topic, part.topic_id, part.partition, 0, Operation.READ)[
                1
            ]
            if not batches or batches[0].base_offset > offset:
                # What was asked for may have been removed before it was read: that is no gap.
                _check_not_removed(replica, marks, offset)
        except PenstockError as error:
            return Slice(part.topic, part.partition, part.topic_id, error=error)
        return Slice(
            part.topic,
            part.partition,
            replica.key.topic_id,
            marks=marks,
            batches=tuple(batches),
            flow=replica.flow,
        )

    async def _visible(
        self, replica: Replica, offset: Offset, max_bytes: int, end: Offset, isolation: Isolation
    ) -> list[Batch]:
        """The batches that such a reader may see from `offset` on.

        If none of them is visible, the next ones are read, within limits: otherwise a reader behind
        many aborted transactions would need a call for each of them.
        """
        loop = asyncio.get_running_loop()
        until_s, looked_bytes = loop.time() + _HIDDEN_S, 0
        shown: list[Batch] = []
        last: Batch | None = None
        while not shown and looked_bytes < _HIDDEN_BYTES_MAX:
            start = offset if last is None else last.next_offset
            found, aborted = await self._reader.read_for(replica, start, max_bytes, end, isolation)
            if aborted is None and last is None:
                return found
            if not found:
                break
            shown = found if aborted is None else visible(found, aborted)
            last = found[-1]
            looked_bytes += sum(batch.size_bytes for batch in found)
            if loop.time() > until_s:
                break
        if last is None:
            return []  # all that was asked for was removed meanwhile
        return with_end_covered(shown, offset, last)

    @property
    def budget(self) -> ByteBudget:
        """The budget for all answers that are being put together."""
        return self._budget

    def count(self, part: Slice) -> None:
        """Counts what is sent to a consumer."""
        for batch in part.batches:
            if batch.payload:  # an empty batch only fills offsets
                self._metrics.bytes_out.inc(len(batch.payload))
                self._metrics.records_out.inc(batch.header.record_count)
                if part.flow is not None:
                    part.flow.gave(batch.header.record_count, len(batch.payload))


class _Fetch:
    """One fetch request while it is being answered."""

    def __init__(self, service: Fetching, request: pb.FetchRequest, budget: Bytes) -> None:
        self.request = request
        self.isolation = isolation_from_wire(request.isolation_level)
        self._budget = budget
        self._service = service
        self._slices: dict[int, Slice] = {}
        self._max_bytes = min(request.max_bytes or DEFAULT_ANSWER_BYTES, _ANSWER_BYTES_MAX)
        self.size_bytes = 0
        """Bytes read so far."""
        self.taken_bytes = 0
        """Taken from the budget: what was read, and errors."""
        self._failed = False

    @property
    def is_enough(self) -> bool:
        return self._failed or self.size_bytes >= max(self.request.min_bytes, 1)

    async def watch(self, parking: Parking) -> None:
        for index, part in enumerate(self.request.partitions):
            if begins_slice(index):
                await asyncio.sleep(0)
            replica = self._service.locate(part)
            if replica is not None:
                parking.add(replica, index)

    async def collect(self, indexes: Iterable[int]) -> None:
        """Reads, or rereads, these partitions.

        What is refused, or lies in memory, is found without waiting: so others have turns between.
        """
        for count, index in enumerate(indexes):
            if begins_slice(count):
                await asyncio.sleep(0)
            part = self.request.partitions[index]
            self._replace(index, None)
            room = self._max_bytes - self.size_bytes
            found = await self._read(part, min(part.max_bytes or DEFAULT_PARTITION_BYTES, room))
            if self.size_bytes and found.size_bytes > min(room, self._budget.free_bytes):
                # Only the first batch of an answer may exceed the limit.
                found = Slice(found.topic, found.partition, found.topic_id, marks=found.marks)
            if found.error is None:
                self._replace(index, found)
            else:
                self._refuse(index, found)

    async def _read(self, part: pb.FetchPartition, wanted: int) -> Slice:
        """Takes the bytes from the budget first, because many reads can run at one time."""
        free = self._budget.free_bytes
        if free or self.taken_bytes:
            # When readers share the last of the budget, each gets less instead of nothing.
            wanted = min(wanted, free)
        self._budget.take(wanted)
        try:
            return await self._service.read(part, wanted, self.isolation)
        finally:
            self._budget.give(wanted)

    def _replace(self, index: int, found: Slice | None) -> None:
        """Replaces a partition's slice and adjusts the budget; raises OverloadedError."""
        known = self._slices.pop(index, None)
        if known is not None:
            self._budget.give(known.kept_bytes)
            self.taken_bytes -= known.kept_bytes
            self.size_bytes -= known.size_bytes
        if found is not None:
            self._budget.take(found.kept_bytes)
            self.taken_bytes += found.kept_bytes
            self.size_bytes += found.size_bytes
            self._slices[index] = found

    def _refuse(self, index: int, refused: Slice) -> None:
        """If there is no room for its error beside what the answer has already, the client learns
        it when it asks again. Raises OverloadedError if the answer has nothing."""
        assert refused.error is not None, "it is refused"
        refused.error.__traceback__ = None  # it would keep all that was there when it was raised
        self._failed = True
        if not self.taken_bytes or refused.kept_bytes <= self._budget.free_bytes:
            self._replace(index, refused)

    async def answer(self, *, everything: bool) -> FetchAnswer:
        """Partitions with records or errors; `everything`: all of them."""
        slices = [self._slices[index] for index in sorted(self._slices)]
        chosen = [part for part in slices if everything or part.batches or part.error is not None]
        parts = []
        for index, part in enumerate(chosen):
            if begins_slice(index):
                await asyncio.sleep(0)
            self._service.count(part)
            parts.append((part.head(), part.batches))
        return FetchAnswer(parts, self.taken_bytes, self._budget)


def isolation_from_wire(level: int) -> Isolation:
    """Read committed, unless the client asks for read uncommitted: also for unknown levels."""
    if level == pb.ISOLATION_LEVEL_READ_UNCOMMITTED:
        return Isolation.UNCOMMITTED
    return Isolation.COMMITTED


def readable_end(marks: Marks, isolation: Isolation) -> Offset:
    """Where a reader of this isolation level must stop (exclusive)."""
    if isolation is Isolation.COMMITTED:
        return marks.last_stable_offset
    return marks.high_watermark


def _check_offset(replica: Replica, marks: Marks, offset: Offset) -> None:
    # Up to the log's end, an earlier leader may have shown the offset; see the module.
    if offset > marks.log_end_offset:
        raise _out_of_range(replica, marks, offset)
    _check_not_removed(replica, marks, offset)


def _check_not_removed(replica: Replica, marks: Marks, offset: Offset) -> None:
    if offset < marks.log_start_offset:
        raise _out_of_range(replica, marks, offset)


def _out_of_range(replica: Replica, marks: Marks, offset: Offset) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"offset {offset} of {replica} is out of range: the log starts at "
        f"{marks.log_start_offset} and can be read up to {marks.high_watermark}; seek to an "
        "offset in this range",
        OffsetRange(marks.log_start_offset, marks.high_watermark),
    )
