"""Moves of a topic's partitions between real brokers, under a load: asked for, awaited, and what is
left of them. For clusters of four brokers and topics with three replicas."""

import os
from collections.abc import Callable, Sequence

from support.cluster import Cluster
from support.load import Load
from support.waiting import wait_until

from penstock.client import (
    Admin,
    MoveDescription,
    MoveState,
    PartitionDescription,
    Producer,
    ReplicaMove,
    TopicPartition,
)
from penstock.errors import UnreachableError

BROKERS = 4
BATCH_VALUES = 16
VALUE_BYTES = 1_000
SMALL_MESSAGES = {"replica.message.bytes": "16384"}
"""Setting of brokers: a copy stops after one of the batches that `fill` makes."""


def fill(
    cluster: Cluster, load: Load, count: int, *, assignment: list[list[int]] | None = None
) -> None:
    """Makes the topic of a load that has not begun, with so many batches in every partition: bytes
    to copy. The load judges what comes behind them."""
    config = load.config
    cluster.create_topic(
        config.topic,
        partitions=config.partitions,
        replication_factor=config.replication_factor,
        configs=dict(config.topic_configs),
        assignment=assignment,
    )
    with Producer(cluster.bootstrap) as producer:
        sent = [
            producer.send_columns(
                config.topic,
                [os.urandom(VALUE_BYTES) for _ in range(BATCH_VALUES)],
                partition=partition,
            )
            for _ in range(count)
            for partition in range(config.partitions)
        ]
        for each in sent:
            each.result(60)


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
