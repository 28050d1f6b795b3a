"""Roles: how one ends and the next begins, and epochs that never fall (I1)."""

from support.replica_driver import Drive, Driver, refused, stored

from penstock.core.batch import Batch, BatchHeader
from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication import contract_leader as lc
from penstock.core.types import NO_LEADER, BrokerId, LeaderEpoch
from penstock.errors import ErrorCode, NotLeaderError

TWO = BrokerId(2)
BATCH = Batch(BatchHeader(1, 0, 0, 0, 0, leader_epoch=LeaderEpoch(1)), b"")


def test_a_new_epoch_is_made_durable_when_its_role_begins(drive: Drive) -> None:
    driver = drive(5, epoch=3, epochs=((3, 0),))
    ready = driver.assign(epoch=4)
    assert ready.role_changed
    assert ready.persist_sync
    assert stored(ready).leader_epoch == 4
    assert [(one.epoch, one.start_offset) for one in stored(ready).epochs] == [(3, 0), (4, 5)]
    assert driver.marks.is_leader
    assert driver.marks.epoch_start_offset == 5
    assert driver.machine.checkpoint == ready.checkpoint


def test_the_same_epoch_is_not_stored_again(drive: Drive) -> None:
    driver = drive(5, epoch=3, epochs=((3, 0),))
    assert driver.assign(2, epoch=3).persist_id == 0


def test_an_epoch_of_a_former_life_is_not_led_again(drive: Drive) -> None:
    driver = drive(5, epoch=3, epochs=((3, 0),))
    driver.assign(epoch=3, version=7)
    assert not driver.marks.is_leader
    driver.produce()
    assert driver.outcomes() == [(1, -1, "NOT_LEADER")]
    ready = driver.do(lc.EpochQueried(TWO, LeaderEpoch(3), LeaderEpoch(3)))
    assert refused(ready).code is ErrorCode.NOT_LEADER
    driver.assign(epoch=4, version=8)
    assert driver.marks.is_leader


def test_older_words_of_the_controller_are_ignored(leader: Driver) -> None:
    leader.assign(epoch=3, version=5)
    leader.written(synced=True)
    assert leader.assign(2, epoch=2, version=6) is c.NOTHING
    assert leader.assign(epoch=3, isr=(1,), version=4) is c.NOTHING
    assert leader.marks.isr == (1, 2, 3)
    assert leader.marks.leader_epoch == 3


def test_the_next_role_waits_for_writes_in_flight(leader: Driver) -> None:
    persist_id = leader.produce(5).persist_id
    ready = leader.assign(2, epoch=2, version=2)
    assert leader.outcomes() == [(1, -1, "NOT_LEADER")]
    assert [one for one in ready.messages if isinstance(one, fc.SendEpochQuery)] == []
    assert not leader.marks.is_leader
    assert leader.do(lc.EpochQueried(TWO, LeaderEpoch(2), LeaderEpoch(1))) is c.NOTHING
    ready = leader.written(persist_id=persist_id)
    assert ready.messages[0] == fc.SendEpochQuery(TWO, LeaderEpoch(2), LeaderEpoch(1))
    assert isinstance(ready.messages[1], lc.SendRefusal), "it asked the wrong broker"


def test_a_failed_write_lets_the_next_role_begin_too(follower: Driver) -> None:
    follower.receive(BATCH)
    persist_id = follower.ready.persist_id
    follower.assign(1, epoch=2, version=2)
    assert not follower.marks.is_leader
    follower.failed(persist_id)
    assert follower.marks.is_leader
    assert follower.marks.epoch_start_offset == 0


def test_the_newest_word_counts_when_a_role_begins_late(leader: Driver) -> None:
    persist_id = leader.produce(5).persist_id
    leader.assign(2, epoch=2, version=2)
    leader.assign(3, epoch=3, version=3)
    leader.assign(3, epoch=3, isr=(3,), version=4)
    ready = leader.written(persist_id=persist_id)
    assert ready.messages[0] == fc.SendEpochQuery(BrokerId(3), LeaderEpoch(3), LeaderEpoch(1))
    assert leader.marks.isr == (3,)


def test_an_old_leader_follows_without_the_epoch_in_which_it_wrote_nothing(drive: Drive) -> None:
    driver = drive(5, epoch=3, epochs=((3, 0),))
    driver.assign(epoch=4)
    driver.written(synced=True)
    ready = driver.assign(2, epoch=5, version=2)
    queries = [one for one in ready.messages if isinstance(one, fc.SendEpochQuery)]
    assert queries == [fc.SendEpochQuery(TWO, LeaderEpoch(5), LeaderEpoch(3))]


def test_without_a_leader_the_replica_waits(follower: Driver) -> None:
    ready = follower.assign(-1, epoch=2, version=2)
    assert ready.messages == (fc.SendFollowStop(TWO),)
    assert ready.role_changed
    follower.produce()
    error = follower.ready.replies[0].error
    assert isinstance(error, NotLeaderError)
    assert error.leader is not None
    assert error.leader.broker_id == NO_LEADER


def test_a_replica_that_is_moved_away_stops_and_may_come_back(follower: Driver) -> None:
    ready = follower.assign(2, replicas=(2, 3), isr=(2, 3), version=2)
    assert ready.messages == (fc.SendFollowStop(TWO),)
    assert follower.receive(BATCH) is c.NOTHING
    ready = follower.assign(2, version=3)
    assert ready.messages == (fc.SendEpochQuery(TWO, LeaderEpoch(1), LeaderEpoch(-1)),)
