"""Every setting of a broker at its largest value: it is kept in what carries it, and it serves.

Whoever wants no limit writes the largest number that is accepted.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, ReplicaMove, TopicPartition
from penstock.core.settings import BROKER_SETTINGS, MAX_REPLICA_MESSAGE_BYTES, MIB
from penstock.core.topic import CONFIG_KEYS
from penstock.rpc.streams.contract import MESSAGE_BYTES_MAX

LARGEST = {setting.key: str(setting.maximum) for setting in BROKER_SETTINGS}
SMALL = {
    "disk.reserve.bytes": "0",  # with all of the disk reserved, writes are refused
    "transactions.topic.partitions": "1",  # a thousand partitions take minutes
}
COUNT = 100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    path = tmp_path_factory.mktemp("largest")
    with Cluster(path, brokers=2, broker_config=LARGEST | SMALL) as cluster:
        yield cluster


def test_records_are_replicated_and_read_in_groups_and_transactions(cluster: Cluster) -> None:
    cluster.create_topic("t", replication_factor=2)
    where = TopicPartition("t", 0)
    with Producer(cluster.bootstrap) as producer:
        for number in range(COUNT):
            producer.send("t", b"%d" % number, partition=0)
        producer.flush(120)
    with Producer(cluster.bootstrap, transactional_id="w") as writer, writer.transaction() as tx:
        tx.send("t", b"%d" % COUNT, partition=0)
    with Consumer(
        cluster.bootstrap,
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe("t")
        found: list[int] = []

        def all_read() -> bool:
            for batch in consumer.poll(0.1):
                found.extend(int(record.value or b"") for record in batch.records())
            return len(found) > COUNT

        wait_until(all_read, what="all records are read")
        consumer.commit()
        assert found == list(range(COUNT + 1))
        assert consumer.committed([where])[where] is not None


def test_a_partition_moves(cluster: Cluster) -> None:
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic("moved", assignment=[[0]])
        producer.send("moved", b"x" * 500_000, partition=0)
        producer.flush(120)
        move = ReplicaMove(TopicPartition("moved", 0), target=(1,), expected=(0,))
        (asked,) = admin.alter_replicas([move])
        assert asked.error is None
        wait_until(lambda: admin.describe_moves(["moved"]).moves == (), what="the move ends")


def test_they_are_described(cluster: Cluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        assert {log.broker_id for log in admin.describe_logs()} == {0, 1}
        shown = {entry.name: entry.value for entry in admin.describe_broker_configs([0])[0]}
        assert shown == LARGEST | SMALL


def test_a_broker_may_reserve_all_of_its_disk(tmp_path: Path) -> None:
    reserve = {"disk.reserve.bytes": LARGEST["disk.reserve.bytes"]}
    with Cluster(tmp_path, broker_config=reserve) as cluster, Admin(cluster.bootstrap) as admin:
        (described,) = admin.describe_logs()
        assert described.disk_reserve_bytes == int(LARGEST["disk.reserve.bytes"])


def test_a_message_between_brokers_holds_the_largest_batch_on_top_of_its_target() -> None:
    (batch_bytes,) = [key.maximum for key in CONFIG_KEYS if key.name == "max.message.bytes"]
    names_bytes = 8 * MIB  # of 20,000 partitions
    assert MAX_REPLICA_MESSAGE_BYTES + batch_bytes + names_bytes <= MESSAGE_BYTES_MAX
