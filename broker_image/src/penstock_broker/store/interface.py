"""The seam between brokers and disk: one `LogStore` per broker holds every partition.

    tick loop ──Writes──▶ LogStore.write (one atomic WriteBatch) ──▶ RocksDB
    fetch, feed ─────────▶ LogStore.read
    recovery ────────────▶ LogStore.recover

Implementations: `rocks.RocksLogStore` and `memory.MemoryLogStore` (tests, simulator); both pass
`tests/contracts/test_log_store.py`. All calls block; the broker runs them in a bounded executor.
A partition is named by `slot`, a u32 the broker assigned when it first stored the replica;
slot <-> (topic id, partition) is kept in the store too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch, BatchHeader
from penstock.core.compaction.plan import Cleaned, LogFacts
from penstock.core.replication.contract import Checkpoint, ProducerEntry, RecoveredLog
from penstock.core.types import Offset, ReplicaKey
from penstock.core.value import value
from penstock.errors import ClusterError, ErrorCode

Slot = NewType("Slot", int)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Batches that replace stored ones with the same offsets.

    A pass rewrites its ranges from the newest to the oldest, so that sizes stay exact: the bytes
    saved raise the positions of all earlier batches in the log.
    """

    batches: Sequence[Batch]

    @property
    def start(self) -> Offset:
        return self.batches[0].base_offset

    @property
    def end(self) -> Offset:
        return self.batches[-1].next_offset


@value(frozen=True, slots=True)
class PartitionWrite:
    """What one tick writes to one partition. Order: truncate_to, then batches; the rest atomically.

    `truncate_to` removes every batch with base offset >= it. Only a compacted batch may straddle
    it, in a log that lost writes: then that batch is removed too. Below the log start, it empties
    the log and lowers the log start.
    `log_start_offset` removes whole batches that end at or before it.
    `producers` is a snapshot of producer state as of the log end after this write.
    `aborted`: transactions that ABORT markers in `batches` ended; `LogStore.aborted` returns them
    until the log start is past the marker, or a finished pass (`cleaned`) ended past it.
    `swept_end`: markers below it may be missing (`Cleaned.markers_end`); past it none is missing of
    what is appended from now on. Beside that only a truncation lowers what is known: `cleaned` and
    a smaller `swept_end` do not.
    `compacted_end`: see `RecoveredLog`. Only 0 lowers it, to the log's end without `batches`, and a
    truncation that empties the log. It is at least the end of each of `rewrites`.
    `rewrites` come last; those that begin before the log start, which may have moved, are dropped.
    `mended`: the bytes of stored batches once more, in place of damaged ones. One whose header is
    not the index's at its base offset is dropped: the log has changed since.
    `lost`: headers of stored batches whose records nobody has. Each is replaced by
    `core.replication.losses.emptied`; one whose header is not the index's is ignored in the same
    way, so that repeating it changes nothing.
    """

    slot: Slot
    batches: Sequence[Batch] = ()
    checkpoint: Checkpoint | None = None
    truncate_to: Offset | None = None
    log_start_offset: Offset | None = None
    producers: Sequence[ProducerEntry] | None = None
    rewrites: Sequence[Rewrite] = ()
    cleaned: Cleaned | None = None
    aborted: Sequence[AbortedTransaction] = ()
    swept_end: Offset | None = None
    compacted_end: Offset | None = None
    mended: Sequence[Batch] = ()
    lost: Sequence[BatchHeader] = ()


class DamagedLogError(ClusterError):
    """DATA_CORRUPTED: a write to the log in `slot` cannot be prepared, because what is stored of it
    cannot be read. Nothing of the call was written: the writes to other logs still can be."""

    def __init__(self, slot: Slot, error: ClusterError) -> None:
        super().__init__(str(error), ErrorCode.DATA_CORRUPTED)
        self.slot = slot


@dataclass(frozen=True, slots=True)
class TimeIndexEntry:
    offset: Offset
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class StoreLoad:
    """How the disk keeps up with what is written.

    `stalls`: writes that had to wait for it, since the store was opened. `stalled`: they wait now.
    `pending_compaction_bytes`: to rewrite before the levels have their sizes. `memory_bytes`: in
    write buffers, not in files yet. `damaged_table`: one was met, in this run or before, and
    nothing is merged any more. `garbage_bytes`: of removed batches, in files that others pin.
    """

    stalls: int = 0
    stalled: bool = False
    pending_compaction_bytes: int = 0
    memory_bytes: int = 0
    damaged_table: bool = False
    garbage_bytes: int = 0


class LogStore(Protocol):
    """Nine methods. Errors: ClusterError with DISK_FULL, STORAGE_FAILED or DATA_CORRUPTED."""

    def open_slot(self, key: ReplicaKey) -> Slot:
        """The slot of a replica, made durable and assigned on first use."""
        ...

    def slots(self) -> dict[ReplicaKey, Slot]:
        """Every replica that was ever stored here and not dropped."""
        ...

    def write(self, writes: Sequence[PartitionWrite], *, sync: bool) -> None:
        """Writes everything or nothing, in order; `sync`: fsynced when it returns.

        Raises DamagedLogError if one of the logs is damaged where it must be read for this: to
        truncate it, to remove or rewrite batches, to store producers.
        """
        ...

    def try_write(self, writes: Sequence[PartitionWrite]) -> bool:
        """As `write`, without an fsync, if possible at once: for the event loop's own thread.

        False: nothing was done, because another call blocks it, or the store asks writers to wait;
        `write` waits. Raises what `write` raises.
        """
        ...

    def read(self, slot: Slot, offset: Offset, max_bytes: int, end: Offset) -> list[Batch]:
        """Batches from the one with `offset` on, below `end`.

        At least one batch if there is one, then as many as fit into `max_bytes` (stored size).
        If `offset` was removed, starts with the first batch after it. CRCs are checked.
        """
        ...

    def aborted(self, slot: Slot, start: Offset, end: Offset) -> tuple[AbortedTransaction, ...]:
        """Aborted transactions with batches in [start, end), in the order of their markers.

        Complete for batches that are read *after* this call: compaction removes an entry together
        with the flag that makes a reader ask for it.
        """
        ...

    def find_timestamp(self, slot: Slot, timestamp_ms: int, end: Offset) -> TimeIndexEntry | None:
        """The first batch below `end` whose (effective) max timestamp is >= `timestamp_ms`.

        Returns the batch's base offset; the caller finds the record in the batch.
        """
        ...

    def recover(self, slot: Slot) -> RecoveredLog:
        """State of the log; reads only headers after the newest producer snapshot."""
        ...

    def drop(self, slot: Slot) -> None:
        """Removes a replica for good: batches, state, slot."""
        ...

    # Not counted: life cycle and facts for retention, compaction and metrics.
    def load(self) -> StoreLoad:
        """How the disk keeps up, now; from any thread."""
        ...

    def size_bytes(self, slot: Slot) -> int: ...

    def bytes_from(self, slot: Slot, offset: Offset) -> int:
        """Stored bytes of the batches from the one with `offset` on; two look-ups in the index."""
        ...

    def retention_start(
        self, slot: Slot, *, older_than_ms: int | None, max_bytes: int | None, end: Offset
    ) -> Offset | None:
        """The log start that leaves nothing older, and no batch more than `max_bytes` needs; None =
        no change.

        Never beyond `end`. Whole batches are removed, oldest first; a batch is removed by time only
        if its max timestamp, and those of all earlier batches, are < `older_than_ms`, and by size
        only if at least `max_bytes` (stored size) remain.
        """
        ...

    def header(self, slot: Slot, offset: Offset) -> BatchHeader | None:
        """The header of the batch with `offset`, or else the first after it, from the index alone.

        So it tells what a batch that cannot be read must be. None: there is none.
        """
        ...

    def next_headers(
        self, slot: Slot, offset: Offset, end: Offset, count_max: int
    ) -> list[BatchHeader]:
        """At most so many headers from the batch with `offset` on, or the first after it; base
        offsets are below `end`. From the index alone."""
        ...

    def compaction_facts(self, slot: Slot, end: Offset) -> LogFacts:
        """The numbers needed to plan a pass over the batches below `end`; no payload is read."""
        ...

    def chunk_start(self, slot: Slot, end: Offset, max_bytes: int) -> Offset:
        """The start of as many batches as fit into `max_bytes` and end at `end`, at least one.

        `end` is the end of a stored batch.
        """
        ...

    def reclaim(self) -> None:
        """Returns space of removed ranges to the file system (flush, compact); can take seconds."""
        ...

    def close(self) -> None: ...
