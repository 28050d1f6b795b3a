"""Look-ups of a slot's batches in the index alone: no payload is read.

    read        → `from_offset`: which batches, how large
    recovery    → `last`, `from_offset`
    retention   → `search` by position or running maximum (both grow with the offset)

An iterator pins one state of the database, so each answer is consistent in itself. Check its status
when it ends: a damaged block ends an iteration just as the end of the log does.
"""

from collections.abc import Callable, Iterator

import rocksdict

from penstock.core.types import Offset
from penstock_broker.store import layout
from penstock_broker.store.interface import Slot
from penstock_broker.store.layout import IndexEntry


class BatchIndex:
    """Read access to the index key space of the column family `state`."""

    def __init__(self, state: rocksdict.Rdict) -> None:
        self._state = state

    def first(self, slot: Slot) -> IndexEntry | None:
        return next(self.from_offset(slot, Offset(0)), None)

    def last(self, slot: Slot) -> IndexEntry | None:
        return self.at_or_before(slot, layout.MAX_OFFSET)

    def at_or_before(self, slot: Slot, offset: Offset) -> IndexEntry | None:
        """The last batch with base offset <= `offset`."""
        cursor = self._state.iter()
        cursor.seek_for_prev(layout.index_key(slot, offset))
        return _entry_at(cursor, layout.index_prefix(slot))

    def holding(self, slot: Slot, offset: Offset) -> IndexEntry | None:
        """The batch that holds `offset`, or else the first one after it."""
        return next(self.from_offset(slot, offset), None)

    def from_offset(self, slot: Slot, offset: Offset) -> Iterator[IndexEntry]:
        """Batches from the one that holds `offset` (or the first after it) to the last."""
        prefix = layout.index_prefix(slot)
        cursor = self._state.iter()
        cursor.seek_for_prev(layout.index_key(slot, offset))
        entry = _entry_at(cursor, prefix)
        if entry is None:
            cursor.seek(layout.index_key(slot, offset))
            entry = _entry_at(cursor, prefix)
        elif entry.next_offset <= offset:
            cursor.next()
            entry = _entry_at(cursor, prefix)
        while entry is not None:
            yield entry
            cursor.next()
            entry = _entry_at(cursor, prefix)

    def search(
        self,
        slot: Slot,
        start: Offset,
        end: Offset,
        reached: Callable[[IndexEntry], bool],
    ) -> IndexEntry | None:
        """The first batch in [start, end) for which `reached` is true; once true, it must stay
        true.

        `start` is the base offset of a stored batch; O(log(end - start)) look-ups.
        """
        low, high = start, end
        while low < high:
            middle = Offset((low + high) // 2)
            entry = self.at_or_before(slot, middle)
            if entry is None or entry.base_offset < low:
                low = Offset(middle + 1)  # a gap in the offsets
            elif reached(entry):
                high = entry.base_offset
            else:
                low = max(entry.next_offset, Offset(middle + 1))
        entry = self.holding(slot, high)
        return entry if entry is not None and entry.base_offset < end and reached(entry) else None

    def producer_snapshots(self, slot: Slot) -> list[Offset]:
        """As-of offsets of the stored producer snapshots, ascending."""
        prefix = layout.producers_prefix(slot)
        cursor = self._state.iter()
        cursor.seek(prefix)
        found = []
        while cursor.valid() and cursor.key().startswith(prefix):
            found.append(layout.offset_of(cursor.key()))
            cursor.next()
        cursor.status()
        return found


def _entry_at(cursor: rocksdict.RdictIter, prefix: bytes) -> IndexEntry | None:
    if not cursor.valid():
        cursor.status()
        return None
    key = cursor.key()
    return layout.unpack_entry(key, cursor.value()) if key.startswith(prefix) else None
