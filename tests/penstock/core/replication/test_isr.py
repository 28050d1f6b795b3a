"""Who is in sync: growing, shrinking, and what is done about answers that do not come (I5)."""

from dataclasses import replace
from typing import Any

from support.replica_driver import Drive, Driver, proposed

from penstock.core.replication import contract as c
from penstock.core.replication import contract_leader as lc
from penstock.core.types import Acks, BrokerId, LeaderEpoch, Offset, PartitionState
from penstock.core.types import Sync as Durability
from penstock.errors import ClusterError, ErrorCode

TWO, THREE = BrokerId(2), BrokerId(3)


def committed(leader: Driver, count: int) -> None:
    """So many records are written, acknowledged by 2 and 3."""
    leader.produce(count)
    leader.written()
    leader.ack(2, leader.marks.written_end)
    leader.ack(3, leader.marks.written_end)


def without_three(leader: Driver) -> None:
    """3 went, was taken out of the ISR (version 2), and is back; 5 records are committed."""
    leader.do(c.PeerLost(THREE))
    leader.assign(isr=(1, 2), version=2)
    leader.produce(5)
    leader.written(synced=True)
    leader.ack(2, 5)
    assert leader.marks.high_watermark == 5
    assert leader.follow(3, 0).isr_change is None


def test_a_follower_joins_when_it_has_reached_the_high_watermark(leader: Driver) -> None:
    without_three(leader)
    assert leader.ack(3, 4).isr_change is None
    ready = leader.ack(3, 5)
    assert ready.isr_change == lc.IsrProposal(LeaderEpoch(1), 2, (BrokerId(1), TWO, THREE))


def test_a_follower_joins_only_past_the_start_of_the_epoch(drive: Drive) -> None:
    driver = drive(10, epoch=1, epochs=((1, 0),), high_watermark=4)
    driver.assign(epoch=2, isr=(1, 2), version=3)
    driver.written(synced=True)
    assert driver.marks.epoch_start_offset == 10
    assert driver.follow(3, 9, epoch=2).isr_change is None
    assert driver.ack(3, 10, epoch=2).isr_change is not None


def test_a_follower_that_has_not_synced_enough_is_asked_to_before_it_joins(leader: Driver) -> None:
    leader.do(c.PeerLost(THREE))
    leader.assign(isr=(1, 2), version=2)
    leader.produce(5, sync=Durability.DISK)
    leader.written(synced=True)
    leader.ack(2, 5)
    assert leader.outcomes() == [(1, 0, "ok")]
    assert leader.follow(3, 5, synced=0).isr_change is None
    assert leader.marks.sync_through == 5
    assert leader.ack(3, 5, synced=5).isr_change is not None
    assert leader.marks.sync_through == 0


def test_while_a_change_is_in_flight_the_joining_follower_counts(leader: Driver) -> None:
    without_three(leader)
    leader.ack(3, 5)
    leader.produce(5)
    leader.written()
    leader.ack(2, 10)
    assert leader.marks.high_watermark == 5
    leader.ack(3, 10)
    assert leader.marks.high_watermark == 10
    leader.answer_isr((1, 2, 3), version=3)
    assert leader.marks.isr == (1, 2, 3)
    assert not leader.machine.wants_tick


def test_a_refused_change_is_forgotten_and_tried_again_later(leader: Driver) -> None:
    without_three(leader)
    leader.ack(3, 5)
    leader.do(
        lc.IsrAnswered(_state(leader, (1, 2), 2), ClusterError("no", ErrorCode.INELIGIBLE_REPLICA))
    )
    leader.produce(5)
    leader.written()
    leader.ack(2, 10)
    assert leader.marks.high_watermark == 10, "3 was never in"
    leader.ack(3, 10)
    assert leader.ready.isr_change is None
    assert leader.machine.wants_tick
    leader.now_ms += 500
    assert leader.do(c.Tick()).isr_change is not None


def _state(driver: Driver, isr: tuple[int, ...], version: int) -> Any:

    members = tuple(BrokerId(member) for member in isr)
    return PartitionState(
        leader=driver.marks.leader,
        leader_epoch=driver.marks.leader_epoch,
        isr=members,
        replicas=(BrokerId(1), TWO, THREE),
        version=version,
    )


def test_after_a_lost_answer_the_union_counts_until_the_version_moves(leader: Driver) -> None:
    without_three(leader)
    leader.ack(3, 5)
    leader.do(lc.IsrAnswered(None))
    leader.do(c.PeerLost(THREE))
    leader.produce(5)
    leader.written()
    leader.ack(2, 10)
    assert leader.marks.high_watermark == 5, "3 may be in the ISR"
    leader.now_ms += 500
    ready = leader.do(c.Tick())
    assert proposed(ready) == (1, 2), "a new version is wanted, whatever it says"
    leader.do(lc.IsrAnswered(_state(leader, (1, 2), 2), ClusterError("no", ErrorCode.INTERNAL)))
    assert leader.marks.high_watermark == 5, "the lost proposal may pass yet"
    leader.now_ms += 500
    leader.do(c.Tick())
    leader.answer_isr((1, 2), version=3)
    assert leader.marks.high_watermark == 10


def test_an_answer_older_than_what_is_known_decides_nothing(leader: Driver) -> None:
    without_three(leader)
    leader.ack(3, 5)
    leader.do(lc.IsrAnswered(_state(leader, (1, 2, 3), 1)))
    leader.produce(5)
    leader.written()
    leader.ack(2, 10)
    assert leader.marks.high_watermark == 5


def test_an_image_may_decide_before_the_answer_comes(leader: Driver) -> None:
    without_three(leader)
    leader.ack(3, 5)
    leader.assign(isr=(1, 2, 3), version=3)
    leader.do(lc.IsrAnswered(None))
    assert not leader.machine.wants_tick
    assert leader.marks.isr == (1, 2, 3)


def test_a_follower_that_lags_too_long_leaves_the_isr(leader: Driver) -> None:
    leader.produce(5, timeout_ms=60_000)
    leader.written()
    leader.ack(2, 5)
    leader.now_ms += 10_000
    assert leader.do(c.Tick()).isr_change is None
    leader.now_ms += 1
    ready = leader.do(c.Tick())
    assert proposed(ready) == (1, 2)
    assert leader.marks.high_watermark == 0, "3 counts until the change is known to be stored"
    leader.answer_isr((1, 2), version=2)
    assert leader.marks.high_watermark == 5
    assert leader.outcomes() == [(1, 0, "ok")]


def test_lag_begins_with_the_record_that_is_missing_not_with_the_last_ack(leader: Driver) -> None:
    committed(leader, 5)
    leader.now_ms += 1_000_000
    leader.produce(5)
    leader.written()
    assert leader.do(c.Tick()).isr_change is None
    leader.now_ms += 10_001
    assert leader.do(c.Tick()).isr_change is not None


def test_a_follower_that_keeps_up_with_a_delay_does_not_lag(leader: Driver) -> None:
    for step in range(1, 40):
        leader.now_ms += 1_000
        leader.produce(1, timeout_ms=1)
        leader.written()
        leader.ack(2, step)
        leader.ack(3, max(0, step - 3))
        assert leader.ready.isr_change is None
        assert leader.do(c.Tick()).isr_change is None


def test_a_follower_that_never_comes_leaves_the_isr_of_a_new_leader(drive: Drive) -> None:
    driver = drive(10, epoch=1, epochs=((1, 0),), high_watermark=4)
    driver.assign(epoch=2, version=3)
    driver.written(synced=True)
    driver.follow(2, 10, epoch=2)
    assert driver.marks.high_watermark == 4
    assert driver.machine.wants_tick
    driver.now_ms += 10_001
    assert proposed(driver.do(c.Tick())) == (1, 2)


def test_a_lost_follower_keeps_its_seat_for_a_while_though_nothing_is_written(
    leader: Driver,
) -> None:
    committed(leader, 5)
    assert not leader.machine.wants_tick
    leader.do(c.PeerLost(THREE))
    assert leader.machine.wants_tick
    leader.now_ms += 10_001
    assert leader.do(c.Tick()).isr_change.isr == (1, 2)


def test_only_one_change_is_in_flight_over_all_leaderships(leader: Driver) -> None:
    without_three(leader)
    assert leader.ack(3, 5).isr_change is not None
    leader.assign(2, epoch=2, version=3)
    leader.written(synced=True)
    leader.assign(1, epoch=3, isr=(1, 2), version=4)
    leader.written(synced=True)
    leader.follow(2, 5, epoch=3)
    assert leader.follow(3, 5, epoch=3).isr_change is None
    assert leader.do(lc.IsrAnswered(None)).isr_change is not None, "the old answer was due"


def test_an_answer_may_tell_of_another_leadership(leader: Driver) -> None:
    without_three(leader)
    leader.ack(3, 5)
    state = _state(leader, (2, 3), 9)
    elsewhere = replace(state, leader=TWO, leader_epoch=LeaderEpoch(5), version=9)
    ready = leader.do(lc.IsrAnswered(elsewhere))
    assert ready.role_changed
    assert not leader.marks.is_leader


def test_replicas_that_come_and_go_are_taken_over(leader: Driver) -> None:
    committed(leader, 5)
    leader.assign(isr=(1, 2), replicas=(1, 2, 4), version=2)
    assert leader.ack(3, 5) is c.NOTHING, "3 is no replica any more"
    leader.do(lc.FollowStarted(BrokerId(4), LeaderEpoch(1), Offset(0)))
    assert proposed(leader.ack(4, 5)) == (1, 2, 4)


def test_a_follower_that_is_no_replica_any_more_is_not_fed_on(leader: Driver) -> None:
    leader.do(c.PeerLost(TWO))
    ready = leader.assign(isr=(1, 4), replicas=(1, 4), version=2)
    assert ready.feeds == (lc.Feed(THREE, LeaderEpoch(1), None),), "2 was not fed"


def test_an_isr_member_that_is_no_replica_holds_everything_up(leader: Driver) -> None:
    leader.assign(isr=(1, 2, 3), replicas=(1, 2), version=2)
    leader.produce(5)
    leader.written()
    leader.ack(2, 5)
    assert leader.marks.high_watermark == 0


def test_a_smaller_minimum_commits_what_waited(leader: Driver) -> None:
    leader.do(c.PeerLost(TWO))
    leader.do(c.PeerLost(THREE))
    leader.assign(isr=(1,), version=2)
    leader.produce(5, acks=Acks.LEADER)
    leader.written()
    assert leader.marks.high_watermark == 0
    leader.assign(isr=(1,), version=2, min_isr=1)
    assert leader.marks.high_watermark == 5
