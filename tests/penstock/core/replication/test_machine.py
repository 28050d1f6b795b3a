"""What a shell may see of a replica: before it has a role, marks, ticks, classes of traffic."""

from support.replica_driver import Drive, Driver

from penstock.core.replication import contract as c
from penstock.core.replication import contract_follower as fc
from penstock.core.replication import contract_leader as lc
from penstock.core.replication.traffic import Traffic
from penstock.core.types import NO_LEADER, BrokerId, LeaderEpoch, Offset, PartitionState

TWO = BrokerId(2)


def test_before_the_controller_speaks_nobody_leads(drive: Drive) -> None:
    driver = drive(5, epoch=3, high_watermark=4)
    marks = driver.marks
    assert (marks.is_leader, marks.leader, marks.leader_epoch) == (False, NO_LEADER, 3)
    assert marks is driver.marks, "the same object until something was handled"
    driver.produce()
    assert driver.outcomes() == [(1, -1, "LEADER_NOT_AVAILABLE")]
    for event in (
        c.Tick(),
        c.PeerLost(TWO),
        fc.PeerConnected(TWO),
        lc.IsrAnswered(None),
        lc.LogStartMoved(Offset(3)),
        lc.FollowerAcked(TWO, LeaderEpoch(3), Offset(5), Offset(5)),
    ):
        assert driver.do(event) is c.NOTHING
    assert not driver.machine.wants_tick


def test_a_log_found_shorter_than_its_checkpoint_says_is_believed_in_the_safe_way(
    drive: Drive,
) -> None:
    driver = drive(5, epoch=3, high_watermark=9, epochs=((1, 0), (3, 7)))
    assert driver.marks.high_watermark == 5
    assert driver.machine.checkpoint.epochs == (c.EpochStart(LeaderEpoch(1), Offset(0)),)
    emptied = drive(0, epoch=3, start=40, high_watermark=40)
    assert emptied.marks.log_end_offset == 40


def test_idle_partitions_in_sync_want_no_ticks(leader: Driver, follower: Driver) -> None:
    assert not leader.machine.wants_tick
    assert not follower.machine.wants_tick


def assigned(leader: int, isr: tuple[int, ...], *, version: int) -> c.Assigned:
    """Epoch 1, replicas 1, 2 and 3; 4 copies."""
    state = PartitionState(
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(1),
        isr=tuple(map(BrokerId, isr)),
        replicas=tuple(map(BrokerId, (1, 2, 3))),
        version=version,
        adding=(BrokerId(4),),
    )
    return c.Assigned(state, c.ReplicaConfig())


def test_traffic_is_live_for_those_whom_the_high_watermark_waits_for(leader: Driver) -> None:
    machine = leader.machine
    assert machine.traffic_to(TWO) is Traffic.LIVE
    leader.do(c.PeerLost(TWO))
    leader.do(assigned(1, (1, 3), version=2))
    assert machine.traffic_to(TWO) is Traffic.CATCH_UP
    assert machine.traffic_to(BrokerId(4)) is Traffic.COPY
    assert machine.traffic_to(BrokerId(5)) is Traffic.CATCH_UP, "not a replica: nothing waits"
    leader.follow(2, 0)
    assert machine.traffic_to(TWO) is Traffic.LIVE, "proposed: it counts already"


def test_a_follower_knows_its_own_class_and_others(drive: Drive) -> None:
    driver, one = drive(), BrokerId(1)
    assert driver.machine.traffic_to(one) is Traffic.CATCH_UP, "nothing is known yet"
    driver.assign(2)
    assert driver.machine.traffic_to(one) is Traffic.LIVE
    driver.do(assigned(2, (2, 3), version=2))
    assert driver.machine.traffic_to(one) is Traffic.CATCH_UP
    assert driver.machine.traffic_to(BrokerId(4)) is Traffic.COPY
