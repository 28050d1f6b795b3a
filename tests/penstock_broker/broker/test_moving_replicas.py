"""Replicas move between real brokers: copied, switched, deleted, and no record is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import (
    Admin,
    Consumer,
    MoveState,
    Producer,
    ReplicaMove,
    TopicPartition,
)

WHERE = TopicPartition("moved", 0)
COUNT = 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=3) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as admin:
        yield admin


def fill(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(COUNT):
            producer.send("moved", b"%d" % number, partition=0)
        producer.flush(60)


def holders(admin: Admin) -> list[tuple[int, int]]:
    """Brokers that store the partition, with their log ends; none has anything else of it."""
    found = admin.describe_logs()
    assert [one.orphans for one in found] == [()] * 3
    return [
        (one.broker_id, log.log_end_offset)
        for one in found
        for log in one.logs
        if (log.topic, log.partition) == ("moved", 0)
    ]


def move(admin: Admin, *target: int, change_factor: bool = False) -> None:
    """Until nothing is left to do: the new ones are replicas, the old ones have deleted it."""
    wanted = ReplicaMove(WHERE, target=target)
    found = admin.describe_topics(["moved"])["moved"].partitions[0].replicas
    wanted = ReplicaMove(WHERE, target=target, expected=found)
    (asked,) = admin.alter_replicas([wanted], change_factor=change_factor)
    assert (asked.error, asked.state is MoveState.SETTLED) == (None, asked.target == ())
    wait_until(
        lambda: admin.describe_moves(["moved"]).moves == (), what="the move ends", timeout_s=60
    )


def read(cluster: Cluster) -> list[int]:
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([WHERE])
        consumer.seek_to_beginning([WHERE])
        found: list[int] = []
        while len(found) < COUNT:
            for batch in consumer.poll(30):
                found += [int(record.value or b"") for record in batch.records()]
        return found


def test_the_only_replica_moves_and_leaves_nothing_behind(cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("moved", assignment=[[0]])
    fill(cluster)
    move(admin, 2)
    assert holders(admin) == [(2, COUNT)]
    assert read(cluster) == list(range(COUNT))


def test_a_partition_gets_more_replicas_and_fewer(cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("moved", assignment=[[0]])
    fill(cluster)
    move(admin, 1, 0, 2, change_factor=True)
    assert holders(admin) == [(0, COUNT), (1, COUNT), (2, COUNT)]
    move(admin, 2, 1, change_factor=True)
    assert holders(admin) == [(1, COUNT), (2, COUNT)]
    assert read(cluster) == list(range(COUNT))
