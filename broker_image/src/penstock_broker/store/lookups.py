"""Which batches of one slot a read, a search by time or retention means.

All of them look at index entries only, between the first and the last batch of the slot's tail:
an iterator that starts before the first one would read the range that retention deleted.
"""

from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from penstock.core.batch import BatchHeader
from penstock.core.types import Offset
from penstock_broker.store import layout
from penstock_broker.store.database import Tail
from penstock_broker.store.index import BatchIndex
from penstock_broker.store.interface import Slot
from penstock_broker.store.layout import IndexEntry

READ_BATCHES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class SlotLookup:
    """Of one slot, as of one tail."""

    index: BatchIndex
    slot: Slot
    tail: Tail

    def batches_from(self, offset: Offset, max_bytes: int, end: Offset) -> list[IndexEntry]:
        """Batches from the one that holds `offset`, wholly below `end`; at least one, if it is
        there, and then at most `max_bytes`."""
        first = self.tail.first
        if first is None:
            return []
        chosen: list[IndexEntry] = []
        total = 0
        for entry in self.index.from_offset(self.slot, max(offset, first.base_offset)):
            total += entry.size
            if entry.next_offset > end or (chosen and total > max_bytes):
                break
            chosen.append(entry)
            if entry.next_offset >= end or len(chosen) == READ_BATCHES_MAX:
                break
        return chosen

    def next_headers(self, offset: Offset, end: Offset, count_max: int) -> list[BatchHeader]:
        """See `LogStore.next_headers`."""
        first = self.tail.first
        if first is None:
            return []
        entries = self.index.from_offset(self.slot, max(offset, first.base_offset))
        below = takewhile(lambda entry: entry.base_offset < end, entries)
        return [entry.header for entry in islice(below, count_max)]

    def bytes_from(self, offset: Offset) -> int:
        """See `LogStore.bytes_from`."""
        last, holder = self.tail.last, self.index.holding(self.slot, offset)
        return 0 if last is None or holder is None else last.next_position - holder.position

    def first_at_time(self, timestamp_ms: int, end: Offset) -> IndexEntry | None:
        """The first batch wholly below `end` with a record of that time or a later one."""
        tail = self.tail
        if tail.first is None or tail.last is None:
            return None
        found = self.index.search(
            self.slot,
            tail.first.base_offset,
            min(end, tail.last.next_offset),
            lambda entry: entry.running_max_ms >= timestamp_ms,
        )
        if found is None:
            return None
        # The running maximum may come from a batch that was removed: check the batches.
        for entry in self.index.from_offset(self.slot, found.base_offset):
            if entry.next_offset > end:
                return None
            if entry.header.effective_max_timestamp_ms >= timestamp_ms:
                return entry
        return None

    def retention_start(
        self, older_than_ms: int | None, max_bytes: int | None, end: Offset
    ) -> Offset | None:
        """See `LogStore.retention_start`."""
        tail = self.tail
        if tail.first is None or tail.last is None:
            return None
        start = tail.first.base_offset
        if older_than_ms is not None:
            kept = self.first_at_time(older_than_ms, layout.MAX_OFFSET)
            start = max(start, kept.base_offset if kept else tail.last.next_offset)
        if max_bytes is not None and tail.size_bytes > max_bytes:
            start = max(start, self._start_of_last(max_bytes, tail.first, tail.last))
        if start > end:  # only batches wholly below `end` may be removed
            holder = self.index.holding(self.slot, end)
            start = min(end, holder.base_offset) if holder else end
        known_start = max(tail.first.base_offset, tail.checkpoint.log_start_offset)
        return start if start > known_start else None

    def _start_of_last(self, min_bytes: int, first: IndexEntry, last: IndexEntry) -> Offset:
        """The newest start that leaves at least `min_bytes`, fewer than there are. Positions may
        have holes, from compaction: the start is a batch, and not what ends before it, and what
        the holes take is no size."""
        if min_bytes == 0:
            return last.next_offset
        surplus = last.next_position - min_bytes
        too_late = self.index.search(
            self.slot,
            first.base_offset,
            last.next_offset,
            lambda entry: entry.position > surplus,
        )
        if too_late is None:
            return last.base_offset
        fits = self.index.at_or_before(self.slot, Offset(too_late.base_offset - 1))
        if fits is None:
            return first.base_offset
        start = max(first.base_offset, fits.base_offset)
        return self._walked_back(start, min_bytes, first) if self.tail.compacted_end else start

    def _walked_back(self, start: Offset, min_bytes: int, first: IndexEntry) -> Offset:
        """The newest start at or before `start` that leaves at least `min_bytes`."""
        kept = sum(entry.size for entry in self.index.from_offset(self.slot, start))
        while kept < min_bytes and start > first.base_offset:
            before = self.index.at_or_before(self.slot, Offset(start - 1))
            if before is None:
                break
            start = before.base_offset
            kept += before.size
        return start
