"""A transaction whose coordinators have forgotten it, on real brokers: readers go on."""

from pathlib import Path

from support.cluster import Cluster
from support.transaction_wire import TransactionalProducer
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition
from penstock_broker.controller.metadata_store.interface import Delete
from penstock_broker.controller.metadata_store.local import LocalMetadataStore

QUICK = {"transaction.max.timeout.ms": "10000", "transaction.orphan.grace.ms": "1000"}


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


def test_a_transaction_that_no_coordinator_knows_is_aborted_by_the_partitions_leader(
    tmp_path: Path,
) -> None:
    where = TopicPartition("t", 0)
    with (
        Cluster(tmp_path, brokers=2, broker_config=QUICK) as cluster,
        Admin(cluster.bootstrap) as admin,
    ):
        cluster.create_topic("t")
        lost = TransactionalProducer(cluster, "lost", transaction_timeout_ms=10_000).init()
        lost.send("t", b"never")
        forget_transactions(cluster)
        with Producer(cluster.bootstrap) as plain:
            plain.send("t", b"behind").result(30)
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
        logs = [broker.log_text() for broker in cluster.brokers.values()]
        told = [log for log in logs if "aborted a transaction that no coordinator knows" in log]
        assert len(told) == 1, "the leader's"
