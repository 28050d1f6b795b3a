"""An upgrade broker by broker: what needs all waits for the last, and keeps older ones out then.

The older broker is one of this release that names no features when it registers.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from support import older_child
from support.cluster import PATIENT, Cluster

from penstock.client import Consumer, Producer, TopicPartition
from penstock.core.transactions.config import TRANSACTIONS_TOPIC
from penstock.errors import ClusterError, ErrorCode

REFUSAL = (
    f"topic {TRANSACTIONS_TOPIC} needs brokers that support 'transactions', but brokers [1] were "
    "registered by an older release: upgrade them, or unregister those that no longer exist"
)


def test_transactions_begin_with_the_last_upgraded_broker_and_older_ones_are_refused_from_then_on(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, brokers=3, start=False, controller_config=PATIENT) as cluster:
        older = cluster.brokers[1]
        released = older.launcher
        older.launcher = older_child.LAUNCHER
        cluster.start()
        cluster.create_topic("t")
        with pytest.raises(ClusterError) as refused:
            write(cluster, "billing")
        assert REFUSAL in str(refused.value)
        assert (refused.value.code, refused.value.retriable) == (ErrorCode.INVALID_REQUEST, False)
        assert cluster.topic(TRANSACTIONS_TOPIC) is None, "going back is free"

        older.stop()
        with pytest.raises(ClusterError, match="upgrade them"):
            write(cluster, "billing")  # it may come back as it was
        older.launcher = released
        older.start()
        write(cluster, "billing")

        older.stop()
        older.launcher = older_child.LAUNCHER
        older.start(wait=False)
        assert older.wait_end(60) == 1
        (line,) = [line for line in older.log_text().splitlines() if "broker ends" in line]
        assert "broker 1 does not support 'transactions'" in line
        assert "start a release that supports it" in line
        write(cluster, "payments")


def test_followers_use_streams_where_both_sides_know_them_and_grpc_elsewhere(
    tmp_path: Path,
) -> None:
    names = [f"led-by-{leader}" for leader in range(3)]
    eager = {**PATIENT, "leader.imbalance.check.interval.ms": "1000"}
    with Cluster(tmp_path, brokers=3, start=False, controller_config=eager) as cluster:
        released = cluster.brokers[1].launcher
        cluster.brokers[1].launcher = older_child.LAUNCHER
        cluster.start()
        for leader, name in enumerate(names):
            cluster.create_topic(name, assignment=[[(leader + n) % 3 for n in range(3)]])
        write_to(cluster, names, b"1")
        assert carriers(cluster) == {
            (follower, leader): 1 not in (follower, leader)
            for follower in range(3)
            for leader in range(3)
            if follower != leader
        }
        for broker_id, launcher in ((1, released), (0, older_child.LAUNCHER)):
            broker = cluster.brokers[broker_id]
            broker.stop()
            broker.launcher = launcher
            broker.start()
            cluster.wait_alive({0, 1, 2})
            for leader, name in enumerate(names):
                cluster.wait_in_sync(name)
                cluster.wait_leader(name, 0, leader)
            write_to(cluster, names, b"2")
        used = carriers(cluster)
        assert used[1, 2]
        assert used[2, 1]
        assert not any(used.get(pair) for pair in ((0, 1), (0, 2), (1, 0), (2, 0)))
        with Consumer(cluster.bootstrap) as consumer:
            where = [TopicPartition(name, 0) for name in names]
            consumer.assign(where)
            consumer.seek_to_beginning(where)
            seen: Counter[str] = Counter()
            while sum(seen.values()) < 9:
                for batch in consumer.poll(60):
                    seen[batch.topic_partition.topic] += batch.record_count
        assert seen == dict.fromkeys(names, 3)


def write_to(cluster: Cluster, topics: list[str], value: bytes) -> None:
    """One record to each, acknowledged by all replicas."""
    with Producer(cluster.bootstrap) as producer:
        for sent in [producer.send(topic, value) for topic in topics]:
            sent.result(120)


def carriers(cluster: Cluster) -> dict[tuple[int, int], bool]:
    """(follower, leader): whether the follower's last stream to it was not over gRPC."""
    used = {}
    for follower, broker in cluster.brokers.items():
        for line in broker.log_text().splitlines():
            said = json.loads(line) if line.startswith("{") else {}
            if said.get("event") == "following":
                at = cluster.brokers[said["leader"]]
                used[follower, said["leader"]] = said["address"] != at.address
    return used


def write(cluster: Cluster, transactional_id: str) -> None:
    """One transaction. Raises ClusterError."""
    with (
        Producer(cluster.bootstrap, transactional_id=transactional_id) as producer,
        producer.transaction() as tx,
    ):
        tx.send("t", b"x")
