"""Replicas move under load while processes that take part are killed: nothing is lost, no client
notices, and every move ends or is taken back without a trace.

Copies are throttled to less than what is written, so that a move takes some seconds (I31: the
throttle counts the backlog only, so it ends nevertheless).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from support.cluster import PATIENT, Cluster
from support.load import Load, MakeLoad, assert_nothing_noticed
from support.waiting import wait_until

from penstock.client import (
    Admin,
    MoveDescription,
    MoveState,
    PartitionDescription,
    ReplicaMove,
    TopicPartition,
)
from penstock.errors import ErrorCode, UnreachableError

BROKERS = 4
COPY_BYTES_PER_SECOND = "200000"
"""About what the load writes per second, of which each broker gets three quarters."""
RECORDS_TO_COPY = 1_500
"""Of each partition: about a second's copy."""
ROUNDS = 20
"""A move may be quicker than who cancels it: in one round of three it is."""


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


Began = dict[int, tuple[PartitionDescription, int, int]]


def begin(admin: Admin, topic: str) -> Began:
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


def has_moved(began: Began, partition: PartitionDescription) -> bool:
    _, left, joined = began[partition.partition]
    return joined in partition.replicas and left not in partition.replicas


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

    wait_replicas(admin, topic, lambda one: has_moved(began, one), "all have moved")
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


def cancel_at(admin: Admin, topic: str, share: float) -> set[int]:
    """Cancels each move once so much of it is copied, and waits until all have ended: those that
    were cancelled in time."""
    sizes: dict[int, int] = {}
    asked: set[int] = set()
    cancelled: set[int] = set()

    def look() -> bool:
        moves = {at: one for at, one in open_moves(admin, topic).items() if one.target}
        for at, move in moves.items():
            left = move.bytes_left
            if left is None or at in asked or not sizes.setdefault(at, left):
                continue
            if left <= sizes[at] * (1 - share):
                asked.add(at)
                [outcome] = admin.alter_replicas([ReplicaMove(TopicPartition(topic, at))])
                assert outcome.error is None or outcome.error.code is ErrorCode.NO_MOVE
                cancelled.update({at} if outcome.error is None else ())
        return not moves

    wait_until(look, what="all moves have ended or were cancelled", timeout_s=120)
    return cancelled


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_move_that_is_cancelled_on_its_way_leaves_no_trace(
    cluster: Cluster, admin: Admin, load: Load, share: float
) -> None:
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    wait_until(
        lambda: min(load.watch.ends.values()) > RECORDS_TO_COPY, what="there is much to copy"
    )
    cancelled: set[int] = set()
    for _ in range(ROUNDS):
        began = begin(admin, topic)
        cancelled = cancel_at(admin, topic, share)
        wait_ended(admin, topic)

        def is_as_told(partition: PartitionDescription) -> bool:
            before, left, joined = began[partition.partition]  # noqa: B023 - called at once
            if partition.partition in cancelled:  # noqa: B023
                return partition.replicas == before.replicas
            return joined in partition.replicas and left not in partition.replicas

        wait_replicas(admin, topic, is_as_told, "what was cancelled stays, the rest has moved")
        if cancelled:
            break
    assert cancelled
    cluster.wait_in_sync(topic)
    assert_kept_where_described(cluster, admin, topic)
    assert_nothing_noticed(load.judge())


def test_a_move_that_is_cancelled_behind_its_switch_has_happened(
    cluster: Cluster, admin: Admin, load: Load
) -> None:
    topic = load.config.topic
    cluster.wait_in_sync(topic)
    began = begin(admin, topic)

    def switched() -> list[int]:
        moves = open_moves(admin, topic)
        return [at for at in began if at not in moves or not moves[at].target]

    at = wait_until(switched, what="a partition has moved", timeout_s=120)[0]
    [outcome] = admin.alter_replicas([ReplicaMove(TopicPartition(topic, at))])
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.NO_MOVE
    wait_ended(admin, topic)
    wait_replicas(admin, topic, lambda one: has_moved(began, one), "all have moved")
    cluster.wait_in_sync(topic)
    assert_kept_where_described(cluster, admin, topic)
    assert_nothing_noticed(load.judge())


def test_a_topic_of_one_replica_gets_three_and_then_two(
    cluster: Cluster, admin: Admin, make_load: MakeLoad
) -> None:
    """With two, every other partition has lost its leader."""
    configs = {"min.insync.replicas": "1", "retention.ms": "-1"}
    with make_load(replication_factor=1, topic_configs=configs) as load:
        topic = load.config.topic
        for factor in (3, 2):
            moves = [
                ReplicaMove(TopicPartition(topic, one.partition), target, one.replicas)
                for one in partitions(admin, topic)
                if (target := with_factor(one, factor))
            ]
            outcomes = admin.alter_replicas(moves, change_factor=True)
            assert [one.error for one in outcomes] == [None] * load.config.partitions
            wait_ended(admin, topic)
            wanted = {(one.where.partition, one.target) for one in moves}

            def has_them(partition: PartitionDescription) -> bool:
                return (partition.partition, partition.replicas) in wanted  # noqa: B023

            wait_replicas(admin, topic, has_them, f"all have {factor} replicas")
            cluster.wait_in_sync(topic)
            load.wait_writing()
        assert_kept_where_described(cluster, admin, topic)
        assert_nothing_noticed(load.judge())


def with_factor(partition: PartitionDescription, factor: int) -> tuple[int, ...]:
    """Fewer: without the first, or the last replica."""
    if factor < len(partition.replicas):
        first = partition.partition % 2
        return partition.replicas[first : first + factor]
    others = (one for one in range(BROKERS) if one not in partition.replicas)
    return (*partition.replicas, *others)[:factor]


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
