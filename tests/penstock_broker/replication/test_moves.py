"""Replicas of a partition that moves: what a broker does between one state and the next."""

from typing import Any

import pytest
from support.assigned_replica import KEY, World
from support.led_partitions import running

from penstock.core.types import Offset
from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.interface import Slot


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
        assert world.assignment.dropped == {}
        await world.image(3, dropping=[2, 0])
        assert world.slots == []
        assert world.replicas.by_key == {}
        assert world.assignment.dropped == {KEY: 3}


async def test_whoever_waits_for_a_replica_that_is_deleted_is_told_where_it_went() -> None:
    async with running(World()) as world:
        answers: list[Any] = []
        world.replica.pending[7] = answers.append
        await world.image(2, dropping=[0])
        (answer,) = answers
        assert answer.error.code is ErrorCode.NOT_LEADER
        assert "t/0 is on the brokers 1, 2 now" in str(answer.error)


async def test_an_image_older_than_what_made_it_a_replica_deletes_nothing() -> None:
    async with running(World()) as world:
        world.told(4, isr=(0,), replicas=(0, 1))
        await world.image(4, dropping=[0])
        assert world.slots == [KEY], "the answer came before this image"
        assert world.assignment.dropped == {}
        await world.image(5, dropping=[0])
        assert world.slots == []


async def test_what_a_former_run_stored_is_deleted_too() -> None:
    async with running(World()) as world:
        world.assignment.retire_unknown([])
        assert list(world.replicas.orphans) == [KEY]
        await world.image(2, dropping=[0])
        assert world.slots == []
        assert world.replicas.orphans == {}
        assert world.assignment.dropped == {KEY: 2}


async def test_what_was_deleted_before_is_known_again_after_a_restart() -> None:
    """The run before this one ended between deleting and reporting."""
    async with running(World()) as world:
        await world.assignment.drop_topics([KEY.topic_id])
        await world.image(2, dropping=[0])
        assert world.assignment.dropped == {KEY: 2}
        await world.image(3, dropping=[0])
        assert world.assignment.dropped == {KEY: 3}
        await world.image(4)
        assert world.assignment.dropped == {}


@pytest.mark.parametrize("topic", [False, True], ids=["replica", "topic"])
async def test_what_could_not_be_deleted_is_not_reported_and_is_deleted_later(
    *, topic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store cannot delete anything while the disk is full."""

    def full(_slot: Slot) -> None:
        raise ClusterError("no space left", ErrorCode.DISK_FULL)

    async def delete(world: World) -> None:
        if topic:
            await world.assignment.drop_topics([KEY.topic_id])
        else:
            await world.assignment.drop_former(world.view.topics.values())

    async with running(World()) as world:
        await world.append()
        with monkeypatch.context() as patch:
            patch.setattr(world.store, "drop", full)
            with pytest.raises(ClusterError, match="no space left"):
                await (delete(world) if topic else world.image(2, dropping=[0]))
        assert world.replicas.by_key == {}
        assert world.assignment.dropped == {}
        assert list(world.replicas.orphans) == world.slots == [KEY]
        await delete(world)
        assert world.assignment.dropped == ({} if topic else {KEY: 2})
        assert list(world.replicas.orphans) == world.slots == []


async def test_a_topic_that_is_deleted_needs_no_report_any_more() -> None:
    async with running(World()) as world:
        await world.image(2, dropping=[0])
        await world.assignment.drop_topics([KEY.topic_id])
        assert world.assignment.dropped == {}


async def test_a_broker_may_copy_again_what_it_deleted() -> None:
    async with running(World()) as world:
        await world.append()
        await world.image(2, dropping=[0])
        await world.image(3, adding=[0])
        assert world.assignment.dropped == {}
        assert world.replica.marks.log_end_offset == 0
        assert world.replicas.damage.found == {}
