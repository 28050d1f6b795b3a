"""Bytes change on the disks of brokers: nothing damaged is served, what can be had again comes
back from other replicas, and nothing that was acknowledged is lost (I7, I22, I33)."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.errors import ClusterError, ErrorCode, PenstockError

RECORDS = 300


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), brokers=3) as cluster:
        yield cluster


def value_of(topic: str, number: int) -> bytes:
    """2 KB that no other record has: a batch of its own in a blob file."""
    return f"<{topic}-{number:07}>".encode() * 100


def filled(cluster: Cluster, topic: str, *replicas: int) -> list[bytes]:
    """A topic of one partition on these brokers, the first leads; the values in it."""
    least = {"min.insync.replicas": str(len(replicas) // 2 + 1)}
    cluster.create_topic(topic, assignment=[list(replicas)], configs=least)
    values = [value_of(topic, number) for number in range(RECORDS)]
    write(cluster, topic, values)
    return values


def write(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    """Each in a batch of its own, so that the index has an entry for each."""
    with Producer(cluster.bootstrap, linger_ms=0, batch_bytes=1024) as producer:
        for value in values:
            producer.send(topic, value, partition=0).result(30)


def read(
    cluster: Cluster, topic: str, count: int, *, start: int = 0, up_to: int = RECORDS
) -> list[bytes]:
    """The values of a topic from an offset on, at least so many, if no more are asked for."""
    seen: list[bytes] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), start)

        def passed() -> bool:
            polled = consumer.poll(0.5, max_records=up_to)
            seen.extend(record.value or b"" for batch in polled for record in batch.records())
            return len(seen) >= count

        wait_until(passed, what="the reader has passed everything", timeout_s=60)
    return seen


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def flip_batch(cluster: Cluster, broker: int, topic: str, number: int) -> None:
    """In the value of a record, in whatever blob file has it; once more, and it is as it was."""
    wanted = value_of(topic, number)[:600]
    flipped = 0
    for path in cluster.data_dir(broker).rglob("*.blob"):
        at = path.read_bytes().find(wanted)
        if at >= 0:
            flip(path, at + 900)
            flipped += 1
    assert flipped, f"broker {broker} has record {number} in no blob file"


def flip_index(cluster: Cluster, broker: int) -> None:
    """In the middle of the largest table of the index: entries of this test's topic."""
    tables = cluster.data_dir(broker).rglob("*.sst")
    largest = max(tables, key=lambda path: path.stat().st_size)
    flip(largest, largest.stat().st_size // 2)


def to_disk(cluster: Cluster, broker: int) -> None:
    """A stop brings what is in memory into tables and blob files."""
    assert cluster.brokers[broker].stop() == 0


def lead(cluster: Cluster, topic: str, broker: int) -> None:
    """The preferred leader leads."""
    with Admin(cluster.bootstrap) as admin:

        def leads() -> bool:
            if cluster.leader(topic) == broker:
                return True
            with suppress(PenstockError):
                admin.elect_leaders([TopicPartition(topic, 0)])
            return False

        wait_until(leads, what=f"broker {broker} leads {topic}")


def wait_well(cluster: Cluster, topic: str) -> None:
    """All replicas are in sync, and none is marked as damaged."""
    cluster.wait_in_sync(topic)
    with Admin(cluster.bootstrap) as admin:
        wait_until(
            lambda: not any(move.damaged for move in admin.describe_moves([topic]).moves),
            what="no replica is marked",
        )


@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
def test_a_leader_with_a_flipped_bit_is_mended(cluster: Cluster, running: bool) -> None:
    topic = f"flipped-{running}"
    values = filled(cluster, topic, 0, 1, 2)
    to_disk(cluster, 0)
    if not running:
        flip_batch(cluster, 0, topic, 100)
    cluster.brokers[0].start()
    cluster.wait_in_sync(topic)
    lead(cluster, topic, 0)
    if running:
        flip_batch(cluster, 0, topic, 100)
    assert read(cluster, topic, RECORDS) == values, "whoever leads by then"
    wait_until(lambda: "batch mended" in cluster.brokers[0].log_text(), what="it is mended")
    wait_well(cluster, topic)
    lead(cluster, topic, 0)
    assert read(cluster, topic, RECORDS) == values, "from the mended log"
    write(cluster, topic, [b"more"])


def test_what_only_one_broker_had_is_an_error_that_names_it_and_nothing_is_invented(
    cluster: Cluster,
) -> None:
    topic = "alone"
    values = filled(cluster, topic, 0)
    to_disk(cluster, 0)
    flip_batch(cluster, 0, topic, 100)
    cluster.brokers[0].start()
    cluster.wait_leader(topic, 0, 0)
    with pytest.raises(ClusterError, match="offset 100") as caught:
        read(cluster, topic, RECORDS)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    log = cluster.brokers[0].log_text
    wait_until(lambda: "nobody has a damaged batch now" in log(), what="it has asked")
    assert read(cluster, topic, 100, up_to=100) == values[:100]
    assert read(cluster, topic, RECORDS - 101, start=101) == values[101:]
    write(cluster, topic, [b"more"])
    flip_batch(cluster, 0, topic, 100)
    wait_until(lambda: "replica mended" in log(), what="what can be read again is sound")
    assert read(cluster, topic, RECORDS) == values


def test_a_log_with_a_damaged_index_is_copied_from_the_leader(tmp_path: Path) -> None:
    """In a cluster of its own: the damaged table has no other topic's index."""
    topic = "index"
    with Cluster(tmp_path, brokers=3) as cluster:
        values = filled(cluster, topic, 0, 1, 2)
        to_disk(cluster, 0)
        flip_index(cluster, 0)
        cluster.brokers[0].start()
        lead(cluster, topic, 0)
        assert read(cluster, topic, RECORDS) == values, "whoever leads by then"
        log = cluster.brokers[0].log_text
        wait_until(lambda: "replica is copied again" in log(), what="it is rebuilt")
        wait_well(cluster, topic)
        lead(cluster, topic, 0)
        assert read(cluster, topic, RECORDS) == values
