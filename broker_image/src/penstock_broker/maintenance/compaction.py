"""Compaction: every replica of a compacted topic shrinks its own log, one log at a time.

    every interval ─▶ facts of all compacted logs ─▶ plan ─▶ the dirtiest first:
        read keys, chunk by chunk (thread) ─▶ rewrite, newest chunk first (thread)
        ─▶ LogWriter (with the next tick) ─▶ the result of the pass, stored last

Leaders and followers compact in the same way; `penstock.core.compaction` decides. A pass ends at
the high watermark, so that nothing that could be truncated is touched, and at the last stable
offset, below which every transaction has ended (I20). A crash leaves each chunk either as it was or
rewritten; a pass that did not finish is repeated.

Produce comes first: a chunk is a few hundred KiB; after each chunk the thread rests at least as
long as it worked, and meanwhile it releases the interpreter's lock every millisecond.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep
from typing import Final, TypeVar

from penstock.core.batch import Batch
from penstock.core.compaction.keymap import KeyMap
from penstock.core.compaction.outcomes import Outcomes
from penstock.core.compaction.plan import Cleaned, LogFacts, Plan, plan_compaction
from penstock.core.compaction.rewrite import Rewriter
from penstock.core.records import decode_batch
from penstock.core.replication.contract import MarkersSwept
from penstock.core.topic import TopicConfig
from penstock.core.types import Offset, ReplicaKey
from penstock.core.wall_clock import WallTime
from penstock.errors import PenstockError
from penstock_broker.clock import Clock
from penstock_broker.config import Settings
from penstock_broker.maintenance.compaction_metrics import CompactionMetrics
from penstock_broker.maintenance.disk import DiskGuard
from penstock_broker.observability import EventLog
from penstock_broker.replication.recent import RecentBatches
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.store.interface import LogStore, Rewrite, Slot

_CHUNK_BYTES: Final = 256 * 1024
_SLICE: Final = 100
_WORK_S: Final = 0.001
_BREATH_S: Final = 0.0002
_events = EventLog("compaction")
_A = TypeVar("_A")


class Pass:
    """One pass over one log. Its methods block; call them one at a time, in a thread."""

    def __init__(
        self,
        store: LogStore,
        slot: Slot,
        facts: LogFacts,
        plan: Plan,
        keys: KeyMap,
        stable_offset: Offset,
        *,
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        """`stable_offset`: the last stable offset when the pass was planned, or later.
        `chunk_bytes`: how much is read and rewritten in one step, at least one batch."""
        self.plan = plan
        self.keys = keys
        self.cleaned = replace(facts.cleaned, markers_end=Offset(0))
        """What was stored of compaction, without markers that others have removed: it may have been
        found since that they are there."""
        self._store = store
        self._slot = slot
        self._start = facts.start
        self._stable_offset = stable_offset
        self._chunk_bytes = chunk_bytes
        self._known: Outcomes | None = None
        self._reached = plan.first_dirty
        self._oldest = plan.end
        self._rewriter: Rewriter | None = None
        self._breath_due_s = 0.0

    @property
    def rewriter(self) -> Rewriter:
        assert self._rewriter is not None, "keys are read first"
        return self._rewriter

    def _outcomes(self) -> Outcomes:
        """Of all transactions with a batch in the pass; their markers can be after its end."""
        if self._known is None:
            aborted = self._store.aborted(self._slot, self._start, self._stable_offset)
            self._known = Outcomes(aborted)
        return self._known

    def read_keys(self) -> int:
        """Adds the keys of the next dirty chunk; returns the bytes read, 0 when all is read.

        Stops when the map is full. Keys of aborted transactions supersede nothing.
        """
        if self._reached >= self.plan.end or self.keys.is_full:
            return self._settled()
        size_bytes = 0
        for batch in self._store.read(self._slot, self._reached, self._chunk_bytes, self.plan.end):
            if self.keys.is_full:
                return size_bytes or self._settled()
            self._take_in(batch)
            size_bytes += batch.size_bytes
            self._reached = batch.next_offset
            self._breathe()
        return size_bytes or self._settled()

    def _take_in(self, batch: Batch) -> None:
        if not batch.header.is_control and not self._outcomes().aborted(batch.header):
            with suppress(PenstockError):  # The batch stays as it is; the rewriter counts it.
                self.keys.add(decode_batch(batch))

    def _settled(self) -> int:
        self.plan = replace(self.plan, end=self._reached)
        self._rewriter = Rewriter(self.keys, self.plan, self._outcomes(), self._breathe)
        return 0

    def rewrite_next(self) -> tuple[int, Rewrite] | None:
        """Rewrites the next older chunk: the bytes read and written, and the new batches.

        If the batches are unchanged, only positions in the index are corrected, including those
        left by an interrupted pass. None when the start of the log is reached.
        """
        end = self._reached
        if end <= self._start:
            return None
        begin = max(self._start, self._store.chunk_start(self._slot, end, self._chunk_bytes))
        chunk: list[Batch] = []
        offset = begin
        while offset < end:
            found = self._store.read(self._slot, offset, self._chunk_bytes, end)
            if not found:
                break
            chunk += found
            offset = found[-1].next_offset
        if not chunk:
            return None  # Retention has removed it, and everything before it.
        self._reached, self._oldest = begin, chunk[0].base_offset
        rewritten = self.rewriter.rewrite(chunk)
        new = {id(batch) for batch in rewritten} - {id(batch) for batch in chunk}
        size_bytes = sum(batch.size_bytes for batch in chunk)
        size_bytes += sum(batch.size_bytes for batch in rewritten if id(batch) in new)
        return size_bytes, Rewrite(rewritten)

    def finished(self, now_ms: int) -> Cleaned | None:
        """The state to store, now that all rewrites of the pass are stored; None: nothing.

        The store drops a rewrite if records in its chunk were deleted meanwhile. The rest of that
        chunk is unchanged, and its transactions must stay known (I11). This can only be the oldest
        chunk: everything before it is gone.
        """
        first = self._store.read(self._slot, self._oldest, 1, self.plan.end)
        if not first or first[0].base_offset > self._oldest:
            return None
        return self.cleaned.after(self.plan, self.rewriter.statistics.tombstones, now_ms)

    def forget_replaced(self, recent: RecentBatches) -> None:
        """Memory has what was rewritten as it was before: it goes before the result is stored.

        After that it is forgotten which of these transactions were aborted, and later passes remove
        their markers: a follower that read data with a flag from memory, and then goes on in the
        store, would wait for such a marker for ever. Whatever this pass itself has changed: an
        interrupted one may have changed more.
        """
        recent.forget_before(self.plan.end)

    def _breathe(self) -> None:
        """Releases the interpreter's lock once a millisecond."""
        if monotonic() > self._breath_due_s:
            sleep(_BREATH_S)
            self._breath_due_s = monotonic() + _WORK_S


class Compaction:
    """Compacts the logs of a broker, one after the other."""

    def __init__(
        self,
        replicas: ReplicaSet,
        store: LogStore,
        metrics: CompactionMetrics,
        settings: Settings,
        disk: DiskGuard,
        clock: Clock,
    ) -> None:
        """`settings`: the broker's `log.cleaner.*`."""
        self._replicas = replicas
        self._store = store
        self._metrics = metrics
        self._settings = settings
        self._disk = disk
        self._clock = clock
        self._executor: Executor = ThreadPoolExecutor(1, "compaction")
        self._due_since_s: dict[ReplicaKey, float] = {}
        self._settled: dict[ReplicaKey, Offset] = {}
        """Stable offsets of logs that need no compaction until these move, so that idle logs cost
        nothing."""
        metrics.observe_waiting(self._waiting_s)

    async def run(self) -> None:
        """Runs until cancelled."""
        with self._executor:
            while True:
                await asyncio.sleep(self._settings.cleaner_backoff_ms / 1000)
                if not self._disk.is_full:
                    await self._round()

    async def _round(self) -> None:
        kept = [r for r in self._replicas.by_key.values() if r.config.cleanup_policy.compacts]
        kept_keys = {replica.key for replica in kept}
        self._settled = {key: end for key, end in self._settled.items() if key in kept_keys}
        due: list[tuple[float, Replica]] = []
        for first in range(0, len(kept), _SLICE):
            due += await self._due(kept[first : first + _SLICE])
        now_s, before = monotonic(), self._due_since_s
        self._due_since_s = {r.key: before.get(r.key, now_s) for _, r in due}
        for _, replica in sorted(due, key=lambda each: -each[0]):
            try:
                while await self._pass(replica):
                    pass  # The keys did not fit into one pass.
            except (PenstockError, AssertionError) as error:
                _events.error(
                    "log not compacted; trying again later",
                    partition=str(replica),
                    reason=str(error),
                )
                self._metrics.failures.inc()
                if isinstance(error, PenstockError):
                    self._replicas.unreadable(replica, error)
            else:
                self._due_since_s.pop(replica.key, None)

    async def _due(self, replicas: Iterable[Replica]) -> list[tuple[float, Replica]]:
        """The replicas that need compaction, and how dirty they are."""
        now = self._clock.wall.look()
        asked = [
            (r, (r.slot, end, r.config, r.machine.copied_to, now))
            for r in replicas
            if self._settled.get(r.key) != (end := r.marks.last_stable_offset)
        ]

        unreadable: list[tuple[Replica, PenstockError]] = []

        def blocking() -> list[tuple[Replica, Offset, LogFacts, Plan | None]]:
            found = []
            for replica, look in asked:
                try:
                    found.append((replica, look[1], *self._look(*look)))
                except PenstockError as error:
                    unreadable.append((replica, error))
            return found

        looked = await self._in_thread(blocking)
        for replica, error in unreadable:
            self._replicas.unreadable(replica, error)
        for replica, end, facts, _ in looked:
            if facts.end == end and not facts.dirty_bytes and not facts.cleaned.tombstones:
                self._settled[replica.key] = end
        return [(facts.dirty_ratio, r) for r, _, facts, plan in looked if plan is not None]

    def _look(
        self,
        slot: Slot,
        end: Offset,
        config: TopicConfig,
        copied_to: Offset | None,
        now: WallTime,
    ) -> tuple[LogFacts, Plan | None]:
        if not now.is_trusted:
            copied_to = Offset(0)  # null values stay
        if config.min_compaction_lag_ms:
            young = self._store.find_timestamp(slot, now.ms - config.min_compaction_lag_ms, end)
            end = young.offset if young is not None else end
        facts = self._store.compaction_facts(slot, end)
        return facts, plan_compaction(facts, config, now.ms, copied_to)

    async def _pass(self, replica: Replica) -> bool:
        """Compacts one log; True if another pass is needed at once. Raises PenstockError."""
        started_s, truncations = monotonic(), replica.truncations
        slot, end, config = replica.slot, replica.marks.last_stable_offset, replica.config
        copied_to = replica.machine.copied_to
        now = self._clock.wall.look()
        facts, plan = await self._in_thread(lambda: self._look(slot, end, config, copied_to, now))
        if plan is None:
            return False
        job = self.pass_on(slot, facts, plan, end)
        while size_bytes := await self._timed(job.read_keys, int):
            self._metrics.bytes_read.inc(size_bytes)
        if job.plan.end <= facts.start:
            return False
        statistics = job.rewriter.statistics
        if not await self._rewrite(replica, job, truncations, config):
            # Space that its chunks have saved so far can be given back.
            self._replicas.removals += bool(statistics.removed)
            return False
        now_ms = self._clock.wall.look().ms
        cleaned = await self._in_thread(lambda: job.finished(now_ms))
        if cleaned is None:
            return False
        job.forget_replaced(replica.recent)
        if not await self._replicas.rewrite(replica, None, cleaned, truncations):
            return False
        if statistics.removed:
            self._replicas.removals += 1
        self._metrics.count(statistics)
        _events.info(
            "log compacted",
            partition=str(replica),
            up_to=job.plan.end,
            keys=len(job.keys),
            records=statistics.records,
            removed=statistics.removed,
            tombstones=statistics.tombstones,
            bytes_before=statistics.bytes_before,
            bytes_after=statistics.bytes_after,
            unreadable=statistics.unreadable,
            seconds=round(monotonic() - started_s, 3),
        )
        return job.plan.end < plan.end and job.keys.is_full

    def pass_on(self, slot: Slot, facts: LogFacts, plan: Plan, end: Offset) -> Pass:
        """What is done in the thread; the simulator overrides this to take smaller steps."""
        return Pass(
            self._store, slot, facts, plan, KeyMap(self._settings.cleaner_dedupe_bytes), end
        )

    async def _rewrite(
        self, replica: Replica, job: Pass, truncations: int, planned: TopicConfig
    ) -> bool:
        """The second half of a pass; False if the log, or what is wanted of it, has changed, or the
        disk is full.

        `planned`: the settings by which it was planned.
        """
        while (step := await self._timed(job.rewrite_next, _bytes_of)) is not None:
            size_bytes, rewrite = step
            self._metrics.bytes_read.inc(size_bytes)
            if job.rewriter.sweeps_markers and not await self._tell_swept(
                replica, job, truncations
            ):
                return False
            if not _may_go_on(planned, replica.config):
                return False
            if not job.plan.may_go_on(replica.machine.copied_to):
                return False
            if self._disk.is_full:  # what is replaced is given back only after a pass
                return False
            if not await self._replicas.rewrite(replica, rewrite, None, truncations):
                return False
        return True

    async def _tell_swept(self, replica: Replica, job: Pass, truncations: int) -> bool:
        """Announces it before the first marker is removed: a replica that copies this log must not
        wait for one.

        False if the log has changed meanwhile.
        """
        swept = job.cleaned.before_markers_go(job.plan)
        if swept != job.cleaned:
            told = await self._replicas.rewrite(replica, None, swept, truncations)
            if not told or replica.truncations != truncations:
                return False
            job.cleaned = swept
        # Also if the store knew: who was elected while it copied says less than what is stored.
        self._replicas.handle(replica, MarkersSwept(job.plan.tombstones_end))
        return True

    async def _timed(self, blocking: Callable[[], _A], size_of: Callable[[_A], int]) -> _A:
        """Runs a step in the thread, then rests: as long as it took, or as its bytes require."""
        started_s = self._clock.now_s()
        result = await self._in_thread(blocking)
        took_s = self._clock.now_s() - started_s
        share_s = size_of(result) / self._settings.cleaner_bytes_per_second
        await asyncio.sleep(max(took_s, share_s - took_s))
        return result

    def _waiting_s(self) -> float:
        """Called by the metrics thread."""
        since = list(self._due_since_s.values())
        return monotonic() - min(since) if since else 0.0

    async def _in_thread(self, blocking: Callable[[], _A]) -> _A:
        return await asyncio.get_running_loop().run_in_executor(self._executor, blocking)


def _bytes_of(step: tuple[int, Rewrite] | None) -> int:
    return step[0] if step is not None else 0


def _may_go_on(planned: TopicConfig, now: TopicConfig) -> bool:
    """Whether the settings of now allow what a pass does that was planned by others."""
    return (
        now.cleanup_policy.compacts
        and now.delete_retention_ms <= planned.delete_retention_ms
        and now.min_compaction_lag_ms <= planned.min_compaction_lag_ms
    )
