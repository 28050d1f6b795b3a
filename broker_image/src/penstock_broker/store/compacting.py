"""What compaction asks, answered from the index alone: how much is dirty, where chunks begin."""

from penstock.core.compaction.plan import LogFacts
from penstock.core.types import Offset
from penstock_broker.store.database import Database, Tail
from penstock_broker.store.interface import Slot


def facts(database: Database, slot: Slot, tail: Tail, end: Offset) -> LogFacts:
    """See `LogStore.compaction_facts`: two look-ups, whatever the log's size."""
    cleaned = database.cleaned(slot)
    if tail.first is None or tail.last is None or tail.first.base_offset >= end:
        return LogFacts(cleaned, end, end, end)
    start = tail.first.base_offset
    dirty = database.index.holding(slot, max(start, cleaned.end_offset))
    behind = database.index.holding(slot, end)
    end_position = behind.position if behind else tail.last.next_position
    if dirty is None or dirty.base_offset >= end:
        return LogFacts(cleaned, start, end, end, end_position - tail.first.position)
    return LogFacts(
        cleaned,
        start,
        dirty.base_offset,
        end,
        clean_bytes=dirty.position - tail.first.position,
        dirty_bytes=end_position - dirty.position,
        first_dirty_ms=dirty.header.effective_max_timestamp_ms,
    )


def chunk_start(database: Database, slot: Slot, tail: Tail, end: Offset, max_bytes: int) -> Offset:
    """See `LogStore.chunk_start`: a binary search, as positions grow with offsets."""
    last = database.index.at_or_before(slot, Offset(end - 1))
    if last is None or tail.first is None or last.base_offset <= tail.first.base_offset:
        return tail.first.base_offset if tail.first else end
    least = last.next_position - max_bytes
    found = database.index.search(
        slot, tail.first.base_offset, end, lambda entry: entry.position >= least
    )
    return found.base_offset if found is not None else last.base_offset
