"""Who comes back leads only after it has said which of its logs are damaged or missing (I7, I33).

With min.insync.replicas 1, whoever is elected first is the whole ISR: an election on trust takes
the seats of all who are still away, and with them what only they have.
"""

from typing import Any

import pytest
from support.controller_world import World
from support.moving import damaged, document, ids, missing, moving_world, sound

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.types import NO_LEADER


def all_dead(**configs: str) -> World:
    """All three brokers of partition 0 of `t` have died together."""
    world = moving_world(3, (0, 1, 2), **({"min_insync_replicas": "1"} | configs))
    world.kill_together(0, 1, 2)
    state = document(world).state
    assert (state.leader, state.isr) == (NO_LEADER, ids(0, 1, 2))
    return world


def back(world: World, broker_id: int, **changes: Any) -> None:
    world.register(broker_id, run=2, opening=True, **changes)


def opened(world: World, broker_id: int) -> None:
    stream_id = world.streams[broker_id]
    world.step(c.HeartbeatReceived(stream_id=stream_id, metadata_version=0, opened=True))


def test_nobody_is_elected_before_it_has_opened_its_logs() -> None:
    world = all_dead()
    back(world, 0)
    world.pass_time(500)
    assert document(world).state.leader == NO_LEADER, "heartbeats alone do not say it"
    opened(world, 0)
    state = document(world).state
    assert (state.leader, state.isr) == (0, ids(0))
    writes = world.writes
    opened(world, 0)
    assert world.writes == writes, "every heartbeat says it from then on"


@pytest.mark.parametrize("loses", [False, True])
def test_no_unclean_election_while_who_has_everything_opens_its_logs(loses: bool) -> None:
    configs = {"min_insync_replicas": "1", "unclean_leader_election_enable": "true"}
    world = moving_world(3, (0, 1, 2), **configs)
    assert world.alter_isr(0, (0,)).error is None
    back(world, 0)
    state = document(world).state
    assert (state.leader, state.isr) == (NO_LEADER, ids(0)), "1 and 2 live, and lack records"
    if loses:
        world.kill(0)
        assert document(world).state.leader == 1
    else:
        opened(world, 0)
        assert document(world).state.leader == 0


@pytest.mark.parametrize("report", [damaged, missing])
def test_who_comes_back_damaged_takes_no_seat_of_the_others(report: Any) -> None:
    world = all_dead()
    back(world, 0)
    report(world, 0)
    opened(world, 0)
    state = document(world).state
    assert (state.leader, state.isr, state.damaged) == (NO_LEADER, ids(0, 1, 2), ids(0))
    back(world, 1)
    assert document(world).state.leader == NO_LEADER
    assert document(world).state.isr == ids(0, 1, 2), "nor is broker 1 known to be sound"
    opened(world, 1)
    state = document(world).state
    assert (state.leader, state.isr, state.damaged) == (1, ids(1), ids(0))


def test_damage_that_was_known_before_all_died_is_remembered() -> None:
    world = moving_world(3, min_insync_replicas="1")
    world.kill_together(0, 1, 2)
    back(world, 0)
    damaged(world, 0)
    world.kill(0)
    world.register(0, run=3)  # of a release that is elected when it registers
    assert document(world).state.leader == NO_LEADER
    world.register(2, run=3)
    assert (document(world).state.leader, document(world).state.isr) == (2, ids(2))


def test_a_missing_log_may_catch_up_once_somebody_sound_has_its_seat() -> None:
    world = all_dead()
    back(world, 0)
    missing(world, 0)
    opened(world, 0)
    missing(world, 0)
    assert document(world).state.damaged == ids(0), "nobody sound is there"
    back(world, 1)
    opened(world, 1)
    assert document(world).state.damaged == ids(0)
    missing(world, 0)
    assert document(world).state.damaged == (), "nothing of it is left to be mended"
    assert world.alter_isr(1, (0, 1)).error is None


@pytest.mark.parametrize("last_first", [True, False])
def test_if_all_logs_are_missing_one_begins_anew_and_no_damage_is_left(last_first: bool) -> None:
    """As after a crash of all brokers before any of them had heard of a new topic."""
    world = all_dead()
    for broker_id in (0, 1, 2):
        back(world, broker_id)
        missing(world, broker_id)
        opened(world, broker_id)
    assert document(world).state.isr == ids(0, 1), "broker 2 has nothing, they may have something"
    epoch = document(world).state.leader_epoch
    for broker_id in (1, 0) if last_first else (0, 1):
        missing(world, broker_id)
    state = document(world).state
    leader = 0 if last_first else 1
    assert (state.leader, state.isr, state.damaged) == (leader, ids(leader), ())
    assert state.leader_epoch > epoch, "an epoch that nobody had begun"
    assert "log missing, and nobody else has it" in world.events()
    assert world.alter_isr(leader, (0, 1, 2)).error is None


def test_a_missing_log_that_was_eligible_outside_the_isr_begins_anew_in_the_end() -> None:
    world = moving_world(3, min_insync_replicas="2")
    world.kill(2)
    world.kill(1)
    world.kill(0)
    assert (document(world).state.isr, document(world).elr) == (ids(0), ids(1))
    back(world, 1)
    missing(world, 1)
    opened(world, 1)
    assert document(world).state.leader == NO_LEADER, "broker 0 may have all of it"
    back(world, 0)
    missing(world, 0)
    opened(world, 0)
    state = document(world).state
    assert (state.leader, state.isr, state.damaged) == (1, ids(1), ids(1))
    missing(world, 1)
    state = document(world).state
    assert (state.leader, state.isr, state.damaged) == (1, ids(1), ())


def test_a_missing_log_gives_way_to_damaged_ones_which_have_some_of_the_records() -> None:
    world = all_dead()
    back(world, 1)
    damaged(world, 1)
    back(world, 2)
    damaged(world, 2)
    world.kill(2)
    back(world, 0)
    assert missing(world, 0) == ()
    opened(world, 0)
    state = document(world).state
    assert (state.leader, state.isr, state.damaged) == (NO_LEADER, ids(1, 2), ids(1, 2))
    assert "log missing: its seat goes to who may have some of it" in world.events()
    opened(world, 1)
    assert document(world).state.leader == 1


def test_a_missing_log_gives_way_to_one_that_only_lost_unsynced_records() -> None:
    """What was fsynced is there, and records with `sync=DISK` are to survive both."""
    world = all_dead()
    for broker_id in (0, 2):
        back(world, broker_id, data_intact=False)
    assert (document(world).state.isr, document(world).lossy) == (ids(1), ids(2, 0))
    back(world, 1)
    assert missing(world, 1) == ()
    opened(world, 1)
    assert document(world).state.leader == NO_LEADER
    opened(world, 2)
    state = document(world).state
    assert (state.leader, state.isr) == (2, ids(2))


def test_a_leader_that_may_lack_records_after_that_is_named_as_such() -> None:
    world = all_dead()
    back(world, 0, data_intact=False)
    opened(world, 0)
    back(world, 2, data_intact=False)
    back(world, 1)
    assert document(world).state.leader == NO_LEADER, "broker 1 may have all of it"
    missing(world, 1)
    assert document(world).state.leader == 0
    assert "leader elected that may lack records" in world.events()


def test_a_missing_log_of_one_that_had_lost_unsynced_records_gives_way_to_the_others() -> None:
    """Its broker ended again, after a controller had heard of the loss."""
    world = all_dead()
    for broker_id in (0, 1, 2):
        back(world, broker_id, data_intact=False)
    first = document(world).lossy[0]
    world.kill(first)
    back(world, first)
    missing(world, first)
    opened(world, first)
    found = document(world)
    assert (found.state.leader, len(found.lossy), first in found.lossy) == (NO_LEADER, 2, False)
    for broker_id in found.lossy:
        world.kill(broker_id)
        back(world, broker_id)
        missing(world, broker_id)
    (last,) = document(world).lossy
    opened(world, last)
    assert document(world).state.leader == last, "nobody else has anything"


def test_a_damaged_replica_that_lost_unsynced_records_waits_for_one_that_only_lost_those() -> None:
    world = all_dead()
    back(world, 0, data_intact=False)
    damaged(world, 0)
    opened(world, 0)
    for broker_id in (1, 2):
        back(world, broker_id, data_intact=False)
    found = document(world)
    assert (found.state.isr, found.elr, {*found.lossy}) == ((), (), {*ids(0, 1, 2)})
    assert found.state.leader == NO_LEADER, "broker 0 cannot read its log; the others open theirs"
    opened(world, 2)
    state = document(world).state
    assert (state.leader, state.isr, state.damaged) == (2, ids(2), ids(0))


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_that_is_sound_again_takes_the_lead_from_a_damaged_replica(first: int) -> None:
    """All logs could not be opened, and one was restored while its broker was stopped."""
    world = moving_world(3, min_insync_replicas="2")
    world.kill(2)
    world.kill(1)
    world.kill(0)
    assert (document(world).state.isr, document(world).elr) == (ids(0), ids(1))
    for broker_id in (0, 1, 2):
        back(world, broker_id)
        damaged(world, broker_id)
        opened(world, broker_id)
    assert document(world).state.leader == 0
    world.kill(0)
    assert document(world).state.leader == 1
    back(world, 0)
    opened(world, 0)
    assert document(world).state.leader == 1, "it may be as damaged as before"
    sound(world, first)
    state = document(world).state
    assert (state.leader, state.isr) == (first, ids(first))
    assert ("leader elected" in world.events()[-3:]) == (first == 0)


def test_if_all_are_damaged_one_of_them_leads() -> None:
    world = all_dead()
    for broker_id in (0, 1, 2):
        back(world, broker_id)
        damaged(world, broker_id)
        opened(world, broker_id)
    state = document(world).state
    assert (state.leader, state.isr) == (0, ids(0, 1, 2)), "once there is nobody to wait for"


def test_with_unclean_elections_a_damaged_member_does_not_wait() -> None:
    world = all_dead(unclean_leader_election_enable="true")
    back(world, 0)
    damaged(world, 0)
    opened(world, 0)
    assert (document(world).state.leader, document(world).state.isr) == (0, ids(0))


def test_a_new_disk_frees_those_who_waited_for_it() -> None:
    """The way out, if who may have the records never comes back."""
    world = all_dead()
    back(world, 0)
    damaged(world, 0)
    opened(world, 0)
    back(world, 1, directory_id="another")
    opened(world, 1)
    assert document(world).state.leader == NO_LEADER, "broker 2 may have all of it"
    back(world, 2, directory_id="a third")
    state = document(world).state
    assert (state.leader, state.isr) == (0, ids(0))


def test_the_only_replica_leads_an_epoch_in_which_its_log_is_known_to_be_missing() -> None:
    world = moving_world(1, (0,))
    world.kill(0)
    back(world, 0)
    epoch = document(world).state.leader_epoch
    missing(world, 0)
    assert "log missing, and nobody else has it" in world.events()
    assert document(world).state.leader == NO_LEADER
    opened(world, 0)
    state = document(world).state
    assert (state.leader, state.leader_epoch, state.damaged) == (0, epoch + 1, ())


def test_unsynced_records_are_given_up_only_by_who_has_opened_its_logs() -> None:
    world = all_dead()
    for broker_id in (0, 1, 2):
        back(world, broker_id, data_intact=False)
    assert document(world).state.leader == NO_LEADER
    opened(world, 1)
    assert document(world).state.leader == 1


def test_a_controller_that_takes_over_does_not_know_who_has_opened_its_logs() -> None:
    world = all_dead()
    back(world, 0)
    successor = World(world.documents).start()
    assert document(successor).state.leader == NO_LEADER
    successor.register(0, run=2, opening=True)
    assert document(successor).state.leader == NO_LEADER
    opened(successor, 0)
    assert document(successor).state.leader == 0


def test_who_had_opened_its_logs_before_a_take_over_says_so_when_it_registers() -> None:
    world = all_dead()
    back(world, 0)
    successor = World(world.documents).start()
    successor.register(0, run=2)
    assert document(successor).state.leader == 0


def test_an_election_whose_write_fails_is_decided_again() -> None:
    world = all_dead()
    back(world, 0)
    world.hold_writes = True
    opened(world, 0)
    world.finish_held(passed=False, answered=False)
    assert document(world).state.leader == 0


def test_leaders_go_on_while_others_open_their_logs() -> None:
    world = moving_world(3)
    back(world, 1)
    state = document(world).state
    assert (state.leader, state.isr) == (0, ids(0, 2))
    world.step(c.HeartbeatReceived(stream_id=world.streams[0], metadata_version=0, wants_stop=True))
    assert document(world).state.leader == 2


def test_a_damaged_leader_keeps_its_place_until_somebody_is_known_to_be_sound() -> None:
    world = moving_world(3, min_insync_replicas="2")
    world.kill(1)
    world.kill(2)
    damaged(world, 0)
    assert document(world).elr, "it may have what broker 0 cannot read"
    (away,) = document(world).elr
    back(world, away)
    assert document(world).state.leader == 0
    opened(world, away)
    assert (document(world).state.leader, document(world).state.isr) == (away, ids(away))


def test_before_the_mark_can_be_stored_it_is_as_it_was() -> None:
    world = moving_world(3, min_insync_replicas="1")
    assert isinstance(world.ask(m.Finalize, to=1), m.FormatChosen)
    world.kill_together(0, 1, 2)
    back(world, 0)
    damaged(world, 0)
    opened(world, 0)
    assert document(world).state.leader == 0
