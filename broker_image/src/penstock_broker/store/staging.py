"""From a `PartitionWrite` to RocksDB operations: one `StagedSlot` per partition and write.

    PartitionWrite ──apply──▶ `Operations` (puts, deletes)   nothing is changed yet
                         └──▶ `tail`, which the store adopts once they are written

Operations take effect in order: truncation is staged first, so that a batch put back at a truncated
offset survives (I6); removal below the log start comes last. Several writes to one slot in one call
build on each other: `_pending` are batches that are only staged, `_stored_end` hides stored ones
whose removal is staged.

I9: producers outlive their batches. Before retention removes batches, there must be a producer
snapshot at or after the new start that truncation cannot reach (at or below the high watermark); if
the caller's snapshots include none, one is made here from headers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch, BatchFlags, BatchHeader, pack_batch, pack_header
from penstock.core.compaction.plan import Cleaned
from penstock.core.replication.contract import Checkpoint, ProducerEntry
from penstock.core.replication.losses import emptied
from penstock.core.replication.producers import ProducerTable
from penstock.core.types import Offset
from penstock_broker.store import layout, state
from penstock_broker.store.database import Database, Operations, Tail
from penstock_broker.store.interface import PartitionWrite, Rewrite, Slot
from penstock_broker.store.layout import IndexEntry, batch_key, index_key, producers_key


class StagedSlot:
    """Stages the writes of one call to one slot. Use once."""

    def __init__(self, database: Database, operations: Operations, slot: Slot, tail: Tail):
        self.tail = tail
        self._database = database
        self._operations = operations
        self._slot = slot
        self._pending: list[IndexEntry] = []
        self._stored_end = layout.MAX_OFFSET
        self._snapshots: list[Offset] | None = None
        self._new_snapshots: dict[Offset, Sequence[ProducerEntry]] = {}
        self._new_aborted: list[Offset] = []
        self._known_cleaned: Cleaned | None = None
        self.removes = False
        """True if something was deleted, so that `reclaim` has something to do."""

    def apply(self, write: PartitionWrite) -> None:
        if write.truncate_to is not None:
            self._truncate(write.truncate_to, state.log_start_after(self.tail.checkpoint, write))
        log_end = self.tail.log_end_offset
        for batch in write.batches:
            self._append(batch)
        for aborted in write.aborted:
            self._put_aborted(aborted)
        if write.checkpoint is not None:
            self._set_checkpoint(write.checkpoint)
        if write.producers is not None:
            self._put_snapshot(self.tail.log_end_offset, write.producers)
        if write.log_start_offset is not None:
            self._remove_before(write.log_start_offset)
        for rewrite in write.rewrites:
            if self.tail.first is not None and self.tail.first.base_offset <= rewrite.start:
                self._rewrite(rewrite)
        self._repair(write)
        self._note_cleaned(write, log_end)
        self._note_compacted(state.compacted_end_after(self.tail.compacted_end, write, log_end))

    def _note_cleaned(self, write: PartitionWrite, log_end: Offset) -> None:
        if write.cleaned is not None or write.swept_end is not None:
            self._put_cleaned(state.cleaned_after(self._cleaned(), write, log_end))
        if write.cleaned is not None:
            self._drop_aborted(Offset(0), write.cleaned.end_offset)

    def _note_compacted(self, end: Offset) -> None:
        if end != self.tail.compacted_end:
            self._operations.put_state(layout.compacted_key(self._slot), layout.pack_u64(end))
            self.tail = replace(self.tail, compacted_end=end)

    def _cleaned(self) -> Cleaned:
        if self._known_cleaned is None:
            self._known_cleaned = self._database.cleaned(self._slot)
        return self._known_cleaned

    def _put_cleaned(self, cleaned: Cleaned) -> None:
        if cleaned != self._cleaned():
            self._known_cleaned = cleaned
            self._operations.put_state(
                layout.cleaned_key(self._slot), state.encode_cleaned(cleaned)
            )

    def _truncate(self, to: Offset, log_start: Offset) -> None:
        tail = self.tail
        if tail.log_end_offset <= to:
            self._put_cleaned(self._cleaned().cut(to))
            if tail.last is None:
                self._note_compacted(Offset(0))
            return
        if to <= log_start and tail.first is not None:
            # Nothing of the log is left, not even the batch that contains its start.
            to = min(to, tail.first.base_offset)
        holder = next(self._entries(to), None)
        if holder is not None and holder.base_offset < to:
            assert holder.header.flags & BatchFlags.COMPACTED, (
                f"slot {self._slot}: truncation to {to} would cut the batch "
                f"[{holder.base_offset}, {holder.next_offset})"
            )
            to = holder.base_offset
        self._delete_batches(to, layout.MAX_OFFSET)
        self._drop_aborted(to, layout.MAX_OFFSET)
        self._pending = [entry for entry in self._pending if entry.base_offset < to]
        self._stored_end = min(self._stored_end, to)
        last = None if tail.first is None else self._last_before(to, tail.first)
        assert last is None or last.next_offset <= to
        self.tail = replace(tail, first=tail.first if last else None, last=last)
        if last is None:
            self._note_compacted(Offset(0))
        self._set_checkpoint(state.truncated(tail.checkpoint, to))
        for as_of in [offset for offset in self._known_snapshots() if offset > to]:
            self._drop_snapshot(as_of)
        self._put_cleaned(self._cleaned().cut(to))

    def _last_before(self, to: Offset, first: IndexEntry) -> IndexEntry | None:
        if self._pending:
            return self._pending[-1]
        if to == 0:
            return None
        last = self._database.index.at_or_before(self._slot, Offset(to - 1))
        return last if last is not None and last.base_offset >= first.base_offset else None

    def _rewrite(self, rewrite: Rewrite) -> None:
        """Stages new batches in place of stored ones; positions are counted back from their end."""
        start, end, slot = rewrite.start, rewrite.end, self._slot
        old, position = self._replaced(start, end)
        stored = {entry.base_offset: entry for entry in old}
        new: list[IndexEntry] = []
        for batch in reversed(rewrite.batches):
            while old[-1].base_offset >= batch.next_offset:
                old.pop()
            position -= batch.size_bytes
            entry = layout.next_entry(batch, position, old[-1].running_max_ms)
            new.append(entry)
            known = stored.pop(batch.base_offset, None)
            if known is None or known.packed_header != entry.packed_header:
                self._operations.put_batch(batch_key(slot, batch.base_offset), pack_batch(batch))
                self.removes = True
            if entry != known:
                self._operations.put_state(
                    index_key(slot, batch.base_offset), layout.pack_entry(entry)
                )
        for base_offset in stored:
            self._operations.delete_batch(batch_key(slot, base_offset))
            self._operations.delete_state(index_key(slot, base_offset))
        tail = self.tail
        assert tail.first is not None
        assert tail.last is not None
        self.tail = replace(
            tail,
            first=new[-1] if tail.first.base_offset == start else tail.first,
            last=new[0] if tail.last.next_offset == end else tail.last,
        )

    def _repair(self, write: PartitionWrite) -> None:
        for batch in write.mended:
            self._mend(batch)
        for header in write.lost:
            self._empty(header)

    def _mend(self, batch: Batch) -> None:
        """Stages the bytes that belong to an index entry; the index stays as it is."""
        entry = next(self._entries(batch.base_offset), None)
        stored = pack_batch(batch)
        if entry is not None and stored.startswith(entry.packed_header):
            self._operations.put_batch(batch_key(self._slot, batch.base_offset), stored)

    def _empty(self, header: BatchHeader) -> None:
        entry = next(self._entries(header.base_offset), None)
        if entry is not None and entry.packed_header == pack_header(header):
            self._rewrite(Rewrite((emptied(header),)))

    def _replaced(self, start: Offset, end: Offset) -> tuple[list[IndexEntry], int]:
        """The stored batches that cover [start, end), and the position after the last."""
        old: list[IndexEntry] = []
        position = None
        for entry in self._entries(start):
            if entry.base_offset >= end:
                position = entry.position
                break
            old.append(entry)
        assert old, f"slot {self._slot}: nothing is stored in [{start}, {end})"
        covered = (old[0].base_offset, old[-1].next_offset)
        assert covered == (start, end), f"slot {self._slot}: {covered} rewritten as {start, end}"
        assert all(entry.base_offset < self._stored_end for entry in old)
        return old, old[-1].next_position if position is None else position

    def _append(self, batch: Batch) -> None:
        last = self.tail.last
        assert last is None or batch.base_offset >= last.next_offset, (
            f"slot {self._slot}: batch at {batch.base_offset} appended to a log that ends at "
            f"{self.tail.log_end_offset}"
        )
        entry = layout.next_entry(
            batch,
            last.next_position if last else 0,
            last.running_max_ms if last else layout.NO_TIMESTAMP_MS,
        )
        slot, base_offset = self._slot, batch.base_offset
        # The stored batch is its packed header, which the entry has as well, and its payload.
        stored = entry.packed_header + batch.payload
        self._operations.put_batch(batch_key(slot, base_offset), stored)
        self._operations.put_state(index_key(slot, base_offset), layout.pack_entry(entry))
        self._pending.append(entry)
        self.tail = replace(self.tail, first=self.tail.first or entry, last=entry)

    def _put_aborted(self, aborted: AbortedTransaction) -> None:
        marker = aborted.marker_offset
        assert marker < self.tail.log_end_offset, f"slot {self._slot}: no marker at {marker}"
        self._operations.put_state(
            layout.aborted_key(self._slot, marker), state.encode_aborted(aborted)
        )
        self._new_aborted.append(marker)

    def _drop_aborted(self, start: Offset, end: Offset) -> None:
        """Removes those with markers in [start, end). Usually there is none, which one look-up
        shows."""
        slot, limit = self._slot, self._database.single_deletes_max
        stored = (one.marker_offset for one in self._database.aborted(slot, start))
        few = list(islice(takewhile(lambda marker: marker < end, stored), limit + 1))
        if len(few) > limit:
            self._operations.delete_states(
                layout.aborted_key(slot, start), layout.aborted_key(slot, end)
            )
        else:
            few += [marker for marker in self._new_aborted if start <= marker < end]
            for marker in few:
                self._operations.delete_state(layout.aborted_key(slot, marker))
        self._new_aborted = [one for one in self._new_aborted if not start <= one < end]

    def _set_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._operations.put_state(
            layout.checkpoint_key(self._slot), state.encode_checkpoint(checkpoint)
        )
        self.tail = replace(self.tail, checkpoint=checkpoint)

    def _remove_before(self, log_start: Offset) -> None:
        tail = self.tail
        self._drop_aborted(Offset(0), log_start)
        if log_start > tail.checkpoint.log_start_offset:
            self._set_checkpoint(state.with_log_start(tail.checkpoint, log_start))
        if tail.first is None or tail.last is None or tail.first.next_offset > log_start:
            return
        first = next(self._entries(log_start), None)
        boundary = first.base_offset if first else tail.last.next_offset
        # With a gap before `first`, the log may still be cut at its start: no snapshot after that.
        self._secure_producers(min(boundary, log_start))
        self._delete_batches(tail.first.base_offset, boundary)
        self.tail = replace(self.tail, first=first, last=tail.last if first else None)

    def _secure_producers(self, boundary: Offset) -> None:
        """Ensures a snapshot in [boundary, high watermark] before batches below it are removed."""
        known = self._known_snapshots()
        high_watermark = max(self.tail.checkpoint.high_watermark, boundary)
        if any(boundary <= as_of <= high_watermark for as_of in known):
            return
        older = [as_of for as_of in known if as_of < boundary]
        table = ProducerTable(self._snapshot(older[-1]) if older else ())
        for entry in self._entries(older[-1] if older else Offset(0)):
            if entry.base_offset >= boundary:
                break
            table.apply(entry.header)
        self._put_snapshot(boundary, table.snapshot())

    def _snapshot(self, as_of: Offset) -> Sequence[ProducerEntry]:
        staged = self._new_snapshots.get(as_of)
        return self._database.snapshot(self._slot, as_of) if staged is None else staged

    def _put_snapshot(self, as_of: Offset, producers: Sequence[ProducerEntry]) -> None:
        self._operations.put_state(
            producers_key(self._slot, as_of), state.encode_producers(producers)
        )
        known = sorted({*self._known_snapshots(), as_of})
        self._snapshots = known
        self._new_snapshots[as_of] = producers
        for outdated in state.outdated_snapshots(known, self.tail.checkpoint.high_watermark):
            self._drop_snapshot(outdated)

    def _drop_snapshot(self, as_of: Offset) -> None:
        self._operations.delete_state(producers_key(self._slot, as_of))
        self._known_snapshots().remove(as_of)
        self._new_snapshots.pop(as_of, None)

    def _known_snapshots(self) -> list[Offset]:
        if self._snapshots is None:
            self._snapshots = self._database.index.producer_snapshots(self._slot)
        return self._snapshots

    def _entries(self, offset: Offset) -> Iterator[IndexEntry]:
        """Stored and pending batches from the one that holds `offset` (or the first after it)."""
        for entry in self._database.index.from_offset(self._slot, offset):
            if entry.base_offset >= self._stored_end:
                break
            if self.tail.first is not None and entry.base_offset >= self.tail.first.base_offset:
                yield entry
        for entry in self._pending:
            if entry.next_offset > offset:
                yield entry

    def _delete_batches(self, start: Offset, end: Offset) -> None:
        """Stages the removal of the batches in [start, end); a batch begins at `start`."""
        slot, operations = self._slot, self._operations
        limit = self._database.single_deletes_max
        few = [entry.base_offset for entry in islice(self._entries(start), limit + 1)]
        if len(few) <= limit or few[-1] >= end:
            for base_offset in few:
                if base_offset < end:
                    operations.delete_batch(batch_key(slot, base_offset))
                    operations.delete_state(index_key(slot, base_offset))
        else:
            operations.delete_batches(batch_key(slot, start), batch_key(slot, end))
            operations.delete_states(index_key(slot, start), index_key(slot, end))
        self.removes = True
