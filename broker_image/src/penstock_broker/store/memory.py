"""The log store in memory, for tests and the simulator: lists instead of a database.

Small on purpose, so that `rocks` can be compared with it: both pass one contract suite. It survives
`close`, as a page cache survives a killed broker; it does not model power loss.
"""

import bisect
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from penstock.core.aborted import NEWEST_MAX, AbortedTransaction, overlapping
from penstock.core.batch import Batch, BatchFlags, BatchHeader, pack_batch, unpack_batch
from penstock.core.compaction.plan import Cleaned, LogFacts
from penstock.core.replication.contract import Checkpoint, ProducerEntry, RecoveredLog
from penstock.core.replication.losses import emptied
from penstock.core.replication.producers import ProducerTable, ended_by_swept_markers
from penstock.core.types import Offset, ReplicaKey
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store import state
from penstock_broker.store.interface import PartitionWrite, Rewrite, Slot, StoreLoad, TimeIndexEntry


@dataclass(slots=True)
class _Log:
    """One slot. `batches` ascending by offset, `snapshots` by as-of offset, `aborted` by marker."""

    batches: list[Batch] = field(default_factory=list)
    checkpoint: Checkpoint = state.EMPTY_CHECKPOINT
    snapshots: dict[Offset, tuple[ProducerEntry, ...]] = field(default_factory=dict)
    cleaned: Cleaned = field(default_factory=Cleaned)
    compacted_end: Offset = Offset(0)
    aborted: list[AbortedTransaction] = field(default_factory=list)

    def copy(self) -> "_Log":
        return _Log(
            batches=list(self.batches),
            checkpoint=self.checkpoint,
            snapshots=dict(self.snapshots),
            cleaned=self.cleaned,
            compacted_end=self.compacted_end,
            aborted=list(self.aborted),
        )

    @property
    def log_end_offset(self) -> Offset:
        end = self.batches[-1].next_offset if self.batches else Offset(0)
        return max(end, self.checkpoint.log_start_offset)

    def apply(self, write: PartitionWrite) -> None:
        if write.truncate_to is not None:
            self._truncate(write.truncate_to, state.log_start_after(self.checkpoint, write))
        log_end = self.log_end_offset
        for batch in write.batches:
            assert not self.batches or batch.base_offset >= self.log_end_offset
            self.batches.append(batch)
        for aborted in write.aborted:
            assert aborted.marker_offset < self.log_end_offset, aborted
            self.aborted.append(aborted)
        if write.checkpoint is not None:
            self.checkpoint = write.checkpoint
        if write.producers is not None:
            self._put_snapshot(self.log_end_offset, write.producers)
        if write.log_start_offset is not None:
            self._remove_before(write.log_start_offset)
        for rewrite in write.rewrites:
            if self.batches and self.batches[0].base_offset <= rewrite.start:
                self._rewrite(rewrite)
        self._mend(write.mended)
        self._empty(write.lost)
        self.cleaned = state.cleaned_after(self.cleaned, write, log_end)
        self.compacted_end = state.compacted_end_after(self.compacted_end, write, log_end)
        if write.cleaned is not None:
            end = write.cleaned.end_offset
            self.aborted = [one for one in self.aborted if one.marker_offset >= end]

    def _rewrite(self, rewrite: Rewrite) -> None:
        covered = [rewrite.start <= batch.base_offset < rewrite.end for batch in self.batches]
        first, count = covered.index(True), sum(covered)
        old = self.batches[first : first + count]
        assert (old[0].base_offset, old[-1].next_offset) == (rewrite.start, rewrite.end)
        self.batches[first : first + count] = rewrite.batches

    def _mend(self, mended: Sequence[Batch]) -> None:
        for batch in mended:
            for at, known in enumerate(self.batches):
                if known.header == batch.header:
                    self.batches[at] = batch

    def _empty(self, lost: Sequence[BatchHeader]) -> None:
        for header in lost:
            if any(known.header == header for known in self.batches):
                self._rewrite(Rewrite((emptied(header),)))

    def producers_as_of(self, end: Offset) -> tuple[ProducerEntry, ...]:
        older = [as_of for as_of in self.snapshots if as_of <= end]
        start = max(older, default=Offset(0))
        known, swept_end = self.snapshots.get(start, ()), self.cleaned.markers_end
        table = ProducerTable(ended_by_swept_markers(known, swept_end, self.log_end_offset))
        for batch in self.batches:
            if start <= batch.base_offset < end:
                table.apply(batch.header)
        return table.snapshot()

    def _truncate(self, to: Offset, log_start: Offset) -> None:
        if self.log_end_offset <= to:
            self.cleaned = self.cleaned.cut(to)
            self.compacted_end = self.compacted_end if self.batches else Offset(0)
            return
        if to <= log_start and self.batches:
            to = min(to, self.batches[0].base_offset)
        for batch in self.batches:
            if batch.base_offset < to < batch.next_offset:
                assert batch.header.flags & BatchFlags.COMPACTED, "truncation inside a batch"
                to = batch.base_offset
        self.cleaned = self.cleaned.cut(to)
        self.aborted = [one for one in self.aborted if one.marker_offset < to]
        self.batches = [batch for batch in self.batches if batch.base_offset < to]
        if not self.batches:
            self.compacted_end = Offset(0)
        self.checkpoint = state.truncated(self.checkpoint, to)
        self.snapshots = {as_of: s for as_of, s in self.snapshots.items() if as_of <= to}

    def _remove_before(self, log_start: Offset) -> None:
        if self.aborted:
            self.aborted = [one for one in self.aborted if one.marker_offset >= log_start]
        if log_start > self.checkpoint.log_start_offset:
            self.checkpoint = state.with_log_start(self.checkpoint, log_start)
        if not self.batches or self.batches[0].next_offset > log_start:
            return
        kept = [batch for batch in self.batches if batch.next_offset > log_start]
        # With a gap between two batches, the log may end in the gap before the next append.
        boundary = min(log_start, kept[0].base_offset if kept else self.batches[-1].next_offset)
        high_watermark = max(self.checkpoint.high_watermark, boundary)
        if not any(boundary <= as_of <= high_watermark for as_of in self.snapshots):
            self._put_snapshot(boundary, self.producers_as_of(boundary))
        self.batches = kept

    def _put_snapshot(self, as_of: Offset, producers: Sequence[ProducerEntry]) -> None:
        self.snapshots[as_of] = tuple(producers)
        self.snapshots = dict(sorted(self.snapshots.items()))
        for old in state.outdated_snapshots(list(self.snapshots), self.checkpoint.high_watermark):
            del self.snapshots[old]


class MemoryLogStore:
    """`LogStore` in memory; thread-safe; every batch is packed and unpacked once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[ReplicaKey, Slot] = {}
        self._next_slot = 1
        self._logs: dict[Slot, _Log] = {}

    def open_slot(self, key: ReplicaKey) -> Slot:
        with self._lock:
            if key not in self._slots:
                self._slots[key] = Slot(self._next_slot)
                self._next_slot += 1
            return self._slots[key]

    def slots(self) -> dict[ReplicaKey, Slot]:
        with self._lock:
            return dict(self._slots)

    def write(self, writes: Sequence[PartitionWrite], *, sync: bool) -> None:
        del sync  # there is nothing to sync
        with self._lock:
            touched: dict[Slot, _Log] = {}
            for write in writes:
                if write.slot not in self._slots.values():
                    raise ClusterError(
                        f"slot {write.slot} is not open here, or was dropped",
                        ErrorCode.STORAGE_FAILED,
                    )
                if write.slot not in touched:
                    touched[write.slot] = self._logs.get(write.slot, _Log()).copy()
                touched[write.slot].apply(write)
            self._logs.update(touched)

    def try_write(self, writes: Sequence[PartitionWrite]) -> bool:
        self.write(writes, sync=False)
        return True

    def read(self, slot: Slot, offset: Offset, max_bytes: int, end: Offset) -> list[Batch]:
        chosen: list[Batch] = []
        total = 0
        for batch in self._from(slot, offset):
            total += batch.size_bytes
            if batch.next_offset > end or (chosen and total > max_bytes):
                break
            chosen.append(unpack_batch(pack_batch(batch)))
        return chosen

    def aborted(self, slot: Slot, start: Offset, end: Offset) -> tuple[AbortedTransaction, ...]:
        later = (one for one in self._log(slot).aborted if one.marker_offset >= start)
        return overlapping(later, end)

    def find_timestamp(self, slot: Slot, timestamp_ms: int, end: Offset) -> TimeIndexEntry | None:
        for batch in self._from(slot, Offset(0)):
            seen_ms = batch.header.effective_max_timestamp_ms
            if seen_ms >= timestamp_ms and batch.next_offset <= end:
                return TimeIndexEntry(batch.base_offset, seen_ms)
        return None

    def recover(self, slot: Slot) -> RecoveredLog:
        log = self._log(slot)
        end = log.log_end_offset
        return RecoveredLog(
            log_end_offset=end,
            checkpoint=log.checkpoint,
            producers=log.producers_as_of(end),
            swept_end=log.cleaned.markers_end,
            compacted_end=max(log.compacted_end, log.cleaned.end_offset),
            aborted=tuple(log.aborted[-NEWEST_MAX:]),
        )

    def drop(self, slot: Slot) -> None:
        with self._lock:
            self._slots = {key: known for key, known in self._slots.items() if known != slot}
            self._logs.pop(slot, None)

    def load(self) -> StoreLoad:
        return StoreLoad()

    def size_bytes(self, slot: Slot) -> int:
        return sum(batch.size_bytes for batch in self._log(slot).batches)

    def bytes_from(self, slot: Slot, offset: Offset) -> int:
        batches = self._log(slot).batches
        return sum(batch.size_bytes for batch in batches if batch.next_offset > offset)

    def retention_start(
        self, slot: Slot, *, older_than_ms: int | None, max_bytes: int | None, end: Offset
    ) -> Offset | None:
        log = self._log(slot)
        if not log.batches:
            return None
        size = sum(batch.size_bytes for batch in log.batches)
        start = log.batches[-1].next_offset
        for batch in log.batches:
            young = (
                older_than_ms is None or batch.header.effective_max_timestamp_ms >= older_than_ms
            )
            older_than_ms = None if young else older_than_ms
            needed = max_bytes is None or size - batch.size_bytes < max_bytes
            if (young and needed) or batch.next_offset > end:
                start = min(end, batch.base_offset)
                break
            size -= batch.size_bytes
        known_start = max(log.batches[0].base_offset, log.checkpoint.log_start_offset)
        return start if start > known_start else None

    def header(self, slot: Slot, offset: Offset) -> BatchHeader | None:
        found = next(self._from(slot, offset), None)
        return None if found is None else found.header

    def next_headers(
        self, slot: Slot, offset: Offset, end: Offset, count_max: int
    ) -> list[BatchHeader]:
        below = takewhile(lambda batch: batch.base_offset < end, self._from(slot, offset))
        return [batch.header for batch in islice(below, count_max)]

    def compaction_facts(self, slot: Slot, end: Offset) -> LogFacts:
        log = self._log(slot)
        below = [batch for batch in log.batches if batch.base_offset < end]
        if not below:
            return LogFacts(log.cleaned, end, end, end)
        start = below[0].base_offset
        dirty = [batch for batch in below if batch.next_offset > log.cleaned.end_offset]
        clean_bytes = sum(batch.size_bytes for batch in below[: len(below) - len(dirty)])
        if not dirty:
            return LogFacts(log.cleaned, start, end, end, clean_bytes)
        return LogFacts(
            log.cleaned,
            start,
            dirty[0].base_offset,
            end,
            clean_bytes=clean_bytes,
            dirty_bytes=sum(batch.size_bytes for batch in dirty),
            first_dirty_ms=dirty[0].header.effective_max_timestamp_ms,
        )

    def chunk_start(self, slot: Slot, end: Offset, max_bytes: int) -> Offset:
        start, left = end, max_bytes
        for batch in reversed(self._log(slot).batches):
            if batch.base_offset < end:
                left -= batch.size_bytes
                if left < 0 and start < end:
                    break
                start = batch.base_offset
        return start

    def reclaim(self) -> None:
        """Nothing to do: Python frees unused memory."""

    def close(self) -> None:
        """Keeps its contents, so that a test can hand the same store to a restarted broker."""

    def _log(self, slot: Slot) -> _Log:
        with self._lock:
            log = self._logs.get(slot)
        return _Log() if log is None else log

    def _from(self, slot: Slot, offset: Offset) -> Iterator[Batch]:
        batches = self._log(slot).batches
        start = bisect.bisect_right(batches, offset, key=lambda batch: batch.next_offset)
        yield from batches[start:]
