"""Scrub: every batch of a broker's logs is read once in `scrub.interval.days`, to find damage.

    next_due ─▶ a log, chunk by chunk (own thread), resting ─▶ all read: REGULAR again
                     └─ a batch cannot be read ─▶ ReplicaSet.unreadable ─▶ reported, mended ─▶
                                                     the log is read again, before all others

Which log, and how fast: `core.replication.scrub`. What is found goes the same way as damage that a
reader meets (I33). What was read is compared with the leader's log: `comparing`. Produce comes
first: after each chunk the thread rests at least as long as it worked, and no log is read while the
disk is full. `ReplicaSet` says which logs there are; damaged ones are left to `mending`, which
reads all of them.
"""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeVar

from penstock.core.replication.scrub import ScrubProgress, Urgency, next_due, scrub_rate
from penstock.core.types import Offset, ReplicaKey
from penstock.errors import ErrorCode, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.durable_files import SmallFile
from penstock_broker.maintenance import scrub_record
from penstock_broker.maintenance.comparing import LogComparison, LogDifference
from penstock_broker.maintenance.disk import DiskGuard
from penstock_broker.maintenance.scrub_metrics import ScrubMetrics
from penstock_broker.observability import EventLog
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.store.interface import LogStore, Slot

_CHUNK_BYTES: Final = 256 * 1024
_LOOK_S: Final = 10.0
_MINUTE_S: Final = 60.0
_AGAIN_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * 60 * 1000
_events = EventLog("scrub")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ScrubStatus:
    """How far a broker is. `reading`: None, nothing is read now; then `waits` may say why.

    `offset`, `end_offset`: what of `reading` is read next, and where its pass ends. `due`: replicas
    that wait, with the one that is read. `oldest_ms`: how long ago the log that waits longest was
    last read as a whole, or came here. Counted in this run of the broker: `read_bytes`,
    `damage_found`, `compared_ranges`. `differences`: where logs are not as their leaders'.
    """

    replicas: int
    due: int
    damaged: int
    reading: Replica | None
    offset: Offset
    end_offset: Offset
    bytes_per_second: int
    oldest_ms: int
    read_bytes: int
    damage_found: int
    waits: str
    compared_ranges: int = 0
    differences: tuple[tuple[Replica, LogDifference], ...] = ()


class Scrub:
    """Reads the logs of a broker, one after the other."""

    def __init__(
        self,
        replicas: ReplicaSet,
        store: LogStore,
        file: SmallFile,
        disk: DiskGuard,
        metrics: ScrubMetrics,
        clock: Clock,
        *,
        comparison: LogComparison,
        interval_days: int,
    ) -> None:
        """`file`: where it is noted how far each log is. `interval_days` 0: only when asked."""
        self._replicas = replicas
        self._store = store
        self._file = file
        self._disk = disk
        self._comparison = comparison
        self._metrics = metrics
        self._clock = clock
        self._interval_ms = interval_days * _DAY_MS
        self._executor = ThreadPoolExecutor(1, "scrub")
        self._reader = LogReader(store, self._executor, replicas.unreadable)
        self._logs: dict[ReplicaKey, ScrubProgress] = {}
        self._failed_ms: dict[ReplicaKey, int] = {}
        """When a log could not be read for another reason than damage: others come first."""
        self._stored = scrub_record.Record()
        self._loaded = False
        self._save_due_s = self._measure_due_s = 0.0
        self._total_bytes = 0
        self._rate = 0
        self._reading: Replica | None = None
        self._end = Offset(0)
        self._urgent = asyncio.Event()
        """Set when something may be more urgent than what is read now."""
        self._read_bytes = self._damage_found = 0
        metrics.observe_age(self._age_s)
        metrics.interval.set(self._interval_ms / 1000)

    # ------------------------------------------------------------ what is asked for

    def mended(self, key: ReplicaKey) -> None:
        """This replica was damaged, and all of it can be read again: it is read first."""
        self._want(key, Urgency.MENDED)

    def start(self, wanted: Callable[[Replica], bool]) -> int:
        """Has these replicas read now. Returns how many there are. Safe to repeat."""
        self._look()
        found = [r.key for r in self._replicas.by_key.values() if wanted(r)]
        for key in found:
            self._want(key, Urgency.ASKED)
        return len(found)

    def _want(self, key: ReplicaKey, urgency: Urgency) -> None:
        known = self._logs.get(key, ScrubProgress(self._clock.wall_ms()))
        self._logs[key] = known.wanted(urgency)
        self._failed_ms.pop(key, None)
        self._urgent.set()

    def status(self) -> ScrubStatus:
        """Now."""
        now_ms, reading = self._clock.wall_ms(), self._reading
        self._look()
        here = [self._logs[key] for key in self._scrubbed()]
        due = sum(one.is_due(now_ms, self._interval_ms) for one in here)
        known = None if reading is None else self._logs.get(reading.key)
        return ScrubStatus(
            replicas=len(here),
            due=due,
            damaged=len(self._replicas.damage.found),
            reading=reading,
            offset=Offset(0) if known is None else known.next_offset,
            end_offset=self._end,
            bytes_per_second=self._rate if reading is not None else 0,
            oldest_ms=max((now_ms - one.since_ms for one in here), default=0),
            read_bytes=self._read_bytes,
            damage_found=self._damage_found,
            waits="the disk is full" if due and self._disk.is_full else "",
            compared_ranges=self._comparison.compared_ranges,
            differences=tuple(self._comparison.here()),
        )

    def _age_s(self) -> float:
        """Of logs that are scrubbed. Called by the metrics thread, which copies what may change."""
        by_key, damaged = dict(self._replicas.by_key), set(self._replicas.damage.found)
        logs = dict(self._logs)
        here = [logs[key] for key in by_key.keys() & logs.keys() - damaged]
        return (self._clock.wall_ms() - min(one.since_ms for one in here)) / 1000 if here else 0.0

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Reads until cancelled."""
        with self._executor:
            try:
                await self._load()
                while True:
                    await self._round()
            finally:
                await self._comparison.close()

    async def _round(self) -> None:
        self._urgent.clear()
        self._look()
        replica = None if self._disk.is_full else self._next()
        if replica is not None:
            await self._pass(replica)
            await self._save(at_once=False)
            return
        await self._save(at_once=True)
        with suppress(TimeoutError):
            async with self._clock.timeout(_LOOK_S):
                await self._urgent.wait()

    async def _load(self) -> None:
        """Logs that no record knows count as never read; they may be from an older release."""

        def blocking() -> tuple[scrub_record.Record, Collection[ReplicaKey]]:
            return scrub_record.load(self._file), self._store.slots().keys()

        self._stored, slots = await self._in_thread(blocking)
        now_ms = self._clock.wall_ms()
        for key in slots:
            known = self._stored.logs.get(key, ScrubProgress(now_ms, Urgency.UNKNOWN))
            wanted = self._logs.get(key)  # by somebody who was quicker
            self._logs[key] = known if wanted is None else known.wanted(wanted.urgency)
        self._comparison.found.update(
            {key: dict(found) for key, found in self._stored.differences.items()}
        )
        self._loaded = True

    async def _save(self, *, at_once: bool) -> None:
        if not at_once and monotonic() < self._save_due_s:
            return
        differences = {key: dict(found) for key, found in self._comparison.found.items()}
        record = scrub_record.Record(dict(self._logs), differences)
        if record == self._stored:
            return
        self._save_due_s = monotonic() + _MINUTE_S
        await self._in_thread(lambda: scrub_record.save(self._file, record))
        self._stored = record

    def _look(self) -> None:
        """A log that comes here is new, or was just copied: nothing of it is old."""
        if not self._loaded:
            return  # nobody knows yet which ones were here before
        now_ms, by_key = self._clock.wall_ms(), self._replicas.by_key
        kept = by_key.keys() | self._replicas.orphans.keys()
        self._logs = {key: one for key, one in self._logs.items() if key in kept}
        self._comparison.keep(kept)
        for key in by_key:
            if key not in self._logs:
                self._logs[key] = ScrubProgress(now_ms)

    def _scrubbed(self) -> list[ReplicaKey]:
        """Of replicas that are here and are not being mended."""
        damaged = self._replicas.damage.found
        return [key for key in self._replicas.by_key if key in self._logs and key not in damaged]

    def _next(self) -> Replica | None:
        now_ms = self._clock.wall_ms()
        self._failed_ms = {
            key: at_ms for key, at_ms in self._failed_ms.items() if 0 <= now_ms - at_ms < _AGAIN_MS
        }
        logs = {key: self._logs[key] for key in self._scrubbed() if key not in self._failed_ms}
        key = next_due(logs, now_ms, self._interval_ms)
        return None if key is None else self._replicas.by_key[key]

    # ------------------------------------------------------------ one log

    async def _pass(self, replica: Replica) -> None:
        """Reads a log to its end, or until something else comes first."""
        key = replica.key
        progress = self._logs[key] = self._logs[key].begun(self._clock.wall_ms())
        offset = max(progress.next_offset, replica.marks.log_start_offset)
        self._reading, self._end = replica, replica.marks.written_end
        try:
            await self._measure()
            self._rate = scrub_rate(self._total_bytes, self._interval_ms, progress.urgency)
            while offset < self._end:
                if self._urgent.is_set() or self._disk.is_full or not self._is_here(replica):
                    return
                before, offset = offset, await self._read(replica, offset)
                await self._compare(replica, before, offset)
                if self._logs.get(key) is not progress:
                    return  # wanted again meanwhile, or gone
                progress = self._logs[key] = progress.read_to(offset)
                await self._save(at_once=False)
            if self._logs.get(key) is progress:  # else it is wanted again
                self._logs[key] = progress.finished()
        except PenstockError as error:
            await self._failed(replica, error)
        finally:
            self._reading = None

    def _is_here(self, replica: Replica) -> bool:
        replicas, key = self._replicas, replica.key
        return replicas.by_key.get(key) is replica and key not in replicas.damage.found

    async def _read(self, replica: Replica, offset: Offset) -> Offset:
        """Reads a chunk, then rests: as long as it took, or as its bytes require."""
        started_s = monotonic()
        batches = await self._reader.read_stored(replica, offset, _CHUNK_BYTES, self._end)
        took_s = monotonic() - started_s
        size_bytes = sum(batch.size_bytes for batch in batches)
        self._read_bytes += size_bytes
        self._metrics.bytes_read.inc(size_bytes)
        await self._clock.sleep(max(took_s, size_bytes / self._rate - took_s))
        return batches[-1].next_offset if batches else self._end

    async def _compare(self, replica: Replica, before: Offset, after: Offset) -> None:
        """Compares what was read, then rests for as long."""
        started_s = monotonic()
        await self._comparison.compare(self._reader, replica, before, after, self._end)
        await self._clock.sleep(monotonic() - started_s)

    async def _failed(self, replica: Replica, error: PenstockError) -> None:
        if error.code is not ErrorCode.DATA_CORRUPTED:
            _events.warning(
                "log not scrubbed; trying again later", replica=replica, reason=str(error)
            )
            self._failed_ms[replica.key] = self._clock.wall_ms()
        elif replica.key in self._replicas.damage.found:
            # The reader has told `replicas`. Once it is mended, it is read from its start.
            self._damage_found += 1
            self._metrics.damage_found.inc()
            _events.error("the scrub has found damage", replica=replica, reason=str(error))
            since_ms = self._logs[replica.key].since_ms
            self._logs[replica.key] = ScrubProgress(since_ms, Urgency.MENDED)

    async def _measure(self) -> None:
        """All that is read in one interval. What cannot be measured is damaged, and not read."""
        if monotonic() < self._measure_due_s:
            return
        self._measure_due_s = monotonic() + _MINUTE_S
        slots = [self._replicas.by_key[key].slot for key in self._scrubbed()]
        self._total_bytes = await self._in_thread(lambda: sum(map(self._size, slots)))

    def _size(self, slot: Slot) -> int:
        with suppress(PenstockError):
            return self._store.size_bytes(slot)
        return 0

    async def _in_thread(self, blocking: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, blocking)
