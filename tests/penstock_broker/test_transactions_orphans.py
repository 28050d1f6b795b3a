"""A transaction whose coordinators have forgotten it, on real brokers: readers and groups go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import PATIENT, Cluster
from support.group_wire import Groups
from support.transaction_wire import TransactionalProducer
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import group_pb2
from penstock_broker.controller.metadata_store.interface import Delete
from penstock_broker.controller.metadata_store.local import LocalMetadataStore

QUICK = {"transaction.max.timeout.ms": "10000", "transaction.orphan.grace.ms": "1000"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=2, broker_config=QUICK, controller_config=PATIENT) as running:
        running.create_topic("t")
        yield running


def forget_transactions(cluster: Cluster) -> None:
    """The internal topic is gone from the metadata, as if all of its replicas had been lost."""
    for server in (*cluster.brokers.values(), cluster.controller):
        server.kill()
    store = LocalMetadataStore(cluster.path / "metadata")
    try:
        (found,) = [
            (key, text.version)
            for key, text in store.read_all().items()
            if '"__transactions"' in text.text
        ]
        store.write([[Delete(*found)]])
    finally:
        store.close()
    cluster.controller.start()
    for broker in cluster.brokers.values():
        broker.start()
    cluster.wait_alive(set(cluster.brokers))
    cluster.wait_leaders("t")


def told(cluster: Cluster) -> list[int]:
    """Brokers that say in their log that they ended an orphan."""
    text = "ended a transaction that was lost"
    return [one for one, broker in cluster.brokers.items() if text in broker.log_text()]


def test_a_transaction_that_no_coordinator_knows_is_aborted_by_the_partitions_leader(
    cluster: Cluster,
) -> None:
    where = TopicPartition("t", 0)
    with Admin(cluster.bootstrap) as admin:
        lost = TransactionalProducer(cluster, "lost", transaction_timeout_ms=10_000).init()
        lost.send("t", b"never")
        forget_transactions(cluster)
        with Producer(cluster.bootstrap) as plain:
            plain.send("t", b"behind").result(120)
        (held,) = admin.partition_transactions(where).open
        assert held.producer_id == lost.producer_id

        known = TransactionalProducer(cluster, "known").init()  # the internal topic is made anew
        known.send("t", b"committed")
        known.end(commit=True)
        wait_until(
            lambda: not admin.partition_transactions(where).open, what="the orphan is aborted"
        )
        with Consumer(cluster.bootstrap) as reader:
            reader.assign([where])
            seen: list[bytes | None] = []

            def is_read() -> bool:
                seen.extend(one.value for b in reader.poll(0.5) for one in b.records())
                return len(seen) >= 2

            wait_until(is_read, what="readers go on")
        assert seen == [b"behind", b"committed"]
        wait_until(lambda: told(cluster) == [cluster.leader("t")], what="its leader says so")


def test_offsets_in_a_transaction_that_no_coordinator_knows_are_dropped_by_the_group(
    cluster: Cluster,
) -> None:
    lost = TransactionalProducer(cluster, "lost", transaction_timeout_ms=10_000).init()
    part_of = lost.part_of()
    reset = group_pb2.ResetOffsetsRequest(
        group_id="g",
        partitions=[group_pb2.ResetPartition(topic="t", partition=0, offset=1)],
    )
    with Groups(cluster) as groups:
        groups.commit("g", {("t", 0): 3})
        assert groups.commit("g", {("t", 0): 9}, **part_of) == [ErrorCode.UNSPECIFIED]
        forget_transactions(cluster)

        def offset() -> int | ErrorCode:
            request = group_pb2.FetchOffsetsRequest(group_id="g")
            (found,) = groups.call("FetchOffsets", request).offsets
            return ErrorCode(found.error.code) if found.HasField("error") else found.offset

        def reset_code() -> ErrorCode:
            (line,) = groups.call("ResetOffsets", reset).results
            return ErrorCode(line.error.code)

        assert offset() is ErrorCode.UNSTABLE_OFFSETS
        assert reset_code() is ErrorCode.UNSTABLE_OFFSETS
        TransactionalProducer(cluster, "known").init()  # the internal topic is made anew
        wait_until(lambda: offset() == 3, what="the orphan is aborted")
        assert reset_code() is ErrorCode.UNSPECIFIED
        wait_until(lambda: told(cluster) == [groups.find("g").broker_id], what="it says so")
        with pytest.raises(PenstockError) as late:
            groups.commit("g", {("t", 0): 9}, **part_of)
        assert late.value.code is ErrorCode.PRODUCER_FENCED
        assert groups.commit("g", {("t", 0): 5}) == [ErrorCode.UNSPECIFIED]
