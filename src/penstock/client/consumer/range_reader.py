"""Reads offset ranges with blocking calls: all records of [start, end), in order, or an error.

    ranges ──▶ fetch ──▶ trim ──▶ decode ──▶ ConsumedBatch
                 ▲ one fetch is in flight while the last answer is decoded and consumed

Why not a `Consumer`: it prefetches to the end of the log and runs an event loop in a thread. To
read from one offset to another, a channel per broker and one call at a time are enough.

Possible problems, and what happens then:

    the leader changed, is down, overloaded   ask again, with growing pauses
    offsets missing inside the range          normal: compaction, control batches
    the range starts before the log start,    records are lost: `on_lost` decides, it raises, or
    the topic was created again               returns to continue after them
    the topic is unknown for long             ClusterError: deleted, or the user may not see it
    no progress for `progress_timeout_ms`     NoProgressError with topic, partition, offset

Only what `isolation_level` lets a reader see: with read_committed a range must not end beyond the
last stable offset. `RangeFetcher` is the seam; `range_fetcher.py` has the real one.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.client.config import IsolationLevel, SecurityConfig
from penstock.client.model import ConsumedBatch
from penstock.core.batch import Batch, BatchFlags
from penstock.core.records import decode_batch
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, OffsetOutOfRangeError, PenstockError

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
UNKNOWN_TOPIC_PATIENCE_S: Final = 15.0
"""How long a topic may be unknown, or have another id, before that is believed: until then, a
broker may not have learned of it yet."""
FIRST_FETCH_RECORD_BYTES: Final = 1024
"""Assumed record size before any record was seen, so that a short range does not fetch megabytes
beyond its end."""
LEAST_FETCH_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Offsets [start, end) of a partition. `topic_id` "" = of whichever topic has the name."""

    where: TopicPartition
    start: int
    end: int
    topic_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeConfig(SecurityConfig):
    """How ranges are read. Sizes in bytes, times in ms.

    Attributes:
        fetch_max_bytes: Limit of one answer; a larger batch comes alone.
        fetch_max_wait_ms: How long a leader may wait for the first record.
        request_timeout_ms: Of one call, in addition to that wait.
        progress_timeout_ms: How long the reader tries without getting a record.
        isolation_level: As a consumer's.
    """

    fetch_max_bytes: int = 4 << 20
    fetch_max_wait_ms: int = 500
    request_timeout_ms: int = 30_000
    progress_timeout_ms: int = 60_000
    isolation_level: IsolationLevel = "read_committed"


class NoProgressError(ClusterError):
    """`progress_timeout_ms` passed without a record; reading the same range again may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.REQUEST_TIMED_OUT)


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Records of a range that no longer exist; reading would continue at `resume_at`."""

    where: TopicPartition
    position: int
    resume_at: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.where} lost records while they were read: requested offset {self.position}, "
            f"{self.reason}"
        )


OnLost = Callable[[LostRecords], None]
"""Raises to end the reading; or returns, and the records are skipped."""


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """What a fetch found. `readable_end`: records below it can be read; -1 = unknown."""

    batches: Sequence[Batch]
    readable_end: int


class PendingFetch(Protocol):
    """A fetch in flight."""

    def result(self) -> FetchedBatches:
        """Waits; raises PenstockError."""

    def cancel(self) -> None:
        """The answer is no longer needed."""


class RangeFetcher(Protocol):
    """Starts fetches of records at or after `offset`; never blocks for long."""

    def start(
        self, wanted: RecordRange, offset: int, max_bytes: int, timeout_s: float
    ) -> PendingFetch:
        """Raises nothing: `result` raises the error."""


@dataclass(slots=True)
class _Cursor:
    """The progress in a range: records below `position` are done or never existed."""

    wanted: RecordRange
    position: int
    record_bytes: float = FIRST_FETCH_RECORD_BYTES

    @property
    def done(self) -> bool:
        return self.position >= self.wanted.end

    def fetch_bytes(self, most: int) -> int:
        left = (self.wanted.end - self.position) * self.record_bytes
        return max(LEAST_FETCH_BYTES, min(most, int(left * 1.05) + 4096))

    def gets_on_with(self, answer: FetchedBatches) -> bool:
        """Whether `take` will make progress: otherwise, the same fetch must be retried."""
        if not answer.batches:
            return answer.readable_end >= self.wanted.end
        return answer.batches[-1].next_offset > self.position

    def take(self, answer: FetchedBatches) -> list[tuple[Batch, int, int]]:
        """Batches with the offsets [lo, hi) of each that belong to the range; moves on."""
        taken = []
        for batch in answer.batches:
            lo = max(batch.base_offset, self.position)
            hi = min(batch.next_offset, self.wanted.end)
            if lo < hi and not batch.header.flags & BatchFlags.CONTROL:
                taken.append((batch, lo, hi))
                self.record_bytes = batch.size_bytes / batch.header.record_count
            self.position = max(self.position, batch.next_offset)
        if not answer.batches and answer.readable_end >= self.wanted.end:
            self.position = self.wanted.end  # the rest was compacted away
        return taken


class RangeReader:
    """Reads ranges one after the other, prefetching one answer. For one thread."""

    def __init__(self, fetcher: RangeFetcher, config: RangeConfig) -> None:
        self._fetcher = fetcher
        self._config = config

    def read(self, ranges: Sequence[RecordRange], on_lost: OnLost) -> Iterator[ConsumedBatch]:
        """All records of the ranges, in the order given; none twice, none of another range.

        Raises NoProgressError, what `on_lost` raises, or ClusterError for an error that waiting
        does not cure; all name topic, partition and offset. An iterator that is closed before its
        end cancels the fetch in flight.
        """
        cursors = [_Cursor(r, r.start) for r in ranges if r.start < r.end]
        index, pending = 0, None
        try:
            while index < len(cursors):
                cursor = cursors[index]
                answer = self._answer(cursor, pending, on_lost)
                pending = None
                taken = cursor.take(answer) if answer else []
                index += cursor.done
                if index < len(cursors):
                    pending = self._start(cursors[index])
                for batch, lo, hi in taken:
                    part = _decoded(cursor.wanted, batch, lo, hi)
                    if part.lo < part.hi:
                        yield part
        finally:
            if pending is not None:
                pending.cancel()

    def _start(self, cursor: _Cursor) -> PendingFetch:
        config = self._config
        timeout_ms = config.request_timeout_ms + config.fetch_max_wait_ms
        timeout_s = min(timeout_ms, config.progress_timeout_ms) / 1000
        size = cursor.fetch_bytes(config.fetch_max_bytes)
        return self._fetcher.start(cursor.wanted, cursor.position, size, timeout_s)

    def _answer(
        self, cursor: _Cursor, pending: PendingFetch | None, on_lost: OnLost
    ) -> FetchedBatches | None:
        """Waits for progress; None if the cursor was moved past lost records."""
        started = time.monotonic()
        pause_s = FIRST_PAUSE_S
        while True:
            waited_s = time.monotonic() - started
            try:
                answer = (pending or self._start(cursor)).result()
            except PenstockError as problem:
                if _skipped(cursor, problem, waited_s, on_lost):
                    return None
                seen = problem.message
            else:
                if cursor.gets_on_with(answer):
                    return answer
                seen = f"records are readable up to {answer.readable_end} so far"
            pending = None
            if waited_s + pause_s > self._config.progress_timeout_ms / 1000:
                raise self._too_late(cursor, seen)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _too_late(self, cursor: _Cursor, seen: str) -> NoProgressError:
        wanted = cursor.wanted
        return NoProgressError(
            f"{wanted.where}: no records at offset {cursor.position} (of {wanted.start} to "
            f"{wanted.end}) within {self._config.progress_timeout_ms} ms; the last answer was: "
            f"{seen}; check that the partition has a leader"
        )


def _skipped(cursor: _Cursor, problem: PenstockError, waited_s: float, on_lost: OnLost) -> bool:
    """Moves the cursor past lost records, if that is allowed.

    Returns False if waiting may help. Raises what `on_lost` raises, or the problem itself.
    """
    wanted, position = cursor.wanted, cursor.position
    resume_at = wanted.end
    match problem:
        case OffsetOutOfRangeError(valid=valid):
            if valid is None or position >= valid.log_start_offset:
                return False  # past the end: a new leader may not know its end yet
            resume_at = min(resume_at, valid.log_start_offset)
            reason = f"available are {valid.log_start_offset} to {valid.high_watermark}"
        case PenstockError(code=ErrorCode.TOPIC_ID_MISMATCH):
            if waited_s < UNKNOWN_TOPIC_PATIENCE_S:
                return False
            reason = "the topic was deleted and created again"
        case PenstockError(code=ErrorCode.UNKNOWN_TOPIC | ErrorCode.UNKNOWN_PARTITION):
            if waited_s < UNKNOWN_TOPIC_PATIENCE_S:
                return False
            # No proof that records are lost: it may be in sight again when the range is retried.
            raise ClusterError(
                f"{wanted.where} at offset {position}: it does not exist, or this user may not see "
                f"it any more: {problem.message}",
                problem.code,
            ) from None
        case _ if problem.retriable:
            return False
        case _:
            text = f"{wanted.where} at offset {position}: {problem.message}"
            raise ClusterError(text, problem.code) from None
    on_lost(LostRecords(wanted.where, position, resume_at, reason))
    cursor.position = resume_at
    return True


def _decoded(
    wanted: RecordRange, batch: Batch, first_offset: int, end_offset: int
) -> ConsumedBatch:
    try:
        columns = decode_batch(batch)
    except PenstockError as problem:
        raise ClusterError(
            f"{wanted.where}, batch at offset {batch.base_offset}: {problem.message}", problem.code
        ) from None
    lo, hi = columns.index_of(first_offset), columns.index_of(end_offset)
    epoch = batch.header.leader_epoch
    return ConsumedBatch(wanted.where.topic, wanted.where.partition, columns, lo, hi, epoch)
