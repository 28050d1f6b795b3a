"""What is shown of moves: those that have not ended, and what each of them waits for."""

from dataclasses import replace

import pytest
from support.controller_world import World
from support.moving import (
    alter,
    cancel,
    caught_up,
    change,
    copying,
    damaged,
    document,
    dropped,
    ids,
    move,
    moving_world,
)

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control.move_views import MoveView
from penstock.core.types import BrokerId


def shown(world: World, topic: str = "t") -> MoveView:
    (found,) = world.machine.moves([topic])
    return found


def left(world: World, pace: int = 0, why: str = "", **bytes_left: int) -> None:
    """The leader says how much each broker has to copy yet, as `b3=0`."""
    found = world.topic()
    said = tuple(
        c.CopyProgress(
            topic_id=found.topic_id,
            partition=0,
            broker_id=BrokerId(int(name[1:])),
            bytes_left=value,
            bytes_per_second=pace,
            limited_by=why,
        )
        for name, value in bytes_left.items()
    )
    stream = world.streams[found.partitions[0].state.leader]
    world.step(c.HeartbeatReceived(stream_id=stream, metadata_version=0, copies=said))


def test_settled_partitions_are_not_shown() -> None:
    world = moving_world()
    world.create("u", assignment=(ids(0, 1, 2),))
    assert world.machine.moves() == ()
    alter(world, change(world, 3, 4, 1, topic="u"))
    assert [view.topic for view in world.machine.moves()] == ["u"]
    assert world.machine.moves(["t", "no such topic"]) == ()


def test_a_move_is_shown_from_the_request_to_the_last_report() -> None:
    world = moving_world()
    move(world, 3, 1, 2)
    view = shown(world)
    assert (view.state, view.waiting_for) == (m.MoveState.QUEUED, "its turn on broker 3")
    assert (view.topic_id, view.partition) == (world.topic().topic_id, 0)
    world.pass_time(1_100)
    assert (shown(world).state, shown(world).waiting_for) == (m.MoveState.COPYING, "")
    left(world, b3=100)
    assert shown(world).copies[0].bytes_left == 100
    assert shown(world).waiting_for == ""
    caught_up(world)
    view = shown(world)
    assert (view.state, view.copies) == (m.MoveState.SETTLED, ())
    assert view.waiting_for == "broker 0 to delete its data"
    world.kill(0)
    assert shown(world).waiting_for == "broker 0 to delete its data; broker 0 with no session"
    world.register(0, run=2)
    dropped(world, 0)
    assert world.machine.moves() == ()


def test_what_a_queued_move_waits_for() -> None:
    world = moving_world(replicas=(0, 1), min_insync_replicas="1")
    copying(world, 3, 1)
    cancel(world)
    move(world, 3, 4)
    assert shown(world).waiting_for == "broker 3 to delete what was copied before"
    world.kill(3)
    world.kill(4)
    assert shown(world).waiting_for == "brokers 3, 4, with no session or shutting down"
    world.alter_isr(0, (0,))
    world.kill(0)
    assert shown(world).waiting_for == "a leader"
    world.step(c.StoreState(journaling=True))
    assert shown(world).waiting_for == "the metadata store, which is unavailable"
    assert world.machine.journaling


def test_what_copies_that_have_caught_up_wait_for() -> None:
    world = moving_world(min_insync_replicas="2")
    copying(world, 3, 4, 2)
    world.alter_isr(0, (0,))
    left(world, b3=0)
    assert shown(world).waiting_for == "", "the other one has said nothing yet"
    left(world, b3=0, b4=5)
    assert shown(world).waiting_for == ""
    left(world, b4=0)
    assert shown(world).waiting_for == "", "nothing: the leader is about to propose them"
    other = moving_world(replicas=(0, 1), min_insync_replicas="2")
    other.alter_isr(0, (0,))
    copying(other, 3, 1)
    left(other, b3=0)
    assert "only 3 would be in sync, 2 must be" in shown(other).waiting_for


def test_a_smaller_set_says_what_it_waits_for() -> None:
    world = moving_world()
    world.alter_isr(0, (0,))
    move(world, 1, 2, change_factor=True)
    assert "would be in sync" in shown(world).waiting_for


def test_damaged_replicas_are_shown_until_they_are_mended() -> None:
    world = moving_world()
    damaged(world, 0)
    assert shown(world).waiting_for == "the replica on broker 0 to be mended"
    assert shown(world).document.state.damaged == ids(0)


@pytest.mark.parametrize("leaving", [False, True])
def test_who_shuts_down_is_waited_for(leaving: bool) -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    if leaving:
        beat = c.HeartbeatReceived(stream_id=world.streams[3], metadata_version=0, wants_stop=True)
        world.step(replace(beat))
    assert bool(shown(world).waiting_for) is leaving
    assert document(world).state.adding == ids(3)


def test_a_copy_that_moves_no_byte_for_five_minutes_is_stuck_and_says_why() -> None:
    world = moving_world()
    move(world, 3, 1, 2)
    world.pass_time(1_100)
    left(world, b3=100, pace=10)
    began = world.now_ms
    while world.now_ms - began < 298_000:
        world.pass_time(2_000)
        left(world, b3=90, why="broker 3, which is not connected")
    assert shown(world).waiting_for == ""
    (copy,) = shown(world).copies
    assert copy.known_for_ms == copy.stalled_for_ms == world.now_ms - began
    world.pass_time(2_000)
    left(world, b3=90, why="broker 3, which is not connected")
    assert shown(world).waiting_for == (
        "broker 3, which has copied nothing for 5 min: broker 3, which is not connected"
    )
    left(world, b3=90, pace=1)
    assert (shown(world).waiting_for, shown(world).copies[0].stalled_for_ms) == ("", 0)


def test_what_no_leader_has_said_lately_is_unknown() -> None:
    world = moving_world()
    move(world, 3, 1, 2)
    world.pass_time(1_100)
    assert shown(world).copies == ()
    left(world, b3=100)
    world.pass_time(15_000)
    assert len(shown(world).copies) == 1
    world.pass_time(1)
    assert shown(world).copies == ()


def test_a_receiver_that_has_no_space_is_what_a_copy_waits_for() -> None:
    world = moving_world()
    move(world, 3, 1, 2)
    world.pass_time(1_100)
    left(world, b3=100, why="the copy rate of broker 3")
    world.step(
        c.HeartbeatReceived(
            stream_id=world.streams[3], metadata_version=0, no_space_for_copies=True
        )
    )
    (copy,) = shown(world).copies
    assert copy.limited_by == "the disk of broker 3, which is nearly full"
    world.step(c.HeartbeatReceived(stream_id=world.streams[3], metadata_version=0))
    assert shown(world).copies[0].limited_by == "the copy rate of broker 3"
