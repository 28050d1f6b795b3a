"""A broker reads its logs by itself, and what it finds is known as damage."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client import CollectorRegistry
from support.led_partitions import LedPartitions, running
from support.waiting import wait_until_async

from penstock.core.batch import Batch
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.digests import LogDigest, OffsetRange
from penstock.core.replication.scrub import ScrubProgress, Urgency
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.clock import SystemClock
from penstock_broker.maintenance import scrub_record
from penstock_broker.maintenance.comparing import LogComparison, LogDifference
from penstock_broker.maintenance.disk import DiskGuard
from penstock_broker.maintenance.scrub import Scrub
from penstock_broker.maintenance.scrub_metrics import ScrubMetrics
from penstock_broker.store.interface import PartitionWrite, Slot

DAY_MS = 24 * 60 * 60 * 1000
NOW_MS = 100 * DAY_MS
T, U = (ReplicaKey(TopicId(f"id-{name}"), 0) for name in "tu")
BATCHES = [
    build_batch(encode_columns([b"%d" % n * 100_000], timestamps_ms=1)).stamped(
        Offset(n), LeaderEpoch(1), 0
    )
    for n in range(8)
]


class File:
    path = Path("scrub.json")

    def __init__(self) -> None:
        self.content: bytes | None = None

    def read(self) -> bytes | None:
        return self.content

    def replace(self, content: bytes) -> None:
        self.content = content


class Timeless(SystemClock):
    """Sleeps last no time, but as long as they are to last is added up."""

    def __init__(self) -> None:
        self.shown_ms = NOW_MS
        self.slept_s = 0.0

    def wall_ms(self) -> int:
        return self.shown_ms

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        await super().sleep(0)


class Leaders:
    """Nobody else leads anything here."""

    async def digest(self, *asked: object) -> NoReturn:
        raise AssertionError(asked)

    async def close(self) -> None:
        """Nothing is open."""


class World:
    """Broker 0 leads two partitions with 8 batches each, and scrubs them."""

    def __init__(self, parts: LedPartitions, file: File, interval_days: int) -> None:
        self.parts = parts
        self.read: list[tuple[Slot, int]] = []
        self.lost: set[tuple[Slot, int]] = set()
        self.failing: set[Slot] = set()
        self.clock = Timeless()
        self.full = False
        self.registry = CollectorRegistry()
        self.executor = ThreadPoolExecutor(1)
        self.disk = DiskGuard(
            lambda: (0 if self.full else 1 << 40, 1 << 40),
            reserve_bytes=1,
            interval_s=0.001,
            executor=self.executor,
            on_change=lambda: None,
        )
        self.file = file
        self._store_read = parts.store.read
        parts.store.read = self._read  # type: ignore[method-assign]
        metrics = ScrubMetrics(self.registry)
        self.comparison = LogComparison(parts.replicas, parts.view, Leaders(), metrics, self.clock)
        self.scrub = Scrub(
            parts.replicas,
            parts.store,
            file,
            self.disk,
            metrics,
            self.clock,
            comparison=self.comparison,
            interval_days=interval_days,
        )

    def _read(self, slot: Slot, offset: Offset, max_bytes: int, end: Offset) -> list[Batch]:
        self.read.append((slot, offset))
        found = self._store_read(slot, offset, max_bytes, end)
        if slot in self.failing:
            raise ClusterError("the disk does not answer", ErrorCode.STORAGE_FAILED)
        good = next((n for n, b in enumerate(found) if (slot, b.base_offset) in self.lost), None)
        if good == 0:
            raise ClusterError(f"offset {offset} has a wrong CRC", ErrorCode.DATA_CORRUPTED)
        return found[:good]

    def slot(self, key: ReplicaKey) -> Slot:
        return self.parts.replicas.by_key[key].slot

    def passes(self, key: ReplicaKey) -> int:
        return self.read.count((self.slot(key), 0))

    def counted(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"penstock_scrub_{name}")


@asynccontextmanager
async def scrubbed(
    file: File | None = None, interval_days: int = 7, *, fresh: bool = False
) -> AsyncIterator[World]:
    """`fresh`: no record has ever been made. Else both logs were read a moment ago."""
    parts = LedPartitions({"t": ("id-t", 1), "u": ("id-u", 1)}, cache_bytes=1)
    for key in (T, U):
        slot = parts.store.open_slot(key)
        parts.store.write([PartitionWrite(slot, batches=BATCHES)], sync=True)
    used = file or File()
    if not fresh and used.content is None:
        scrub_record.save(used, scrub_record.Record(dict.fromkeys((T, U), ScrubProgress(NOW_MS))))
    async with running(parts):
        await parts.lead(0, 2)
        world = World(parts, used, interval_days)
        async with asyncio.TaskGroup() as tasks:
            running_now = [
                tasks.create_task(world.scrub.run()),
                tasks.create_task(world.disk.run()),
            ]
            try:
                yield world
            finally:
                for task in running_now:
                    task.cancel()
        world.executor.shutdown()


async def until(condition: Callable[[], object], what: str) -> None:
    await wait_until_async(condition, what=what)


async def test_logs_that_no_record_knows_are_read_at_once_and_then_not_again() -> None:
    async with scrubbed(fresh=True) as world:
        assert world.scrub.status().damage_found == 0
        await until(
            lambda: world.scrub._stored.logs and not world.scrub.status().due, "all is read"
        )
        assert (world.passes(T), world.passes(U)) == (1, 1)
        status = world.scrub.status()
        assert (status.replicas, status.reading, status.waits) == (2, None, "")
        size_bytes = 2 * sum(batch.size_bytes for batch in BATCHES)
        assert status.read_bytes == size_bytes == world.counted("read_bytes_total")
    async with scrubbed(world.file) as again:
        assert again.scrub.status().due == 0
        await until(lambda: again.scrub._stored.logs, "the record is loaded")
        assert again.read == []


async def test_the_rest_between_chunks_keeps_the_pace() -> None:
    async with scrubbed(fresh=True) as world:
        await until(
            lambda: world.scrub._stored.logs and not world.scrub.status().due, "all is read"
        )
        size_bytes = 2 * sum(batch.size_bytes for batch in BATCHES)
        assert world.clock.slept_s >= 0.5 * size_bytes / (1 << 20), (
            "1 MiB/s, less what reading took"
        )


async def test_a_log_is_read_again_when_its_interval_is_over() -> None:
    async with scrubbed() as world:
        await until(lambda: world.scrub._stored.logs, "the record is loaded")
        assert world.read == []
        world.clock.shown_ms += 7 * DAY_MS
        assert world.counted("age_seconds") == 7 * DAY_MS / 1000
        world.scrub._urgent.set()  # looks now, not within 10 s
        await until(lambda: not world.scrub.status().due, "all is read")
        assert (world.passes(T), world.passes(U)) == (1, 1)
        assert world.counted("age_seconds") == 0


async def test_damage_is_told_and_the_log_is_read_first_once_it_is_mended() -> None:
    async with scrubbed() as world:
        await until(lambda: world.scrub._stored.logs, "the record is loaded")
        world.lost = {(world.slot(T), 3)}
        assert world.scrub.start(lambda replica: replica.key == T) == 1
        await until(lambda: T in world.parts.replicas.damage.found, "it is found")
        await until(lambda: world.scrub.status().damage_found == 1, "it is counted")
        assert world.counted("damage_found_total") == 1
        assert world.scrub.status().due == 0, "mending has it now"
        world.lost = set()
        del world.parts.replicas.damage.found[T]
        world.scrub.start(lambda replica: replica.key == U)
        world.read.clear()
        world.scrub.mended(T)
        await until(lambda: not world.scrub.status().due, "all is read")
        assert world.passes(T) == 1
        assert world.scrub.status().damage_found == 1


async def test_a_log_that_cannot_be_read_lets_others_go_first_and_is_tried_again() -> None:
    async with scrubbed() as world:
        world.failing.add(world.slot(T))
        world.scrub._want(T, Urgency.UNKNOWN)
        await until(lambda: world.passes(T) == 1, "it has failed")
        world.clock.shown_ms += 8 * DAY_MS
        world.scrub._urgent.set()
        await until(lambda: world.scrub._logs[U].since_ms == world.clock.shown_ms, "U is read")
        failed = world.passes(T)
        world.failing.clear()
        world.clock.shown_ms += 60_000
        world.scrub._urgent.set()
        await until(lambda: not world.scrub.status().due, "both are read")
        assert world.passes(T) > failed


async def test_nothing_is_read_while_the_disk_is_full() -> None:
    async with scrubbed() as world:
        world.full = True
        await until(lambda: world.disk.is_full, "the disk is full")
        world.scrub.start(lambda _: True)
        status = world.scrub.status()
        assert (status.due, status.waits, world.read) == (2, "the disk is full", [])
        world.full = False
        await until(lambda: not world.disk.is_full, "there is space")
        world.scrub._urgent.set()
        await until(lambda: not world.scrub.status().due, "all is read")


async def test_a_pass_goes_on_after_a_restart_where_it_was() -> None:
    file = File()
    begun = ScrubProgress(NOW_MS - DAY_MS, Urgency.ASKED, NOW_MS - 5, Offset(6))
    scrub_record.save(file, scrub_record.Record({T: begun, U: ScrubProgress(NOW_MS)}))
    async with scrubbed(file, fresh=True) as world:
        await until(
            lambda: world.scrub._stored.logs and not world.scrub.status().due, "all is read"
        )
        assert world.read[0] == (world.slot(T), 6)
        assert world.passes(T) == world.passes(U) == 0
        assert world.scrub._logs[T].since_ms == NOW_MS - 5


async def test_a_record_that_cannot_be_used_costs_one_more_reading() -> None:
    for content in (b"\x00", b'{"format": 2, "logs": []}', b'{"format": 1}'):
        file = File()
        file.content = content
        async with scrubbed(file, fresh=True) as world:
            await until(
                lambda: world.scrub._stored.logs and not world.scrub.status().due, "all read"
            )
            assert world.passes(T) == 1
        assert scrub_record.load(file).logs.keys() == {T, U}


async def test_a_log_that_comes_here_is_not_old() -> None:
    async with scrubbed() as world:
        await until(lambda: world.scrub._stored.logs, "the record is loaded")
        del world.scrub._logs[T]
        assert world.scrub.status().due == 0
        assert world.scrub._logs[T] == ScrubProgress(NOW_MS)


async def test_the_age_is_that_of_logs_which_are_scrubbed() -> None:
    """Not of one that is damaged, nor of one whose replica is gone and that waits to be deleted."""
    async with scrubbed() as world:
        await until(lambda: world.scrub._stored.logs, "the record is loaded")
        replicas = world.parts.replicas
        world.scrub._logs[T] = ScrubProgress(NOW_MS - 5 * DAY_MS)
        world.scrub._logs[U] = ScrubProgress(NOW_MS - 1 * DAY_MS)
        assert world.counted("age_seconds") == 5 * DAY_MS / 1000
        replicas.damage.found[T] = None
        assert world.counted("age_seconds") == 1 * DAY_MS / 1000
        del replicas.damage.found[T]
        gone = replicas.by_key.pop(T)
        assert world.counted("age_seconds") == 1 * DAY_MS / 1000
        replicas.by_key[T] = gone


async def test_the_interval_is_exported_and_0_is_none() -> None:
    for days in (7, 0):
        async with scrubbed(interval_days=days) as world:
            assert world.counted("interval_seconds") == days * DAY_MS / 1000


async def test_what_differed_before_a_restart_is_still_known() -> None:
    file = File()
    within = OffsetRange(Offset(0), Offset(8))
    found = LogDifference(within, BrokerId(1), LogDigest(8, 1), LogDigest(8, 2), NOW_MS)
    known = dict.fromkeys((T, U), ScrubProgress(NOW_MS))
    scrub_record.save(file, scrub_record.Record(known, {T: {0: found}}))
    async with scrubbed(file, fresh=True) as world:
        await until(lambda: world.scrub._loaded, "the record is loaded")
        assert [(str(one), what) for one, what in world.scrub.status().differences] == [
            ("t/0", found)
        ]
        world.scrub.start(lambda replica: replica.key == U)
        await until(lambda: not world.scrub.status().due, "all is read")
    assert scrub_record.load(file).differences == {T: {0: found}}


async def test_a_scrub_that_is_asked_for_at_the_end_of_a_pass_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scrubbed() as world:
        scrub, asked = world.scrub, list[int]()
        save = scrub._save

        async def saving(*, at_once: bool) -> None:
            reading = scrub._reading
            ends = reading is not None and reading.key == T
            if ends and not asked and scrub._logs[T].next_offset >= scrub._end:
                asked.append(scrub.start(lambda replica: replica.key == T))
            await save(at_once=at_once)

        monkeypatch.setattr(scrub, "_save", saving)
        scrub._want(T, Urgency.UNKNOWN)
        await wait_until_async(lambda: world.passes(T) == 2, what="another pass")
        assert asked == [1]
