"""What a consumer knows about one of its partitions. Pure; the fetcher and the consumer act on it.

        handed out        buffered              not fetched yet
    ──────────────────┬────────────────────┬─────────────────────▶ offsets
                   position            fetch_offset

Both only move forward, except by a seek (I17): a seek empties the buffer and counts up
`generation`. Records that were requested from an offset other than the current `fetch_offset` are
dropped, and so are errors of another generation. Batches are decoded (CRC, decompression) when they
are returned to the user; one that cannot be decoded is an error at that offset, never skipped.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from penstock.client.config import OutOfRangePolicy
from penstock.client.model import EARLIEST, LATEST, ConsumedBatch, OffsetSpec
from penstock.core.batch import Batch, BatchFlags
from penstock.core.columns import Columns
from penstock.core.records import decode_batch
from penstock.core.types import TopicPartition
from penstock.errors import (
    ClusterError,
    ErrorCode,
    OffsetOutOfRangeError,
    OffsetRange,
    PenstockError,
)

PAST_END_GRACE_MS: Final = 10_000
"""For how long a position beyond the high watermark is assumed to mean that a new leader lags
behind."""


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """A batch that waits to be polled, and the high watermark its answer carried."""

    batch: Batch
    high_watermark: int


@dataclass(slots=True, eq=False)
class FetchState:
    """One assigned partition. `position` None: must be looked up as `start` says.

    Attributes:
        floor: A position that is looked up is never below this offset (I17).
        lost: The position that was not in the log, while its successor is looked up; None = none.
        resets: How often a position was found not to be in the log, and its successor was below it.
        in_flight: (generation, address) of the fetch that covers this partition now.
        looking_up: The generation whose position is being looked up; None = none is.
        error: What the next poll raises once the buffer is empty; cleared by a seek.
        retry_at_ms: Not fetched before (ms of a monotonic clock).
        failing_since_ms: When the partition began to fail without pause; None = it does not.
    """

    where: TopicPartition
    topic_id: str
    start: OffsetSpec = EARLIEST
    position: int | None = None
    fetch_offset: int = 0
    floor: int = 0
    lost: int | None = None
    resets: int = 0
    paused: bool = False
    generation: int = 0
    in_flight: tuple[int, str] | None = None
    looking_up: int | None = None
    buffered_bytes: int = 0
    high_watermark: int = -1
    stable_offset: int = -1
    leader_epoch: int = 0
    error: PenstockError | None = None
    retry_at_ms: int = 0
    failing_since_ms: int | None = None
    _buffer: deque[FetchedBatch] = field(default_factory=deque)
    _opened: Columns | None = None
    _failures: int = 0

    @property
    def replaced_topic_id(self) -> str:
        """The id of this partition's topic if that was deleted and created again, else ""."""
        mismatch = self.error is not None and self.error.code is ErrorCode.TOPIC_ID_MISMATCH
        return self.topic_id if mismatch else ""

    @property
    def has_more(self) -> bool:
        """Whether committed records are known to follow those fetched: a fetch finds some now.

        An open transaction begins at the last stable offset: a fetch would wait for it.
        """
        return self.fetch_offset < self.stable_offset

    def seek(self, position: int | None, start: OffsetSpec = EARLIEST) -> None:
        """Starts over at `position`, or at `start` when None."""
        self.position = position
        self.start = start
        self.fetch_offset = position or 0
        self.floor = 0
        self.lost = None
        self.generation += 1
        self.error = None
        self.retry_at_ms = 0
        self.failing_since_ms = None
        self._failures = 0
        self._empty()

    def looked_up(self, offset: int) -> None:
        """The cluster's answer to where `start` is.

        A position that one broker found below its log start stays where it was if the answer is
        lower: a new leader may not have learned yet what retention removed, and still has the
        record at that position.
        """
        found = max(offset, self.floor)
        if self.lost is not None and found < self.lost:
            self.resets += 1
        self.seek(found)

    def drop_buffer(self) -> None:
        """Drops prefetched records; they will be fetched again from the position."""
        if self.position is not None:
            self.fetch_offset = self.position
            self.generation += 1
            self._empty()

    def wants_fetch(self, limit_bytes: int) -> bool:
        """Whether there is room and reason to fetch."""
        return (
            self.position is not None
            and not self.paused
            and self.error is None
            and self.buffered_bytes < limit_bytes
        )

    def accept(
        self,
        asked_offset: int,
        batches: list[Batch],
        high_watermark: int,
        stable_offset: int | None = None,
    ) -> None:
        """Adopts an answer to a fetch from `asked_offset`, if it is still needed.

        `stable_offset`: the last stable offset; None: nothing is open below the high watermark.
        """
        if asked_offset != self.fetch_offset:
            return
        self.failing_since_ms = None
        self._failures = 0
        self.high_watermark = max(self.high_watermark, high_watermark)
        stable = high_watermark if stable_offset is None else stable_offset
        self.stable_offset = max(self.stable_offset, stable)
        for batch in batches:
            if batch.next_offset <= self.fetch_offset:
                continue
            self.fetch_offset = batch.next_offset
            self._buffer.append(FetchedBatch(batch, high_watermark))
            self.buffered_bytes += batch.size_bytes

    def next_batch(self, max_records: int) -> ConsumedBatch | None:
        """Returns at most `max_records` of the next batch and moves the position after them.

        Raises ClusterError naming partition and offset if the batch is corrupt; the position
        stays where it is.
        """
        while self._buffer and self.position is not None:
            fetched = self._buffer[0]
            batch = fetched.batch
            if batch.header.flags & BatchFlags.CONTROL:
                self._behind(batch)
                continue
            columns = self._open(batch)
            lo = columns.index_of(self.position)
            hi = min(columns.record_count, lo + max_records)
            if hi == columns.record_count:
                self._behind(batch)
            else:
                self.position = columns.offset_at(hi)
            if lo == hi:
                continue  # compaction left nothing of it
            return ConsumedBatch(
                topic=self.where.topic,
                partition=self.where.partition,
                columns=columns,
                lo=lo,
                hi=hi,
                leader_epoch=batch.header.leader_epoch,
                high_watermark=fetched.high_watermark,
            )
        return None

    def out_of_range(
        self, error: PenstockError, policy: OutOfRangePolicy, now_ms: int
    ) -> str | None:
        """The fetch offset is not in the log. Returns a warning if the policy moves the position.

        Records buffered before that offset are still returned first.
        """
        valid = error.valid if isinstance(error, OffsetOutOfRangeError) else None
        beyond = valid is not None and self.fetch_offset > valid.high_watermark
        if beyond and not self._beyond_too_long(now_ms):
            return None
        if policy == "error":
            self.error = self._range_error(valid)
            return None
        if self._buffer:
            return None  # asked again when those are returned
        asked = self.fetch_offset
        self.seek(None, EARLIEST if policy == "earliest" else LATEST)
        self.lost = asked
        if valid is not None and asked < valid.log_start_offset:
            self.floor = asked
        return (
            f"{self.where}: offset {asked} is not in the log ({_text(valid)}); resetting "
            f"to {policy}"
        )

    def back_off(self, first_ms: int, max_ms: int, now_ms: int) -> None:
        """A fetch failed for now."""
        if self.failing_since_ms is None:
            self.failing_since_ms = now_ms
        self.retry_at_ms = now_ms + min(first_ms << min(self._failures, 16), max_ms)
        self._failures += 1

    def retry_now(self) -> None:
        """There is a new leader."""
        self.retry_at_ms = 0

    def _beyond_too_long(self, now_ms: int) -> bool:
        if self.failing_since_ms is None:
            self.failing_since_ms = now_ms
        return now_ms - self.failing_since_ms > PAST_END_GRACE_MS

    def _range_error(self, valid: OffsetRange | None) -> OffsetOutOfRangeError:
        cause = "records before the log start were deleted (retention, delete_records)"
        if valid is not None and self.fetch_offset > valid.high_watermark:
            cause = "the offset was never written, or the topic lost data"
        return OffsetOutOfRangeError(
            f"{self.where}: offset {self.fetch_offset} is not in the log, which has "
            f"{_text(valid)}; {cause}. Seek to a valid offset, or set on_offset_out_of_range to "
            "'earliest' or 'latest'",
            valid,
        )

    def _open(self, batch: Batch) -> Columns:
        if self._opened is None:
            try:
                self._opened = decode_batch(batch)
            except PenstockError as error:
                self.error = ClusterError(
                    f"{self.where} offset {batch.base_offset}: {error.message}", error.code
                )
                raise self.error from error
        return self._opened

    def _behind(self, batch: Batch) -> None:
        """The first batch of the buffer is used up."""
        self._buffer.popleft()
        self._opened = None
        self.buffered_bytes -= batch.size_bytes
        self.position = batch.next_offset

    def _empty(self) -> None:
        self._buffer.clear()
        self._opened = None
        self.buffered_bytes = 0


def _text(valid: OffsetRange | None) -> str:
    if valid is None:
        return "unknown offsets"
    return f"{valid.log_start_offset} to {valid.high_watermark}"
