"""A cluster that hibernates: brokers leave and keep their seats; leaders are elected at the end.

Whatever happens meanwhile, nobody leads who lacks what was committed (I3, I7), and what was asked
for is the same for every controller.
"""

from collections.abc import Callable

import pytest
from support.controller_world import World
from support.moving import (
    alter,
    caught_up,
    change,
    copying,
    damaged,
    document,
    ids,
    missing,
    move,
    moving_world,
    refused,
)

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control.views import image_since
from penstock.core.types import NO_LEADER, BrokerId
from penstock.errors import ErrorCode


def sleep(world: World) -> None:
    assert world.ask(m.AlterCluster, hibernating=True) == c.Done()


def wake(world: World) -> None:
    assert world.ask(m.AlterCluster, hibernating=False) == c.Done()


def in_images(world: World, since: int = 0) -> bool:
    machine = world.machine
    return image_since(machine.stored, machine.config, since).hibernating


def leave(world: World, broker_id: int) -> None:
    """A clean stop: it asks, is told that it may, and goes."""
    stream_id = world.streams[broker_id]
    world.step(c.HeartbeatReceived(stream_id=stream_id, metadata_version=0, wants_stop=True))
    told = [one for one in world.messages[stream_id] if isinstance(one, c.HeartbeatAnswered)]
    assert told[-1].may_stop
    world.kill(broker_id)


def test_it_is_stored_and_in_every_image_until_it_ends(three: World) -> None:
    assert not in_images(three)
    version = three.machine.stored.metadata_version
    assert three.ask(m.AlterCluster, hibernating=True, validate_only=True) == c.Done()
    assert three.machine.stored.metadata_version == version
    sleep(three)
    assert in_images(three)
    assert in_images(three, version)
    assert three.machine.summary().hibernating
    again = World(three.documents).start()
    assert again.cluster().hibernating
    assert in_images(again)
    writes = again.writes
    sleep(again)
    assert again.writes == writes, "it hibernates already"
    wake(again)
    assert not in_images(again)


def test_brokers_that_stop_keep_their_seats(three: World) -> None:
    sleep(three)
    for broker_id in (0, 1, 2):
        leave(three, broker_id)
    leader, epoch, isr = three.state()
    assert (leader, isr) == (NO_LEADER, (0, 1, 2))
    assert epoch == 2, "its next run must not take itself for the leader of the former epoch"


def test_nobody_is_elected_before_it_ends(three: World) -> None:
    sleep(three)
    leave(three, 0)
    assert three.state() == (NO_LEADER, 2, (0, 1, 2)), "though 1 and 2 are there"
    three.pass_time(10_000)
    three.register(1, run=2)
    assert three.state() == (NO_LEADER, 2, (0, 1, 2))
    wake(three)
    assert three.state() == (1, 3, (1, 2)), "0 is not back, so it is dead now"


def test_all_are_back_and_lead_as_before(three: World) -> None:
    sleep(three)
    for broker_id in (2, 0, 1):
        leave(three, broker_id)
    world = World(three.documents).start()
    for broker_id in (1, 2, 0):
        world.register(broker_id, run=2)
        assert world.state()[0] == NO_LEADER
    wake(world)
    assert world.state() == (0, 3, (0, 1, 2))
    assert world.topic().partitions[0].elr == ()


def test_a_controller_that_takes_over_elects_nobody_either(three: World) -> None:
    sleep(three)
    world = World(three.documents).start()
    world.pass_time(30_000, beating=False)  # nobody has come back, so all that it assumed are dead
    assert world.state() == (NO_LEADER, 2, (0, 1, 2))


def test_the_power_was_lost_and_nothing_that_was_promised(three: World) -> None:
    """Unclean ends: no run says that its data is intact. As ever, whoever lost writes leads only if
    nobody is left who has not."""
    sleep(three)
    three.kill(0, 1, 2)
    assert three.state() == (NO_LEADER, 2, (0, 1, 2))
    three.register(0, run=2, data_intact=False)
    assert three.state()[2] == (1, 2)
    three.register(1, run=2)
    three.register(2, run=2, data_intact=False)
    assert three.state() == (NO_LEADER, three.state()[1], (1,))
    wake(three)
    assert three.state()[0] == 1, "the only one that kept all it had acknowledged"
    assert three.state()[2] == (1,)


def test_the_power_was_lost_everywhere(three: World) -> None:
    sleep(three)
    three.kill(0, 1, 2)
    for broker_id in (2, 0, 1):
        three.register(broker_id, run=2, data_intact=False)
    assert three.state()[2] == ()
    wake(three)
    assert three.state()[0] in {0, 1, 2}, "all that was fsynced everywhere is there"


def test_a_broker_with_another_disk_is_no_member_any_more(three: World) -> None:
    sleep(three)
    three.kill(1)
    three.register(1, run=2, directory_id="another")
    assert three.state() == (0, 1, (0, 2))


def test_an_isr_grows_and_does_not_shrink(three: World) -> None:
    assert three.alter_isr(0, (0, 1)).error is None
    sleep(three)
    assert three.alter_isr(0, (0, 1, 2)).error is None, "so that it comes to rest"
    outcome = three.alter_isr(0, (0, 1))
    assert "[2] cannot leave" in refused(outcome.error, ErrorCode.HIBERNATING)
    assert three.state()[2] == (0, 1, 2)
    wake(three)
    assert three.alter_isr(0, (0, 1)).error is None


def test_leaderships_do_not_move(three: World) -> None:
    sleep(three)
    error = three.ask(c.ElectLeaders, partitions=(), away_from=BrokerId(0))
    refused(error, ErrorCode.HIBERNATING)
    assert three.state() == (0, 1, (0, 1, 2))


def test_a_damaged_leader_gives_way_even_then() -> None:
    world = moving_world()
    sleep(world)
    damaged(world, 0)
    assert document(world).state.leader == 1


@pytest.mark.parametrize("min_isr", ["1", "2"])
@pytest.mark.parametrize("found", [damaged, missing])
def test_a_damaged_replica_that_is_back_first_costs_nobody_a_seat(
    found: Callable[[World, int], None], min_isr: str
) -> None:
    world = moving_world(min_insync_replicas=min_isr)
    sleep(world)
    world.kill(0, 1, 2)
    world.register(0, run=2)
    found(world, 0)
    assert world.state()[0] == NO_LEADER, "the sound ones are still asleep"
    assert world.state()[2] == (0, 1, 2)
    world.register(2, run=2)
    assert world.state()[2] == (1, 2)
    world.register(1, run=2)
    wake(world)
    assert (world.state()[0], world.state()[2]) == (1, (1, 2))


def test_a_damaged_leader_that_gives_way_costs_those_that_stopped_no_seat() -> None:
    world = moving_world(min_insync_replicas="1")
    sleep(world)
    world.kill(2)
    damaged(world, 0)
    assert (world.state()[0], world.state()[2]) == (1, (1, 2))


def test_moves_neither_begin_nor_switch() -> None:
    world = moving_world()
    copying(world, 0, 1, 3)
    sleep(world)
    outcome = caught_up(world)
    assert "hibernates" in refused(outcome.error, ErrorCode.MOVE_WAITS)
    (view,) = world.machine.moves(("t",))
    assert "wake" in view.waiting_for
    wake(world)
    assert caught_up(world).error is None
    assert document(world).state.replicas == ids(0, 1, 3)

    sleep(world)
    assert move(world, 0, 1, 4).error is None, "it is queued"
    world.pass_time(5_000)
    assert document(world).state.adding == ()
    wake(world)
    world.pass_time(1_100)
    assert document(world).state.adding == ids(4)


def test_replicas_are_not_dropped_either() -> None:
    world = moving_world()
    sleep(world)
    outcome = alter(world, change(world, 0, 1), change_factor=True).outcomes[0]
    assert outcome.error is None
    world.pass_time(5_000)
    assert document(world).state.replicas == ids(0, 1, 2)
    wake(world)
    world.pass_time(1_100)
    assert document(world).state.replicas == ids(0, 1)


def test_it_needs_the_newer_format(three: World) -> None:
    three.ask(m.Finalize, to=1)
    error = three.ask(m.AlterCluster, hibernating=True)
    assert "penstock cluster finalize" in refused(error, ErrorCode.FORMAT_TOO_OLD)
    wake(three)  # it is awake, whatever the format
    three.ask(m.Finalize, to=2)
    sleep(three)
    error = three.ask(m.Finalize, to=1)
    assert "the cluster hibernates" in refused(error, ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("asleep", [False, True])
def test_it_begins_only_with_the_store_and_ends_without(three: World, *, asleep: bool) -> None:
    if asleep:
        sleep(three)
    three.step(c.StoreState(journaling=True))
    if asleep:
        wake(three)
    else:
        error = three.ask(m.AlterCluster, hibernating=True)
        assert "metadata store" in refused(error, ErrorCode.CONTROLLER_UNAVAILABLE)
    assert not three.cluster().hibernating
