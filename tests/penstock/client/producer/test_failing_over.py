"""Brokers die, freeze and come back: clients follow, and nothing is lost, doubled or reordered."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Unpack

import pytest
from support.cluster import Cluster
from support.processes import ReservedPort
from support.waiting import wait_until

from penstock.client import (
    LATEST,
    Acks,
    Admin,
    Consumer,
    DeliveryError,
    Producer,
    Record,
    TopicPartition,
)
from penstock.client.config import ConsumerOptions
from penstock.client.producer.delivery import Delivery
from penstock.errors import ErrorCode, UnreachableError

MakeCluster = Callable[..., Cluster]
SAFE = {"min.insync.replicas": "2"}
HERE = TopicPartition("t", 0)
LONG_MS = 600_000
"""A request timeout. Whoever goes on sooner has not waited until the request was given up."""


class Feed(threading.Thread):
    """Sends numbered records of four keys until told to stop; keeps every handle."""

    def __init__(self, producer: Producer, topic: str) -> None:
        super().__init__()
        self._producer = producer
        self._topic = topic
        self._ending = threading.Event()
        self._settled = 0
        self.deliveries: list[Delivery] = []

    def run(self) -> None:
        while not self._ending.wait(0.001):
            for _ in range(10):
                index = len(self.deliveries)
                delivery = self._producer.send(self._topic, b"%d" % index, b"key%d" % (index % 4))
                self.deliveries.append(delivery)

    def end(self) -> None:
        self._ending.set()
        self.join(600)

    def wait_for(self, more: int) -> None:
        """Until that many records sent from now on, and all before them, are settled."""
        index = len(self.deliveries) + more

        def settled() -> bool:
            while self._settled < len(self.deliveries) and self.deliveries[self._settled].done():
                self._settled += 1
            return self._settled > index

        wait_until(settled, what=f"{more} more records are acknowledged", timeout_s=40)


class Reader(threading.Thread):
    """Reads a topic as it is written, until it has seen enough."""

    def __init__(
        self,
        bootstrap: str,
        partitions: list[TopicPartition],
        **options: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__()
        self._addresses = bootstrap
        self._options = options
        self._partitions = partitions
        self._enough: int | None = None
        self._deadline = time.monotonic() + 600
        self.records: list[Record] = []

    def run(self) -> None:
        with Consumer(self._addresses, **self._options) as consumer:
            consumer.assign(self._partitions)
            while time.monotonic() < self._deadline:
                for batch in consumer.poll(0.2):
                    self.records.extend(batch.records())
                if self._enough is not None and len(self.records) >= self._enough:
                    return

    def end(self, expected: int) -> list[Record]:
        self._enough = expected
        self._deadline = time.monotonic() + 300
        self.join(600)
        return self.records


@pytest.fixture
def traffic(make_cluster: MakeCluster) -> Iterator[tuple[Cluster, Feed, Reader]]:
    """Three brokers, a topic of two partitions, a producer and a consumer at work."""
    cluster = make_cluster(brokers=3)
    cluster.create_topic("t", assignment=[[0, 1, 2], [1, 2, 0]], configs=SAFE)
    with Producer(cluster.bootstrap, batch_bytes=4_000, request_timeout_ms=LONG_MS) as producer:
        feed = Feed(producer, "t")
        partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
        reader = Reader(cluster.bootstrap, partitions, request_timeout_ms=LONG_MS)
        reader.start()
        feed.start()
        try:
            feed.wait_for(500)
            yield cluster, feed, reader
        finally:
            feed.end()
            reader.end(0)


def assert_exactly_once_in_order(feed: Feed, reader: Reader) -> None:
    """Every record was acknowledged, and read once, in the order of its key."""
    feed.end()
    reports = [delivery.result(60) for delivery in feed.deliveries]
    records = reader.end(len(reports))
    assert len(records) == len(reports)
    for partition in (0, 1):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(len(offsets))), "read in order, without a gap or a repetition"
    read = {(record.partition, record.offset): record for record in records}
    for index, report in enumerate(reports):
        assert read[report.partition, report.offset].value == b"%d" % index
    for key in range(4):
        mine = [int(record.value or b"") for record in records if record.key == b"key%d" % key]
        assert mine == sorted(mine)


def test_a_killed_leader_costs_a_pause_and_nothing_else(
    traffic: tuple[Cluster, Feed, Reader],
) -> None:
    cluster, feed, reader = traffic
    cluster.brokers[0].kill()
    feed.wait_for(500)
    cluster.brokers[0].start()
    cluster.wait_in_sync("t")
    cluster.brokers[1].kill()
    feed.wait_for(500)
    cluster.brokers[1].start()
    assert_exactly_once_in_order(feed, reader)


def test_a_stopped_leader_hands_over_unnoticed(traffic: tuple[Cluster, Feed, Reader]) -> None:
    cluster, feed, reader = traffic
    cluster.brokers[0].stop()
    feed.wait_for(500)
    assert_exactly_once_in_order(feed, reader)


def test_a_frozen_leader_is_left_within_seconds(traffic: tuple[Cluster, Feed, Reader]) -> None:
    cluster, feed, reader = traffic
    cluster.brokers[0].pause()
    feed.wait_for(500)  # in less than keepalive takes, on a machine that is not busy
    written = len(feed.deliveries)
    wait_until(lambda: len(reader.records) >= written, what="the reader has caught up")
    cluster.brokers[0].resume()
    feed.wait_for(100)
    assert_exactly_once_in_order(feed, reader)


def test_the_only_broker_comes_back_and_the_producer_goes_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("t", partitions=2)
    with Producer(cluster.bootstrap) as producer:
        feed = Feed(producer, "t")
        reader = Reader(cluster.bootstrap, [TopicPartition("t", 0), TopicPartition("t", 1)])
        reader.start()
        feed.start()
        feed.wait_for(200)
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        feed.wait_for(200)
        assert_exactly_once_in_order(feed, reader)


def test_too_few_replicas_time_out_definitely_naming_the_cause(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=2)
    cluster.create_topic("t", assignment=[[0, 1]], configs=SAFE)
    with (
        Producer(cluster.bootstrap, delivery_timeout_ms=4_000) as producer,
        Producer(cluster.bootstrap) as patient,
    ):
        patient.send("t", b"before").result(120)
        cluster.brokers[1].kill()
        wait_until(lambda: cluster.partition("t", 0, 0).isr == [0], what="the ISR has shrunk")
        failed: list[DeliveryError] = []

        def is_named() -> bool:
            with pytest.raises(DeliveryError, match="4000 ms") as raised:
                producer.send("t", b"v").result(120)
            failed.append(raised.value)
            return "min.insync.replicas" in raised.value.message  # or nobody answered in time

        wait_until(is_named, what="the cause is named")
        assert failed[-1].code is ErrorCode.DELIVERY_TIMED_OUT
        assert not failed[-1].unknown_outcome
        assert (failed[-1].topic, failed[-1].partition) == ("t", 0)
        waiting = patient.send("t", b"after")
        cluster.brokers[1].start(wait=False)
        assert waiting.result(120).offset == 1, "what failed definitely is not in the log"
        assert producer.close() == len(failed)
        assert patient.close() == 0


def test_a_producer_whose_cluster_is_gone_gives_up_in_time_and_closes(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("t")
    producer = Producer(cluster.bootstrap, delivery_timeout_ms=4_000, request_timeout_ms=600_000)
    producer.send("t", b"v").result(120)
    cluster.brokers[0].kill()
    cluster.controller.kill()
    deliveries = [producer.send("t", b"v") for _ in range(10)]
    with pytest.raises(DeliveryError, match="4000 ms"):
        deliveries[0].result(300)  # the request timeout is longer
    assert producer.close() == 10


def test_closing_with_a_timeout_reports_what_is_left(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("t")
    producer = Producer(cluster.bootstrap)
    producer.send("t", b"v").result(120)
    cluster.brokers[0].kill()
    left = [producer.send("t", b"v") for _ in range(7)]
    with pytest.raises(TimeoutError, match="7 records"):
        producer.flush(0.2)
    assert producer.close(0.2) == 7
    with pytest.raises(DeliveryError) as closed:
        left[0].result(0)
    assert closed.value.code is ErrorCode.CLOSED


def test_dead_bootstrap_addresses_are_passed_over(
    make_cluster: MakeCluster, reserve: Callable[[], ReservedPort]
) -> None:
    cluster = make_cluster(brokers=1)
    cluster.create_topic("t")
    dead = [reserve().address for _ in range(3)]
    bootstrap = [*dead, cluster.brokers[0].address]
    with (
        Admin(bootstrap) as admin,
        Producer(bootstrap) as producer,
        Consumer(bootstrap) as consumer,
    ):
        assert admin.list_topics() == ["t"]
        assert producer.send("t", b"v").result(120).offset == 0
        consumer.assign([TopicPartition("t", 0)])
        assert [len(batch) for batch in consumer.poll(120)] == [1]


def test_nobody_answering_is_one_error_that_lists_every_address(
    reserve: Callable[[], ReservedPort],
) -> None:
    dead = [reserve().address for _ in range(2)]
    with Producer(dead) as producer:
        with pytest.raises(UnreachableError) as silent:
            producer.send("t", b"v")
        for address in dead:
            assert address in silent.value.message
        for part in ("nothing listens", "refused", "bootstrap"):
            assert part in silent.value.message
        assert "\n" not in silent.value.message
    with Consumer(dead, connect_timeout_ms=500) as consumer, pytest.raises(UnreachableError):
        consumer.assign([TopicPartition("t", 0)])
    with Admin(dead, connect_timeout_ms=500) as admin, pytest.raises(UnreachableError):
        admin.list_topics()


def test_acks_none_survives_a_killed_leader_without_an_error(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3)
    cluster.create_topic("t", assignment=[[0, 1, 2]], configs=SAFE)
    with Producer(cluster.bootstrap, acks=Acks.NONE) as producer:
        for _ in range(100):
            producer.send("t", b"v")
        producer.flush(120)
        # What the leader alone has goes with it, and what follows then has a gap before it.
        with Admin(cluster.bootstrap) as admin:
            wait_until(
                lambda: admin.list_offsets({HERE: LATEST})[HERE].offset == 100,
                what="the followers have what was sent",
            )
        cluster.brokers[0].kill()
        for _ in range(100):
            producer.send("t", b"v")
        producer.flush(120)
        assert producer.close() == 0
