"""Group commit: one store write per tick for all partitions.

    Ready ─▶ append() / truncate() ─▶ [ pending ] ──▶ LogStore.write (executor) ──▶ on_persisted
                                        grows while a write is in flight
                                              └──▶ LogStore.try_write (here): small, quick disk

A tick is a callback after the turn of the loop in which a write was requested. One thread writes.
The event loop writes small ticks itself while the disk is quick and the thread has nothing to do
(ADR 37): that saves two changes of thread per tick.

While a write runs, the next one accumulates: under load, ticks get larger, not longer, and an fsync
requested for one produce serves all that wait with it. Writes leave in the order in which the
machines requested them, so the `Ready` order of each replica holds. The sources of writes bound the
memory of what is pending: produce budget and replication windows (I23).

A full disk refuses a write before any part of it is done, and so does a log that is damaged where
it must be read for it: the machines are told, and what is for other logs is written. After any
other failure, what is on disk is unknown: the writer ends, and with it the process, which recovers
from disk when it restarts; meanwhile other brokers lead.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from time import monotonic
from typing import Final, TypeVar

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch
from penstock.core.compaction.plan import Cleaned
from penstock.core.replication.contract import (
    MISSING,
    Checkpoint,
    ProducerEntry,
    RecoveredLog,
)
from penstock.core.types import LeaderEpoch, Offset, ReplicaKey
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.replication.pace import SMALL_BYTES, DiskPace
from penstock_broker.replication.ticks import Pending, Tick, TickFacts, WriteOwner
from penstock_broker.store.interface import (
    DamagedLogError,
    LogStore,
    PartitionWrite,
    Rewrite,
    Slot,
)

TICK_BYTES: Final = 8 * 1024 * 1024
"""Of batches in one tick, about. The store holds the interpreter's lock while it copies, 1.5 ms per
MB (ADR 13)."""
BULK_TICK_BYTES: Final = 1024 * 1024
"""Of them for partitions with bulk only: what a live write may have to wait for (I32)."""

_T = TypeVar("_T")


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
        self._pending: dict[Slot, Pending] = {}
        self._sync = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of `run`, while it runs."""
        self._planned = False
        self._handed: Tick | None = None
        """The tick that the thread has, or gets next."""
        self._forgotten: set[Slot] = set()
        """Logs in the tick that the thread has whose removal comes after it."""
        self._lost: Exception | None = None
        """Why nothing can be written any more."""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    # ------------------------------------------------------------ logs

    def slots(self) -> dict[ReplicaKey, Slot]:
        """Slots of all logs in the store. Blocks: call it only before the broker serves."""
        return dict(self._store.slots())

    async def open(
        self, keys: Sequence[ReplicaKey]
    ) -> dict[ReplicaKey, tuple[Slot, RecoveredLog | ClusterError]]:
        """Finds or creates the logs of these partitions, and reads what is in them.

        A log that is damaged where that is (DATA_CORRUPTED) has its error instead: the others can
        be served.
        """

        def blocking() -> dict[ReplicaKey, tuple[Slot, RecoveredLog | ClusterError]]:
            opened: dict[ReplicaKey, tuple[Slot, RecoveredLog | ClusterError]] = {}
            for key in keys:
                slot = self._store.open_slot(key)
                opened[key] = (slot, self._recovered(slot))
            return opened

        return await self._in_thread(blocking)

    async def void(self, lost: Mapping[Slot, LeaderEpoch]) -> dict[Slot, RecoveredLog]:
        """Stores, durably, that these logs are missing, and may have been led until an epoch.

        Returns what is in them then.
        """

        def blocking() -> dict[Slot, RecoveredLog]:
            writes = [
                PartitionWrite(slot, checkpoint=Checkpoint(epoch, MISSING, Offset(0), ()))
                for slot, epoch in lost.items()
            ]
            self._store.write(writes, sync=True)
            return {slot: self._store.recover(slot) for slot in lost}

        return await self._in_thread(blocking)

    async def repair(self, write: PartitionWrite) -> None:
        """Replaces or removes damaged batches, by `mended`, `lost` or `log_start_offset` of the
        write alone, fsynced."""
        await self._in_thread(partial(self._store.write, [write], sync=True))

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
        compacted_end: Offset | None = None,
        bulk: bool = False,
    ) -> None:
        """Adds to the next tick; then calls `persisted` or `persist_failed` of `owner`.

        `aborted`: transactions aborted by markers in `batches`. `swept_end`, `compacted_end`: as in
        `PartitionWrite`. `bulk`: nobody waits for it, so it takes a small part of a tick.
        """
        pending = self._for(owner)
        pending.batches.extend(batches)
        pending.aborted.extend(aborted)
        pending.swept_end = pending.swept_end if swept_end is None else swept_end
        if compacted_end is not None:
            pending.compacted_end = max(compacted_end, pending.compacted_end or Offset(0))
        pending.size_bytes += sum(batch.size_bytes for batch in batches)
        pending.checkpoint = checkpoint or pending.checkpoint
        pending.persist_ids.append(persist_id)
        pending.live = pending.live or not bulk
        pending.sync = pending.sync or sync

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
        """Removes batches from `offset` on; then calls `truncated` of `owner` with what is left, or
        `damaged` if that cannot be read.

        No write to this log is pending: machines truncate only a log at rest. `producers` replaces
        the stored producers, None keeps them.
        """
        pending = self._for(owner)
        assert not pending.batches, "only a log at rest is truncated"
        pending.rewritten(done=False)
        pending.truncate_to = offset
        pending.producers = producers

    def sync(self) -> None:
        """Requests an fsync of all that is pending, or of nothing else to write."""
        self._sync = True
        self._plan()

    def forget(self, owner: WriteOwner) -> None:
        """Drops the pending writes of an owner that is being removed.

        Also those of a tick that the thread has not got yet: the removal of the log would overtake
        it. What the thread has is written before that, but not again if it is refused.
        """
        self._drop_pending(owner.slot)
        if self._handed is None:
            return
        if self._wake.is_set():
            self._handed.forget({owner.slot})
        else:
            self._forgotten.add(owner.slot)

    def _drop_pending(self, slot: Slot) -> None:
        if slot in self._pending:
            self._pending.pop(slot).rewritten(done=False)

    # ------------------------------------------------------------ ticks

    def _for(self, owner: WriteOwner) -> Pending:
        pending = self._pending.get(owner.slot)
        if pending is None:
            pending = self._pending[owner.slot] = Pending(owner)
            self._plan()
        return pending

    def _plan(self) -> None:
        """Plans a tick after this turn of the loop: writes requested in this turn are added.

        Not while one is running: that plans the next one.
        """
        self._idle.clear()
        if not self._planned and self._loop is not None and self._handed is None:
            self._planned = True
            self._loop.call_soon(self._turn)

    def _plan_next(self) -> None:
        if self._pending or self._sync:
            self._plan()
        else:
            self._idle.set()

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
        self._loop = asyncio.get_running_loop()
        try:
            self._plan_next()
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._lost is not None:
                    raise self._lost
                await self._tick_in_thread()
        finally:
            self._loop = None

    def _turn(self) -> None:
        """Runs one tick, if there is anything to write; `run` raises its errors."""
        self._planned = False
        if self._loop is None or self._lost is not None:
            return
        try:
            if self._pending or self._sync:
                self._tick()
            else:
                self._plan_next()
        except Exception as error:  # noqa: BLE001 - nothing else would report it
            self._lost = error
            self._wake.set()

    def _tick(self) -> None:
        """Writes all that is pending now and notifies the owners, or hands it to the thread."""
        tick = self._next()
        try:
            if not (self._may_write_here(tick) and self._write_here(tick)):
                self._handed = tick
                self._wake.set()
                return
        except DamagedLogError as damage:
            self._handed = tick
            self._wake.set()
            self._leave_out(tick, damage)
            return
        except PenstockError as error:
            self._refuse(tick, error)
        else:
            self._finish(tick, {})
        self._plan_next()

    async def _tick_in_thread(self) -> None:
        """Writes the tick that the loop must not write itself."""
        tick = self._handed
        assert tick is not None, "woken for nothing"
        try:
            logs = await self._in_thread(partial(self._write, tick))
        except DamagedLogError as damage:
            self._wake.set()  # for the rest of it
            self._leave_out(tick, damage)
            tick.forget(self._forgotten)
            self._forgotten.clear()
            return
        except PenstockError as error:
            self._refuse(tick, error)
        else:
            self._finish(tick, logs)
        self._handed = None
        self._forgotten.clear()
        self._plan_next()

    def _next(self) -> Tick:
        """All that is pending now, up to the size of one tick."""
        pending = self._take()
        sync = self._sync or any(entry.sync for entry in pending)
        # `sync` was meant for entries left behind as well: then their tick is fsynced too.
        self._sync = self._sync and bool(self._pending)
        writes = [write for write in (entry.write() for entry in pending) if write is not None]
        size_bytes = sum(entry.size_bytes for entry in pending)
        return Tick(pending, writes, sync, size_bytes, monotonic())

    def _finish(self, tick: Tick, logs: Mapping[Slot, RecoveredLog | ClusterError]) -> None:
        """Notifies the owners that it is written. `logs`: those that were truncated, recovered."""
        for entry in tick.pending:
            entry.rewritten(done=True)
            log = logs.get(entry.owner.slot)
            if isinstance(log, ClusterError):
                entry.owner.damaged(log, written=False)
                continue
            if log is not None:
                if (later := self._pending.get(entry.owner.slot)) is not None:
                    later.rewritten(done=False)  # it may have been read before this
                entry.owner.truncated(log)
            if entry.persist_ids:
                entry.owner.persisted(entry.persist_ids[-1], synced=tick.sync)
        seconds = monotonic() - tick.started_s
        self._on_tick(TickFacts(len(tick.writes), tick.size_bytes, tick.sync, seconds))

    def _take(self) -> list[Pending]:
        """What the next tick writes, oldest first; the rest waits for the tick after it.

        Of entries that are bulk, one at least, so that none waits for ever.
        """
        taken: list[Pending] = []
        size_bytes = bulk_bytes = 0
        bulk_bytes_max = min(BULK_TICK_BYTES, self.tick_bytes)
        for slot, entry in list(self._pending.items()):
            if not entry.live:
                if bulk_bytes and bulk_bytes + entry.size_bytes > bulk_bytes_max:
                    continue
                bulk_bytes += entry.size_bytes
            size_bytes += entry.size_bytes
            if taken and size_bytes > self.tick_bytes:
                break
            taken.append(self._pending.pop(slot))
        return taken

    def _leave_out(self, tick: Tick, damage: DamagedLogError) -> None:
        """Takes out of a tick, of which nothing was written, what cannot be written."""
        entry, written = tick.leave_out(damage.slot)
        entry.owner.damaged(damage, written=written)

    def _refuse(self, tick: Tick, error: PenstockError) -> None:
        """On a full disk, drops later writes of the same owners, which need the refused ones, and
        notifies the owners. Raises `error` if it is anything else.

        Removals, which free space, are asked for again: batches were refused, not they. Without
        batches they were, and their owners ask again later.
        """
        if error.code is not ErrorCode.DISK_FULL:
            raise error
        appends = any(entry.batches for entry in tick.pending)
        failed: list[tuple[WriteOwner, int]] = []
        for entry in tick.pending:
            later = self._pending.get(entry.owner.slot, entry)
            log_start = later.log_start_offset or entry.log_start_offset
            # A rewrite has no id, and what is dropped after it has one.
            failed += [
                (entry.owner, first) for first in (entry.persist_ids or later.persist_ids)[:1]
            ]
            entry.rewritten(done=False)
            slot = entry.owner.slot
            self._drop_pending(slot)
            if log_start is None or slot in self._forgotten:
                continue
            if appends:
                self.move_log_start(entry.owner, log_start)
            else:
                entry.owner.removal_refused()
        for owner, persist_id in failed:
            owner.persist_failed(persist_id, error)

    def _write(self, tick: Tick) -> dict[Slot, RecoveredLog | ClusterError]:
        """In the thread: writes, and recovers every log that was truncated."""
        started_ms = self._clock.now_ms()
        if tick.writes or tick.sync:
            self._store.write(tick.writes, sync=tick.sync)
        if not tick.sync:
            self._pace.took(self._clock.now_ms() - started_ms)
        truncated = {write.slot for write in tick.writes if write.truncate_to is not None}
        return {slot: self._recovered(slot) for slot in truncated}

    def _recovered(self, slot: Slot) -> RecoveredLog | ClusterError:
        """In the thread: what is in a log; DATA_CORRUPTED if it is damaged where that is."""
        try:
            return self._store.recover(slot)
        except ClusterError as error:
            if error.code is not ErrorCode.DATA_CORRUPTED:
                raise
            return error

    def _may_write_here(self, tick: Tick) -> bool:
        """Whether the event loop may write it: it is small, the disk is quick, nothing is read."""
        return (
            not tick.sync
            and tick.size_bytes <= SMALL_BYTES
            and self._pace.is_quick
            and not self._threads
            and not any(entry.truncate_to is not None or entry.rewrites for entry in tick.pending)
        )

    def _write_here(self, tick: Tick) -> bool:
        """False if the store would have to wait, which only a thread may do."""
        started_ms = self._clock.now_ms()
        try:
            return not tick.writes or self._store.try_write(tick.writes)
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
