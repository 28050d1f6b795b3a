"""Damaged replicas: how a broker finds them, what it knows of them, and when they are sound."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from support.assigned_replica import KEY, World
from support.led_partitions import running
from support.waiting import wait_until_async

from penstock.core.batch import Batch
from penstock.core.replication.contract import MISSING, Checkpoint
from penstock.core.replication.contract_follower import EpochAnswered
from penstock.core.types import NO_EPOCH, BrokerId, LeaderEpoch, Offset
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.replication import verifying as module
from penstock_broker.replication.assignment import ReplicaAssignment
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.verifying import LogVerification
from penstock_broker.store.interface import Slot
from penstock_broker.store.losses import promise_nothing

EMPTY_LEADER = EpochAnswered(
    leader=BrokerId(1),
    leader_epoch=LeaderEpoch(2),
    epoch=NO_EPOCH,
    end_offset=Offset(0),
    log_start_offset=Offset(0),
)


def promised(world: World) -> bool:
    """What is stored lets others rely on the log."""
    (slot,) = world.store.slots().values()
    checkpoint = world.store.recover(slot).checkpoint
    return checkpoint.leader_epoch > 0 and checkpoint.high_watermark >= 0


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_missing_log_of_an_isr_member_is_not_taken_for_an_empty_one(epoch: int) -> None:
    async with running(World()) as world:
        await world.assignment.drop_topics([KEY.topic_id])
        await world.image(2, leader=0, leader_epoch=epoch, isr=[0, 1], replicas=[0, 1])
        lost = epoch > 1
        assert world.replica.marks.is_leader is not lost
        assert list(world.replicas.damage.found) == [KEY] * lost
        assert world.replicas.damage.missing == ({KEY: epoch} if lost else {})
        assert world.outlet.news == lost
        if lost:
            stored = world.store.recover(world.replica.slot).checkpoint
            assert stored == Checkpoint(LeaderEpoch(2), MISSING, Offset(0), ())
            await world.image(3, leader_epoch=3, isr=[1], replicas=[0, 1])
            await wait_until_async(lambda: world.replica.machine.wants_tick, what="it follows")


async def test_a_missing_log_is_led_in_the_next_epoch() -> None:
    async with running(World()) as world:
        await world.assignment.drop_topics([KEY.topic_id])
        await world.image(2, leader=0, leader_epoch=2, isr=[0], replicas=[0, 1])
        assert not world.replica.marks.is_leader
        await world.image(3, leader=0, leader_epoch=3, isr=[0], replicas=[0, 1])
        assert world.replica.marks.is_leader
        world.replicas.damage.begins_anew(KEY)
        assert (world.replicas.damage.missing, world.replicas.damage.found) == ({}, {})
        world.replicas.damage.begins_anew(KEY)


async def test_a_log_that_was_opened_and_never_stored_anything_is_missing_too() -> None:
    """A crash between opening it and saying so: the next run must not take it for an empty one."""
    async with running(World()) as world:
        await world.assignment.drop_topics([KEY.topic_id])
        world.store.open_slot(KEY)
        await world.image(2, leader=0, leader_epoch=2, isr=[0, 1], replicas=[0, 1])
        assert list(world.replicas.damage.found) == [KEY]


async def test_a_log_that_has_stored_anything_is_led_again_after_a_restart() -> None:
    async with running(World()) as world:
        await world.append()
        world.assignment.retire_unknown([])
        await world.image(2, leader=0, leader_epoch=2, isr=[0, 1], replicas=[0, 1])
        assert world.replicas.damage.found == {}
        assert world.replica.marks.is_leader
        assert world.replica.marks.log_end_offset == 1


async def test_an_empty_log_outside_the_isr_is_reported_because_it_may_be_eligible() -> None:
    """No image shows who is. A controller that knows it is not says so, and it begins."""
    async with running(World()) as world:
        await world.assignment.drop_topics([KEY.topic_id])
        await world.image(2, leader_epoch=2, isr=[1], replicas=[0, 1])
        assert world.replicas.damage.missing == {KEY: 2}
        world.replicas.damage.begins_anew(KEY)
        await wait_until_async(lambda: world.replica.machine.wants_tick, what="it follows")


async def test_a_broker_that_says_it_has_lost_data_may_begin_with_an_empty_log() -> None:
    """No controller counts on it any more, wherever it had a seat."""
    async with running(World()) as world:
        world.assignment = ReplicaAssignment(world.replicas, world.writer, data_intact=False)
        await world.assignment.drop_topics([KEY.topic_id])
        await world.image(2, leader_epoch=2, isr=[1], replicas=[0, 1])
        assert world.replicas.damage.found == {}


@pytest.mark.parametrize("marked", [[], [0]])
async def test_a_missing_log_is_missing_in_the_next_run_too(marked: list[int]) -> None:
    """The first one has stored that it promises nothing, and was killed before anybody knew."""
    async with running(World()) as world:
        await world.assignment.drop_topics([KEY.topic_id])
        await world.image(2, leader=-1, leader_epoch=2, isr=[0], replicas=[0, 1])
        assert world.replicas.damage.missing == {KEY: 2}
        world.assignment.retire_unknown([])
        world.replicas.damage.begins_anew(KEY)  # as a new process, it knows nothing of that
        assert world.replicas.damage.found == {}
        await world.image(3, leader=-1, leader_epoch=2, isr=[0], replicas=[0, 1], damaged=marked)
        assert world.replicas.damage.missing == {KEY: 2}
        assert KEY not in world.replicas.damage.sound


async def test_an_empty_log_that_has_followed_a_leader_is_not_missing_any_more() -> None:
    """Nothing was ever written to its partition: it is as its leader's, and may get a seat."""
    async with running(World()) as world:
        await world.assignment.drop_topics([KEY.topic_id])
        await world.image(2, leader_epoch=2, isr=[1], replicas=[0, 1])
        assert world.replicas.damage.missing == {KEY: 2}
        world.replicas.damage.begins_anew(KEY)
        await wait_until_async(lambda: world.replica.machine.wants_tick, what="it asks its leader")
        world.replicas.handle(world.replica, EMPTY_LEADER)
        await wait_until_async(lambda: promised(world), what="that is stored")
        world.assignment.retire_unknown([])  # killed, before its checkpoint was due
        await world.image(3, leader=-1, leader_epoch=3, isr=[0], replicas=[0, 1])
        assert world.replicas.damage.found == {}


async def test_an_empty_log_that_promises_nothing_is_not_missing() -> None:
    """Its broker lost its power, and there was nothing to lose."""
    async with running(World()) as world:
        await wait_until_async(lambda: promised(world), what="its first epoch is stored")
        world.assignment.retire_unknown([])
        promise_nothing(world.store)
        assert not promised(world)
        await world.image(2, leader=-1, leader_epoch=2, isr=[0], replicas=[0, 1])
        assert world.replicas.damage.found == {}


async def test_a_batch_that_cannot_be_read_is_noted_once_and_ends_following() -> None:
    async with running(World()) as world:
        replica = world.replica
        world.replicas.unreadable(replica, ClusterError("busy", ErrorCode.STORAGE_FAILED))
        assert world.replicas.damage.found == {}
        for _ in range(2):
            world.replicas.unreadable(replica, ClusterError("CRC", ErrorCode.DATA_CORRUPTED))
        assert (list(world.replicas.damage.found), world.outlet.news) == ([KEY], 1)
        assert replica.marks.is_leader, "nobody else does yet"
        await world.image(2, leader_epoch=2, replicas=[0, 1], isr=[0, 1])
        await wait_until_async(lambda: replica.machine.error, what="it stops")
        assert replica.machine.error is not None
        assert replica.machine.error.code is ErrorCode.DATA_CORRUPTED
        await world.image(3, leader_epoch=2, dropping=[0])
        assert world.replicas.damage.found == {}
        world.replicas.unreadable(replica, ClusterError("CRC", ErrorCode.DATA_CORRUPTED))
        assert world.replicas.damage.found == {}, "it is not here any more"


async def test_a_read_that_fails_says_what_is_damaged() -> None:
    async with running(World()) as world:
        await world.append()
        world.replica.recent.clear()
        world.store.damaged_reads = True
        reader = LogReader(world.store, world.executor, world.replicas.unreadable)
        with pytest.raises(ClusterError, match="wrong CRC"):
            await reader.read(world.replica, Offset(0), 1, Offset(1))
        assert list(world.replicas.damage.found) == [KEY]


async def test_a_replica_that_stopped_is_damaged() -> None:
    async with running(World()) as world:
        world.replicas.handle(world.replica, cast("Any", "no event"))
        assert world.replica.machine.error is not None
        assert (list(world.replicas.damage.found), world.outlet.news) == ([KEY], 1)


# ---------------------------------------------------------------- sound again


@asynccontextmanager
async def verifying(world: World) -> AsyncIterator[LogVerification]:
    reader = LogReader(world.store, world.executor, world.replicas.unreadable)
    verification = LogVerification(world.replicas, reader)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(verification.run())
        yield verification
        task.cancel()


MARKED = {"leader": 0, "replicas": [0, 1], "isr": [0, 1], "damaged": [0]}


async def test_a_marked_replica_whose_whole_log_can_be_read_is_sound() -> None:
    async with running(World()) as world, verifying(world) as verification:
        for _ in range(3):
            await world.append()
        await world.image(2, **{**MARKED, "damaged": [1]})
        verification.changed()
        await world.image(3, **MARKED)
        assert world.replicas.damage.sound == {}
        reads: list[int] = []
        read = world.store.read

        def one_by_one(slot: Slot, offset: Offset, _max_bytes: int, end: Offset) -> list[Batch]:
            reads.append(offset)
            return read(slot, offset, 1, end)

        world.store.read = one_by_one  # type: ignore[method-assign, assignment]
        verification.changed()
        await wait_until_async(lambda: KEY in world.replicas.damage.sound, what="it is verified")
        assert reads == [0, 1, 2]
        assert world.outlet.news == 1
        world.replicas.unreadable(world.replica, ClusterError("CRC", ErrorCode.DATA_CORRUPTED))
        assert world.replicas.damage.sound == {}
        await world.image(4, dropping=[0])
        assert world.replicas.damage.found == {}


async def test_a_marked_replica_that_still_cannot_be_read_stays_damaged() -> None:
    async with running(World()) as world, verifying(world) as verification:
        await world.append()
        await world.image(3, **MARKED)
        world.store.damaged_reads = True
        verification.changed()
        await wait_until_async(lambda: KEY in world.replicas.damage.found, what="it is verified")
        world.store.damaged_reads = False
        verification.changed()
        world.replicas.found_sound(world.replica)
        assert world.replicas.damage.sound == {}, (
            "a former run's damage may be gone, not this one's"
        )


async def test_an_empty_log_that_leads_in_spite_of_its_mark_is_not_called_sound() -> None:
    """It lost all it had, and leads because who has that is away: the seat is theirs (I33)."""
    async with running(World()) as world, verifying(world) as verification:
        await world.image(2, **{**MARKED, "leader_epoch": 2, "isr": [0]})
        verification.changed()
        await wait_until_async(lambda: KEY in verification._tried, what="it has looked")
        assert (world.replicas.damage.sound, world.replicas.damage.found) == ({}, {})


async def test_a_replica_that_is_marked_twice_is_read_twice() -> None:
    async with running(World()) as world, verifying(world) as verification:
        await world.append()
        for version in (2, 4):
            await world.image(version, **MARKED)
            verification.changed()
            await wait_until_async(
                lambda: KEY in world.replicas.damage.sound, what="it is verified"
            )
            world.replicas.damage.sound.clear()
            await world.image(version + 1, **{**MARKED, "damaged": []})
            verification.changed()
            await wait_until_async(lambda: not verification._tried, what="the mark is gone")


async def test_a_replica_that_this_run_found_damaged_is_not_read_again() -> None:
    async with running(World()) as world, verifying(world) as verification:
        await world.append()
        world.replicas.unreadable(world.replica, ClusterError("CRC", ErrorCode.DATA_CORRUPTED))
        await world.image(2, **MARKED)
        verification.changed()
        await wait_until_async(lambda: not verification._wake.is_set(), what="it has looked")
        assert verification._tried == {}


async def test_a_marked_replica_that_could_not_be_read_to_the_end_is_verified_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk did not answer, which says nothing about what is on it."""
    monkeypatch.setattr(module, "_RETRY_S", 0.05)
    async with running(World()) as world, verifying(world) as verification:
        await world.append()
        await world.image(3, **MARKED)
        world.store.broken_reads = True
        verification.changed()
        await wait_until_async(lambda: verification._put_off, what="it was tried")
        assert (world.replicas.damage.sound, world.replicas.damage.found) == ({}, {})
        world.store.broken_reads = False
        await wait_until_async(lambda: KEY in world.replicas.damage.sound, what="it is verified")


async def test_copies_and_marks_are_known_while_the_newest_image_has_them() -> None:
    async with running(World()) as world:
        replicas = world.replicas
        await world.image(2, adding=[0])
        assert replicas.copied_from() == {1}
        await world.image(3, replicas=[0, 1], isr=[1], damaged=[0])
        assert replicas.copied_from() == set()
        assert list(replicas.damage.marked) == [KEY]
        await world.image(4, replicas=[0, 1], isr=[1])
        assert replicas.damage.marked == {}
        await world.image(5, replicas=[0, 1], isr=[1], damaged=[0])
        await world.image(6, dropping=[0])
        assert replicas.damage.marked == {}
        await world.image(7, adding=[0])
        await world.assignment.drop_topics([KEY.topic_id])
        assert replicas.copied_from() == set()
