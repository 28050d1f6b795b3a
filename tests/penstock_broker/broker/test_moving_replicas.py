"""Replicas move between real brokers: copied, switched, deleted, and no record is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import PATIENT, Cluster
from support.waiting import wait_until

from penstock.client import (
    Admin,
    Consumer,
    MoveDescription,
    MoveReason,
    MoveState,
    Producer,
    ReplicaMove,
    TopicPartition,
)

WHERE = TopicPartition("moved", 0)
COUNT = 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.brokers[0].address) as admin:
        yield admin


def fill(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(COUNT):
            producer.send("moved", b"%d" % number, partition=0)
        producer.flush(120)


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
    found = admin.describe_topics(["moved"])["moved"].partitions[0].replicas
    wanted = ReplicaMove(WHERE, target=target, expected=found)
    (asked,) = admin.alter_replicas([wanted], change_factor=change_factor)
    assert asked.error is None
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


def test_a_copy_that_is_cancelled_is_deleted(cluster: Cluster, admin: Admin) -> None:
    admin.create_topic("moved", assignment=[[0, 1]])
    fill(cluster)
    cluster.brokers[2].pause()  # so that the copy is not complete before the move is cancelled
    move = ReplicaMove(WHERE, target=(0, 2), expected=(0, 1))
    (asked,) = admin.alter_replicas([move], reason=MoveReason.DRAIN)
    assert asked.error is None

    def shown() -> MoveDescription:
        return admin.describe_moves(["moved"]).moves[0]

    assert (shown().where, shown().target, shown().reason) == (WHERE, (0, 2), MoveReason.DRAIN)
    wait_until(lambda: shown().adding == (2,), what="the copying begins")
    (cancelled,) = admin.alter_replicas([ReplicaMove(WHERE)])
    assert (cancelled.error, cancelled.state) == (None, MoveState.SETTLED)
    assert (shown().replicas, shown().dropping) == ((0, 1), (2,))
    cluster.brokers[2].resume()
    wait_until(lambda: admin.describe_moves(["moved"]).moves == (), what="the copy is deleted")
    assert holders(admin) == [(0, COUNT), (1, COUNT)]
