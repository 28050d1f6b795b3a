"""Transactions on real brokers: what a committed one wrote is read as a whole, the rest never."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.cluster import Cluster
from support.names import own_name
from support.waiting import wait_until

from penstock.client import Consumer, Producer, TopicPartition, TransactionError
from penstock.errors import ClusterError, ErrorCode

MakeCluster = Callable[..., Cluster]
_ids = itertools.count()


@pytest.fixture
def topic(shared_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions for this test alone."""
    name = own_name(request)
    shared_cluster.create_topic(name, partitions=2)
    return name


def transactional(cluster: Cluster, transactional_id: str = "", **more: Any) -> Producer:
    name = transactional_id or f"billing-{next(_ids)}"
    return Producer(cluster.bootstrap, transactional_id=name, **more)


def read(cluster: Cluster, topic: str, until: bytes, **more: Any) -> list[bytes]:
    """Everything up to and with the record `until`, sorted."""
    seen: list[bytes] = []
    with Consumer(cluster.bootstrap, **more) as consumer:
        consumer.assign([TopicPartition(topic, index) for index in range(2)])

        def found() -> bool:
            seen.extend(r.value or b"" for batch in consumer.poll(1.0) for r in batch.records())
            return seen.count(until) == 2

        wait_until(found, what=f"{until!r} is read in both partitions")
    return sorted(value for value in seen if value != until)


def write(producer: Producer, topic: str, *values: bytes) -> None:
    """One transaction, its values in both partitions in turn."""
    with producer.transaction() as tx:
        for index, value in enumerate(values):
            tx.send(topic, value, partition=index % 2)


def test_committed_transactions_are_read_as_a_whole_and_aborted_ones_never(
    shared_cluster: Cluster, topic: str
) -> None:
    with transactional(shared_cluster) as producer:
        for number in range(20):
            tx = producer.transaction()
            tx.begin()
            for index in range(4):
                tx.send(topic, b"%d.%d" % (number, index), partition=index % 2)
            if number % 3 == 0:
                producer.flush()  # stored, and aborted all the same
                tx.abort()
            else:
                tx.commit()
        write(producer, topic, b"end", b"end")
    expected = sorted(b"%d.%d" % (n, index) for n in range(20) if n % 3 for index in range(4))
    assert read(shared_cluster, topic, b"end") == expected
    everything = read(shared_cluster, topic, b"end", isolation_level="read_uncommitted")
    assert set(everything) > set(expected)


def test_what_is_visible_after_commit_was_waited_for_is_read_at_once(
    shared_cluster: Cluster, topic: str
) -> None:
    with transactional(shared_cluster) as producer, Consumer(shared_cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for number in range(10):
            tx = producer.transaction()
            tx.begin()
            tx.send(topic, b"%d" % number, partition=0)
            tx.commit(wait_visible=True)
            assert consumer.lag()[TopicPartition(topic, 0)] > 0
            (batch,) = consumer.poll(120)
            assert [record.value for record in batch.records()] == [b"%d" % number]
            wait_until(lambda: not any(consumer.lag().values()), what="markers are passed over")


def test_readers_stop_before_what_is_still_open(shared_cluster: Cluster, topic: str) -> None:
    where = TopicPartition(topic, 0)
    with (
        transactional(shared_cluster) as producer,
        Producer(shared_cluster.bootstrap) as plain,
        Consumer(shared_cluster.bootstrap) as committed,
        Consumer(shared_cluster.bootstrap, isolation_level="read_uncommitted") as all_of_it,
    ):
        tx = producer.transaction()
        tx.begin()
        tx.send(topic, b"open", partition=0).result(30)
        plain.send(topic, b"behind", partition=0).result(30)
        for consumer in (committed, all_of_it):
            consumer.assign([where])
        seen: list[bytes | None] = []

        def both() -> bool:
            seen.extend(r.value for batch in all_of_it.poll(1.0) for r in batch.records())
            return len(seen) == 2

        wait_until(both, what="read_uncommitted reads what is open")
        assert committed.poll(0.5) == []
        assert committed.lag() == {where: 0}, "nothing can be read yet"
        tx.commit()
        read_back: list[bytes | None] = []

        def whole() -> bool:
            read_back.extend(r.value for batch in committed.poll(1.0) for r in batch.records())
            return len(read_back) == 2

        wait_until(whole, what="the commit lets readers pass")
        assert read_back == seen == [b"open", b"behind"]


def test_an_instance_that_comes_later_fences_the_one_before(
    shared_cluster: Cluster, topic: str
) -> None:
    with (
        transactional(shared_cluster, "taken") as first,
        transactional(shared_cluster, "taken", client_id="second") as second,
    ):
        old = first.transaction()
        old.begin()
        old.send(topic, b"zombie", partition=0).result(30)
        write(second, topic, b"new", b"new")
        with pytest.raises(TransactionError) as fenced:
            old.commit()
        assert fenced.value.code is ErrorCode.PRODUCER_FENCED
        assert "second" in fenced.value.message, "the error names the taker"
        write(second, topic, b"end", b"end")
    assert read(shared_cluster, topic, b"end") == [b"new", b"new"]


def test_a_transaction_that_takes_too_long_is_aborted_and_the_producer_goes_on(
    shared_cluster: Cluster, topic: str
) -> None:
    timeout_s = 6
    with transactional(shared_cluster, transaction_timeout_ms=timeout_s * 1000) as producer:
        tx = producer.transaction()
        tx.begin()

        def is_over() -> bool:
            delivery = tx.send(topic, b"slow", partition=0)
            try:
                delivery.result(120)
            except ClusterError:
                return True
            return False

        wait_until(is_over, what="the timeout aborts it")
        with pytest.raises(TransactionError) as aborted:
            tx.commit()
        assert aborted.value.code is ErrorCode.TRANSACTION_ABORTED
        tx.abort()

        def goes_on() -> bool:
            begun_s = time.monotonic()
            try:
                write(producer, topic, b"end", b"end")
            except TransactionError:  # where a machine that stalls has made it take too long, too
                assert time.monotonic() - begun_s > timeout_s - 1
                return False
            return True

        wait_until(goes_on, what="the next transaction is committed")
    assert read(shared_cluster, topic, b"end") == []


def test_a_timeout_above_the_clusters_is_refused(shared_cluster: Cluster) -> None:
    with (
        transactional(shared_cluster, transaction_timeout_ms=10**9) as producer,
        pytest.raises(ClusterError, match="900") as refused,
    ):
        producer.transaction().begin()
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_transactions_go_on_while_brokers_are_killed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3)
    cluster.create_topic("t", partitions=2, configs={"min.insync.replicas": "2"})
    committed: list[bytes] = []
    with transactional(cluster) as producer:
        for number in range(60):
            values = [b"%d.%d" % (number, index) for index in range(2)]
            if number % 20 == 10:
                cluster.brokers[number // 20].kill()
            failure: TransactionError | None = None
            try:
                write(producer, "t", *values)
            except TransactionError as error:
                failure = error
            assert failure is None or not failure.unknown_outcome, failure
            committed += [] if failure else values
            if number % 20 == 18:
                broker = cluster.brokers[number // 20]
                broker.start()
                broker.wait_serving()
                cluster.wait_in_sync("t")
        write(producer, "t", b"end", b"end")
    assert read(cluster, "t", b"end") == sorted(committed)
    assert len(committed) > 60
