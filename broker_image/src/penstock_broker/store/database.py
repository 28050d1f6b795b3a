"""The open RocksDB database: what is stored of a slot, and how a write to it is put together.

    Database    column families and index; reads what `layout` and `state` say how to decode
    Tail        a summary of one slot: its first and last batch, and its checkpoint
    Operations  puts and deletes in order ──build──▶ a WriteBatch of rocksdict

Only `rocks` writes; everything else in this package reads, or adds to `Operations`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, cast

import rocksdict

from penstock.core.aborted import AbortedTransaction
from penstock.core.compaction.plan import Cleaned
from penstock.core.replication.contract import Checkpoint, ProducerEntry
from penstock.core.types import Offset
from penstock.core.value import value
from penstock_broker.store import layout, state
from penstock_broker.store.index import BatchIndex
from penstock_broker.store.interface import Slot
from penstock_broker.store.layout import IndexEntry

_COLLECTING: Final = {
    "enable_blob_garbage_collection": "true",
    "blob_garbage_collection_age_cutoff": "0.25",
    "blob_garbage_collection_force_threshold": "0.5",
}
_RESTING: Final = {"enable_blob_garbage_collection": "false"}
_Key = str | int | float | bytes | bool  # rocksdict's invariant list wants all of them


@value(frozen=True, slots=True)
class Tail:
    """A summary of what is stored of a slot; both entries are None when there is no batch.

    `compacted_end`: see `RecoveredLog`.
    """

    first: IndexEntry | None
    last: IndexEntry | None
    checkpoint: Checkpoint
    compacted_end: Offset

    @property
    def log_end_offset(self) -> Offset:
        end = self.last.next_offset if self.last else Offset(0)
        return max(end, self.checkpoint.log_start_offset)

    @property
    def size_bytes(self) -> int:
        if self.first is None or self.last is None:
            return 0
        return self.last.next_position - self.first.position


class Database:
    """The open database: its column families and the index."""

    def __init__(self, batches: rocksdict.Rdict, single_deletes_max: int) -> None:
        """`single_deletes_max`: see `StoreOptions`."""
        self.batches = batches
        self.single_deletes_max = single_deletes_max
        self.state = batches.get_column_family(layout.STATE_FAMILY)
        self.state_handle = batches.get_column_family_handle(layout.STATE_FAMILY)
        """Names the column family `state` in a WriteBatch."""
        self.index = BatchIndex(self.state)
        self._is_collecting = False
        unverified = rocksdict.ReadOptions()
        unverified.set_verify_checksums(False)
        # For `get` in this family: a list of keys takes no options with the call.
        batches.set_read_options(unverified)

    def close(self) -> None:
        """Everything must be fsynced first: closing also flushes, which a full disk refuses.

        The handle is released first, because a traceback may still hold this object, and a handle
        that is referenced keeps the database locked.
        """
        del self.state_handle
        for family in (self.state, self.batches):
            with suppress(Exception):
                family.close()

    def is_stalled(self) -> bool:
        """RocksDB asks writers to wait, until the disk has kept up."""
        return bool(
            self.batches.property_int_value("rocksdb.is-write-stopped")
            or self.batches.property_int_value("rocksdb.actual-delayed-write-rate")
        )

    def stop_merging(self) -> None:
        """No merge begins any more. One that runs goes on, and may end all writes."""
        for family in (self.batches, self.state):
            with suppress(Exception):
                family.set_options({"disable_auto_compactions": "true"})

    def sum_of(self, name: str) -> int:
        """A number of RocksDB's, over both column families."""
        families = (self.batches, self.state)
        return sum(family.property_int_value(name) or 0 for family in families)

    @property
    def garbage_bytes(self) -> int:
        """In blob files, beside batches that are needed still."""
        return self.batches.property_int_value("rocksdb.live-blob-file-garbage-size") or 0

    def collect_garbage(self, least_bytes: int) -> None:
        """Lets RocksDB copy what pins its oldest blob files once half of all their bytes is
        garbage, until a quarter is. Not below `least_bytes` of garbage.

        A blob file holds what all partitions wrote at a time, and goes when nothing in it is
        needed: a topic that is kept for a year pins what its neighbours wrote (decision 109).
        """
        garbage = self.garbage_bytes
        part = garbage / (self.batches.property_int_value("rocksdb.live-blob-file-size") or 1)
        collects = part > (0.25 if self._is_collecting else 0.5) and garbage >= least_bytes
        if collects != self._is_collecting:
            self.batches.set_options(_COLLECTING if collects else _RESTING)
            self._is_collecting = collects

    def stop_collecting(self) -> None:
        """Lets RocksDB copy no more. A merge that runs goes on, and may end all writes."""
        with suppress(Exception):
            self.batches.set_options(_RESTING)
        self._is_collecting = False

    def stored_batches(self, keys: Sequence[bytes]) -> list[bytes] | None:
        """The batches stored at these keys, in ascending order; None if one of them is missing.

        RocksDB verifies what leads to them, but not the batches: the caller must check their CRCs
        and compare their headers with the index (docs/decisions/0042).
        """
        if not keys:
            return []
        self._verify_tables(keys)
        found = self.batches.get(cast("list[_Key]", keys))
        assert isinstance(found, list), "rocksdict answers a list of keys with a list"
        return None if any(stored is None for stored in found) else found

    def _verify_tables(self, keys: Sequence[bytes]) -> None:
        """Reads the table blocks that lead to these keys and verifies their checksums.

        RocksDB trusts the structure of a block that it was told not to verify: a damaged one can
        crash the process. A seek reads the same blocks as `get`. The bound keeps it from going on
        to the value, which would be verified, too.
        """
        bounded = rocksdict.ReadOptions()
        bounded.set_iterate_upper_bound(keys[0])
        cursor = self.batches.iter(bounded)
        for key in keys:
            cursor.seek(key)
            cursor.status()
        assert not cursor.valid(), "the bound ends the iteration before any value"

    def tail(self, slot: Slot) -> Tail:
        """Reads the tail from disk: four look-ups."""
        stored = self.state.get(layout.checkpoint_key(slot))
        checkpoint = state.EMPTY_CHECKPOINT if stored is None else state.decode_checkpoint(stored)
        last = self.index.last(slot)
        compacted = self.state.get(layout.compacted_key(slot))
        compacted_end = Offset(0 if compacted is None else layout.unpack_u64(compacted))
        return Tail(self.index.first(slot) if last else None, last, checkpoint, compacted_end)

    def cleaned(self, slot: Slot) -> Cleaned:
        return state.decode_cleaned(self.state.get(layout.cleaned_key(slot)))

    def aborted(self, slot: Slot, start: Offset) -> Iterator[AbortedTransaction]:
        """Aborted transactions whose markers are at `start` or after, by marker."""
        prefix = layout.aborted_prefix(slot)
        cursor = self.state.iter()
        cursor.seek(layout.aborted_key(slot, start))
        while cursor.valid() and (key := cursor.key()).startswith(prefix):
            yield state.decode_aborted(layout.offset_of(key), cursor.value())
            cursor.next()
        cursor.status()

    def newest_aborted(self, slot: Slot, count: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions with the last markers, at most `count`, by marker."""
        prefix = layout.aborted_prefix(slot)
        cursor = self.state.iter()
        cursor.seek_for_prev(layout.aborted_key(slot, layout.MAX_OFFSET))
        found: list[AbortedTransaction] = []
        while len(found) < count and cursor.valid() and (key := cursor.key()).startswith(prefix):
            found.append(state.decode_aborted(layout.offset_of(key), cursor.value()))
            cursor.prev()
        cursor.status()
        return tuple(reversed(found))

    def snapshot(self, slot: Slot, as_of: Offset) -> list[ProducerEntry]:
        stored = self.state.get(layout.producers_key(slot, as_of))
        assert stored is not None, f"slot {slot}: producer snapshot {as_of} vanished"
        return state.decode_producers(stored)


class Operations:
    """The steps of one write, in order; a WriteBatch can be built from them any number of times."""

    def __init__(self) -> None:
        self._steps: list[Callable[[rocksdict.WriteBatch, rocksdict.ColumnFamily], None]] = []

    def put_batch(self, key: bytes, value: bytes) -> None:
        self._steps.append(lambda batch, _state: batch.put(key, value))

    def put_state(self, key: bytes, value: bytes) -> None:
        self._steps.append(lambda batch, state_family: batch.put(key, value, state_family))

    def delete_batch(self, key: bytes) -> None:
        self._steps.append(lambda batch, _state: batch.delete(key))

    def delete_state(self, key: bytes) -> None:
        self._steps.append(lambda batch, state_family: batch.delete(key, state_family))

    def delete_batches(self, start: bytes, end: bytes) -> None:
        self._steps.append(lambda batch, _state: batch.delete_range(start, end))

    def delete_states(self, start: bytes, end: bytes) -> None:
        self._steps.append(lambda batch, state_family: batch.delete_range(start, end, state_family))

    def build(self, state_family: rocksdict.ColumnFamily) -> rocksdict.WriteBatch:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for step in self._steps:
            step(batch, state_family)
        return batch
