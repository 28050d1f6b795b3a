"""Retention by time waits while the wall clock is in doubt; by size it goes on (I20)."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from support.jumping_clock import DAY_MS, JumpingClock
from support.led_partitions import LedPartitions, running
from support.transactions import Transactor
from support.waiting import wait_until_async

from penstock.core.topic import CleanupPolicy
from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock.core.wall_clock import HOLD_MS
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.maintenance.clock_watch import ClockWatch
from penstock_broker.maintenance.retention import Retention
from penstock_broker.replication.replica import Replica
from penstock_broker.store.interface import Slot


class Scene(LedPartitions):
    """Five records in a topic that keeps a week."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__({"t": ("id-t", partitions)})
        self.clock = JumpingClock()
        self.clock.wall.look()  # as the session does when the process starts
        self.topics_config |= {"retention.ms": str(7 * DAY_MS)}
        self.retention = Retention(
            self.replicas, self.store, self.executor, self.clock, interval_s=1
        )

    @property
    def replica(self) -> Replica:
        return self.replicas.by_key[ReplicaKey(TopicId("id-t"), 0)]

    async def fill(self) -> None:
        await Transactor(self.replicas, self.replica).send(
            None, 5, timestamp_ms=self.clock.right_ms()
        )
        await wait_until_async(lambda: self.replica.marks.high_watermark == 5, what="they are in")

    async def log_start(self) -> int:
        """After a round."""
        await self.retention._round()
        assert await self.writer.drained(60)
        return self.replica.marks.log_start_offset


@pytest.mark.parametrize("ahead_ms", [8 * DAY_MS, 3_000 * DAY_MS])
async def test_a_clock_that_jumped_deletes_nothing_until_it_has_held(ahead_ms: int) -> None:
    async with running(Scene()) as scene:
        await scene.fill()
        scene.clock.ahead_ms = ahead_ms
        assert await scene.log_start() == 0
        scene.clock.passed_ms = HOLD_MS // 2
        assert await scene.log_start() == 0
        scene.clock.passed_ms = HOLD_MS
        assert await scene.log_start() == 5, "somebody has set the clock"


async def test_a_clock_that_jumped_with_the_controllers_deletes_nothing() -> None:
    """Both are of one node."""
    async with running(Scene()) as scene:
        await scene.fill()
        scene.clock.jump_with_the_controllers(8 * DAY_MS)
        assert await scene.log_start() == 0
        scene.clock.passed_ms = HOLD_MS
        assert await scene.log_start() == 5


async def test_a_clock_that_is_back_deletes_what_is_old() -> None:
    async with running(Scene()) as scene:
        await scene.fill()
        scene.clock.ahead_ms = 8 * DAY_MS
        assert await scene.log_start() == 0
        scene.clock.ahead_ms = 0
        assert await scene.log_start() == 0, "nothing is old"
        scene.clock.passed_ms = 8 * DAY_MS
        assert await scene.log_start() == 5


async def test_a_clock_that_differs_from_the_controllers_deletes_nothing() -> None:
    async with running(Scene()) as scene:
        await scene.fill()
        wrong = JumpingClock()
        wrong.ahead_ms = 8 * DAY_MS
        wrong.wall.told(wrong.right_ms())
        with ThreadPoolExecutor(1) as executor:
            scene.retention = Retention(scene.replicas, scene.store, executor, wrong, interval_s=1)
            assert await scene.log_start() == 0
            wrong.passed_ms = 2 * HOLD_MS
            assert await scene.log_start() == 0, "it is not only new: it is wrong"


async def test_retention_by_size_goes_on() -> None:
    scene = Scene()
    scene.topics_config |= {"retention.bytes": "0"}
    async with running(scene):
        await scene.fill()
        scene.clock.ahead_ms = 8 * DAY_MS
        assert await scene.log_start() == 5


async def test_settings_that_change_during_a_look_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.topics_config |= {"retention.bytes": "0"}
    async with running(scene):
        await scene.fill()
        look, replica = scene.store.retention_start, scene.replica
        settings = replica.config

        def slow_look(slot: Slot, **limits: Any) -> Offset | None:
            found = look(slot, **limits)
            replica.config = replace(settings, cleanup_policy=CleanupPolicy.COMPACT)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(scene.store, "retention_start", slow_look)
            assert await scene.log_start() == 0
        replica.config = settings
        assert await scene.log_start() == 5


@pytest.mark.parametrize("code", [ErrorCode.DATA_CORRUPTED, ErrorCode.STORAGE_FAILED])
async def test_a_log_that_cannot_be_looked_at_keeps_no_other_from_retention(
    monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    scene = Scene(partitions=3)
    scene.topics_config |= {"retention.bytes": "0"}
    async with running(scene):
        replicas = sorted(scene.replicas.by_key.values(), key=lambda one: one.key.partition)
        for replica in replicas:
            await Transactor(scene.replicas, replica).send(None, 5)
        await wait_until_async(
            lambda: all(one.marks.high_watermark == 5 for one in replicas), what="they are in"
        )
        look, broken = scene.store.retention_start, replicas[0]

        def breaks(slot: Slot, **limits: Any) -> Offset | None:
            if slot == broken.slot:
                raise ClusterError("a block of the index", code)
            return look(slot, **limits)

        monkeypatch.setattr(scene.store, "retention_start", breaks)
        await scene.retention._round()
        assert await scene.writer.drained(60)
        assert [one.marks.log_start_offset for one in replicas] == [0, 5, 5]
        is_damage = code is ErrorCode.DATA_CORRUPTED
        assert (broken.key in scene.replicas.damage.found) is is_damage, "it is reported"
        await scene.retention._round()


def test_a_controller_of_an_older_release_does_not_tell_its_time_and_nothing_is_compared() -> None:
    clock = JumpingClock()
    clock.wall.told(0)
    assert clock.wall.look().is_trusted


def test_each_doubt_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = JumpingClock()
    watch = ClockWatch(clock.wall)

    def said() -> list[str]:
        watch.look()
        watch.look()
        found = [record.message for record in caplog.records]
        caplog.clear()
        return found

    assert (said(), watch.is_doubted) == ([], False)
    clock.ahead_ms = 8 * DAY_MS
    [doubt] = said()
    assert "in doubt" in doubt
    assert watch.is_doubted
    clock.ahead_ms = 0
    [trust] = said()
    assert "trusted again" in trust
    assert not watch.is_doubted
