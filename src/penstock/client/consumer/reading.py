"""Reads from a start to the end of the log as it is now, once: for notebooks and scripts.

    LATEST of every partition ──▶ ends, fixed at the call
    start: earliest, a time, offsets ──▶ positions ──▶ Fetcher ──▶ batches in [start, end)
                                                          all positions at their ends: done

Whether all is read is decided by positions, never by an answer that does not come in time. The end
is the last stable offset for readers of committed records, so nothing in front of it can be
missing for long. A reader has its own connections and positions: it is no member of a group, and
what its consumer has assigned is not affected. A partition that gives nothing for
`request_timeout_ms` is an error that names it, not a result without it.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.leaders import known_partition, list_offsets
from penstock.client.config import ConsumerConfig
from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.consumer.fetcher import Fetcher
from penstock.client.consumer.read_result import ReadResult
from penstock.client.decoders import Decoding
from penstock.client.model import EARLIEST, LATEST, ConsumedBatch, OffsetSpec
from penstock.client.setting_checks import positive
from penstock.client.tasks import BackgroundTasks, why_ended
from penstock.core.columns import Columns
from penstock.core.limits import INT64_MAX
from penstock.core.types import TopicPartition
from penstock.errors import (
    ClusterError,
    ErrorCode,
    MisuseError,
    OffsetOutOfRangeError,
    OffsetRange,
    PenstockError,
)

UNLIMITED: Final = 2**62
READ_BYTES_MAX: Final = 256 << 20
"""What a read takes unless more is allowed: a data frame of it needs several times as much."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ReadStart = OffsetSpec | datetime | Mapping[TopicPartition, int]
"""Where a read starts: EARLIEST or LATEST, a time with its time zone, offsets by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """`max_records` None: none. `max_bytes`: of keys, values and headers, uncompressed."""

    max_records: int | None
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_records is not None:
            positive(self, "max_records", most=INT64_MAX)
        positive(self, "max_bytes", most=INT64_MAX)


@dataclass(frozen=True, slots=True)
class _Span:
    """Offsets [start, end) of a partition."""

    topic_id: str
    start: int
    end: int


class EndReader:
    """Of one `read_to_end`; belongs to the event loop in which it is used."""

    def __init__(self, bootstrap: tuple[str, ...], config: ConsumerConfig) -> None:
        """`config`: a consumer's; what it says about groups has no effect here."""
        self._cluster = Cluster(bootstrap, config)
        self._timeout_s = config.request_timeout_ms / 1000
        self._assignment = Assignment()
        self._tasks = BackgroundTasks("reader", self._crashed)
        self._fetcher = Fetcher(self._cluster, config, self._assignment.states, self._tasks)
        self._arrived = asyncio.Event()
        self._fetcher.arrived = self._arrived.set
        self._defect: PenstockError | None = None

    async def read(
        self,
        source: str | Iterable[TopicPartition],
        start: ReadStart,
        limits: ReadLimits,
        decoding: Decoding,
    ) -> ReadResult:
        """See `AsyncConsumer.read_to_end`. Only once; closes itself."""
        _check_start(start)
        await self._tasks.start()
        try:
            self._tasks.spawn(self._cluster.keep_fresh(), "metadata")
            spans = await self._spans(await self._partitions(source), start)
            for where, span in spans.items():
                if span.start < span.end:
                    state = FetchState(where, span.topic_id)
                    state.seek(span.start)
                    self._assignment.add(state)
            self._tasks.spawn(self._fetcher.run(), "fetcher")
            return await self._collect(spans, limits, decoding)
        finally:
            await self._tasks.aclose()
            await self._cluster.aclose()

    async def _partitions(
        self, source: str | Iterable[TopicPartition]
    ) -> dict[TopicPartition, str]:
        """With the ids of their topics."""
        if isinstance(source, str):
            topic = await self._cluster.topic(source)
            named = [TopicPartition(source, one.partition) for one in topic.partitions]
        else:
            named = list(source)
        if not named:
            raise MisuseError("read_to_end needs a topic's name, or at least one TopicPartition")
        return {where: (await known_partition(self._cluster, where)).topic_id for where in named}

    async def _spans(
        self, partitions: Mapping[TopicPartition, str], start: ReadStart
    ) -> dict[TopicPartition, _Span]:
        """The ends are looked up first: what is written from then on is not read."""
        ends = await self._look_up(partitions, LATEST)
        if isinstance(start, OffsetSpec):
            starts = ends if start is LATEST else await self._look_up(partitions, start)
        elif isinstance(start, datetime):
            starts = await self._look_up(partitions, _time_ms(start))
        else:
            starts = await self._look_up([at for at in partitions if at not in start], EARLIEST)
            starts |= _checked(start, ends)
        # -1: no record is that recent
        return {
            where: _Span(topic_id, ends[where] if starts[where] < 0 else starts[where], ends[where])
            for where, topic_id in partitions.items()
        }

    async def _look_up(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec | int
    ) -> dict[TopicPartition, int]:
        asked = dict.fromkeys(partitions, spec)
        found = await list_offsets(self._cluster, asked, self._timeout_s)
        return {where: listed.offset for where, listed in found.items()}

    async def _collect(
        self, spans: Mapping[TopicPartition, _Span], limits: ReadLimits, decoding: Decoding
    ) -> ReadResult:
        states = self._assignment.states
        next_offsets = {where: max(span.start, span.end) for where, span in spans.items()}
        batches: list[ConsumedBatch] = []
        left = UNLIMITED if limits.max_records is None else limits.max_records
        size_bytes = 0
        while states and left > 0:
            for batch in await self._next(left, spans):
                span = spans[batch.topic_partition]
                part = batch.between(span.start, span.end)
                if not part.record_count:
                    continue
                batches.append(part)
                left -= part.record_count
                size_bytes += _size_bytes(part.columns)
                if size_bytes > limits.max_bytes:
                    raise _too_much(part, span, limits.max_bytes)
            for where, state in list(states.items()):
                if state.position is not None and state.position >= spans[where].end:
                    self._assignment.remove(where)
        for where, state in states.items():
            next_offsets[where] = spans[where].start if state.position is None else state.position
        return ReadResult(tuple(batches), next_offsets, bool(states), decoding)

    async def _next(
        self, max_records: int, spans: Mapping[TopicPartition, _Span]
    ) -> list[ConsumedBatch]:
        """The next batches; maybe none, if positions have moved over offsets without records."""
        before = self._positions()
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    self._arrived.clear()
                    batches = self._assignment.collect(max_records)
                    self._fetcher.poke()
                    if batches or self._positions() != before:
                        return batches
                    error = self._defect or self._assignment.first_error(in_group=False)
                    if error is not None:
                        raise error
                    await self._arrived.wait()
        except TimeoutError:
            raise self._stuck(spans) from None

    def _positions(self) -> list[int | None]:
        return [state.position for state in self._assignment.states.values()]

    def _stuck(self, spans: Mapping[TopicPartition, _Span]) -> ClusterError:
        where, state = next(iter(self._assignment.states.items()))
        others = len(self._assignment.states) - 1
        return ClusterError(
            f"{where}: no records at offset {state.position} (of {spans[where].start} to "
            f"{spans[where].end}) within {self._timeout_s:g} s (request_timeout_ms)"
            + (f", nor in {others} other partitions" if others else "")
            + "; check that the partition has a leader",
            ErrorCode.REQUEST_TIMED_OUT,
        )

    def _crashed(self, cause: BaseException) -> None:
        self._defect = why_ended("reader", cause)
        self._arrived.set()


def _check_start(start: object) -> None:
    """Raises MisuseError for what `ReadStart` does not allow."""
    if isinstance(start, datetime):
        _time_ms(start)
    elif not isinstance(start, OffsetSpec | Mapping):
        raise MisuseError(
            f"start is {start!r}; use EARLIEST or LATEST, a datetime with a time zone, or a "
            "dictionary of TopicPartition to offset"
        )


def _time_ms(start: datetime) -> int:
    if start.tzinfo is None:
        raise MisuseError(
            f"start is {start!r}, which has no time zone; give it one, such as "
            "start.astimezone() for this machine's"
        )
    return max(0, (start - _EPOCH) // timedelta(milliseconds=1))


def _checked(
    start: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Offsets that a user gave; raises MisuseError, OffsetOutOfRangeError."""
    for where, offset in start.items():
        if where not in ends:
            raise MisuseError(f"start has {where}, which is not read; {len(ends)} partitions are")
        if not isinstance(offset, int) or offset < 0:
            raise MisuseError(f"start: {where}: {offset!r} is not an offset; it must be 0 or more")
        if offset > ends[where]:
            raise OffsetOutOfRangeError(
                f"start: {where}: offset {offset} is after the end of the log, which is "
                f"{ends[where]}",
                OffsetRange(0, ends[where]),
            )
    return dict(start)


def _size_bytes(columns: Columns) -> int:
    data = (columns.key_data, columns.value_data, columns.header_key_data)
    return sum(one.nbytes for one in data) + columns.header_value_data.nbytes


def _too_much(batch: ConsumedBatch, span: _Span, max_bytes: int) -> MisuseError:
    return MisuseError(
        f"read_to_end has read more than max_bytes, {max_bytes:,} bytes, and has not reached the "
        f"end: it is at offset {batch.next_offset} of {span.start} to {span.end} in "
        f"{batch.topic_partition}. Read fewer partitions, start later, limit max_records and go on "
        "from next_offsets, or raise max_bytes"
    )
