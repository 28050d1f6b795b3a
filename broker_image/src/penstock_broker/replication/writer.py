"""Group commit: one store write per tick for all partitions.

    Ready ─▶ append() / truncate() ─▶ [ pending ] ──▶ LogStore.write (executor) ──▶ on_persisted
                                        grows while a write is in flight
                                              └──▶ LogStore.try_write (here): small, quick disk

One thread writes. The event loop writes small ticks itself while the disk is quick and the thread
has nothing to do (ADR 37): that saves two changes of thread per tick.

While a write runs, the next one accumulates: under load, ticks get larger, not longer, and an fsync
requested for one produce serves all that wait with it. Writes leave in the order in which the
machines requested them, so the `Ready` order of each replica holds. The sources of writes bound the
memory of what is pending: produce budget and replication windows (I23).

A full disk refuses a write before any part of it is done, and the machines are told. After any
other failure, what is on disk is unknown: the writer ends, and with it the process, which recovers
from disk when it restarts; meanwhile other brokers lead.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final, Protocol, TypeVar

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch
from penstock.core.compaction.plan import Cleaned
from penstock.core.replication.contract import Checkpoint, ProducerEntry, RecoveredLog
from penstock.core.types import Offset, ReplicaKey
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.replication.pace import SMALL_BYTES, DiskPace
from penstock_broker.store.interface import LogStore, PartitionWrite, Rewrite, Slot

TICK_BYTES: Final = 8 * 1024 * 1024
"""Of batches in one tick, about. The store holds the interpreter's lock while it copies, 1.5 ms per
MB (ADR 13)."""

_T = TypeVar("_T")


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

    def truncated(self, log: RecoveredLog) -> None: ...


@dataclass(slots=True)
class _Pending:
    """What one partition has to write in the next tick: a truncation, then the rest."""

    owner: WriteOwner
    truncate_to: Offset | None = None
    batches: list[Batch] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    log_start_offset: Offset | None = None
    persist_ids: list[int] = field(default_factory=list)
    size_bytes: int = 0
    producers: Sequence[ProducerEntry] | None = None
    everything: bool = False
    rewrites: list[Rewrite] = field(default_factory=list)
    cleaned: Cleaned | None = None
    swept_end: Offset | None = None
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
        )
        return None if write == PartitionWrite(self.owner.slot, batches=[]) else write

    def rewritten(self, *, done: bool) -> None:
        """Tells compaction whether its rewrites were written; those that were not are dropped."""
        for waiting in self.rewriting:
            if not waiting.done():
                waiting.set_result(done)
        self.rewriting, self.rewrites, self.cleaned = [], [], None


@dataclass(frozen=True, slots=True)
class TickFacts:
    """One finished write, for metrics."""

    partitions: int
    size_bytes: int
    synced: bool
    seconds: float


class LogWriter:
    """Collects what machines want to persist and writes it, tick after tick."""

    def __init__(
        self,
        store: LogStore,
        executor: Executor,
        clock: Clock,
        on_tick: Callable[[TickFacts], None],
    ) -> None:
        """`executor` has one thread; nobody else writes to `store`."""
        self._store = store
        self._executor = executor
        self._clock = clock
        self._on_tick = on_tick
        self._pace = DiskPace()
        self._threads = 0
        """Calls handed to the executor that have not returned. While there are any, the loop does
        not write itself: writes must stay in order."""
        self.tick_bytes = TICK_BYTES
        """About how many bytes of batches one tick takes. The simulator makes it small."""
        self._pending: dict[Slot, _Pending] = {}
        self._sync = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    # ------------------------------------------------------------ logs

    def slots(self) -> dict[ReplicaKey, Slot]:
        """Slots of all logs in the store. Blocks: call it only before the broker serves."""
        return dict(self._store.slots())

    async def open(self, keys: Sequence[ReplicaKey]) -> dict[ReplicaKey, tuple[Slot, RecoveredLog]]:
        """Finds or creates the logs of these partitions, and reads what is in them."""

        def blocking() -> dict[ReplicaKey, tuple[Slot, RecoveredLog]]:
            opened = {}
            for key in keys:
                slot = self._store.open_slot(key)
                opened[key] = (slot, self._store.recover(slot))
            return opened

        return await self._in_thread(blocking)

    async def drop(self, slot: Slot) -> None:
        """Removes a log that no longer has an owner, with all its data."""
        await self._in_thread(partial(self._store.drop, slot))

    # ------------------------------------------------------------ what is asked for

    def append(
        self,
        owner: WriteOwner,
        persist_id: int,
        batches: Sequence[Batch],
        checkpoint: Checkpoint | None,
        *,
        sync: bool,
        aborted: Sequence[AbortedTransaction] = (),
        swept_end: Offset | None = None,
    ) -> None:
        """Adds to the next tick; then calls `persisted` or `persist_failed` of `owner`.

        `aborted`: transactions aborted by markers in `batches`. `swept_end`: as in
        `PartitionWrite`.
        """
        pending = self._for(owner)
        pending.batches.extend(batches)
        pending.aborted.extend(aborted)
        pending.swept_end = swept_end or pending.swept_end
        pending.size_bytes += sum(batch.size_bytes for batch in batches)
        pending.checkpoint = checkpoint or pending.checkpoint
        pending.persist_ids.append(persist_id)
        self._sync = self._sync or sync

    def move_log_start(self, owner: WriteOwner, log_start_offset: Offset) -> None:
        """Removes the batches before an offset with the next tick."""
        self._for(owner).log_start_offset = log_start_offset

    def rewrite(
        self, owner: WriteOwner, rewrite: Rewrite | None, cleaned: Cleaned | None
    ) -> asyncio.Future[bool]:
        """Replaces batches with the next tick, or stores the result of a pass.

        True once that is written; False if it was dropped, because the log is truncated first, its
        owner is removed, or the disk is full.
        """
        pending = self._for(owner)
        waiting = asyncio.get_running_loop().create_future()
        if pending.truncate_to is not None:
            waiting.set_result(False)
            return waiting
        if rewrite is not None:
            pending.rewrites.append(rewrite)
        pending.cleaned = cleaned or pending.cleaned
        pending.rewriting.append(waiting)
        return waiting

    def save(self, owner: WriteOwner) -> None:
        """Writes all lazily written state of an owner with the next tick."""
        self._for(owner).everything = True

    def truncate(
        self, owner: WriteOwner, offset: Offset, producers: Sequence[ProducerEntry] | None
    ) -> None:
        """Removes batches from `offset` on; then calls `truncated` of `owner` with what is left.

        No write to this log is pending: machines truncate only a log at rest. `producers` replaces
        the stored producers, None keeps them.
        """
        pending = self._for(owner)
        assert not pending.batches, "only a log at rest is truncated"
        pending.rewritten(done=False)
        pending.truncate_to = offset
        pending.producers = producers

    def sync(self) -> None:
        """Requests an fsync with the next tick, even if there is nothing else to write."""
        self._sync = True
        self._awake()

    def forget(self, owner: WriteOwner) -> None:
        """Drops the pending writes of an owner that is being removed."""
        pending = self._pending.pop(owner.slot, None)
        if pending is not None:
            pending.rewritten(done=False)

    # ------------------------------------------------------------ ticks

    def _for(self, owner: WriteOwner) -> _Pending:
        pending = self._pending.get(owner.slot)
        if pending is None:
            pending = self._pending[owner.slot] = _Pending(owner)
            self._awake()
        return pending

    def _awake(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def drained(self, timeout_s: float) -> bool:
        """Waits until nothing is pending; False if that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Writes until cancelled; raises ClusterError(STORAGE_FAILED) when the disk fails."""
        while True:
            await self._wake.wait()
            # One turn of the loop: writes requested by other handlers of this turn are added.
            await asyncio.sleep(0)
            self._wake.clear()
            while self._pending or self._sync:
                await self._tick()
                if self._pending:
                    await asyncio.sleep(0)  # the tick may not have waited for a thread
            self._idle.set()

    async def _tick(self) -> None:
        """Writes all that is pending now and notifies the owners."""
        pending = self._take()
        sync = self._sync
        # The fsync may have been meant for entries left behind: then their tick is fsynced too.
        self._sync = sync and bool(self._pending)
        writes = [write for write in (entry.write() for entry in pending) if write is not None]
        size_bytes = sum(entry.size_bytes for entry in pending)
        started = monotonic()
        try:
            here = self._may_write_here(pending, size_bytes, sync=sync) and self._write_here(writes)
            logs = {} if here else await self._in_thread(partial(self._write, writes, sync=sync))
        except PenstockError as error:
            if error.code is not ErrorCode.DISK_FULL:
                raise
            self._refused(pending, error)
            return
        for entry in pending:
            entry.rewritten(done=True)
            if entry.truncate_to is not None:
                entry.owner.truncated(logs[entry.owner.slot])
            if entry.persist_ids:
                entry.owner.persisted(entry.persist_ids[-1], synced=sync)
        self._on_tick(TickFacts(len(writes), size_bytes, sync, monotonic() - started))

    def _take(self) -> list[_Pending]:
        """What the next tick writes, oldest first; the rest waits for the tick after it."""
        taken: list[_Pending] = []
        size_bytes = 0
        for slot, entry in list(self._pending.items()):
            size_bytes += entry.size_bytes
            if taken and size_bytes > self.tick_bytes:
                break
            taken.append(self._pending.pop(slot))
        return taken

    def _refused(self, pending: list[_Pending], error: PenstockError) -> None:
        """Drops later writes of the same owners, which need the refused ones; notifies the
        owners."""
        for entry in pending:
            entry.rewritten(done=False)
            self.forget(entry.owner)
        for entry in pending:
            if entry.persist_ids:
                entry.owner.persist_failed(entry.persist_ids[0], error)

    def _write(self, writes: list[PartitionWrite], *, sync: bool) -> dict[Slot, RecoveredLog]:
        """In the thread: writes, and recovers every log that was truncated."""
        started_ms = self._clock.now_ms()
        if writes or sync:
            self._store.write(writes, sync=sync)
        if not sync:
            self._pace.took(self._clock.now_ms() - started_ms)
        truncated = {write.slot for write in writes if write.truncate_to is not None}
        return {slot: self._store.recover(slot) for slot in truncated}

    def _may_write_here(self, pending: list[_Pending], size_bytes: int, *, sync: bool) -> bool:
        """Whether the event loop may write it: it is small, the disk is quick, nothing is read."""
        return (
            not sync
            and size_bytes <= SMALL_BYTES
            and self._pace.is_quick
            and not self._threads
            and not any(entry.truncate_to is not None or entry.rewrites for entry in pending)
        )

    def _write_here(self, writes: list[PartitionWrite]) -> bool:
        """False if the store would have to wait, which only a thread may do."""
        started_ms = self._clock.now_ms()
        try:
            return not writes or self._store.try_write(writes)
        except PenstockError:
            raise
        except Exception as error:
            raise _failed(error) from error
        finally:
            self._pace.took(self._clock.now_ms() - started_ms)

    async def _in_thread(self, blocking: Callable[[], _T]) -> _T:
        self._threads += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, blocking)
        except PenstockError:
            raise
        except Exception as error:
            raise _failed(error) from error
        finally:
            self._threads -= 1


def _failed(error: Exception) -> ClusterError:
    return ClusterError(f"the store failed: {error}", ErrorCode.STORAGE_FAILED)
