"""Replicas move under load while processes that take part are killed: nothing is lost, no client
notices, and every move ends or is taken back without a trace.

Copies are throttled to less than what is written, so that a move takes some seconds (I31: the
throttle counts the backlog only, so it ends nevertheless).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from support.cluster import PATIENT, Cluster
from support.load import Load, assert_nothing_noticed
from support.waiting import wait_until

from penstock.client import (
    Admin,
    MoveDescription,
    MoveState,
    PartitionDescription,
    ReplicaMove,
    TopicPartition,
)
from penstock.errors import UnreachableError

BROKERS = 4
COPY_BYTES_PER_SECOND = "200000"
"""About what the load writes per second, of which each broker gets three quarters."""


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One more broker than replicas, so that each partition can go somewhere."""
    with Cluster(
        tmp_path_factory.mktemp("cluster"),
        brokers=BROKERS,
        controller_config=PATIENT,
        broker_config={"replica.copy.bytes.per.second": COPY_BYTES_PER_SECOND},
    ) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as admin:
        yield admin


def partitions(admin: Admin, topic: str) -> Sequence[PartitionDescription]:
    return admin.describe_topics([topic])[topic].partitions


def outside(partition: PartitionDescription) -> int:
    """The broker that has no replica of it."""
    return next(broker for broker in range(BROKERS) if broker not in partition.replicas)


def begin(admin: Admin, topic: str) -> dict[int, tuple[PartitionDescription, int, int]]:
    """Each partition replaces its leader's successor, or with every other one its leader, by the
    broker outside. By partition: what it was, who leaves, who joins."""
    found = {}
    moves = []
    for partition in partitions(admin, topic):
        leaving = partition.replicas[partition.partition % 2]
        joining = outside(partition)
        target = tuple(joining if one == leaving else one for one in partition.replicas)
        where = TopicPartition(topic, partition.partition)
        moves.append(ReplicaMove(where, target=target, expected=partition.replicas))
        found[partition.partition] = partition, leaving, joining
    assert [one.error for one in admin.alter_replicas(moves)] == [None] * len(moves)
    return found


def open_moves(admin: Admin, topic: str) -> dict[int, MoveDescription]:
    return {one.where.partition: one for one in admin.describe_moves([topic]).moves}


def wait_copying(admin: Admin, topic: str) -> int:
    """A partition that is copied now."""

    def copied() -> list[int]:
        moves = open_moves(admin, topic)
        return [at for at, one in moves.items() if one.state is MoveState.COPYING]

    return wait_until(copied, what="a partition is copied")[0]


def wait_replicas(
    admin: Admin, topic: str, fits: Callable[[PartitionDescription], bool], what: str
) -> None:
    """Brokers learn what the controller has decided a moment later than who asks it."""
    wait_until(lambda: all(fits(one) for one in partitions(admin, topic)), what=what)


def wait_ended(admin: Admin, topic: str) -> None:
    """Until every move has ended, and what is left of it is deleted."""
    wait_until(lambda: not open_moves(admin, topic), what="all moves have ended", timeout_s=120)


def assert_kept_where_described(cluster: Cluster, admin: Admin, topic: str) -> None:
    """Brokers store the replicas that the metadata names, and nothing else of the topic."""
    wanted = {
        (broker, partition.partition)
        for partition in partitions(admin, topic)
        for broker in partition.replicas
    }

    def kept() -> bool:
        try:
            found = admin.describe_logs()
        except UnreachableError:
            return False  # the address that a broker had before it was killed
        stored = {
            (one.broker_id, log.partition)
            for one in found
            for log in one.logs
            if log.topic == topic
        }
        return stored == wanted and [one.orphans for one in found] == [()] * BROKERS

    wait_until(kept, what="brokers store what the metadata names")


@pytest.mark.parametrize("who", ["leader", "joining", "leaving", "controller"])
def test_partitions_move_while_a_process_that_takes_part_is_killed(
    cluster: Cluster, admin: Admin, load: Load, who: str
) -> None:
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    began = begin(admin, topic)
    before, leaving, joining = began[wait_copying(admin, topic)]
    victims: dict[str, Any] = {
        "leader": cluster.brokers[before.leader],
        "leaving": cluster.brokers[leaving],
        "joining": cluster.brokers[joining],
        "controller": cluster.controller,
    }
    victims[who].kill()
    victims[who].start(wait=False)
    victims[who].wait_serving()
    cluster.wait_controller()
    wait_ended(admin, topic)

    def has_moved(partition: PartitionDescription) -> bool:
        _, left, joined = began[partition.partition]
        return joined in partition.replicas and left not in partition.replicas

    wait_replicas(admin, topic, has_moved, "all have moved")
    cluster.wait_in_sync(topic)
    load.wait_writing()
    assert_kept_where_described(cluster, admin, topic)
    assert_nothing_noticed(load.judge())


def test_cancelled_moves_leave_the_replicas_as_they_were(
    cluster: Cluster, admin: Admin, load: Load
) -> None:
    """Some have ended by then: these stay, and the answer says so."""
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    admin.alter_throttle(1)  # not all can have ended, however long the test stands still
    began = begin(admin, topic)
    wait_copying(admin, topic)
    moves = [ReplicaMove(TopicPartition(topic, at)) for at in began]
    outcomes = {one.where.partition: one for one in admin.alter_replicas(moves)}
    admin.alter_throttle(None)
    wait_ended(admin, topic)
    cancelled = {at for at, one in outcomes.items() if one.error is None}
    assert cancelled

    def is_as_told(partition: PartitionDescription) -> bool:
        before, _, joined = began[partition.partition]
        if partition.partition in cancelled:
            return partition.replicas == before.replicas
        return joined in partition.replicas

    wait_replicas(admin, topic, is_as_told, "cancelled moves have left no trace")
    cluster.wait_in_sync(topic)
    assert_kept_where_described(cluster, admin, topic)
    assert_nothing_noticed(load.judge())


def test_a_dead_broker_is_drained_and_what_it_still_stores_goes_when_it_is_back(
    cluster: Cluster, admin: Admin, load: Load
) -> None:
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    cluster.brokers[0].kill()
    load.wait_writing()
    moves = [
        ReplicaMove(
            TopicPartition(topic, one.partition),
            target=tuple(outside(one) if at == 0 else at for at in one.replicas),
            expected=one.replicas,
        )
        for one in partitions(admin, topic)
        if 0 in one.replicas
    ]
    assert moves
    assert {one.error for one in admin.alter_replicas(moves)} == {None}

    def only_dropping() -> bool:
        found = open_moves(admin, topic).values()
        return all(one.state is MoveState.SETTLED for one in found)

    wait_until(only_dropping, what="others have its replicas", timeout_s=120)
    wait_replicas(admin, topic, lambda one: 0 not in one.replicas, "broker 0 has no replica")
    assert {one.dropping for one in open_moves(admin, topic).values()} == {(0,)}
    cluster.brokers[0].start(wait=False)
    cluster.brokers[0].wait_serving()
    wait_ended(admin, topic)
    assert_kept_where_described(cluster, admin, topic)
    assert_nothing_noticed(load.judge())
