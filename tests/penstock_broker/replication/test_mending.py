"""Damaged replicas are mended from others or copied again, and come back without a restart."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.damaged_replica import BATCHES, DAMAGE, FOLLOWS, KEY, LEADS, World, mended, until
from support.led_partitions import running

from penstock.core.batch import (
    Batch,
    BatchFlags,
    build_marker,
    pack_batch,
    pack_header,
)
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract import Tick
from penstock.core.replication.contract_follower import BatchesReceived, EpochAnswered
from penstock.core.replication.follower import BrokenLogError
from penstock.core.replication.losses import emptied
from penstock.core.types import NO_EPOCH, BrokerId, LeaderEpoch, Offset, ProducerId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import replication_pb2
from penstock_broker.replication import mending as module
from penstock_broker.replication.exact import received, stored_exactly
from penstock_broker.replication.reads import waiting_for_others
from penstock_broker.store.interface import Slot


async def test_a_follower_gets_the_batch_from_whoever_has_it_and_follows_again() -> None:
    async with mended(**FOLLOWS) as world:
        before = world.replica
        world.disk.lost = {3, 7}
        world.others.has[2] = {3: BATCHES[3]}
        world.others.has[1] = {7: BATCHES[7]}
        world.found()
        assert before.machine.error is not None
        await until(world.is_back, "it is mended, and open again")
        assert world.others.asked == [(1, 3), (2, 3), (1, 7)]
        assert (world.disk.lost, world.disk.synced) == (set(), [True, True])
        assert world.replica is not before
        assert world.replica.machine.error is None
        assert world.replica.marks.log_end_offset == 20
        assert world.mending.mended_batches == 2
        assert world.replicas.damage.sound == {KEY: None}


async def test_a_leader_goes_on_with_a_mended_log() -> None:
    async with mended(**LEADS) as world:
        before = world.replica
        world.disk.lost = {3}
        world.others.has[1] = {3: BATCHES[3]}
        world.found()
        await until(world.is_back, "it is mended, and open again")
        assert world.replica is before
        await world.image(3, leader_epoch=3, **FOLLOWS)
        await until(lambda: not world.replica.marks.is_leader, "another leads")
        assert world.replica.machine.error is None, "it follows"


async def test_bytes_of_another_header_are_not_taken() -> None:
    async with mended(**FOLLOWS) as world:
        world.disk.lost = {3}
        other = build_batch(encode_columns([b"invented"], timestamps_ms=1))
        world.others.has[1] = {3: other.stamped(Offset(3), LeaderEpoch(1), 0)}
        world.found()
        await until(lambda: KEY in world.replicas.damage.given_up, "nobody else has it")
        assert (world.disk.lost, world.mending.mended_batches) == ({3}, 0)


async def test_a_marker_is_made_again_from_its_header_and_nobody_is_asked() -> None:
    async with mended(**FOLLOWS) as world:
        marker = build_marker(ProducerId(7), 1, commit=True, timestamp_ms=1)
        log = world.disk._logs[world.replica.slot]
        log.batches[19] = marker.stamped(Offset(19), LeaderEpoch(1), 0)
        world.disk.lost = {19}
        world.found()
        await until(world.is_back, "it is mended, and open again")
        assert (world.others.asked, world.mending.mended_batches) == ([], 1)


async def test_a_loss_that_was_accepted_elsewhere_is_accepted_here() -> None:
    async with mended(**FOLLOWS) as world:
        world.disk.lost = {3}
        accepted = emptied(BATCHES[3].header)
        world.others.has[1] = {3: accepted}
        world.found()
        await until(world.is_back, "it is mended, and open again")
        found = world.disk.read(world.replica.slot, Offset(3), 1, Offset(20))
        assert found == [accepted]
        assert world.replica.marks.log_end_offset == 20


async def test_what_nobody_has_now_is_asked_for_again_when_an_image_comes() -> None:
    async with mended(**FOLLOWS) as world:
        world.disk.lost = {3}
        world.found()
        await until(lambda: KEY in world.replicas.damage.given_up, "nobody has it")
        world.others.has[2] = {3: BATCHES[3]}
        await world.image(3, leader_epoch=2, **FOLLOWS)
        await until(world.is_back, "it is mended, and open again")
        assert world.replicas.damage.given_up == set()


async def test_a_log_is_dropped_only_when_the_newest_mark_is_confirmed() -> None:
    async with mended(**FOLLOWS) as world:
        before = world.replica
        world.disk.lost = {3}
        world.found()
        await until(lambda: KEY in world.replicas.damage.given_up, "nobody has it")
        marked = {**FOLLOWS, "damaged": [0], "leader_epoch": 2}
        await world.image(3, **marked)
        await until(lambda: not world.mending._wake.is_set(), "it has looked")
        assert world.replica is before, "the mark may be an old one"
        world.replicas.damage.confirmed[KEY] = 4
        world.mending.changed()
        await until(lambda: not world.mending._wake.is_set(), "it has looked")
        assert world.replica is before, "the image is older"
        await world.image(4, **marked)
        await until(
            lambda: world.replicas.by_key.get(KEY, before) is not before, "it is copied again"
        )
        assert (world.replica.marks.log_end_offset, world.mending.rebuilt_replicas) == (0, 1)
        assert world.replica.slot != before.slot
        assert list(world.disk.slots().values()) == [world.replica.slot]
        assert world.replicas.damage.found == {}
        world.replicas.handle(world.replica, Tick())
        assert world.replicas.damage.sound == {}, "the leader may count what it acknowledged before"

        def is_sound() -> bool:
            world.replicas.handle(world.replica, answered(end_offset=0))
            return world.replicas.damage.sound == {KEY: None}

        await until(is_sound, "its leader has answered")
        assert world.replicas.damage.rebuilt == set()


async def test_whoever_has_become_sound_is_asked_again_before_a_log_is_dropped() -> None:
    async with mended(**FOLLOWS) as world:
        before = world.replica
        world.disk.lost = {3}
        world.found()
        await until(lambda: KEY in world.replicas.damage.given_up, "nobody has it")
        world.replicas.damage.confirmed[KEY] = 3
        world.others.asked.clear()

        async def becomes_sound() -> None:
            """Broker 1, whose loss is accepted once it has said that it has nothing."""
            if len(world.others.asked) == 4:  # two brokers, the batch and the empty one
                world.others.has[1] = {3: emptied(BATCHES[3].header)}
                await world.image(3, **FOLLOWS, damaged=[0], leader_epoch=2)

        world.others.meanwhile = becomes_sound
        world.mending.changed()
        await until(world.is_back, "it is mended, and open again")
        assert world.mending.rebuilt_replicas == 0
        assert world.replica.slot == before.slot
        assert world.replica.marks.log_end_offset == 20


async def test_a_log_is_not_dropped_if_it_leads_by_the_time_that_it_may_be() -> None:
    """Something else changes replicas first, and the leader is lost meanwhile."""
    async with mended(**FOLLOWS) as world:
        before, changing = world.replica, world.assignment.changing
        world.disk.lost = {3}
        world.found()
        await until(lambda: KEY in world.replicas.damage.given_up, "nobody has it")
        world.replicas.damage.confirmed[KEY] = 3
        await changing.acquire()
        await world.image(3, **{**FOLLOWS, "damaged": [0], "leader_epoch": 2})
        await until(lambda: bool(changing._waiters), "it is about to be dropped")
        await world.image(4, **{**LEADS, "damaged": [0], "leader_epoch": 3, "isr": [0]})
        changing.release()
        async with changing:
            assert world.replica is before
        assert list(world.disk.slots().values()) == [before.slot]
        assert world.mending.rebuilt_replicas == 0


async def test_a_log_that_a_full_disk_keeps_is_dropped_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No image comes, and nothing else asks for it again."""
    monkeypatch.setattr(module, "_RETRY_S", 0.05)
    async with mended(**FOLLOWS) as world:
        before, drop, refusals = world.replica, world.disk.drop, list[Slot]()

        def full(slot: Slot) -> None:
            world.disk.drop = drop  # type: ignore[method-assign]
            refusals.append(slot)
            raise ClusterError("no space left on the disk", ErrorCode.DISK_FULL)

        world.disk.drop = full  # type: ignore[method-assign]
        world.disk.lost = {3}
        world.found()
        await until(lambda: KEY in world.replicas.damage.given_up, "nobody has it")
        world.replicas.damage.confirmed[KEY] = 3
        await world.image(3, **{**FOLLOWS, "damaged": [0], "leader_epoch": 2})
        await until(
            lambda: world.replicas.by_key.get(KEY, before) is not before, "it is copied again"
        )
        assert refusals == [before.slot]
        assert (world.replica.marks.log_end_offset, world.mending.rebuilt_replicas) == (0, 1)


async def test_what_is_damaged_before_the_log_start_is_removed_before_the_log_is_called_sound() -> (
    None
):
    """A machine that stops has its removals done no more."""
    async with mended(**FOLLOWS) as world:
        before, offset = world.replica, Offset(10)

        def follows() -> bool:
            world.replicas.handle(before, answered(end_offset=20, epoch=1))
            return before.machine.is_answered

        await until(follows, "its leader has answered")
        world.replicas.handle(
            before,
            BatchesReceived(
                leader=BrokerId(1),
                leader_epoch=LeaderEpoch(2),
                batches=(),
                high_watermark=Offset(20),
                log_start_offset=offset,
                sync_through=Offset(0),
            ),
        )
        assert before.machine.log_start_offset == offset
        world.disk.lost = {3}
        world.found()
        assert world.disk.recover(before.slot).checkpoint.log_start_offset == 0
        await until(world.is_back, "it is mended, and open again")
        assert world.others.asked == []
        assert world.disk.header(before.slot, Offset(0)) == BATCHES[10].header
        assert world.replica.marks.log_start_offset == offset


def answered(*, end_offset: int, epoch: int = NO_EPOCH) -> EpochAnswered:
    """By broker 1, which leads; ignored by who does not ask."""
    return EpochAnswered(
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(2),
        epoch=LeaderEpoch(epoch),
        end_offset=Offset(end_offset),
        log_start_offset=Offset(0),
    )


@pytest.mark.parametrize("many", [True, False], ids=["many", "compacted"])
async def test_too_many_batches_or_a_compacted_one_are_not_mended(many: bool) -> None:
    async with mended(**FOLLOWS) as world:
        if many:
            world.disk.lost = set(range(9))
            world.others.has[1] = dict(enumerate(BATCHES[:8]))
        else:
            world.disk.lost = {3}
            log = world.disk._logs[world.replica.slot]
            header = replace(BATCHES[3].header, flags=BatchFlags.COMPACTED)
            log.batches[3] = replace(BATCHES[3], header=header)
            world.disk.read = refusing(world.disk.read)  # type: ignore[method-assign]
        world.found()
        await until(lambda: KEY in world.replicas.damage.given_up, "it is given up")
        assert world.mending.mended_batches == (8 if many else 0)


def refusing(read: Any) -> Any:
    """The memory's own check would find that the test has changed a flag."""

    def refuse(slot: Slot, offset: Offset, max_bytes: int, end: Offset) -> list[Batch]:
        if offset <= 3:
            raise DAMAGE
        found: list[Batch] = read(slot, offset, max_bytes, end)
        return found

    return refuse


async def test_a_log_that_cannot_be_opened_stops_its_replica_and_no_other() -> None:
    made = World()
    made.disk.no_index = set(made.disk.slots().values())
    async with running(made) as world:
        await world.image(2, leader_epoch=2, **FOLLOWS)
        assert world.replica.machine.error is not None
        assert list(world.replicas.damage.found) == [KEY]
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(world.mending.run())
            await until(lambda: KEY in world.replicas.damage.given_up, "it is given up")
            world.replicas.damage.confirmed[KEY] = 3
            await world.image(3, damaged=[0], leader_epoch=2, **FOLLOWS)
            await until(lambda: world.replica.is_opened, "it is copied again")
            task.cancel()
        assert world.replicas.damage.found == {}


async def test_a_topic_may_be_deleted_while_its_damaged_log_is_mended() -> None:
    async with mended(**FOLLOWS) as world:
        world.disk.lost = {3}
        world.others.has[1] = {3: BATCHES[3]}
        world.others.meanwhile = lambda: world.assignment.drop_topics([KEY.topic_id])
        world.found()
        await until(lambda: world.others.asked, "a batch is asked for")
        await until(lambda: not world.mending._wake.is_set(), "it has looked")
        assert world.replicas.by_key == {}
        assert world.disk.slots() == {}
        world.mending.changed()
        await until(lambda: not world.mending._wake.is_set(), "it still looks")
        assert world.mending._cases == {}


async def test_a_log_that_contradicts_the_leaders_is_left_alone() -> None:
    async with mended(**FOLLOWS) as world:
        before = world.replica
        before.machine._error = BrokenLogError("the logs differ")
        world.replicas.damage.note(KEY)
        await until(lambda: not world.mending._wake.is_set(), "it has looked")
        assert (world.replica, world.mending._cases) == (before, {})


# ---------------------------------------------------------------- ReadExact


async def asked_for(world: World, offset: int, header: bytes) -> bytes:
    request = replication_pb2.ReadExactRequest(
        topic_id=KEY.topic_id, partition=0, base_offset=offset, header=header
    )
    return await stored_exactly(world.replicas, world.reader, request)


async def test_a_batch_is_given_to_whoever_names_its_header() -> None:
    async with mended(**FOLLOWS) as world:
        wanted = BATCHES[5]
        assert await asked_for(world, 5, pack_header(wanted.header)) == pack_batch(wanted)


async def test_what_is_not_exactly_here_is_not_given() -> None:
    async with mended(**FOLLOWS) as world:
        later = BATCHES[5].stamped(Offset(5), LeaderEpoch(2), 0)
        with pytest.raises(ClusterError, match="no batch with this header") as caught:
            await asked_for(world, 5, pack_header(later.header))
        assert caught.value.code is ErrorCode.DATA_CORRUPTED
        with pytest.raises(ClusterError, match="71 bytes"):
            await asked_for(world, 5, pack_header(BATCHES[5].header)[1:])
        with pytest.raises(ClusterError, match="is of offset 5, but offset 6"):
            await asked_for(world, 6, pack_header(BATCHES[5].header))
        world.disk.lost = {5}
        with pytest.raises(ClusterError, match="wrong CRC"):
            await asked_for(world, 5, pack_header(BATCHES[5].header))
        world.replicas.by_key.clear()
        with pytest.raises(ClusterError, match="has no replica"):
            await asked_for(world, 5, pack_header(BATCHES[5].header))


async def test_who_has_nothing_of_a_batch_says_so() -> None:
    async with mended(**FOLLOWS) as world:
        header = BATCHES[5].header
        await world.replicas.accept_loss(world.replica, [header])
        later = BATCHES[5].stamped(Offset(20), LeaderEpoch(1), 0).header
        for lacking in (header, later):
            with pytest.raises(ClusterError, match="has nothing of offsets") as caught:
                await asked_for(world, lacking.base_offset, pack_header(lacking))
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        given_up = emptied(header)
        assert await asked_for(world, 5, pack_header(given_up.header)) == pack_batch(given_up)


async def test_who_has_a_batch_compacted_does_not_say_that_it_has_nothing() -> None:
    async with mended(**FOLLOWS) as world:
        columns = encode_columns([b"a", b"b"], timestamps_ms=1)
        both = build_batch(columns).stamped(Offset(4), LeaderEpoch(1), 0)
        with pytest.raises(ClusterError, match="no batch with this header") as caught:
            await asked_for(world, 4, pack_header(both.header))
        assert caught.value.code is ErrorCode.DATA_CORRUPTED


def test_what_comes_is_checked_again() -> None:
    stored = pack_batch(BATCHES[5])
    assert received(stored, BATCHES[5].header) == BATCHES[5]
    with pytest.raises(ClusterError, match="another header"):
        received(stored, BATCHES[6].header)
    with pytest.raises(ClusterError, match="CRC"):
        received(stored[:-1] + b"?", BATCHES[5].header)


# ---------------------------------------------------------------- readers


@pytest.mark.parametrize("isr", [[0], [0, 1]])
async def test_a_reader_waits_for_others_if_there_are_any(isr: list[int]) -> None:
    async with mended(leader=0, replicas=[0, 1], isr=isr) as world:
        alone = len(isr) == 1
        with (
            pytest.raises(ClusterError, match="wrong CRC") as caught,
            waiting_for_others(world.replica),
        ):
            raise DAMAGE
        assert caught.value.code is (
            ErrorCode.DATA_CORRUPTED if alone else ErrorCode.LEADER_NOT_AVAILABLE
        )
        with pytest.raises(ClusterError, match="busy"), waiting_for_others(world.replica):
            raise ClusterError("busy", ErrorCode.STORAGE_FAILED)


async def test_it_says_what_is_done_about_a_damaged_log() -> None:
    async with mended(**LEADS) as world:
        says = world.mending.says
        assert says(KEY) == ""
        world.disk.lost = {3}
        world.found()
        assert says(KEY) == "its log has yet to be read"
        await until(lambda: bool(world.mending.lost(KEY)), "nobody else has it")
        assert says(KEY) == "nobody has offsets 3-3 now; all replicas are asked again and again"
        world.replicas.damage.missing[KEY] = LeaderEpoch(1)
        assert says(KEY) == "its log is missing; it is copied once somebody sound leads"
        del world.replicas.damage.missing[KEY]
        world.mending._reading = KEY, Offset(5), Offset(20)
        assert says(KEY) == "its log is being read, offset 5 of 20"
        world.mending._reading = None
        world.mending._cases[KEY].hopeless = "its log could not be opened"
        assert says(KEY).startswith("its log could not be opened; it is copied again once")
