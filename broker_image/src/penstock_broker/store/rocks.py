"""A broker's partitions in one RocksDB database (layout: `layout`, tuning: `options`).

    write: stage (pure reads) ─▶ one WriteBatch ─▶ WAL + write buffer ─▶ [fsync of the WAL]
    read:  index entries choose the batches ─▶ one multi-get ─▶ both CRCs checked here (I22)

Facts of rocksdict 0.3.29 that shape this module (docs/decisions/0013): writing a WriteBatch and
stepping an iterator hold the GIL; `flush_wal`, `flush`, `compact_range` and the multi-get release
it. So fsync is `flush_wal(sync=True)` after an unsynced write, a stalled write returns at once
(`no_slowdown`) and waits here, and payloads come by multi-get.

After a write that failed before its fsync, nothing is stored. After a failed fsync it is unknown
what is on disk, and a second fsync would falsely succeed: the store refuses every later write until
the broker restarts; reads continue.
"""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import rocksdict

from penstock.core.aborted import NEWEST_MAX, AbortedTransaction, overlapping
from penstock.core.batch import Batch, BatchHeader
from penstock.core.compaction.plan import LogFacts
from penstock.core.replication.contract import RecoveredLog
from penstock.core.replication.producers import ProducerTable, ended_by_swept_markers
from penstock.core.types import Offset, ReplicaKey
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store import checks, compacting, layout
from penstock_broker.store.damaged_blobs import DamagedBlobs
from penstock_broker.store.damaged_table import DamagedTable
from penstock_broker.store.database import Database, Operations, Tail
from penstock_broker.store.faults import CallGate, damage_of, storage_errors, table_damage
from penstock_broker.store.interface import PartitionWrite, Slot, StoreLoad, TimeIndexEntry
from penstock_broker.store.layout import IndexEntry, batch_key
from penstock_broker.store.lookups import SlotLookup
from penstock_broker.store.options import StoreOptions, database_options
from penstock_broker.store.staging import StagedSlot

_READ_ATTEMPTS: Final = 5
_STALL_POLL_S: Final = 0.002
_CLOSE_TIMEOUT_S: Final = 60.0
_RANGES_MAX: Final = 64
_GARBAGE_BUFFERS: Final = 8
"""Garbage of fewer write buffers is not worth collecting."""
_FAILED: Final = ErrorCode.STORAGE_FAILED


class RocksLogStore:
    """`LogStore` in the directory `path`, which it owns; thread-safe, one writer at a time.

    Raises ClusterError(STORAGE_FAILED | DATA_CORRUPTED | DISK_FULL) if it cannot be opened. Counted
    since it was opened: `headers_scanned`, the index entries `recover` had to read, and `stalls`,
    the writes that had to wait for the disk.
    """

    def __init__(self, path: Path, options: StoreOptions | None = None) -> None:
        self._path = path
        self._options = options or StoreOptions()
        self._writing = threading.RLock()
        self._syncing = threading.Lock()
        self._gate = CallGate(self._met_damage)
        self._failure: str | None = None
        self._tails: dict[Slot, Tail] = {}
        self._removed: set[Slot] | None = None
        """Slots with space to reclaim; None: unknown, after a restart."""
        self.headers_scanned = 0
        self.stalls = 0
        self._unslowed = rocksdict.WriteOptions()
        self._unslowed.no_slowdown = True
        path.mkdir(parents=True, exist_ok=True)
        with storage_errors(f"opening {path}"):
            self._damaged_table, self._damaged_blobs = DamagedTable(path), DamagedBlobs(path)
            self._database = self._open()
            self._slots = self._load_slots()
        self._live = set(self._slots.values())

    def open_slot(self, key: ReplicaKey) -> Slot:
        """See `LogStore`. No fsync: the WAL keeps order, so any later sync covers it."""
        with self._gate, self._writing:
            known = self._slots.get(key)
            if known is not None:
                return known
            stored = self._database.state.get(layout.NEXT_SLOT_KEY)
            slot = Slot(layout.unpack_u32(stored) if stored is not None else 1)
            batch = Operations()
            batch.put_state(layout.replica_key(key), layout.pack_u32(slot))
            batch.put_state(layout.NEXT_SLOT_KEY, layout.pack_u32(slot + 1))
            self._commit(batch, f"opening a slot for {key}")
            self._slots[key] = slot
            self._live.add(slot)
            return slot

    def slots(self) -> dict[ReplicaKey, Slot]:
        with self._writing:
            return dict(self._slots)

    def write(self, writes: Sequence[PartitionWrite], *, sync: bool) -> None:
        with self._gate:
            with self._writing:
                self._write(writes, patient=True)
            if sync:
                self._sync()

    def try_write(self, writes: Sequence[PartitionWrite]) -> bool:
        with self._gate:
            if not self._writing.acquire(blocking=False):
                return False
            try:
                return self._write(writes, patient=False)
            finally:
                self._writing.release()

    def _write(self, writes: Sequence[PartitionWrite], *, patient: bool) -> bool:
        """False: RocksDB asks writers to wait, and `patient` is False."""
        if any(write.batches or write.mended for write in writes):
            self._check_space(writes)
        batch = Operations()
        staged: dict[Slot, StagedSlot] = {}
        for write in writes:
            with damage_of(write.slot), storage_errors(f"preparing a write to slot {write.slot}"):
                if write.slot not in staged:
                    tail = self._writable_tail(write.slot)
                    staged[write.slot] = StagedSlot(self._database, batch, write.slot, tail)
                staged[write.slot].apply(write)
        if not self._commit(batch, f"writing to slots {list(staged)[:8]}", patient=patient):
            return False
        self._tails.update({slot: stage.tail for slot, stage in staged.items()})
        if self._removed is not None:
            self._removed |= {slot for slot, stage in staged.items() if stage.removes}
        return True

    def read(self, slot: Slot, offset: Offset, max_bytes: int, end: Offset) -> list[Batch]:
        with self._gate:
            for _ in range(_READ_ATTEMPTS):
                chosen, stored = self._stored_from(slot, offset, max_bytes, end)
                if stored is not None and checks.fits(chosen, stored):
                    return checks.verified(slot, chosen, stored)
                # Something was removed or rewritten between the two look-ups: choose again.
            with self._writing:  # a writer that is always faster would look like damage
                chosen, stored = self._stored_from(slot, offset, max_bytes, end)
            if stored is not None:
                return checks.verified(slot, chosen, stored)
        raise ClusterError(
            f"slot {slot}: the index names batches from offset {offset} on that are not stored; "
            f"rebuild this replica from another one",
            ErrorCode.DATA_CORRUPTED,
        )

    def _stored_from(
        self, slot: Slot, offset: Offset, max_bytes: int, end: Offset
    ) -> tuple[list[IndexEntry], list[bytes] | None]:
        """What the index chooses, and what is stored of it; None: not all of it is."""
        with storage_errors(f"reading slot {slot} at offset {offset}"):
            chosen = self._look(slot).batches_from(offset, max_bytes, end)
            keys = [batch_key(slot, entry.base_offset) for entry in chosen]
            return chosen, self._database.stored_batches(keys)

    def aborted(self, slot: Slot, start: Offset, end: Offset) -> tuple[AbortedTransaction, ...]:
        with self._gate, storage_errors(f"reading aborted transactions of slot {slot}"):
            return overlapping(self._database.aborted(slot, start), end)

    def find_timestamp(self, slot: Slot, timestamp_ms: int, end: Offset) -> TimeIndexEntry | None:
        with self._gate, storage_errors(f"searching slot {slot} for time {timestamp_ms}"):
            entry = self._look(slot).first_at_time(timestamp_ms, end)
            if entry is None:
                return None
            return TimeIndexEntry(entry.base_offset, entry.header.effective_max_timestamp_ms)

    def recover(self, slot: Slot) -> RecoveredLog:
        """See `LogStore`. Do not write to this slot meanwhile; others can be written."""
        with self._gate, storage_errors(f"recovering slot {slot}"):
            tail = self._tail(slot)
            snapshots = self._database.index.producer_snapshots(slot)
            scan_from = snapshots[-1] if snapshots else Offset(0)
            cleaned = self._database.cleaned(slot)
            known = self._database.snapshot(slot, scan_from) if snapshots else ()
            table = ProducerTable(
                ended_by_swept_markers(known, cleaned.markers_end, tail.log_end_offset)
            )
            for entry in self._database.index.from_offset(slot, scan_from):
                self.headers_scanned += 1
                table.apply(entry.header)
            return RecoveredLog(
                log_end_offset=tail.log_end_offset,
                checkpoint=tail.checkpoint,
                producers=table.snapshot(),
                swept_end=cleaned.markers_end,
                # Releases before this one stored only up to where passes were finished.
                compacted_end=max(tail.compacted_end, cleaned.end_offset),
                aborted=self._database.newest_aborted(slot, NEWEST_MAX),
            )

    def drop(self, slot: Slot) -> None:
        with self._gate, self._writing:
            if slot not in self._live:
                return
            keys = [key for key, known in self._slots.items() if known == slot]
            following = Slot(slot + 1)
            batch = Operations()
            batch.delete_batches(batch_key(slot, 0), batch_key(following, 0))
            for prefix in (layout.aborted_prefix, layout.index_prefix, layout.producers_prefix):
                batch.delete_states(prefix(slot), prefix(following))
            batch.delete_state(layout.checkpoint_key(slot))
            batch.delete_state(layout.compacted_key(slot))
            batch.delete_state(layout.cleaned_key(slot))
            for key in keys:
                batch.delete_state(layout.replica_key(key))
            self._commit(batch, f"dropping slot {slot}")
            for key in keys:
                del self._slots[key]
            self._live.discard(slot)
            self._tails.pop(slot, None)
            if self._removed is not None:
                self._removed.add(slot)
            self._sync()

    def load(self) -> StoreLoad:
        with self._gate, storage_errors("looking at the database"):
            return StoreLoad(
                stalls=self.stalls,
                stalled=self._database.is_stalled(),
                pending_compaction_bytes=self._database.sum_of(
                    "rocksdb.estimate-pending-compaction-bytes"
                ),
                memory_bytes=self._database.sum_of("rocksdb.cur-size-all-mem-tables"),
                damaged_table=bool(self.damaged_table),
                garbage_bytes=self._database.garbage_bytes,
            )

    @property
    def damaged_table(self) -> str:
        """What RocksDB said of one of its tables, in this run or before; empty: all are sound."""
        return self._damaged_table.what

    @property
    def collects_garbage(self) -> bool:
        """No damage was met in a blob file lately: see `damaged_blobs`."""
        return self._damaged_blobs.may_collect

    def _met_damage(self, error: ClusterError) -> None:
        what = table_damage(error)
        if what:
            self._damaged_table.met(what, self._database.stop_merging)
        else:
            self._damaged_blobs.met(error.message, self._database.stop_collecting)

    def size_bytes(self, slot: Slot) -> int:
        with self._gate, storage_errors(f"measuring slot {slot}"):
            return self._tail(slot).size_bytes

    def bytes_from(self, slot: Slot, offset: Offset) -> int:
        with self._gate, storage_errors(f"measuring slot {slot}"):
            return self._look(slot).bytes_from(offset)

    def retention_start(
        self, slot: Slot, *, older_than_ms: int | None, max_bytes: int | None, end: Offset
    ) -> Offset | None:
        with self._gate, storage_errors(f"retention of slot {slot}"):
            return self._look(slot).retention_start(older_than_ms, max_bytes, end)

    def header(self, slot: Slot, offset: Offset) -> BatchHeader | None:
        with self._gate, storage_errors(f"reading the index of slot {slot} at offset {offset}"):
            first = self._tail(slot).first
            if first is None:
                return None
            entry = self._database.index.holding(slot, max(offset, first.base_offset))
            return None if entry is None else entry.header

    def next_headers(
        self, slot: Slot, offset: Offset, end: Offset, count_max: int
    ) -> list[BatchHeader]:
        with self._gate, storage_errors(f"reading the index of slot {slot} at offset {offset}"):
            return self._look(slot).next_headers(offset, end, count_max)

    def compaction_facts(self, slot: Slot, end: Offset) -> LogFacts:
        with self._gate, storage_errors(f"measuring slot {slot} for compaction"):
            return compacting.facts(self._database, slot, self._tail(slot), end)

    def chunk_start(self, slot: Slot, end: Offset, max_bytes: int) -> Offset:
        with self._gate, storage_errors(f"measuring slot {slot} for compaction"):
            return compacting.chunk_start(self._database, slot, self._tail(slot), end, max_bytes)

    def reclaim(self) -> None:
        with self._gate, storage_errors("reclaiming space"):
            if self.damaged_table:
                return  # It would merge that one, too, and end all writes.
            with self._writing:
                removed, self._removed = self._removed, set()
            if removed is not None and not removed:
                return
            try:
                for family in (self._database.batches, self._database.state):
                    family.flush()
                self._compact(removed)
                if self.collects_garbage:
                    self._database.collect_garbage(
                        _GARBAGE_BUFFERS * self._options.write_buffer_bytes
                    )
                if not self.collects_garbage:  # also if it was met meanwhile
                    self._database.stop_collecting()
            except Exception:
                with self._writing:
                    self._removed = None
                raise

    def close(self) -> None:
        """Waits for running calls, fsyncs, closes; a second call does nothing.

        Raises ClusterError(STORAGE_FAILED) if the last writes could not be fsynced: the stop was
        not clean. The database is closed nevertheless.
        """
        if not self._gate.shut(_CLOSE_TIMEOUT_S):
            return
        try:
            self._sync()
        finally:
            self._database.close()

    def _open(self) -> Database:
        batch_options, state_options = database_options(
            self._options, merges=not self.damaged_table
        )
        batches = rocksdict.Rdict(
            str(self._path), batch_options, column_families={layout.STATE_FAMILY: state_options}
        )
        return Database(batches, self._options.single_deletes_max)

    def _load_slots(self) -> dict[ReplicaKey, Slot]:
        found = self._database.state
        version = found.get(layout.VERSION_KEY)
        if version is None:
            found.put(layout.VERSION_KEY, layout.pack_u32(layout.LAYOUT_VERSION))
        elif layout.unpack_u32(version) != layout.LAYOUT_VERSION:
            raise ClusterError(
                f"{self._path} has layout version {layout.unpack_u32(version)}, but this broker "
                f"reads {layout.LAYOUT_VERSION}; start the version that wrote it",
                _FAILED,
            )
        slots: dict[ReplicaKey, Slot] = {}
        cursor = found.iter()
        cursor.seek(layout.REPLICA_PREFIX)
        while cursor.valid() and cursor.key().startswith(layout.REPLICA_PREFIX):
            slots[layout.replica_of(cursor.key())] = Slot(layout.unpack_u32(cursor.value()))
            cursor.next()
        cursor.status()
        return slots

    def _tail(self, slot: Slot) -> Tail:
        tail = self._tails.get(slot)
        if tail is None:
            with self._writing:
                tail = self._database.tail(slot)
                self._tails[slot] = tail
        return tail

    def _look(self, slot: Slot) -> SlotLookup:
        return SlotLookup(self._database.index, slot, self._tail(slot))

    def _writable_tail(self, slot: Slot) -> Tail:
        if slot not in self._live:
            raise ClusterError(f"slot {slot} is not open here, or was dropped", _FAILED)
        return self._tail(slot)

    def _check_space(self, writes: Sequence[PartitionWrite]) -> None:
        size = sum(
            batch.size_bytes for write in writes for batch in (*write.batches, *write.mended)
        )
        disk = os.statvfs(self._path)
        free = disk.f_bavail * disk.f_frsize
        # Twice: once in the write-ahead log, once in a blob file.
        if free < self._options.min_free_bytes + 2 * size:
            raise ClusterError(
                f"disk full: {free >> 20} MiB free in {self._path}, appends stop below "
                f"{self._options.min_free_bytes >> 20} MiB; nothing was written. Free some "
                "space, grow the volume or shorten retention: writes then resume by themselves",
                ErrorCode.DISK_FULL,
            )

    def _commit(self, operations: Operations, doing: str, *, patient: bool = True) -> bool:
        """False: the disk does not keep up, and `patient` is False."""
        if self._failure is not None:
            raise ClusterError(self._failure, _FAILED)
        deadline_s = time.monotonic() + self._options.stall_timeout_s
        while True:
            batch = operations.build(self._database.state_handle)
            try:
                self._database.batches.write(batch, self._unslowed)
            except Exception as error:
                if "Write stall" not in str(error):
                    with storage_errors(doing):
                        raise
                if time.monotonic() > deadline_s:
                    raise self._given_up(doing) from error
            else:
                return True
            if not patient:
                return False
            # A refused WriteBatch cannot be reused; build the next one when it can succeed.
            self.stalls += 1
            pause = threading.Event()
            while self._database.is_stalled() and time.monotonic() < deadline_s:
                pause.wait(_STALL_POLL_S)

    def _given_up(self, doing: str) -> ClusterError:
        return ClusterError(
            f"{doing}: the disk of {self._path} has taken nothing for "
            f"{self._options.stall_timeout_s:g} s, the limit; nothing of this was written; the "
            "broker ends, so that others lead: check the volume",
            _FAILED,
        )

    def _sync(self) -> None:
        """One at a time: what one has failed to fsync, the next would falsely call done."""
        with self._syncing:
            if self._failure is not None:
                raise ClusterError(self._failure, _FAILED)
            try:
                self._database.batches.flush_wal(sync=True)
            except Exception as error:
                self._failure = (
                    f"fsync of the write-ahead log in {self._path} failed ({error}); it is unknown "
                    "what is on disk, so nothing more is written: check the volume, then restart "
                    "the broker"
                )
                raise ClusterError(self._failure, _FAILED) from error

    def _compact(self, removed: set[Slot] | None) -> None:
        database = self._database
        if removed is None or len(removed) > _RANGES_MAX:
            database.batches.compact_range(None, None)
            database.state.compact_range(None, None)
            return
        for slot in sorted(removed):
            following = Slot(slot + 1)
            database.batches.compact_range(batch_key(slot, 0), batch_key(following, 0))
            database.state.compact_range(layout.index_prefix(slot), layout.index_prefix(following))
