"""Damaged replicas: they lead only if nobody sound can, and hold no seat beside one (I33)."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.controller_world import World
from support.moving import (
    caught_up,
    copying,
    damaged,
    document,
    dropped,
    ids,
    missing,
    move,
    moving_world,
    refused,
    sound,
)

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control.election import ElectionKind, Liveness, Settings, settle
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import BrokerId, LeaderEpoch, PartitionState, ReplicaKey
from penstock.errors import ErrorCode


def partition(
    *,
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...] = (),
    damaged: tuple[int, ...] = (),
    lossy: tuple[int, ...] = (),
) -> PartitionDocument:
    state = PartitionState(
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(5),
        isr=ids(*isr),
        replicas=ids(0, 1, 2),
        version=9,
        damaged=ids(*damaged),
    )
    return PartitionDocument(state, elr=ids(*elr), lossy=ids(*lossy))


def elected(
    found: PartitionDocument, *live: int, leaving: tuple[int, ...] = (), unclean: bool = False
) -> tuple[int, tuple[int, ...], ElectionKind | None]:
    liveness = Liveness(frozenset(ids(*live)), frozenset(ids(*leaving)))
    after, kind = settle(found, liveness, Settings(2, unclean))
    assert not set(after.elr) & set(after.state.isr)
    return after.state.leader, after.state.isr, kind


def test_a_damaged_leader_gives_way_to_a_sound_member() -> None:
    world = moving_world()
    damaged(world, 0)
    state = document(world).state
    assert (state.leader, state.leader_epoch, state.isr) == (1, 2, ids(1, 2))
    assert state.damaged == ids(0)
    assert "replica damaged" in world.events()
    writes = world.writes
    damaged(world, 0)
    assert world.writes == writes, "it was said already"


def test_a_damaged_follower_loses_its_seat_and_is_not_kept_in_the_elr() -> None:
    """Planted bug 16: below min ISR, whoever leaves the ISR would stay eligible."""
    world = moving_world(min_insync_replicas="3")
    damaged(world, 2)
    found = document(world)
    assert (found.state.isr, found.elr, found.state.leader) == (ids(0, 1), (), 0)
    damaged(world, 1)
    world.kill(0)
    assert document(world).state.leader == -1, "both others are damaged, and out"
    assert document(world).elr == ()


def test_a_damaged_member_of_the_elr_loses_that_seat() -> None:
    world = moving_world(min_insync_replicas="3")
    world.alter_isr(0, (0, 1))
    assert document(world).elr == ids(2)
    damaged(world, 2)
    assert document(world).elr == ()
    assert document(world).state.isr == ids(0, 1)


def test_the_only_one_left_stays_the_leader_until_somebody_sound_is_back() -> None:
    """Planted bug 17."""
    world = moving_world()
    world.kill(1)
    world.kill(2)
    damaged(world, 0)
    state = document(world).state
    assert (state.leader, state.isr, state.damaged) == (0, ids(0), ids(0))
    events = world.events()
    assert "replica damaged, and nobody else can take its place" in events
    world.register(1, run=2)
    assert document(world).state.leader == 0 or document(world).state.damaged == ids(0)
    if document(world).state.leader == 0:
        assert world.alter_isr(0, (0, 1)).error is None
    state = document(world).state
    assert (state.leader, state.isr) == (1, ids(1))


def test_a_sound_member_that_joins_takes_the_lead_in_the_same_write() -> None:
    world = moving_world(min_insync_replicas="1")
    world.alter_isr(0, (0,))
    damaged(world, 0)
    assert document(world).state.leader == 0
    outcome = world.alter_isr(0, (0, 1))
    assert outcome.state is not None
    assert (outcome.state.leader, outcome.state.isr) == (1, ids(1))


def test_the_only_member_leads_the_next_epoch_if_its_log_is_missing() -> None:
    """It leads no epoch that had begun, and nobody else could ever have what it lost."""
    world = moving_world(min_insync_replicas="1")
    world.alter_isr(0, (0,))
    missing(world, 0)
    state = document(world).state
    assert (state.leader, state.leader_epoch, state.isr, state.damaged) == (0, 2, ids(0), ())
    assert "log missing, and nobody else has it" in world.events()
    assert world.alter_isr(0, (0, 1)).error is None, "others may follow"
    assert document(world).state.leader == 0


def test_a_member_whose_log_is_missing_loses_its_seat_to_a_sound_one_and_may_come_back() -> None:
    world = moving_world(min_insync_replicas="3")
    missing(world, 0)
    found = document(world)
    assert (found.state.leader, found.state.leader_epoch, found.state.isr) == (1, 2, ids(1, 2))
    assert (found.elr, found.state.damaged) == ((), ()), "nothing of it is left to be mended"
    writes = world.writes
    missing(world, 0)
    assert world.writes == writes
    assert world.alter_isr(1, (0, 1, 2)).error is None


def test_a_missing_log_is_not_led_while_who_may_have_the_records_is_away() -> None:
    world = moving_world(min_insync_replicas="2")
    world.kill(2)
    world.kill(1)
    assert document(world).elr == ids(1)
    missing(world, 0)
    state = document(world).state
    assert (state.leader, state.leader_epoch, state.damaged) == (0, 1, ids(0))
    world.register(1, run=2)
    state = document(world).state
    assert (state.leader, state.isr) == (1, ids(1))


@pytest.mark.parametrize("reported", [damaged, missing])
def test_a_seat_outside_the_isr_is_kept_and_said_to_be_until_somebody_sound_is_there(
    reported: Callable[[World, int], tuple[ReplicaKey, ...]],
) -> None:
    """No image shows it, and a broker without a seat gives its log up."""
    world = moving_world(min_insync_replicas="2")
    world.kill(2)
    world.kill(1)
    world.kill(0)
    world.register(1, run=2, opening=True)
    key = ReplicaKey(world.topic().topic_id, 0)
    assert reported(world, 1) == (key,)
    found = document(world)
    assert (found.state.isr, found.elr, found.state.damaged) == (ids(0), ids(1), ids(1))
    world.register(0, run=2)
    assert document(world).state.leader == 0
    assert document(world).elr == ()
    assert reported(world, 1) == ()


def test_a_damaged_replica_does_not_join_until_it_is_sound() -> None:
    world = moving_world()
    damaged(world, 0)
    assert "is damaged" in refused(
        world.alter_isr(1, (0, 1, 2)).error, ErrorCode.INELIGIBLE_REPLICA
    )
    sound(world, 0)
    assert document(world).state.damaged == ()
    assert "replica sound again" in world.events()
    assert world.alter_isr(1, (0, 1, 2)).error is None
    writes = world.writes
    sound(world, 0)
    assert world.writes == writes


def test_a_report_about_a_replica_of_another_broker_changes_nothing() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    writes = world.writes
    damaged(world, 4)
    assert world.writes == writes


def test_damage_lasts_through_a_restart_but_not_a_new_disk() -> None:
    world = moving_world()
    damaged(world, 0)
    world.register(0, run=2, data_intact=False)
    assert document(world).state.damaged == ids(0)
    world.kill(0)
    world.register(0, run=3, directory_id="another")
    assert document(world).state.damaged == ()


def test_a_switch_takes_the_mark_of_those_who_stay_and_no_damaged_leader() -> None:
    world = moving_world(brokers=6)
    damaged(world, 2)
    copying(world, 2, 3, 4)
    assert caught_up(world, 0, 1).error is None
    state = document(world).state
    assert (state.leader, state.isr, state.damaged) == (3, ids(3, 4), ids(2))
    lone = moving_world(min_insync_replicas="1")
    lone.alter_isr(0, (0,))
    damaged(lone, 0)
    copying(lone, 0, 3, 4)
    assert caught_up(lone).error is None
    state = document(lone).state
    assert (state.leader, state.isr, state.damaged) == (3, ids(3, 4), ids(0))


def test_a_switch_needs_somebody_sound_to_lead() -> None:
    world = moving_world(min_insync_replicas="1")
    world.alter_isr(0, (0,))
    damaged(world, 0)
    outcome = move(world, 0, change_factor=True)
    assert outcome.state is m.MoveState.QUEUED


def test_before_the_mark_can_be_stored_a_damaged_replica_only_loses_its_seat() -> None:
    world = moving_world()
    assert isinstance(world.ask(m.Finalize, to=1), m.FormatChosen)
    damaged(world, 0)
    state = document(world).state
    assert (state.leader, state.isr, state.damaged) == (1, ids(1, 2), ())
    world.kill(2)
    writes = world.writes
    damaged(world, 1)
    assert world.writes == writes, "nobody else has a seat"
    assert document(world).state.leader == 1


@pytest.mark.parametrize(
    ("found", "live", "outcome"),
    [
        (partition(leader=0, isr=(0, 1), damaged=(0,)), (0, 1), (1, ids(1), ElectionKind.ISR)),
        (partition(leader=0, isr=(0,), elr=(1,), damaged=(0,)), (0, 1),
         (1, ids(1), ElectionKind.ELR)),
        (partition(leader=-1, isr=(0, 1), damaged=(0,)), (0,), (-1, ids(0, 1), None)),
        (partition(leader=-1, isr=(0,), elr=(1,), damaged=(0,)), (0,), (-1, ids(0), None)),
        (partition(leader=-1, isr=(0, 1), damaged=(0, 1)), (0,), (0, ids(0), ElectionKind.ISR)),
        (partition(leader=-1, isr=(), elr=(0, 1), damaged=(0, 1)), (1,),
         (1, ids(1), ElectionKind.ELR)),
        (partition(leader=-1, isr=(), elr=(0, 1), damaged=(1,)), (1,), (-1, (), None)),
        (partition(leader=-1, isr=(0,), elr=(1,), damaged=(0, 1)), (0, 1),
         (0, ids(0), ElectionKind.ISR)),
        (partition(leader=0, isr=(0, 1), damaged=(0,)), (0,), (0, ids(0), None)),
        (partition(leader=0, isr=(0,), damaged=(0,)), (0, 1, 2), (0, ids(0), None)),
        (partition(leader=-1, isr=(0,), lossy=(1,), damaged=(0,)), (0, 1),
         (0, ids(0), ElectionKind.ISR)),
        (partition(leader=-1, isr=(), lossy=(0, 1), damaged=(0,)), (0, 1),
         (1, ids(1), ElectionKind.LOSSY)),
        (partition(leader=-1, isr=(), lossy=(0, 1), damaged=(0,)), (0,), (-1, (), None)),
        (partition(leader=-1, isr=(), lossy=(1, 0), damaged=(0, 1)), (0, 1, 2),
         (1, ids(1), ElectionKind.LOSSY)),
    ],
)  # fmt: skip
def test_the_order_in_which_leaders_are_looked_for(
    found: PartitionDocument,
    live: tuple[int, ...],
    outcome: tuple[int, tuple[int, ...], ElectionKind | None],
) -> None:
    assert elected(found, *live) == outcome


def test_a_sound_leader_that_shuts_down_is_better_than_a_damaged_one_that_stays() -> None:
    found = partition(leader=0, isr=(0, 1), damaged=(1,))
    assert elected(found, 0, 1, leaving=(0,)) == (0, ids(0), None)
    other = partition(leader=0, isr=(0, 1), damaged=(0, 1))
    assert elected(other, 0, 1, leaving=(0,)) == (1, ids(1), ElectionKind.ISR)
    assert elected(other, 0, 1, leaving=(0, 1))[0] == 0


def test_an_unclean_election_takes_a_damaged_replica_last() -> None:
    found = partition(leader=-1, isr=(2,), damaged=(0,))
    assert elected(found, 0, 1, unclean=True) == (1, ids(1), ElectionKind.UNCLEAN)
    assert elected(found, 0, unclean=True) == (0, ids(0), ElectionKind.UNCLEAN)
    waiting = partition(leader=-1, isr=(0, 1), damaged=(0,))
    assert elected(waiting, 0, unclean=True) == (0, ids(0), ElectionKind.ISR)
    lossy = partition(leader=-1, isr=(), lossy=(0, 1), damaged=(0,))
    assert elected(lossy, 0, 1, unclean=True) == (1, ids(1), ElectionKind.LOSSY)
    assert elected(lossy, 0, unclean=True) == (0, ids(0), ElectionKind.LOSSY)
    eligible = partition(leader=-1, isr=(), elr=(0,), damaged=(0,))
    assert elected(eligible, 0, 1, unclean=True) == (1, ids(1), ElectionKind.UNCLEAN)
    assert elected(eligible, 0, unclean=True) == (0, ids(0), ElectionKind.UNCLEAN)
    beside = partition(leader=-1, isr=(2,), lossy=(0,), damaged=(0,))
    assert elected(beside, 0, 1, unclean=True) == (1, ids(1), ElectionKind.UNCLEAN)


def test_a_damaged_follower_leaves_when_a_leader_is_settled_anyway() -> None:
    found = partition(leader=1, isr=(0, 1, 2), damaged=(0,))
    assert elected(found, 0, 1, 2) == (1, ids(1, 2), None)
    elr = partition(leader=1, isr=(1,), elr=(0, 2), damaged=(0,))
    after, kind = settle(elr, Liveness(frozenset(ids(0, 1, 2))), Settings(2, unclean=False))
    assert (after.elr, kind) == (ids(2), None)
    assert after.state == elr.state


def test_reports_are_settled_with_those_that_shut_down() -> None:
    world: World = moving_world()
    world.step(c.HeartbeatReceived(stream_id=world.streams[0], metadata_version=0, wants_stop=True))
    damaged(world, 1)
    assert document(world).state.leader == 2
    assert replace(document(world)).state.damaged == ids(1)


# ---------------------------------------------------------------- copies


def test_a_damaged_copy_is_deleted_and_begun_again() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    version = document(world).state.version
    damaged(world, 3)
    state = document(world).state
    assert (state.adding, state.dropping, state.damaged) == ((), ids(3), ())
    assert document(world).target == ids(3, 1, 2)
    late = world.alter_isr(0, (0, 1, 2, 3), version=version)
    assert document(world).state.replicas == ids(0, 1, 2), (late, "proposed before the damage")
    writes = world.writes
    damaged(world, 3)
    assert world.writes == writes, "it was said already"
    dropped(world, 3)
    world.pass_time(2_100)
    assert document(world).state.adding == ids(3)
    assert caught_up(world).error is None
    assert document(world).state.replicas == ids(3, 1, 2)


def test_a_damaged_copy_stays_while_decisions_are_journaled() -> None:
    world = moving_world()
    copying(world, 3, 1, 2)
    world.step(c.StoreState(journaling=True))
    damaged(world, 3)
    assert document(world).state.adding == ids(3)
    world.step(c.StoreState(journaling=False))
    damaged(world, 3)
    assert document(world).state.dropping == ids(3)
