"""Cordons: no new replicas on a broker, or no leaderships; for one data directory, and durably."""

from typing import Any

import pytest
from support.controller_world import World
from support.moving import cancel, copying, document, ids, move, moving_world, refused

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control.documents import Cordon
from penstock.core.types import BrokerId, MoveReason, TopicPartition
from penstock.errors import ErrorCode


def cordon(world: World, broker_id: int, **fields: Any) -> object:
    one = m.BrokerChange(**{"broker_id": BrokerId(broker_id), **fields})
    return world.ask(m.AlterBrokers, changes=(one,))


def cordons(world: World) -> dict[int, Cordon]:
    return {int(key): one for key, one in world.cluster().cordons.items()}


def test_a_cordon_is_stored_and_lifted_again() -> None:
    world = moving_world()
    assert cordon(world, 3, placement=True, why="disk", by="ana") == c.Done()
    expected = Cordon(directory_id="dir-3", placement=True, leadership=False, why="disk", by="ana")
    assert cordons(world) == {3: expected}
    writes = world.writes
    cordon(world, 3, placement=True, why="disk", by="ana")
    assert world.writes == writes
    cordon(world, 3, leadership=True)
    assert cordons(world)[3].placement is False
    expected = cordons(world)[3]
    assert cordons(World(world.documents).start()) == {3: expected}
    world = World(world.documents).start()
    assert cordon(world, 3) == c.Done()
    assert cordons(world) == {}
    writes = world.writes
    assert cordon(world, 3) == c.Done()
    assert world.writes == writes


def test_a_broker_that_has_got_its_share_is_no_longer_fresh() -> None:
    world = moving_world()
    assert world.cluster().brokers[BrokerId(3)].fresh
    assert cordon(world, 3, spread=True) == c.Done()
    assert not world.cluster().brokers[BrokerId(3)].fresh
    assert world.cluster().brokers[BrokerId(4)].fresh


def fresh(world: World) -> set[int]:
    return {int(key) for key, one in world.cluster().brokers.items() if one.fresh}


def test_a_spread_that_is_cancelled_is_not_wanted_again() -> None:
    world = moving_world()
    before = fresh(world)
    assert {3, 4} <= before
    copying(world, 0, 1, 3, why=MoveReason.SPREAD)
    assert cancel(world).error is None
    assert fresh(world) == before - {3}
    restarted = World(world.documents).start()
    assert fresh(restarted) == before - {3}


def test_other_moves_that_are_cancelled_leave_a_broker_fresh() -> None:
    world = moving_world()
    before = fresh(world)
    copying(world, 0, 1, 3, why=MoveReason.MANUAL)
    assert cancel(world).error is None
    assert fresh(world) == before


@pytest.mark.parametrize(
    ("fields", "mention"),
    [
        ({"broker_id": BrokerId(9)}, "broker 9 is not registered"),
        ({"directory_id": "other"}, "data directory dir-3"),
        ({"why": "x" * 257}, "257 characters"),
        ({"by": "a\nb"}, "printable"),
    ],
)
def test_a_change_that_cannot_be_changes_nothing(fields: dict[str, Any], mention: str) -> None:
    world = moving_world()
    good = m.BrokerChange(broker_id=BrokerId(1), placement=True)
    bad = m.BrokerChange(**{"broker_id": BrokerId(3), "placement": True, **fields})
    outcome = world.ask(m.AlterBrokers, changes=(good, bad))
    assert mention in refused(outcome, ErrorCode.INVALID_REQUEST)
    assert cordons(world) == {}
    assert world.ask(m.AlterBrokers, changes=(good,), validate_only=True) == c.Done()
    assert cordons(world) == {}


def test_no_broker_is_cordoned_before_the_cluster_is_finalized() -> None:
    world = moving_world()
    world.ask(m.Finalize, to=1)
    refused(cordon(world, 3, placement=True), ErrorCode.FORMAT_TOO_OLD)


def test_a_cordon_goes_with_its_directory_and_with_its_broker() -> None:
    world = moving_world()
    cordon(world, 3, placement=True)
    cordon(world, 4, placement=True)
    world.kill(3)
    world.register(3, run=2)
    assert set(cordons(world)) == {3, 4}
    world.kill(3)
    world.register(3, run=3, directory_id="another")
    assert set(cordons(world)) == {4}
    world.kill(4)
    assert world.ask(c.UnregisterBroker, broker_id=BrokerId(4)) == c.Done()
    assert cordons(world) == {}


# ---------------------------------------------------------------- placement


def test_nothing_new_is_placed_on_a_cordoned_broker() -> None:
    world = moving_world(brokers=4)
    cordon(world, 3, placement=True)
    assert world.create("u", partitions=8, replication_factor=3).error is None
    world.ask(c.CreatePartitions, topic="u", partitions=12)
    used = {one for found in world.topic("u").partitions for one in found.state.replicas}
    assert used == {0, 1, 2}
    message = refused(
        world.create("v", partitions=1, replication_factor=4).error,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    )
    assert "(cordoned: 3)" in message
    outcome = world.create("v", assignment=(ids(0, 3),))
    assert "cordoned brokers 3" in refused(outcome.error, ErrorCode.INVALID_REPLICATION_FACTOR)
    cordon(world, 3, leadership=True)
    assert world.create("v", assignment=(ids(0, 3),)).error is None


def test_no_move_goes_to_a_cordoned_broker_but_those_that_are_there_may_stay() -> None:
    world = moving_world()
    cordon(world, 1, placement=True)
    cordon(world, 3, placement=True)
    message = refused(move(world, 3, 1, 2).error, ErrorCode.INVALID_REQUEST)
    assert "on 3, which are cordoned" in message
    assert move(world, 4, 1, 2).error is None


def test_more_partitions_follow_the_factor_that_a_move_leads_to() -> None:
    world = moving_world(replicas=(0, 1))
    copying(world, 0, 1, 2, change_factor=True)
    assert world.ask(c.CreatePartitions, topic="t", partitions=3) == c.Done()
    sizes = [len(found.state.replicas) for found in world.topic().partitions]
    assert sizes == [2, 3, 3]


def test_a_new_replica_goes_where_moves_leave_the_fewest() -> None:
    world = moving_world(brokers=4, replicas=(0, 1))
    copying(world, 2, 3)
    assert world.create("u", partitions=1, replication_factor=2).error is None
    assert set(world.topic("u").partitions[0].state.replicas) == {0, 1}


# ---------------------------------------------------------------- leadership


def test_leaderships_move_off_a_broker_that_shall_not_lead_and_come_back_afterwards() -> None:
    world = moving_world()
    cordon(world, 0, leadership=True)
    world.pass_time(11_000)
    assert document(world).state.leader == 1
    world.pass_time(11_000)
    assert document(world).state.leader == 1
    cordon(world, 0)
    world.pass_time(11_000)
    assert document(world).state.leader == 0


def test_a_broker_that_shall_not_lead_leads_what_nobody_else_can() -> None:
    world = moving_world()
    cordon(world, 1, leadership=True)
    world.kill(0)
    assert document(world).state.leader == 2
    world.kill(2)
    assert document(world).state.leader == 1
    world.pass_time(11_000)
    assert document(world).state.leader == 1


def test_if_nobody_may_lead_leaderships_stay_where_they_are() -> None:
    world = moving_world()
    for broker_id in (0, 1, 2):
        cordon(world, broker_id, leadership=True)
    world.pass_time(11_000)
    assert document(world).state.leader == 0


def test_leaders_that_are_moved_away_go_to_brokers_that_shall_lead() -> None:
    world = moving_world()
    cordon(world, 1, leadership=True)
    outcome = world.ask(c.ElectLeaders, away_from=BrokerId(0))
    assert outcome == c.LeadersMoved(1)
    assert document(world).state.leader == 2
    cordon(world, 0, leadership=True)
    cordon(world, 2, leadership=True)
    assert world.ask(c.ElectLeaders, away_from=BrokerId(2)) == c.LeadersMoved(1)
    assert document(world).state.leader == 0, "all are cordoned, and one has to"
    assert world.ask(c.ElectLeaders, partitions=(TopicPartition("t", 0),)) == c.LeadersMoved(0)


def test_a_switch_prefers_a_leader_that_shall_lead() -> None:
    world = moving_world()
    cordon(world, 1, leadership=True)
    copying(world, 1, 2, 3)
    world.alter_isr(0, (0, 1, 2, 3))
    assert document(world).state.leader == 2
