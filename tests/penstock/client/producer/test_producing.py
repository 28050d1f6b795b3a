"""Producing to real brokers: what is acknowledged is there, as it was sent, in order."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.cluster import Cluster
from support.names import own_name
from support.topic_limits import wait_for_limit
from support.waiting import wait_until

from penstock.client import (
    Acks,
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Codec,
    Consumer,
    DeliveryError,
    JsonSerializer,
    Producer,
    Record,
    StringSerializer,
    Sync,
    TopicPartition,
)
from penstock.core.partitioner import partition_for_key
from penstock.errors import ClusterError, ErrorCode, MisuseError


@pytest.fixture
def topic(shared_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions for this test alone."""
    name = own_name(request)
    shared_cluster.create_topic(name, partitions=3)
    return name


@pytest.fixture
def producer(shared_cluster: Cluster) -> Iterator[Producer]:
    with Producer(shared_cluster.bootstrap) as producer:
        yield producer


def read_all(cluster: Cluster, topic: str, count: int, partitions: int = 3) -> list[Record]:
    """All records of a topic once `count` are there, and that no more follow."""
    records: list[Record] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, index) for index in range(partitions)])

        def all_there() -> bool:
            for batch in consumer.poll(1.0):
                records.extend(batch.records())
            return len(records) >= count

        wait_until(all_there, what=f"{count} records of {topic}", timeout_s=30)
        assert len(records) == count
        assert not any(consumer.lag().values())
    return records


@pytest.mark.parametrize("codec", list(Codec))
def test_records_come_back_as_they_were_sent(
    shared_cluster: Cluster, topic: str, rng: random.Random, codec: Codec
) -> None:
    sent = [
        (
            rng.choice([None, b"", b"value" * 50, rng.randbytes(200)]),
            rng.choice([None, b"", rng.randbytes(5)]),
            rng.choice([(), (("h", b"1"), ("h", None)), (("ü", b""),)]),
            int(time.time_ns() // 1_000_000) - rng.randrange(10**6),
        )
        for _ in range(3_000)
    ]
    with Producer(shared_cluster.bootstrap, codec=codec) as producer:
        deliveries = [
            producer.send(topic, value, key, timestamp_ms=timestamp_ms, headers=headers)
            for value, key, headers, timestamp_ms in sent
        ]
        reports = [delivery.result(120) for delivery in deliveries]
        assert producer.close() == 0
    read = {(r.partition, r.offset): r for r in read_all(shared_cluster, topic, 3_000)}
    for (value, key, headers, timestamp_ms), report in zip(sent, reports, strict=True):
        record = read[report.partition, report.offset]
        assert (record.value, record.key, record.headers) == (value, key, headers)
        assert record.timestamp_ms == timestamp_ms
        if key is not None:
            assert report.partition == partition_for_key(key, 3)


@pytest.mark.parametrize("acks", list(Acks))
@pytest.mark.parametrize("sync", list(Sync))
def test_the_report_says_which_durability_was_reached(
    shared_cluster: Cluster, topic: str, acks: Acks, sync: Sync
) -> None:
    with Producer(shared_cluster.bootstrap, acks=acks, sync=sync) as producer:
        report = producer.send(topic, b"v", partition=1).result(120)
    assert (report.topic, report.partition) == (topic, 1)
    if acks is Acks.NONE:
        assert report.offset == -1
    else:
        assert report.acks >= acks
        assert report.sync >= sync
        assert report.offset == 0
        assert report.leader_epoch >= 1
    read_all(shared_cluster, topic, 1)


@pytest.mark.parametrize("idempotent", [True, False])
def test_order_within_a_partition_is_the_order_of_sending(
    shared_cluster: Cluster, topic: str, idempotent: bool
) -> None:
    with Producer(
        shared_cluster.bootstrap, idempotent=idempotent, batch_bytes=2_000, linger_ms=0
    ) as producer:
        for index in range(20_000):
            producer.send(topic, b"%d" % index, b"%d" % (index % 10))
        producer.flush(120)
    last: dict[bytes | None, int] = {}
    for record in read_all(shared_cluster, topic, 20_000):
        index = int(record.value or b"")
        assert last.get(record.key, -1) < index
        last[record.key] = index


@pytest.mark.parametrize("make", [list, lambda v: pa.array(v, pa.binary()), np.array])
def test_a_hundred_thousand_records_go_as_columns(
    shared_cluster: Cluster, topic: str, producer: Producer, make: Callable[[Any], Any]
) -> None:
    values = [b"%06d" % index for index in range(100_000)]
    reports = producer.send_columns(topic, make(values), partition=2).result(120)
    assert sum(report.record_count for report in reports) == 100_000
    assert [r.base_offset for r in reports] == sorted(r.base_offset for r in reports)
    assert [record.value for record in read_all(shared_cluster, topic, 100_000)] == values


def test_times_from_the_future_fail_definitely_and_the_rest_goes_on(
    shared_cluster: Cluster, topic: str, producer: Producer
) -> None:
    tomorrow_ms = time.time_ns() // 1_000_000 + 86_400_000
    late = producer.send_columns(topic, [b"v"] * 10, timestamps_ms=tomorrow_ms, partition=0)
    after = producer.send(topic, b"after", partition=0)
    with pytest.raises(DeliveryError, match=r"message\.timestamp") as refused:
        late.result(120)
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    assert not refused.value.unknown_outcome
    assert after.result(120).offset == 0
    assert producer.close() == 10
    read_all(shared_cluster, topic, 1)


def test_columns_with_recent_times_are_read_back(
    shared_cluster: Cluster, topic: str, producer: Producer
) -> None:
    now_ms = time.time_ns() // 1_000_000
    keys = pa.array([b"%d" % (index % 50) for index in range(10_000)], pa.binary())
    times = np.arange(now_ms - 10_000, now_ms)
    producer.send_columns(topic, keys, keys, timestamps_ms=times).result(120)
    records = read_all(shared_cluster, topic, 10_000)
    assert sorted(record.timestamp_ms for record in records) == times.tolist()
    assert all(r.partition == partition_for_key(r.key or b"", 3) for r in records)


def test_a_record_over_the_topics_limit_is_refused_before_sending(
    shared_cluster: Cluster, topic: str, producer: Producer
) -> None:
    with pytest.raises(MisuseError, match=r"2000020 bytes.*limit is 1048576") as refused:
        producer.send(topic, b"x" * 2_000_000)
    assert refused.value.code is ErrorCode.RECORD_TOO_LARGE
    producer.send(topic, b"x" * 1_048_000).result(120)
    small = f"{topic}.small"
    shared_cluster.create_topic(small, configs={"max.message.bytes": "5000"})
    with pytest.raises(MisuseError, match="limit is 5000"):
        producer.send(small, b"x" * 5_000)
    for size in (4_700, 1, 4_700, 2_000, 2_000, 2_000):
        producer.send(small, b"x" * size)
    producer.flush(120)
    read_all(shared_cluster, small, 6, partitions=1)


def test_a_limit_lowered_on_the_way_fails_one_batch_and_the_rest_goes_on(
    shared_cluster: Cluster,
) -> None:
    topic = "limit.lowered"
    shared_cluster.create_topic(topic, configs={"max.message.bytes": "100000"})
    with Admin(shared_cluster.bootstrap) as admin, Producer(shared_cluster.bootstrap) as producer:
        producer.send(topic, b"before").result(120)
        admin.alter_configs(topic, {"max.message.bytes": "2000"})
        wait_for_limit(shared_cluster, topic, "2000")
        large = producer.send(topic, b"x" * 50_000)
        with pytest.raises(DeliveryError, match="limit") as refused:
            large.result(120)
        assert refused.value.code is ErrorCode.RECORD_TOO_LARGE
        assert not refused.value.unknown_outcome
        for index in range(100):
            producer.send(topic, b"%d" % index)
        producer.flush(120)
        assert producer.close() == 1
    values = [record.value for record in read_all(shared_cluster, topic, 101, partitions=1)]
    assert values == [b"before", *(b"%d" % index for index in range(100))]


@pytest.mark.parametrize("options", [{}, {"idempotent": False}, {"transactional_id": "split"}])
def test_batches_above_a_lowered_limit_are_split_and_keep_their_order(
    shared_cluster: Cluster, request: pytest.FixtureRequest, options: dict[str, Any]
) -> None:
    topic = own_name(request)
    shared_cluster.create_topic(topic, configs={"max.message.bytes": "100000"})
    numbers = [b"%05d" % n + b"." * 95 for n in range(3_000)]
    with (
        Admin(shared_cluster.bootstrap) as admin,
        Producer(shared_cluster.bootstrap, linger_ms=200, codec=Codec.NONE, **options) as producer,
    ):
        producer.prepare(topic)
        admin.alter_configs(topic, {"max.message.bytes": "20000"})
        wait_for_limit(shared_cluster, topic, "20000")
        with (
            producer.transaction() if "transactional_id" in options else nullcontext(producer) as to
        ):
            sent = [to.send(topic, value) for value in numbers[:2_000]]
            columns = to.send_columns(topic, numbers[2_000:])
        reports = [delivery.result(120) for delivery in sent]
        counts = [report.record_count for report in columns.result(120)]
    assert sum(counts) == 1_000
    records = read_all(shared_cluster, topic, 3_000, partitions=1)
    assert [record.value for record in records] == numbers
    assert [report.base_offset for report in reports] == [r.offset for r in records[:2_000]]


def test_a_limit_that_was_raised_is_known_to_the_next_larger_record(
    shared_cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    topic = own_name(request)
    shared_cluster.create_topic(topic, configs={"max.message.bytes": "2000"})
    with Admin(shared_cluster.bootstrap) as admin, Producer(shared_cluster.bootstrap) as producer:
        with pytest.raises(MisuseError, match="the limit is 2000"):
            producer.send(topic, b"x" * 5_000)
        admin.alter_configs(topic, {"max.message.bytes": "9000"})
        wait_for_limit(shared_cluster, topic, "9000")
        assert producer.send(topic, b"x" * 5_000).result(120).base_offset == 0


def test_a_limit_that_was_raised_is_known_to_the_next_larger_column(
    shared_cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    topic = own_name(request)
    shared_cluster.create_topic(topic, partitions=1, configs={"max.message.bytes": "2000"})
    sizes = [10, 5_000, 20]
    with Admin(shared_cluster.bootstrap) as admin, Producer(shared_cluster.bootstrap) as producer:
        with pytest.raises(MisuseError, match="the limit is 2000"):
            producer.send_columns(topic, [b"x" * size for size in sizes])
        admin.alter_configs(topic, {"max.message.bytes": "9000"})
        wait_for_limit(shared_cluster, topic, "9000")
        reports = producer.send_columns(topic, [b"x" * size for size in sizes]).result(120)
        assert sum(report.record_count for report in reports) == 3

        async def too_large() -> None:
            async with AsyncProducer(shared_cluster.bootstrap) as other:
                await other.prepare(topic)
                admin.alter_configs(topic, {"max.message.bytes": "20000"})
                wait_for_limit(shared_cluster, topic, "20000")
                sent = await other.send_columns(topic, [b"x" * size for size in [*sizes, 15_000]])
                assert sum(report.record_count for report in await sent) == 4
                with pytest.raises(MisuseError, match="the limit is 20000"):
                    await other.send_columns(topic, [b"x" * 30_000])

        asyncio.run(too_large())
    records = read_all(shared_cluster, topic, 8, partitions=1)
    assert [len(record.value or b"") for record in records] == [10, *sizes, *sizes, 15_000]


def test_an_unknown_topic_is_one_clear_error_and_soon(shared_cluster: Cluster) -> None:
    with Producer(shared_cluster.bootstrap, max_block_ms=600_000) as producer:
        begun = time.monotonic()
        with pytest.raises(ClusterError, match="'nowhere' does not exist") as unknown:
            producer.send("nowhere", b"v")
        assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC
        assert time.monotonic() - begun < 300, "it did not wait for `max_block_ms`"


@pytest.mark.parametrize("topic", ["", "a b", "x" * 250])
def test_an_illegal_topic_name_is_an_error(producer: Producer, topic: str) -> None:
    with pytest.raises(MisuseError) as refused:
        producer.send(topic, b"v")
    assert refused.value.code is ErrorCode.INVALID_TOPIC_NAME


def test_serializers_work_end_to_end(shared_cluster: Cluster, topic: str) -> None:
    with Producer(
        shared_cluster.bootstrap,
        key_serializer=StringSerializer(),
        value_serializer=JsonSerializer(),
    ) as producer:
        producer.send(topic, {"delay": 12}, "AA").result(120)
    (record,) = read_all(shared_cluster, topic, 1)
    assert (record.key, record.value) == (b"AA", b'{"delay":12}')


def test_close_sends_what_lingers(shared_cluster: Cluster, topic: str) -> None:
    producer = Producer(shared_cluster.bootstrap, linger_ms=3_600_000)
    deliveries = [producer.send(topic, b"v") for _ in range(10)]
    assert not any(delivery.done() for delivery in deliveries)
    assert producer.close() == 0
    assert all(delivery.done() for delivery in deliveries)
    assert producer.close() == 0, "closing twice is fine"
    with pytest.raises(ClusterError, match="closed") as closed:
        producer.send(topic, b"v")
    assert closed.value.code is ErrorCode.CLOSED
    read_all(shared_cluster, topic, 10)


def test_a_small_buffer_makes_send_wait_and_loses_nothing(
    shared_cluster: Cluster, topic: str
) -> None:
    with Producer(shared_cluster.bootstrap, buffer_bytes=20_000, batch_bytes=5_000) as producer:
        for index in range(5_000):
            producer.send(topic, b"%d" % index * 10)
        producer.send_columns(topic, [b"x" * 100] * 1_000)
        producer.flush(120)
        assert producer.close() == 0
    read_all(shared_cluster, topic, 6_000)


def test_with_the_buffer_full_nothing_lingers(shared_cluster: Cluster, topic: str) -> None:
    """No batch fills: only the linger time, an hour, would make space."""
    with Producer(
        shared_cluster.bootstrap, buffer_bytes=20_000, batch_bytes=15_000, linger_ms=3_600_000
    ) as producer:
        for index in range(600):
            producer.send(topic, b"x" * 100, partition=index % 3)
    read_all(shared_cluster, topic, 600)


def fill(producer: AsyncProducer, topic: str) -> int:
    """Sends until the buffer is full; how many records that took."""
    accepted = 0
    with suppress(ClusterError):
        while accepted < 1_000:
            producer.send_nowait(topic, b"x" * 100)
            accepted += 1
    with pytest.raises(ClusterError, match="of 5000 bytes") as full:
        producer.send_nowait(topic, b"x" * 100)
    assert full.value.code is ErrorCode.BUFFER_FULL
    return accepted


async def test_the_async_producer_awaits_room_and_refuses_without_waiting_when_full(
    shared_cluster: Cluster, topic: str
) -> None:
    async with AsyncProducer(
        shared_cluster.bootstrap, buffer_bytes=5_000, batch_bytes=2_000, linger_ms=1_000
    ) as producer:
        with pytest.raises(ClusterError, match="not prepared") as unprepared:
            producer.send_nowait(topic, b"v")
        assert unprepared.value.code is ErrorCode.BUFFER_FULL
        await producer.prepare(topic)
        accepted = fill(producer, topic)
        report = await (await producer.send(topic, b"waits for room", partition=0))
        assert report.partition == 0
        deliveries = await producer.send_columns(topic, [b"y" * 100] * 200)
        assert sum(r.record_count for r in await deliveries) == 200
    async with AsyncConsumer(shared_cluster.bootstrap) as consumer:
        await consumer.assign([TopicPartition(topic, index) for index in range(3)])
        seen = 0
        async for _record in consumer:
            seen += 1
            if seen == accepted + 201:
                break
        assert set((await consumer.lag()).values()) == {0}


def test_a_topic_created_again_gets_only_what_is_sent_to_it(
    shared_cluster: Cluster, topic: str, producer: Producer
) -> None:
    for index in range(10):
        producer.send(topic, b"old %d" % index, partition=0)
    producer.flush(120)
    with Admin(shared_cluster.bootstrap) as admin:
        admin.delete_topic(topic)
        wait_until(
            lambda: not any(shared_cluster.topic(topic, at) for at in shared_cluster.brokers),
            what="no broker knows the topic",
        )
        admin.create_topic(topic, 3, 3)
    shared_cluster.wait_leaders(topic)
    # The producer may still believe in the old topic: what it sends there fails definitely.
    failures: list[DeliveryError] = []
    stored: list[int] = []
    for index in range(200):
        try:
            stored.append(producer.send(topic, b"new %d" % index, partition=0).result(120).offset)
        except DeliveryError as error:
            failures.append(error)
    assert {error.code for error in failures} <= {ErrorCode.TOPIC_ID_MISMATCH}
    assert not any(error.unknown_outcome for error in failures)
    assert stored == list(range(len(stored)))
    assert len(stored) > 100
    records = read_all(shared_cluster, topic, len(stored))
    assert all((record.value or b"").startswith(b"new") for record in records)


def test_records_for_a_partition_that_a_topic_created_again_lacks_fail_at_once(
    shared_cluster: Cluster, topic: str
) -> None:
    with Producer(
        shared_cluster.bootstrap, linger_ms=90_000, delivery_timeout_ms=120_000
    ) as producer:
        waiting = producer.send(topic, b"old", partition=2)
        with Admin(shared_cluster.bootstrap) as admin:
            admin.delete_topic(topic)
            admin.create_topic(topic, 1, 3)
        wait_until(lambda: _knows_one_partition(producer, topic), what="it sees the new topic")
        with pytest.raises(DeliveryError, match="was created again") as lost:
            waiting.result(30)
        assert lost.value.code is ErrorCode.TOPIC_ID_MISMATCH
        assert not lost.value.unknown_outcome
        assert producer.close() == 1


def _knows_one_partition(producer: Producer, topic: str) -> bool:
    """Whether the producer knows that there is only one."""
    buffer = producer._core.buffer_of(topic)
    producer._loop.run(producer._core._refresh_limit())
    return buffer is not None and len(buffer.queues) == 1


def test_two_producers_do_not_disturb_each_other(shared_cluster: Cluster, topic: str) -> None:
    with Producer(shared_cluster.bootstrap) as one, Producer(shared_cluster.bootstrap) as two:
        for index in range(1_000):
            one.send(topic, b"1:%d" % index, partition=0)
            two.send(topic, b"2:%d" % index, partition=0)
    values = [record.value or b"" for record in read_all(shared_cluster, topic, 2_000)]
    for name in (b"1", b"2"):
        mine = [int(value[2:]) for value in values if value.startswith(name)]
        assert mine == list(range(1_000))
