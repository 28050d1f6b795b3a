"""Whose turn it is to copy: few large ones per broker, the urgent first, always in one order."""

from support.controller_world import World
from support.moving import CheckedDocuments, alter, change, document, ids, moving_world

from penstock.core.control import contract as c
from penstock.core.control import copies
from penstock.core.types import BrokerId, MoveReason, TopicId

MIB = 1024 * 1024


def busy_world(partitions: int, brokers: int = 4) -> World:
    """Topic `u` on brokers 0 and 1."""
    world = World(CheckedDocuments()).start()
    world.register_all(*range(brokers))
    world.create("t", assignment=(ids(0, 1),))
    world.create("u", assignment=(ids(0, 1),) * partitions)
    return world


def ask(world: World, target: tuple[int, ...], *partitions: int, **fields: object) -> None:
    wanted = [change(world, *target, topic="u", partition=one) for one in partitions]
    for outcome in alter(world, *wanted, **fields).outcomes:
        assert outcome.error is None


def copying(world: World, topic: str = "u") -> list[int]:
    found = world.topic(topic).partitions
    return [index for index, one in enumerate(found) if one.state.adding]


def progress(world: World, left: dict[int, int], leader: int = 0, follower: int = 2) -> None:
    said = tuple(
        c.CopyProgress(
            topic_id=world.topic("u").topic_id,
            partition=partition,
            broker_id=BrokerId(follower),
            bytes_left=bytes_left,
        )
        for partition, bytes_left in left.items()
    )
    stream = world.streams[leader]
    world.step(c.HeartbeatReceived(stream_id=stream, metadata_version=0, copies=said))


def switch(world: World, *partitions: int) -> None:
    """The leader proposes the copies of these partitions of `u`."""
    found = world.topic("u")
    changes = tuple(
        c.IsrChange(
            topic_id=found.topic_id,
            partition=one,
            leader_epoch=found.partitions[one].state.leader_epoch,
            version=found.partitions[one].state.version,
            isr=(*found.partitions[one].state.isr, *found.partitions[one].state.adding),
        )
        for one in partitions
    )
    outcome = world.ask(
        c.AlterIsr,
        broker_id=BrokerId(0),
        broker_session=world.session(0),
        controller_epoch=world.machine.epoch,
        changes=changes,
    )
    assert isinstance(outcome, c.IsrAltered)
    assert all(one.error is None for one in outcome.outcomes)


def test_copies_of_unknown_size_begin_a_few_at_a_time() -> None:
    world = busy_world(30)
    ask(world, (0, 2), *range(30))
    world.pass_time(3_100)
    assert copying(world) == list(range(8))
    switch(world, *range(7))
    world.pass_time(1_100)
    assert copying(world) == list(range(7, 21)), "one goes on, and 13 of 14 may begin"


def test_small_copies_begin_twice_as_many_at_each_look() -> None:
    """A large one among them, and it begins anew with a few."""
    world = busy_world(120)
    ask(world, (0, 2), *range(120))
    begin = 0
    for count in (8, 16, 32, 32):
        world.pass_time(1_100)
        assert copying(world) == list(range(begin, begin + count))
        switch(world, *range(begin, begin + count))
        begin += count
    world.pass_time(1_100)
    assert copying(world) == list(range(88, 120))
    world.pass_time(5_100)
    assert copying(world) == list(range(88, 120)), "none has ended"
    progress(world, {88: 65 * MIB, 89: 65 * MIB})
    switch(world, *range(90, 120))
    ask(world, (0, 2), *range(8))
    world.pass_time(1_100)
    assert copying(world) == [88, 89], "two are large"


def test_the_end_of_copies_to_one_broker_says_nothing_of_those_to_another() -> None:
    world = busy_world(60)
    ask(world, (0, 2), *range(8))
    world.pass_time(1_100)
    switch(world, *range(8))
    ask(world, (0, 3), *range(8, 60))
    world.pass_time(1_100)
    assert copying(world) == list(range(8, 16))


def test_two_large_copies_to_a_broker_are_enough_and_small_ones_are_many() -> None:
    world = busy_world(60)
    ask(world, (0, 2), *range(60))
    world.pass_time(1_100)
    progress(world, {0: 65 * MIB, 1: 65 * MIB} | dict.fromkeys(range(2, 8), 0))
    world.pass_time(1_100)
    assert len(copying(world)) == 8, "two are large"
    progress(world, {0: 64 * MIB})
    for count in (16, 24, 32, 32):
        world.pass_time(1_100)
        assert len(copying(world)) == count
        progress(world, dict.fromkeys(range(2, count), 0))


def test_a_broker_without_slots_does_not_hold_up_the_others() -> None:
    world = busy_world(20)
    ask(world, (0, 2), *range(10))
    ask(world, (0, 3), *range(10, 20))
    world.pass_time(1_100)
    assert copying(world) == [*range(8), *range(10, 18)]


def test_urgent_moves_begin_first_then_in_order() -> None:
    world = busy_world(20)
    ask(world, (0, 2), *range(4), why=MoveReason.SPREAD)
    ask(world, (0, 2), *range(4, 8), why=MoveReason.MANUAL)
    ask(world, (0, 2), 8, 9, why=MoveReason.FACTOR)
    ask(world, (0, 2), 10, 11, why=MoveReason.DRAIN)
    ask(world, (0, 2), 12, 13, why=MoveReason.REPLACE)
    world.pass_time(1_100)
    assert copying(world) == [4, 5, 8, 9, 10, 11, 12, 13]


def test_activation_is_one_write_and_at_rest_there_is_none() -> None:
    world = busy_world(8)
    writes = world.writes
    world.pass_time(3_000)
    assert world.writes == writes
    ask(world, (0, 2), *range(8))
    world.pass_time(1_100)
    assert world.writes == writes + 2
    world.pass_time(5_000)
    assert world.writes == writes + 2
    switch(world, *range(8))
    writes = world.writes
    world.pass_time(5_000)
    assert world.writes == writes


def test_what_only_a_leader_can_know_is_believed_from_the_leader_alone() -> None:
    world = busy_world(20)
    ask(world, (0, 2), *range(20))
    world.pass_time(1_100)
    small = dict.fromkeys(range(8), 0)
    progress(world, small, leader=1)
    progress(world, small, follower=3)
    progress(world, {40: 0})
    world.step(c.HeartbeatReceived(
        stream_id=world.streams[0], metadata_version=0, copies=(
            c.CopyProgress(
                topic_id=TopicId("no"), partition=0, broker_id=BrokerId(2), bytes_left=0
            ),
        )
    ))  # fmt: skip
    world.pass_time(1_100)
    assert len(copying(world)) == 8
    progress(world, small)
    world.pass_time(1_100)
    assert len(copying(world)) == 16


def test_what_was_said_of_a_copy_does_not_outlive_it() -> None:
    world = busy_world(20)
    ask(world, (0, 2), *range(20))
    world.pass_time(1_100)
    progress(world, dict.fromkeys(range(8), 0))
    key = (world.topic("u").topic_id, 0, BrokerId(2))
    found = world.machine.copies
    assert found.of(*key) is not None
    switch(world, 0)
    world.pass_time(1_100)
    assert found.of(*key) is None
    assert found.of(key[0], 1, key[2]) is not None


def test_a_deleted_topic_moves_no_more() -> None:
    world = busy_world(2)
    ask(world, (0, 2), 0, 1)
    assert world.machine.stored.moving == {"u"}
    world.ask(c.DeleteTopics, topics=(("u", ""),))
    assert world.machine.stored.moving == frozenset()
    world.pass_time(2_100)


def test_a_new_controller_goes_on_with_what_is_queued() -> None:
    world = busy_world(20)
    ask(world, (0, 2), *range(20))
    world.pass_time(1_100)
    later = World(world.documents).start()
    later.register_all(*range(4))
    assert later.machine.stored.moving == {"u"}
    later.pass_time(1_100)
    assert len(copying(later)) == 8
    switch(later, *range(8))
    later.pass_time(1_100)
    assert copying(later) == list(range(8, 20))


def test_the_numbers_of_slots() -> None:
    assert (copies.LARGE_MAX, copies.COPIES_MAX, copies.LARGE_BYTES) == (2, 32, 64 * MIB)
    world = moving_world()
    assert document(world).target == ()
