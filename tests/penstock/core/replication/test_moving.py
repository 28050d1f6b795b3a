"""A partition gets other replicas: who copies it, when that becomes a replica, what it needs (I29).

Brokers 1 (the machine under test), 2 and 3 are the replicas; 4 and 5 are to become some.
"""

import pytest
from support.replica_driver import TWO, Drive, Driver, batch, proposed, refused, stored

from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication import contract_leader as lc
from penstock.core.replication.follower import BrokenLogError
from penstock.core.types import BrokerId, LeaderEpoch, Offset, Sync
from penstock.errors import ClusterError, ErrorCode

THREE, FOUR, FIVE = BrokerId(3), BrokerId(4), BrokerId(5)
WAITS = ClusterError("broker 2 is away", ErrorCode.MOVE_WAITS)
LOG = {"epoch": 4, "epochs": ((1, 0), (4, 50)), "high_watermark": 80}


def moving(leader: Driver, *adding: int) -> None:
    """Five records are committed, and brokers begin to copy (version 2)."""
    append(leader, 5)
    leader.assign(version=2, adding=adding)
    for broker in adding:
        leader.follow(broker, 0)


def copied_to(leader: Driver) -> Offset | None:
    return leader.machine.copied_to


def append(leader: Driver, count: int = 1) -> None:
    """So many records are written here and by 2 and 3, and fsynced by all of them."""
    leader.produce(count)
    leader.written(synced=True)
    leader.ack(2, leader.marks.written_end)
    leader.ack(3, leader.marks.written_end)


# ---------------------------------------------------------------- the leader


def test_who_copies_follows_and_holds_nothing_up(leader: Driver) -> None:
    moving(leader, 4)
    assert (
        lc.Feed(FOUR, LeaderEpoch(1), Offset(0))
        in leader.do(lc.FollowStarted(FOUR, LeaderEpoch(1), Offset(0))).feeds
    )
    append(leader)
    assert leader.marks.high_watermark == 6
    assert not leader.machine.wants_tick, "it is not expected to keep up"
    error = refused(leader.do(lc.EpochQueried(FIVE, LeaderEpoch(1), LeaderEpoch(-1))))
    assert error.code is ErrorCode.INELIGIBLE_REPLICA
    assert "(1, 2, 3, 4)" in str(error)


def test_who_copies_does_not_stand_in_for_a_missing_replica(leader: Driver) -> None:
    moving(leader, 4)
    leader.assign(isr=(1,), version=3, adding=(4,))
    leader.produce()
    assert leader.outcomes() == [(2, -1, "NOT_ENOUGH_REPLICAS")]


def test_those_that_copy_enter_together_after_the_replicas(leader: Driver) -> None:
    moving(leader, 5, 4)
    assert leader.ack(4, 5).isr_change is None, "5 has nothing yet"
    assert proposed(leader.ack(5, 5)) == (1, 2, 3, 5, 4)


def test_the_slowest_copy_is_known_by_what_it_has_acknowledged(leader: Driver) -> None:
    assert copied_to(leader) is None, "it moves to nobody"
    moving(leader, 4, 5)
    leader.ack(4, 5)
    assert copied_to(leader) == 0
    leader.ack(5, 3)
    assert copied_to(leader) == 3
    assert [leader.machine.written_by(one) for one in (FOUR, FIVE, BrokerId(9))] == [5, 3, 0]
    leader.do(c.PeerLost(FIVE))
    assert copied_to(leader) == 3, "what it had when its stream broke"
    leader.assign(leader=2, epoch=2, version=3, adding=(4, 5))
    assert copied_to(leader) == 0
    assert leader.machine.written_by(FOUR) == 0
    leader.assign(leader=2, epoch=2, version=4)
    assert copied_to(leader) is None, "the move has ended"


def test_what_a_copy_has_not_synced_it_may_ask_for_again(leader: Driver) -> None:
    """Without power it loses that; an older record of a key whose null value is gone would stay."""
    moving(leader, 4)
    leader.ack(4, 5, synced=2)
    assert (copied_to(leader), leader.machine.written_by(FOUR)) == (2, 5)


def test_others_enter_and_leave_while_a_copy_is_not_complete(leader: Driver) -> None:
    moving(leader, 4, 5)
    leader.ack(4, 5)
    leader.do(c.PeerLost(THREE))
    leader.now_ms += 10_001
    assert proposed(leader.do(c.Tick())) == (1, 2)
    leader.answer_isr((1, 2), version=3, adding=(4, 5))
    assert proposed(leader.follow(3, 5)) == (1, 2, 3)


def test_who_is_lost_again_does_not_enter(leader: Driver) -> None:
    moving(leader, 4, 5)
    leader.ack(4, 5)
    leader.do(c.PeerLost(FOUR))
    assert leader.ack(5, 5).isr_change is None


def start(version: int, broker: int = FOUR) -> lc.FollowStarted:
    return lc.FollowStarted(BrokerId(broker), LeaderEpoch(1), Offset(0), version)


def test_what_was_copied_before_a_cancelled_move_does_not_count_for_the_next(
    leader: Driver,
) -> None:
    """The leader hears of neither: 4 was told to delete its copy, and then to begin anew."""
    moving(leader, 4, 5)
    leader.ack(4, 5)
    ready = leader.assign(version=6, adding=(4, 5))
    assert ready.isr_change is None
    assert refused(ready).code is ErrorCode.INELIGIBLE_REPLICA
    assert lc.Feed(FOUR, LeaderEpoch(1), None) in ready.feeds
    assert leader.ack(5, 5).isr_change is leader.ack(4, 5).isr_change is None
    error = refused(leader.do(start(version=5)))
    assert "before version 6 of the partition" in str(error), "that may be the former copy"
    assert leader.ack(4, 5).isr_change is None
    for broker in (4, 5):
        assert leader.do(start(6, broker)).feeds
    assert leader.ack(4, 5).isr_change is None
    assert proposed(leader.ack(5, 5)) == (1, 2, 3, 4, 5)


def test_a_start_that_is_late_is_not_of_the_copy_that_has_begun_since(leader: Driver) -> None:
    moving(leader, 4)
    leader.assign(version=3)
    leader.assign(version=4, adding=(4,))
    assert refused(leader.do(start(version=2))).code is ErrorCode.INELIGIBLE_REPLICA
    assert leader.do(start(version=0)).feeds, "an older release does not say which it knows"
    assert leader.do(start(version=4)).feeds


def test_who_is_in_sync_follows_on_whatever_versions_were_missed(leader: Driver) -> None:
    """Nobody enters the ISR without this leader, so it has deleted nothing since."""
    moving(leader)
    ready = leader.assign(version=7)
    assert (ready.feeds, ready.messages) == ((), ())
    append(leader)
    assert leader.marks.high_watermark == 6


def test_while_the_switch_is_in_flight_the_new_ones_count(leader: Driver) -> None:
    moving(leader, 4)
    leader.ack(4, 5)
    append(leader)
    assert leader.marks.high_watermark == 5, "4 may be in the ISR"
    leader.ack(4, 6)
    assert leader.marks.high_watermark == 6


def test_a_switch_makes_them_replicas(leader: Driver) -> None:
    moving(leader, 4)
    leader.ack(4, 5)
    ready = leader.assign(isr=(1, 2, 4), replicas=(1, 2, 4), version=3)
    assert lc.Feed(THREE, LeaderEpoch(1), None) in ready.feeds
    leader.do(lc.IsrAnswered(None))
    leader.produce()
    leader.written()
    leader.ack(2, 6)
    assert leader.marks.high_watermark == 5
    leader.ack(4, 6)
    assert leader.marks.high_watermark == 6


def test_a_leader_that_is_no_replica_after_the_switch_resigns(leader: Driver) -> None:
    moving(leader, 4)
    leader.ack(4, 5)
    leader.produce()
    ready = leader.assign(2, epoch=2, isr=(2, 3, 4), replicas=(2, 3, 4), version=3)
    assert ready.role_changed
    assert leader.outcomes() == [(2, -1, "NOT_LEADER")]
    assert not leader.marks.is_leader


def test_a_cancelled_copy_is_not_fed_on_and_counts_no_more(leader: Driver) -> None:
    moving(leader, 4)
    ready = leader.assign(version=3)
    assert ready.feeds == (lc.Feed(FOUR, LeaderEpoch(1), None),)
    assert leader.ack(4, 5) is c.NOTHING


# ---------------------------------------------------------------- a seat needs fsynced bytes


def test_what_was_on_disk_elsewhere_is_fsynced_before_the_switch(leader: Driver) -> None:
    moving(leader, 4)
    assert leader.ack(4, 5, synced=0).isr_change is None
    assert leader.marks.sync_through == 5, "it is asked to"
    append(leader)
    assert leader.ack(4, 6, synced=4).isr_change is None
    assert leader.marks.sync_through == 5, "what was there when it got there"
    assert proposed(leader.ack(4, 6, synced=5)) == (1, 2, 3, 4)
    assert leader.marks.sync_through == 0


def test_what_was_acknowledged_as_fsynced_since_is_fsynced_too(leader: Driver) -> None:
    moving(leader, 4)
    leader.ack(4, 5, synced=0)
    leader.produce(sync=Sync.DISK)
    leader.written(synced=True)
    leader.ack(2, 6)
    leader.ack(3, 6)
    assert leader.outcomes() == [(2, 5, "ok")]
    assert leader.ack(4, 6, synced=5).isr_change is None
    assert leader.marks.sync_through == 6
    assert proposed(leader.ack(4, 6)) == (1, 2, 3, 4)


def test_a_new_stream_has_to_sync_up_to_where_it_gets_then(leader: Driver) -> None:
    moving(leader, 4)
    leader.ack(4, 5, synced=0)
    leader.do(c.PeerLost(FOUR))
    append(leader)
    assert leader.follow(4, 6, synced=5).isr_change is None
    assert leader.marks.sync_through == 6
    assert proposed(leader.ack(4, 6)) == (1, 2, 3, 4)


def test_the_one_that_has_to_sync_furthest_is_not_forgotten_for_another(leader: Driver) -> None:
    moving(leader, 4, 5)
    leader.ack(5, 5, synced=0)
    append(leader)
    leader.ack(4, 6, synced=0)
    leader.ack(5, 6, synced=0)
    assert leader.marks.sync_through == 6


# ---------------------------------------------------------------- a switch that has to wait


@pytest.mark.parametrize("stored_rest", [False, True])
def test_a_switch_that_waits_is_asked_for_again_after_a_while(
    leader: Driver, stored_rest: bool
) -> None:
    moving(leader, 4)
    leader.ack(4, 5)
    version = 3 if stored_rest else 2
    if stored_rest:
        leader.assign(version=3, adding=(4,))
    ready = leader.answer_isr((1, 2, 3), version=version, adding=(4,), error=WAITS)
    assert ready.isr_change is None
    append(leader)
    assert leader.marks.high_watermark == 6, "4 is not in"
    leader.ack(4, 6)
    leader.now_ms += 4_999
    assert leader.do(c.Tick()).isr_change is None
    assert leader.machine.wants_tick
    leader.now_ms += 1
    ready = leader.do(c.Tick())
    assert ready.isr_change == lc.IsrProposal(
        LeaderEpoch(1), version, (BrokerId(1), TWO, THREE, FOUR)
    )
    leader.assign(isr=(1, 2, 4), replicas=(1, 2, 4), version=4)
    leader.do(lc.IsrAnswered(None))
    assert not leader.machine.wants_tick


def test_once_there_is_nothing_to_ask_for_it_wants_no_ticks(leader: Driver) -> None:
    moving(leader, 4)
    leader.ack(4, 5)
    leader.answer_isr((1, 2, 3), version=3, adding=(4,), error=WAITS)
    leader.do(c.PeerLost(FOUR))
    leader.now_ms += 5_000
    assert leader.do(c.Tick()) is c.NOTHING
    assert not leader.machine.wants_tick


def test_while_a_switch_waits_the_isr_changes_as_ever(leader: Driver) -> None:
    moving(leader, 4)
    leader.ack(4, 5)
    leader.do(c.PeerLost(THREE))
    leader.answer_isr((1, 2), version=3, adding=(4,), error=WAITS)
    assert proposed(leader.follow(3, 5)) == (1, 2, 3)


def test_another_target_does_not_wait_for_what_the_last_one_lacked(leader: Driver) -> None:
    moving(leader, 4)
    leader.ack(4, 5)
    leader.answer_isr((1, 2, 3), version=3, adding=(4,), error=WAITS)
    leader.assign(version=4, adding=(5,))
    assert proposed(leader.follow(5, 5)) == (1, 2, 3, 5)


def test_what_an_earlier_leadership_had_to_wait_for_is_not_waited_for(leader: Driver) -> None:
    moving(leader, 4)
    leader.ack(4, 5)
    leader.assign(2, epoch=2, version=3, adding=(4,))
    leader.written(synced=True)
    leader.assign(1, epoch=3, version=4, adding=(4,))
    leader.written(synced=True)
    leader.do(lc.IsrAnswered(None, WAITS))
    assert proposed(leader.follow(4, 5, epoch=3)) == (1, 2, 3, 4)


# ---------------------------------------------------------------- the one that copies


def test_a_broker_that_is_to_become_a_replica_follows_and_goes_on_when_it_is(
    drive: Drive,
) -> None:
    driver = drive()
    driver.assign(2, replicas=(2, 3), isr=(2, 3), adding=(1,))
    driver.written(synced=True)
    assert driver.ready.messages == ()
    driver.answer_epoch(-1, 0)
    assert fc.SendFollowStart(TWO, LeaderEpoch(1), Offset(0), 1) in driver.ready.messages
    driver.receive(batch(3))
    driver.written()
    assert driver.assign(2, replicas=(1, 2), isr=(1, 2), version=2) is c.NOTHING
    assert driver.receive(batch(base=3)).append != ()
    driver.written()
    driver.do(fc.PeerRefused(TWO, ClusterError("outdated", ErrorCode.INELIGIBLE_REPLICA)))
    driver.now_ms += 100
    driver.do(c.Tick())
    driver.answer_epoch(0, 4)
    assert fc.SendFollowStart(TWO, LeaderEpoch(1), Offset(4), 2) in driver.ready.messages


def test_a_broker_that_is_dropped_stops_following(drive: Drive) -> None:
    driver = drive()
    driver.assign(2, replicas=(2, 3), isr=(2, 3), adding=(1,))
    driver.written(synced=True)
    driver.answer_epoch(-1, 0)
    ready = driver.assign(2, replicas=(2, 3), isr=(2, 3), version=2)
    assert fc.SendFollowStop(TWO) in ready.messages
    assert driver.receive(batch()) is c.NOTHING


def test_a_copy_that_contradicts_the_leader_starts_over(drive: Drive) -> None:
    """It was a replica once, and nobody relies on what it had."""
    driver = drive(90, **LOG)
    driver.assign(2, epoch=5, replicas=(2, 3), isr=(2, 3), adding=(1,))
    driver.written(synced=True)
    ready = driver.answer_epoch(4, 60, leader_epoch=5, start=10)
    assert ready.truncate_to == 0
    assert stored(ready).log_start_offset == 10
    driver.do(c.Truncated(c.RecoveredLog(log_end_offset=Offset(0), checkpoint=stored(ready))))
    driver.written(persist_id=ready.persist_id)
    driver.written()
    assert fc.SendFollowStart(TWO, LeaderEpoch(5), Offset(10), 1) in driver.ready.messages


@pytest.mark.parametrize("adding_first", [False, True])
def test_a_replica_that_contradicts_the_leader_stops(drive: Drive, adding_first: bool) -> None:
    driver = drive(90, **LOG)
    if adding_first:
        driver.assign(2, epoch=5, replicas=(2, 3), isr=(2, 3), adding=(1,))
        driver.written(synced=True)
    driver.assign(2, epoch=5, version=2)
    if not adding_first:
        driver.written(synced=True)
    assert isinstance(driver.answer_epoch(4, 60, leader_epoch=5).stopped, BrokenLogError)


def test_it_is_known_up_to_which_version_a_broker_was_to_have_the_partition(drive: Drive) -> None:
    driver = drive()
    assert driver.machine.member_version == 0
    driver.assign(2, replicas=(2, 3), isr=(2, 3))
    assert driver.machine.member_version == 0
    driver.assign(2, replicas=(2, 3), isr=(2, 3), adding=(1,), version=2)
    assert driver.machine.member_version == 2
    driver.assign(2, replicas=(1, 2), isr=(1, 2), version=3)
    assert driver.machine.member_version == 3
    driver.assign(2, replicas=(2, 3), isr=(2, 3), version=4)
    assert driver.machine.member_version == 3
