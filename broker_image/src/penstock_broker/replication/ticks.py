"""The content of one store write of `writer`: a `Pending` per partition, together a `Tick`.

    Ready ─▶ Pending, one per partition ─▶ PartitionWrite ─▶ Tick ─▶ store ─▶ WriteOwner

A `Pending` grows until a tick takes it; its owner gets the outcome.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch
from penstock.core.compaction.plan import Cleaned
from penstock.core.replication.contract import Checkpoint, ProducerEntry, RecoveredLog
from penstock.core.types import Offset
from penstock.core.value import value
from penstock.errors import ClusterError, PenstockError
from penstock_broker.store.interface import PartitionWrite, Rewrite, Slot


class WriteOwner(Protocol):
    """Owner of a log that is written; gets the outcome on the event loop."""

    slot: Slot

    def extras(
        self, *, written_bytes: int, now: bool
    ) -> tuple[Checkpoint | None, Sequence[ProducerEntry] | None]:
        """Lazily written state to add to this write: a fresh checkpoint, a producer snapshot."""
        ...

    def persisted(self, persist_id: int, *, synced: bool) -> None: ...

    def persist_failed(self, persist_id: int, error: PenstockError) -> None: ...

    def removal_refused(self) -> None:
        """The disk was too full to remove what is before the log start."""
        ...

    def truncated(self, log: RecoveredLog) -> None: ...

    def damaged(self, error: ClusterError, *, written: bool) -> None:
        """The log is damaged where it had to be read for a write. `written`: the rest of that write
        is done without its removals and rewrites; otherwise the log can be written no more."""
        ...


@dataclass(slots=True)
class Pending:
    """What one partition has to write in the next tick: a truncation, then the rest."""

    owner: WriteOwner
    truncate_to: Offset | None = None
    batches: list[Batch] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    log_start_offset: Offset | None = None
    persist_ids: list[int] = field(default_factory=list)
    size_bytes: int = 0
    live: bool = False
    """Somebody waits for batches in it: not all of them are bulk (`core.replication.traffic`)."""
    sync: bool = False
    producers: Sequence[ProducerEntry] | None = None
    everything: bool = False
    rewrites: list[Rewrite] = field(default_factory=list)
    cleaned: Cleaned | None = None
    swept_end: Offset | None = None
    compacted_end: Offset | None = None
    rewriting: list[asyncio.Future[bool]] = field(default_factory=list)

    def write(self) -> PartitionWrite | None:
        """The store's order for it; None if there is nothing left to write."""
        checkpoint, producers = None, self.producers
        # Lazily written state describes the log as it is now, not as a truncation will leave it.
        if self.truncate_to is None:
            checkpoint, producers = self.owner.extras(
                written_bytes=self.size_bytes, now=self.everything
            )
        write = PartitionWrite(
            self.owner.slot,
            batches=self.batches,
            aborted=tuple(self.aborted),
            checkpoint=self.checkpoint or checkpoint,
            truncate_to=self.truncate_to,
            log_start_offset=self.log_start_offset,
            producers=producers,
            rewrites=tuple(self.rewrites),
            cleaned=self.cleaned,
            swept_end=self.swept_end,
            compacted_end=self.compacted_end,
        )
        if self.batches or write != PartitionWrite(self.owner.slot, batches=[]):
            return write
        return None

    def rewritten(self, *, done: bool) -> None:
        """Tells compaction whether its rewrites were written; those that were not are dropped."""
        for waiting in self.rewriting:
            if not waiting.done():
                waiting.set_result(done)
        self.rewriting, self.rewrites, self.cleaned = [], [], None


@dataclass(slots=True)
class Tick:
    """One write of the store: its owners, and when it started."""

    pending: list[Pending]
    writes: list[PartitionWrite]
    sync: bool
    size_bytes: int
    started_s: float

    def forget(self, slots: Collection[Slot]) -> None:
        """Takes out of it what is for these logs, which are being removed."""
        for entry in self.pending:
            if entry.owner.slot in slots:
                entry.rewritten(done=False)
        self.pending = [entry for entry in self.pending if entry.owner.slot not in slots]
        self.writes = [write for write in self.writes if write.slot not in slots]

    def leave_out(self, slot: Slot) -> tuple[Pending, bool]:
        """Takes out of it what cannot be written to a damaged log, whose entry it returns.

        True: only removals and rewrites, which free space and need to read the most. False: all.
        """
        entry = next(one for one in self.pending if one.owner.slot == slot)
        entry.rewritten(done=False)
        at = next(n for n, write in enumerate(self.writes) if write.slot == slot)
        write = self.writes[at]
        spared = replace(write, rewrites=(), cleaned=None, log_start_offset=None)
        if spared == write or write.truncate_to is not None:
            self.pending.remove(entry)
            del self.writes[at]
            return entry, False
        self.writes[at] = spared
        return entry, True


@value(frozen=True, slots=True)
class TickFacts:
    """One finished write, for metrics."""

    partitions: int
    size_bytes: int
    synced: bool
    seconds: float
