"""A broker's disk: the page cache, and what would survive a power loss.

Two memory stores, the production broker's own: `current` has every finished write, `durable` lags
until a write requests a sync. Writes reach the disk in order, as in a write-ahead log, so a power
loss removes a suffix of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch, BatchHeader
from penstock.core.replication.contract import RecoveredLog
from penstock.core.types import Offset, ReplicaKey
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.interface import DamagedLogError, PartitionWrite, Slot
from penstock_broker.store.memory import MemoryLogStore
from penstock_sim.scheduler import Scheduler


class SimDisk:
    """Outlives the processes that use it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._current = MemoryLogStore()
        self._durable = MemoryLogStore()
        self._unsynced: list[Sequence[PartitionWrite]] = []
        self._flipped: dict[Slot, list[BatchHeader]] = {}
        self._bad_index: set[Slot] = set()
        self.full = False
        self.slow = False
        self.unreadable = False
        self.is_closed = False
        """By a clean stop; nobody has opened it since."""

    def latency_ms(self, *, sync: bool) -> float:
        latency_ms = self._scheduler.between(0.1, 3) + (2 if sync else 0)
        return latency_ms + (self._scheduler.between(20, 250) if self.slow else 0)

    def open_slot(self, key: ReplicaKey) -> Slot:
        slot = self._current.open_slot(key)
        assert self._durable.open_slot(key) == slot
        return slot

    def slots(self) -> dict[ReplicaKey, Slot]:
        return self._current.slots()

    def slot(self, key: ReplicaKey) -> Slot | None:
        """None if this replica was never here, or was dropped."""
        return self._current._slots.get(key)

    def write(self, writes: Sequence[PartitionWrite], *, sync: bool) -> None:
        """Writes all or nothing; raises ClusterError(DISK_FULL) and DamagedLogError."""
        if self.full and any(write.batches for write in writes):
            raise ClusterError("no space left on the simulated disk", ErrorCode.DISK_FULL)
        for write in writes:
            self._check_removal(write)
        self._current.write(writes, sync=sync)
        if self._flipped:
            for write in writes:
                self._heal(write)
        self._unsynced.append(writes)
        if sync:
            self._flush(len(self._unsynced))

    def drop(self, slot: Slot) -> None:
        """Removes the slot with all its data, for good; raises ClusterError(DISK_FULL)."""
        if self.full:
            raise ClusterError("no space left on the simulated disk", ErrorCode.DISK_FULL)
        self.vanish(slot)

    def vanish(self, slot: Slot) -> None:
        """All of the slot is gone, as if it had never been."""
        for store in (self._current, self._durable):
            store.drop(slot)
        self._flipped.pop(slot, None)
        self._bad_index.discard(slot)
        self._unsynced = [
            [write for write in writes if write.slot != slot] for writes in self._unsynced
        ]

    def _flush(self, count: int) -> None:
        for writes in self._unsynced[:count]:
            self._durable.write(writes, sync=True)
        del self._unsynced[:count]

    def close(self) -> None:
        """As a store at the end of a clean stop: fsyncs what is left."""
        self._flush(len(self._unsynced))
        self.is_closed = True

    def lose_power(self) -> None:
        """Some of the unsynced writes, from the front, had reached the disk; the rest is lost."""
        self._flush(self._scheduler.random.randrange(len(self._unsynced) + 1))
        self._unsynced.clear()
        self._current = _copy(self._durable)

    def copy(self) -> SimDisk:
        """Another disk with what is on this one now, as in the page cache; all of it is durable."""
        made = SimDisk(self._scheduler)
        made._current, made._durable = _copy(self._current), _copy(self._current)
        return made

    # ------------------------------------------------------------ flips

    def flip(self, slot: Slot, header: BatchHeader) -> None:
        """A bit of the batch with this header changes; the index still has the header."""
        self._flipped.setdefault(slot, []).append(header)

    def flip_index(self, slot: Slot) -> None:
        """A bit changes in the index of a log, without which nothing of it can be read."""
        self._bad_index.add(slot)

    @property
    def has_flips(self) -> bool:
        """Something on it cannot be read."""
        return any(map(self.is_damaged, self.slots().values()))

    def is_damaged(self, slot: Slot) -> bool:
        """Something in the log cannot be read."""
        if slot in self._bad_index:
            return True
        known = self._flipped.get(slot)
        return known is not None and any(one.header in known for one in self.batches(slot))

    def _heal(self, write: PartitionWrite) -> None:
        """What is written again is as it was meant to be."""
        known = self._flipped.get(write.slot)
        if known is None:
            return
        new = [batch.header for batch in (*write.batches, *write.mended)]
        known[:] = [header for header in known if header not in new]

    def _check_index(self, slot: Slot) -> None:
        if slot in self._bad_index:
            raise ClusterError(f"the index of slot {slot} is damaged", ErrorCode.DATA_CORRUPTED)

    def _check_removal(self, write: PartitionWrite) -> None:
        """What is removed or replaced is looked up in the index; what is added is not."""
        changed = write.truncate_to is not None or write.log_start_offset is not None
        if changed or write.rewrites:
            try:
                self._check_index(write.slot)
            except ClusterError as error:
                raise DamagedLogError(write.slot, error) from error

    def header(self, slot: Slot, offset: Offset) -> BatchHeader | None:
        """As the store answers."""
        self._check_index(slot)
        return self._current.header(slot, offset)

    def next_headers(
        self, slot: Slot, offset: Offset, end: Offset, count_max: int
    ) -> list[BatchHeader]:
        """As the store answers."""
        self._check_index(slot)
        return self._current.next_headers(slot, offset, end, count_max)

    def recover(self, slot: Slot) -> RecoveredLog:
        self._check_index(slot)
        return self._current.recover(slot)

    def batches(self, slot: Slot, *, durable: bool = False) -> list[Batch]:
        """The log as it is; do not change it."""
        store = self._durable if durable else self._current
        return store._log(slot).batches

    def headers(self, slot: Slot) -> list[BatchHeader]:
        """What the index of a log has: which batches are there, whether or not they can be read."""
        return [batch.header for batch in self.batches(slot)]

    def aborted(self, slot: Slot, start: Offset, end: Offset) -> tuple[AbortedTransaction, ...]:
        """As the store answers."""
        return self._current.aborted(slot, start, end)

    def read(self, slot: Slot, offset: Offset, max_bytes: int, end: Offset) -> list[Batch]:
        """As the store answers; raises ClusterError(STORAGE_FAILED) now and then."""
        if self.unreadable and self._scheduler.chance(0.5):
            raise ClusterError("an input/output error", ErrorCode.STORAGE_FAILED)
        self._check_index(slot)
        found, known = self._current.read(slot, offset, max_bytes, end), self._flipped.get(slot)
        if known is None:
            return found
        good = next((n for n, batch in enumerate(found) if batch.header in known), None)
        if good == 0:
            raise ClusterError(f"offset {offset} has a wrong CRC", ErrorCode.DATA_CORRUPTED)
        return found[:good]

    @property
    def store(self) -> MemoryLogStore:
        """The current store, to read from."""
        return self._current

    def log_end(self, slot: Slot, *, durable: bool = False) -> Offset:
        store = self._durable if durable else self._current
        return store._log(slot).log_end_offset


def _copy(store: MemoryLogStore) -> MemoryLogStore:
    made = MemoryLogStore()
    made._slots, made._next_slot = store.slots(), store._next_slot
    made._logs = {slot: log.copy() for slot, log in store._logs.items()}
    return made
