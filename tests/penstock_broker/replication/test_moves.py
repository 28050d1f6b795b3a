"""Replicas of a partition that moves: what a broker does between one state and the next."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from support.led_partitions import LedPartitions, running
from support.waiting import wait_until_async

from penstock.core.batch import Batch
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract import UNPROMISED, Checkpoint
from penstock.core.replication.contract_leader import IsrAnswered, ProduceRequested
from penstock.core.types import (
    Acks,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionState,
    ReplicaKey,
    Sync,
    TopicId,
)
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2, controller_pb2
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.verifying import LogVerification
from penstock_broker.store.interface import Slot

KEY = ReplicaKey(TopicId("id-t"), 0)


class Outlet:
    """Counts how often there was news for the controller."""

    news = 0

    def changed(self) -> None:
        self.news += 1


class World(LedPartitions):
    """One partition with one replica, here; `min.insync.replicas` is 2."""

    def __init__(self) -> None:
        super().__init__({"t": ("id-t", 1)})
        self.topics_config = {"min.insync.replicas": "2"}
        self.requests = 0
        self.outlet = Outlet()
        self.replicas.reports = self.outlet

    async def image(self, version: int, **partition: Any) -> None:
        """The whole metadata; brokers 1 and 2 have the partition, unless `partition` says else."""
        known: dict[str, Any] = {"leader": 1, "leader_epoch": 1, "replicas": [1, 2], "isr": [1, 2]}
        info = broker_pb2.TopicInfo(
            topic="t",
            topic_id=KEY.topic_id,
            configs=self.topics_config,
            partitions=[broker_pb2.PartitionInfo(version=version, **(known | partition))],
        )
        changed = self.view.apply(
            controller_pb2.ClusterImage(full=True, metadata_version=version, topics=[info])
        )
        await self.replicas.assign(changed)
        await self.replicas.drop_former(changed)

    @property
    def slots(self) -> list[ReplicaKey]:
        return list(self.store.slots())

    @property
    def replica(self) -> Replica:
        return self.replicas.by_key[KEY]

    async def append(self) -> None:
        """One more record is written here."""
        self.requests += 1
        replica, end = self.replica, self.replica.marks.log_end_offset + 1
        request = ProduceRequested(
            request_id=self.requests,
            batch=build_batch(encode_columns([b"x"], timestamps_ms=1)),
            acks=Acks.LEADER,
            sync=Sync.OS,
            deadline_ms=1 << 40,
        )
        self.replicas.handle(replica, request)
        await wait_until_async(lambda: replica.marks.written_end == end, what="it is written")

    def told(self, version: int, *, isr: tuple[int, ...], replicas: tuple[int, ...]) -> None:
        """The controller's answer to an ISR change; its image comes later."""
        state = PartitionState(
            leader=BrokerId(0),
            leader_epoch=LeaderEpoch(1),
            isr=tuple(BrokerId(member) for member in isr),
            replicas=tuple(BrokerId(member) for member in replicas),
            version=version,
        )
        self.replicas.handle(self.replica, IsrAnswered(state))


async def test_a_leader_whose_replicas_grew_does_not_commit_alone_before_the_image_comes() -> None:
    """min.insync.replicas is limited by the replicas of the newest state, not of the image."""
    async with running(World()) as world:
        await world.append()
        assert world.replica.marks.high_watermark == 1, "one replica of one is enough"
        world.told(2, isr=(0, 1, 2), replicas=(0, 1, 2))
        world.told(3, isr=(0,), replicas=(0, 1, 2))
        await world.append()
        assert world.replica.marks.high_watermark == Offset(1), "one replica of three is not"


# ---------------------------------------------------------------- copies come and go


async def test_a_broker_that_is_to_become_a_replica_opens_a_log() -> None:
    async with running(World()) as world:
        world.replicas.by_key.clear()
        await world.image(2, adding=[0])
        assert world.replica.marks.leader == 1
        assert world.replicas.leaders_wanted() == {1}


async def test_a_replica_is_deleted_only_when_the_image_says_so() -> None:
    async with running(World()) as world:
        await world.append()
        await world.image(2)
        assert world.slots == [KEY], "that it is no replica deletes nothing"
        assert world.replicas.dropped == {}
        await world.image(3, dropping=[2, 0])
        assert world.slots == []
        assert world.replicas.by_key == {}
        assert world.replicas.dropped == {KEY: 3}


async def test_whoever_waits_for_a_replica_that_is_deleted_is_told_where_it_went() -> None:
    async with running(World()) as world:
        answers: list[Any] = []
        world.replica.pending[7] = answers.append
        await world.image(2, dropping=[0])
        (answer,) = answers
        assert answer.error.code is ErrorCode.NOT_LEADER
        assert "t/0 is on the brokers [1, 2] now" in str(answer.error)


async def test_an_image_older_than_what_made_it_a_replica_deletes_nothing() -> None:
    async with running(World()) as world:
        world.told(4, isr=(0,), replicas=(0, 1))
        await world.image(4, dropping=[0])
        assert world.slots == [KEY], "the answer came before this image"
        assert world.replicas.dropped == {}
        await world.image(5, dropping=[0])
        assert world.slots == []


async def test_what_a_former_run_stored_is_deleted_too() -> None:
    async with running(World()) as world:
        world.replicas.retire_unknown([])
        assert list(world.replicas.orphans) == [KEY]
        await world.image(2, dropping=[0])
        assert world.slots == []
        assert world.replicas.orphans == {}
        assert world.replicas.dropped == {KEY: 2}


async def test_what_was_deleted_before_is_known_again_after_a_restart() -> None:
    """The run before this one ended between deleting and reporting."""
    async with running(World()) as world:
        await world.replicas.drop_topics([KEY.topic_id])
        await world.image(2, dropping=[0])
        assert world.replicas.dropped == {KEY: 2}
        await world.image(3, dropping=[0])
        assert world.replicas.dropped == {KEY: 3}
        await world.image(4)
        assert world.replicas.dropped == {}


@pytest.mark.parametrize("topic", [False, True], ids=["replica", "topic"])
async def test_what_could_not_be_deleted_is_not_reported_and_is_deleted_later(
    *, topic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store cannot delete anything while the disk is full."""

    def full(_slot: Slot) -> None:
        raise ClusterError("no space left", ErrorCode.DISK_FULL)

    async def delete(world: World) -> None:
        if topic:
            await world.replicas.drop_topics([KEY.topic_id])
        else:
            await world.replicas.drop_former(world.view.topics.values())

    async with running(World()) as world:
        await world.append()
        with monkeypatch.context() as patch:
            patch.setattr(world.store, "drop", full)
            with pytest.raises(ClusterError, match="no space left"):
                await (delete(world) if topic else world.image(2, dropping=[0]))
        assert world.replicas.by_key == {}
        assert world.replicas.dropped == {}
        assert list(world.replicas.orphans) == world.slots == [KEY]
        await delete(world)
        assert world.replicas.dropped == ({} if topic else {KEY: 2})
        assert list(world.replicas.orphans) == world.slots == []


async def test_a_topic_that_is_deleted_needs_no_report_any_more() -> None:
    async with running(World()) as world:
        await world.image(2, dropping=[0])
        await world.replicas.drop_topics([KEY.topic_id])
        assert world.replicas.dropped == {}


async def test_a_broker_may_copy_again_what_it_deleted() -> None:
    async with running(World()) as world:
        await world.append()
        await world.image(2, dropping=[0])
        await world.image(3, adding=[0])
        assert world.replicas.dropped == {}
        assert world.replica.marks.log_end_offset == 0
        assert world.replicas.damaged == {}


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_missing_log_of_an_isr_member_is_not_taken_for_an_empty_one(epoch: int) -> None:
    async with running(World()) as world:
        await world.replicas.drop_topics([KEY.topic_id])
        await world.image(2, leader=0, leader_epoch=epoch, isr=[0, 1], replicas=[0, 1])
        lost = epoch > 1
        assert world.replica.marks.is_leader is not lost
        assert list(world.replicas.damaged) == [KEY] * lost
        assert world.replicas.missing == ({KEY: epoch} if lost else {})
        assert world.outlet.news == lost
        if lost:
            stored = world.store.recover(world.replica.slot).checkpoint
            assert stored == Checkpoint(LeaderEpoch(2), UNPROMISED, Offset(0), ())
            await world.image(3, leader_epoch=3, isr=[1], replicas=[0, 1])
            await wait_until_async(lambda: world.replica.machine.wants_tick, what="it follows")


async def test_a_missing_log_is_led_in_the_next_epoch() -> None:
    async with running(World()) as world:
        await world.replicas.drop_topics([KEY.topic_id])
        await world.image(2, leader=0, leader_epoch=2, isr=[0], replicas=[0, 1])
        assert not world.replica.marks.is_leader
        await world.image(3, leader=0, leader_epoch=3, isr=[0], replicas=[0, 1])
        assert world.replica.marks.is_leader
        world.replicas.begins_anew(KEY)
        assert (world.replicas.missing, world.replicas.damaged) == ({}, {})
        world.replicas.begins_anew(KEY)


async def test_a_log_that_was_opened_and_never_stored_anything_is_missing_too() -> None:
    """A crash between opening it and saying so: the next run must not take it for an empty one."""
    async with running(World()) as world:
        await world.replicas.drop_topics([KEY.topic_id])
        world.store.open_slot(KEY)
        await world.image(2, leader=0, leader_epoch=2, isr=[0, 1], replicas=[0, 1])
        assert list(world.replicas.damaged) == [KEY]


async def test_a_log_that_has_stored_anything_is_led_again_after_a_restart() -> None:
    async with running(World()) as world:
        await world.append()
        world.replicas.retire_unknown([])
        await world.image(2, leader=0, leader_epoch=2, isr=[0, 1], replicas=[0, 1])
        assert world.replicas.damaged == {}
        assert world.replica.marks.is_leader
        assert world.replica.marks.log_end_offset == 1


async def test_a_broker_outside_the_isr_may_begin_with_an_empty_log() -> None:
    async with running(World()) as world:
        await world.replicas.drop_topics([KEY.topic_id])
        await world.image(2, leader_epoch=2, isr=[1], replicas=[0, 1])
        assert world.replicas.damaged == {}


async def test_a_batch_that_cannot_be_read_is_noted_once_and_ends_following() -> None:
    async with running(World()) as world:
        replica = world.replica
        world.replicas.unreadable(replica, ClusterError("busy", ErrorCode.STORAGE_FAILED))
        assert world.replicas.damaged == {}
        for _ in range(2):
            world.replicas.unreadable(replica, ClusterError("CRC", ErrorCode.DATA_CORRUPTED))
        assert (list(world.replicas.damaged), world.outlet.news) == ([KEY], 1)
        assert replica.marks.is_leader, "nobody else does yet"
        await world.image(2, leader_epoch=2, replicas=[0, 1], isr=[0, 1])
        await wait_until_async(lambda: replica.machine.error, what="it stops")
        assert replica.machine.error is not None
        assert replica.machine.error.code is ErrorCode.DATA_CORRUPTED
        await world.image(3, leader_epoch=2, dropping=[0])
        assert world.replicas.damaged == {}
        world.replicas.unreadable(replica, ClusterError("CRC", ErrorCode.DATA_CORRUPTED))
        assert world.replicas.damaged == {}, "it is not here any more"


async def test_a_read_that_fails_says_what_is_damaged() -> None:
    async with running(World()) as world:
        await world.append()
        world.replica.recent.clear()
        world.store.damaged_reads = True
        reader = LogReader(world.store, world.executor, world.replicas.unreadable)
        with pytest.raises(ClusterError, match="wrong CRC"):
            await reader.read(world.replica, Offset(0), 1, Offset(1))
        assert list(world.replicas.damaged) == [KEY]


async def test_a_replica_that_stopped_is_damaged() -> None:
    async with running(World()) as world:
        world.replicas.handle(world.replica, cast("Any", "no event"))
        assert world.replica.machine.error is not None
        assert (list(world.replicas.damaged), world.outlet.news) == ([KEY], 1)


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
        assert world.replicas.sound == {}
        reads: list[int] = []
        read = world.store.read

        def one_by_one(slot: Slot, offset: Offset, _max_bytes: int, end: Offset) -> list[Batch]:
            reads.append(offset)
            return read(slot, offset, 1, end)

        world.store.read = one_by_one  # type: ignore[method-assign, assignment]
        verification.changed()
        await wait_until_async(lambda: KEY in world.replicas.sound, what="it is verified")
        assert reads == [0, 1, 2]
        assert world.outlet.news == 1
        world.replicas.unreadable(world.replica, ClusterError("CRC", ErrorCode.DATA_CORRUPTED))
        assert world.replicas.sound == {}
        await world.image(4, dropping=[0])
        assert world.replicas.damaged == {}


async def test_a_marked_replica_that_still_cannot_be_read_stays_damaged() -> None:
    async with running(World()) as world, verifying(world) as verification:
        await world.append()
        await world.image(3, **MARKED)
        world.store.damaged_reads = True
        verification.changed()
        await wait_until_async(lambda: KEY in world.replicas.damaged, what="it is verified")
        world.store.damaged_reads = False
        verification.changed()
        world.replicas.found_sound(world.replica)
        assert world.replicas.sound == {}, "a former run's damage may be gone, not this one's"


async def test_an_empty_log_that_leads_in_spite_of_its_mark_is_not_called_sound() -> None:
    """It lost all it had, and leads because who has that is away: the seat is theirs (I33)."""
    async with running(World()) as world, verifying(world) as verification:
        await world.image(2, **{**MARKED, "leader_epoch": 2, "isr": [0]})
        verification.changed()
        await wait_until_async(lambda: KEY in verification._tried, what="it has looked")
        assert (world.replicas.sound, world.replicas.damaged) == ({}, {})


async def test_a_replica_that_is_marked_twice_is_read_twice() -> None:
    async with running(World()) as world, verifying(world) as verification:
        await world.append()
        for version in (2, 4):
            await world.image(version, **MARKED)
            verification.changed()
            await wait_until_async(lambda: KEY in world.replicas.sound, what="it is verified")
            world.replicas.sound.clear()
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


async def test_a_marked_replica_that_could_not_be_read_to_the_end_is_not_known_to_be_sound() -> (
    None
):
    async with running(World()) as world, verifying(world) as verification:
        await world.append()
        await world.image(3, **MARKED)
        world.store.broken_reads = True
        verification.changed()
        await wait_until_async(lambda: verification._tried, what="it is read")
        verification.changed()
        await wait_until_async(lambda: not verification._wake.is_set(), what="the reading ended")
        assert (world.replicas.sound, world.replicas.damaged) == ({}, {})


async def test_copies_and_marks_are_known_while_the_newest_image_has_them() -> None:
    async with running(World()) as world:
        replicas = world.replicas
        await world.image(2, adding=[0])
        assert replicas.copied_from() == {1}
        await world.image(3, replicas=[0, 1], isr=[1], damaged=[0])
        assert replicas.copied_from() == set()
        assert list(replicas.marked) == [KEY]
        await world.image(4, replicas=[0, 1], isr=[1])
        assert replicas.marked == {}
        await world.image(5, replicas=[0, 1], isr=[1], damaged=[0])
        await world.image(6, dropping=[0])
        assert replicas.marked == {}
        await world.image(7, adding=[0])
        await world.replicas.drop_topics([KEY.topic_id])
        assert replicas.copied_from() == set()
