"""A broker dies for good under load: others get its replicas, and the cluster forgets it.

Each test has a cluster of its own, because what a forgotten broker stores stays on its disk.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import PATIENT, Cluster
from support.commands_of_pages import commands_with, told
from support.load import Load, assert_nothing_noticed
from support.waiting import wait_until

from penstock.client import Admin, ReplicaMove, TopicPartition

GONE = 2
FACTOR = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One more broker than replicas, so that the dead one's can go somewhere."""
    with Cluster(tmp_path / "cluster", brokers=FACTOR + 1, controller_config=PATIENT) as cluster:
        yield cluster


def held_by(admin: Admin, broker: int) -> list[TopicPartition]:
    """Partitions that have a replica there."""
    return [
        TopicPartition(name, one.partition)
        for name, topic in admin.describe_topics().items()
        for one in topic.partitions
        if broker in one.replicas
    ]


def test_a_dead_broker_is_drained_and_forgotten_as_the_page_says(
    cluster: Cluster, tmp_path: Path
) -> None:
    """When it is back on its old disk, it is a new broker that may get the same replicas again."""
    with (
        Load(cluster, tmp_path / "history.jsonl", topic="flights") as load,
        Admin(cluster.bootstrap) as admin,
    ):
        cluster.wait_in_sync("flights")
        former = held_by(admin, GONE)
        assert former
        cluster.brokers[GONE].kill()
        load.wait_writing()
        drain, look, forget = commands_with("docs/operations.md", "penstock broker forget")

        shown = told(cluster, drain)
        assert f": {len(former)} moves, " in shown, "the plan"
        assert shown.endswith(f"broker {GONE} is empty\n")
        wait_until(lambda: held_by(admin, GONE) == [], what="it has no replica")
        cluster.wait_in_sync("flights")
        partitions = admin.describe_topics(["flights"])["flights"].partitions
        assert {len(one.replicas) for one in partitions} == {FACTOR}

        assert f"its former copies of {len(former)} partitions stay" in told(cluster, look)
        assert GONE in {one.broker_id for one in admin.describe_moves().brokers}, "a dry run"
        told(cluster, forget)
        assert GONE not in {one.broker_id for one in admin.describe_moves().brokers}
        assert admin.describe_moves().moves == ()
        load.wait_writing()

        cluster.brokers[GONE].start()
        cluster.wait_alive(set(cluster.brokers))
        assert held_by(admin, GONE) == []
        give_back(admin, former)
        wait_until(lambda: held_by(admin, GONE) == former, what="it has them", timeout_s=120)
        cluster.wait_in_sync("flights")
        load.wait_writing()
        assert_nothing_noticed(load.judge())


def give_back(admin: Admin, where: list[TopicPartition]) -> None:
    """Moves a replica of each partition to the broker that was gone, from the one that leads."""
    topics = admin.describe_topics()
    moves = []
    for one in where:
        present = topics[one.topic].partitions[one.partition]
        target = tuple(GONE if at == present.leader else at for at in present.replicas)
        moves.append(ReplicaMove(one, target=target, expected=present.replicas))
    assert {one.error for one in admin.alter_replicas(moves)} == {None}
