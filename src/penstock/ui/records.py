"""Reads some records of a topic for a page, within limits of records, bytes and time.

    last N:        begins a few offsets before the end of each partition, and goes further back in
                   longer steps, up to SCAN_RECORDS, while it has fewer than N that match: so what
                   a limit cuts off is older than what is shown
    since a time:  begins there, and keeps the first ones

Reading uses an ordinary consumer of committed records, without a group: it commits nothing. What a
limit cuts off is told, never hidden. At most AT_ONCE searches run, the others wait their turn.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final, Unpack

from penstock.client import (
    EARLIEST,
    LATEST,
    AsyncAdmin,
    AsyncConsumer,
    ConsumedBatch,
    Record,
    TopicDescription,
    TopicPartition,
)
from penstock.client.config import ClientOptions, ConsumerConfig
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.ui.reader import bounded
from penstock.views.records import Page, Wanted, record_view

AT_ONCE: Final = 3
SCAN_RECORDS: Final = 20_000
"""Of all partitions together."""
SCAN_BYTES: Final = 16 << 20
BEGIN: Final = 8
"""How many offsets of all partitions together are looked at first: they may be large ones."""
FURTHER: Final = 4
"""How many times as many offsets are looked at, if there were too few records in the last ones."""
TIME_S: Final = 6.0
PARTITIONS_MAX: Final = 200
POLL_S: Final = 0.25
POLL_RECORDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Range:
    """Offsets [start, end) of a partition whose log begins at `first`."""

    start: int
    end: int
    first: int

    def before(self, length: int) -> "_Range":
        """The offsets before these; empty if the log begins here."""
        return _Range(max(self.first, self.start - length), self.start, self.first)


class Records:
    """Opens a consumer per search: a search holds nothing when it has ended."""

    def __init__(self, bootstrap: str, **options: Unpack[ClientOptions]) -> None:
        self._bootstrap = bootstrap
        self._options = bounded(options)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def find(self, topic: TopicDescription, wanted: Wanted) -> Page:
        """Raises MisuseError for a partition that does not exist, and errors of the cluster."""
        partitions, skipped = _partitions(topic, wanted.partition)
        if not partitions:
            return Page((), 0, "", tuple(skipped))
        async with self._turns, asyncio.timeout(3 * TIME_S):
            async with AsyncAdmin(self._bootstrap, **self._options) as admin:
                ranges = await _ranges(admin, partitions, wanted)
            return await self._search(ranges, wanted, skipped)

    async def one(self, where: TopicPartition, offset: int) -> Record:
        """Raises MisuseError if there is no such record, or it is not visible."""
        async with self._turns, asyncio.timeout(3 * TIME_S), self._consumer() as consumer:
            await consumer.assign([where])
            await consumer.seek(where, offset)
            deadline = monotonic() + TIME_S
            while monotonic() < deadline:
                for batch in await consumer.poll(POLL_S, 1):
                    for record in batch.records():
                        if record.offset == offset:
                            return record
                        raise _absent(where, offset)
                if await consumer.position(where) > offset:
                    break
        raise _absent(where, offset)

    async def _search(
        self, ranges: Mapping[TopicPartition, _Range], wanted: Wanted, skipped: list[str]
    ) -> Page:
        search, deadline = _Search(wanted), monotonic() + TIME_S
        async with self._consumer() as consumer:
            if wanted.since_ms is None:
                await _read_back(consumer, search, ranges, deadline)
            else:
                await _read(consumer, search, ranges, deadline)
        return search.page(skipped)

    def _consumer(self) -> AsyncConsumer:
        config = ConsumerConfig(
            fetch_max_bytes=4 << 20,
            max_partition_fetch_bytes=1 << 20,
            buffer_bytes=8 << 20,
            fetch_max_wait_ms=100,
            on_offset_out_of_range="earliest",
            client_id="penstock-ui",
            **self._options,
        )
        return AsyncConsumer(self._bootstrap, config)


async def _read_back(
    consumer: AsyncConsumer,
    search: "_Search",
    ranges: Mapping[TopicPartition, _Range],
    deadline_s: float,
) -> None:
    """From the ends of these ranges to where the logs begin, as far as the search wants."""
    ranges = {where: replace(one, start=one.end) for where, one in ranges.items()}
    most = max(1, SCAN_RECORDS // len(ranges))
    looked, length = 0, max(1, BEGIN // len(ranges))
    while search.wants_older:
        length = min(length, most - looked)
        ranges = {where: one.before(max(length, 1)) for where, one in ranges.items()}
        ranges = {where: one for where, one in ranges.items() if one.start < one.end}
        if not ranges:
            return
        if length <= 0:
            search.stopped = f"the last {looked:,} offsets of each partition were looked at"
            return
        await _read(consumer, search, ranges, deadline_s)
        looked += length
        length = max(1, min(FURTHER * length, search.fitting // len(ranges)))


async def _read(
    consumer: AsyncConsumer,
    search: "_Search",
    ranges: Mapping[TopicPartition, _Range],
    deadline_s: float,
) -> None:
    """All that the search wants of these ranges."""
    search.begin(ranges)
    await consumer.assign(list(ranges))
    for where, one in ranges.items():
        await consumer.seek(where, one.start)
    while not search.is_over:
        if monotonic() >= deadline_s:
            search.stopped = f"{TIME_S:.0f} s have passed"
            break
        for batch in await consumer.poll(POLL_S, POLL_RECORDS):
            search.take(batch)
        for where in list(search.left):
            if await consumer.position(where) >= ranges[where].end:
                search.left.discard(where)


class _Search:
    """What has been found so far."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._ranges: Mapping[TopicPartition, _Range] = {}
        self._first = wanted.since_ms is not None
        self._found: dict[TopicPartition, deque[Record]] = {}
        self._newer: list[Record] = []
        self.left: set[TopicPartition] = set()
        self.scanned = 0
        self._offsets = 0
        self._bytes = 0
        self.stopped = ""

    def begin(self, ranges: Mapping[TopicPartition, _Range]) -> None:
        """With these; what was found before is newer, and stays."""
        self._newer = self._all()
        self._found = {}
        self._ranges = ranges
        self._offsets += sum(one.end - one.start for one in ranges.values())
        self.left = {where for where, one in ranges.items() if one.start < one.end}

    @property
    def wants_older(self) -> bool:
        """Fewer than the last N were found."""
        return not self.stopped and len(self._all()) < self._wanted.count

    @property
    def fitting(self) -> int:
        """How many more offsets may be looked at, if they are as large as those that were."""
        return self._offsets * (SCAN_BYTES - self._bytes) // max(self._bytes, 1)

    @property
    def is_over(self) -> bool:
        return not self.left or bool(self.stopped)

    def take(self, batch: ConsumedBatch) -> None:
        where = batch.topic_partition
        part = batch.between(self._ranges[where].start, self._ranges[where].end)
        # The newest ones are wanted, or the first ones: as many of each partition are enough.
        keep = None if self._first else self._wanted.count
        found = self._found.setdefault(where, deque(maxlen=keep))
        for record in part.records():
            if self.stopped:
                return
            self.scanned += 1
            self._bytes += _size(record)
            if self._wanted.matches(record) and (
                not self._first or len(found) < self._wanted.count
            ):
                found.append(record)
            if self._first and len(found) >= self._wanted.count:
                self.left.discard(where)
            if self._bytes > SCAN_BYTES:
                self.stopped = f"{SCAN_BYTES >> 20} MiB were read"
            elif self.scanned >= SCAN_RECORDS:
                self.stopped = f"{SCAN_RECORDS:,} records were looked at"

    def page(self, skipped: list[str]) -> Page:
        """The newest first; since a time, the oldest first."""
        if self._newer and self.stopped and not self._wanted.is_filtered:
            for where in self.left:  # newer ones than these were cut off
                self._found.pop(where, None)
        found = self._all()
        found.sort(
            key=lambda one: (one.timestamp_ms, one.partition, one.offset), reverse=not self._first
        )
        shown = found[: self._wanted.count]
        views = tuple(record_view(one, self._wanted.form) for one in shown)
        return Page(views, self.scanned, self.stopped, tuple(skipped))

    def _all(self) -> list[Record]:
        return [*self._newer, *(one for each in self._found.values() for one in each)]


def _size(record: Record) -> int:
    """Bytes; characters of the names of headers."""
    named = sum(len(name) + len(value or b"") for name, value in record.headers)
    return named + len(record.value or b"") + len(record.key or b"")


def _partitions(
    topic: TopicDescription, wanted: int | None
) -> tuple[list[TopicPartition], list[str]]:
    """Those to read, and why others are not."""
    if wanted is not None and wanted >= len(topic.partitions):
        raise MisuseError(
            f"topic {topic.topic} has partitions 0 to {len(topic.partitions) - 1}, not {wanted}",
            ErrorCode.UNKNOWN_PARTITION,
        )
    chosen = [one for one in topic.partitions if wanted in (None, one.partition)]
    without = [one.partition for one in chosen if one.leader < 0]
    skipped = [f"partition {one} has no leader" for one in without[:10]]
    if len(without) > 10:
        skipped.append(f"{len(without) - 10} more have no leader")
    led = [one for one in chosen if one.leader >= 0]
    if len(led) > PARTITIONS_MAX:
        skipped.append(
            f"only the first {PARTITIONS_MAX} of {len(led):,} partitions are read; choose one"
        )
    return [TopicPartition(topic.topic, one.partition) for one in led[:PARTITIONS_MAX]], skipped


async def _ranges(
    admin: AsyncAdmin, partitions: Iterable[TopicPartition], wanted: Wanted
) -> dict[TopicPartition, _Range]:
    """Where to begin and to end; up to now, so that a busy topic ends too."""
    named = list(partitions)
    ends = await admin.list_offsets(dict.fromkeys(named, LATEST))
    starts = await admin.list_offsets(dict.fromkeys(named, EARLIEST))
    if wanted.since_ms is not None:
        times = await admin.list_offsets(dict.fromkeys(named, wanted.since_ms))
        return {
            one: _Range(
                times[one].offset if times[one].offset >= 0 else ends[one].offset,
                ends[one].offset,
                starts[one].offset,
            )
            for one in named
        }
    return {one: _Range(starts[one].offset, ends[one].offset, starts[one].offset) for one in named}


def _absent(where: TopicPartition, offset: int) -> MisuseError:
    return MisuseError(
        f"{where} has no readable record at offset {offset}: it was removed by retention or "
        "compaction, belongs to a transaction that is open or aborted, or is not written yet",
        ErrorCode.OFFSET_OUT_OF_RANGE,
    )


def reason_of(error: Exception) -> str:
    """Of a search that failed."""
    return error.message if isinstance(error, PenstockError) else "the search took too long"
