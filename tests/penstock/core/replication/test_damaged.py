"""A log with a batch that cannot be read: it leads until another does, and never follows (I33)."""

from dataclasses import replace

from support.replica_driver import TWO, Driver, batch, refused

from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication import contract_leader as lc
from penstock.core.replication.follower import UnreadableLogError
from penstock.core.types import BrokerId, LeaderEpoch, PartitionState
from penstock.errors import TRAITS, Applied, ClusterError, CurrentLeader, ErrorCode, NotLeaderError

THREE = BrokerId(3)
DAMAGE = c.LogDamaged(ClusterError("offset 7 has a wrong CRC", ErrorCode.DATA_CORRUPTED))

UNOPENED = c.LogDamaged(ClusterError("the index is damaged"), unopened=True)


def test_a_damaged_leader_goes_on_until_another_leads(leader: Driver) -> None:
    assert leader.do(DAMAGE) is c.NOTHING
    leader.produce()
    leader.written()
    leader.ack(2, 1)
    leader.ack(3, 1)
    assert leader.outcomes() == [(1, 0, "ok")], "nobody else may lead"
    leader.do(c.LogDamaged(ClusterError("another one")))
    ready = leader.assign(2, epoch=2, version=2)
    assert isinstance(ready.stopped, UnreadableLogError)
    assert "offset 7 has a wrong CRC" in str(ready.stopped)


def test_clients_of_a_damaged_leader_are_sent_to_the_next_one(leader: Driver) -> None:
    """Those that wait, and those that come later: the cluster heals without them."""
    leader.produce()
    leader.written()
    leader.do(DAMAGE)
    leader.assign(2, epoch=2, version=2)
    assert leader.outcomes() == [(1, -1, "NOT_LEADER")]
    leader.produce()
    (reply,) = leader.ready.replies
    assert isinstance(reply.error, NotLeaderError)
    assert reply.error.leader == CurrentLeader(2, 2)
    assert "offset 7 has a wrong CRC" in str(reply.error), "why it stopped"
    leader.assign(3, epoch=3, version=3)
    assert isinstance(leader.machine.client_error, NotLeaderError)
    assert leader.machine.client_error.leader == CurrentLeader(3, 3), "it hears who leads"


def test_clients_ask_again_while_somebody_sound_can_take_over(leader: Driver) -> None:
    leader.produce()
    leader.written()
    leader.do(UNOPENED)
    assert leader.outcomes() == [(1, -1, "STORAGE_FAILED")]
    assert TRAITS[ErrorCode.STORAGE_FAILED].retriable
    assert TRAITS[ErrorCode.STORAGE_FAILED].applied is not Applied.NO, "it may have the batch"
    leader.assign(-1, epoch=2, version=2)
    leader.produce()
    assert leader.outcomes() == [(2, -1, "NOT_LEADER")], "nobody leads, as in any other failure"


def test_clients_ask_again_until_all_replicas_are_known_as_damaged(leader: Driver) -> None:
    """The controller does not know it yet; and who is down may come back with the log."""
    state = PartitionState(
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(1),
        isr=(BrokerId(1), TWO),
        replicas=(BrokerId(1), TWO, THREE),
        version=2,
        damaged=(TWO, THREE),
    )
    leader.do(c.Assigned(state, c.ReplicaConfig()))
    leader.do(UNOPENED)
    leader.produce()
    assert leader.outcomes() == [(1, -1, "STORAGE_FAILED")]
    known = replace(state, damaged=(BrokerId(1), TWO, THREE), version=3)
    leader.do(c.Assigned(known, c.ReplicaConfig()))
    leader.produce()
    assert leader.outcomes() == [(2, -1, "DATA_CORRUPTED")]


def test_a_damaged_replica_without_a_leader_may_be_the_next_one(leader: Driver) -> None:
    leader.assign(-1, epoch=2, version=2)
    leader.written(synced=True)
    assert leader.do(DAMAGE) is c.NOTHING
    leader.assign(1, epoch=3, version=3)
    leader.written(synced=True)
    assert leader.marks.is_leader


def test_a_damaged_follower_stops_at_once(follower: Driver) -> None:
    follower.receive(batch(3))
    follower.written()
    ready = follower.do(DAMAGE)
    assert isinstance(ready.stopped, UnreadableLogError)
    assert ready.messages == (fc.SendFollowStop(TWO),)
    error = refused(follower.do(lc.EpochQueried(THREE, LeaderEpoch(1), LeaderEpoch(-1))))
    assert error.code is ErrorCode.DATA_CORRUPTED


def test_who_is_known_to_be_damaged_does_not_enter_the_isr(leader: Driver) -> None:
    leader.do(c.PeerLost(THREE))
    state = PartitionState(
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(1),
        isr=(BrokerId(1), TWO),
        replicas=(BrokerId(1), TWO, THREE),
        version=2,
        damaged=(THREE,),
    )
    leader.do(c.Assigned(state, c.ReplicaConfig()))
    assert leader.follow(3, 0).isr_change is None
    leader.do(c.Assigned(replace(state, version=3, damaged=()), c.ReplicaConfig()))
    assert leader.ready.isr_change is not None


def test_a_mended_leader_may_follow_again(leader: Driver) -> None:
    leader.do(DAMAGE)
    assert leader.do(c.LogMended()) is c.NOTHING
    assert leader.assign(2, epoch=2, version=2).stopped is None
    assert leader.machine.error is None


def test_a_log_that_could_not_be_opened_stops_whoever_it_is_of(leader: Driver) -> None:
    ready = leader.do(UNOPENED)
    assert isinstance(ready.stopped, UnreadableLogError)
