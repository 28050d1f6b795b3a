"""Our clients of `latency.py`, with their defaults except where the measurement says otherwise."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

from benchmarks.latency_figures import Sample
from benchmarks.latency_job import (
    LINGER_MS,
    PARTITIONS,
    RECORD_BYTES,
    TIMEOUT_S,
    Gate,
    Job,
    Meter,
    Receipts,
    closed_loops,
    receive_all,
    send_all,
    send_warm,
    stamped,
)
from penstock.client import AsyncProducer, Consumer, Producer, TopicPartition

ONE_RECORD_BYTES = 400
"""Of a batch: room for one record of 100 B with what a batch may need, and for no second one."""


def append(job: Job, gate: Gate) -> Sample:
    """AsyncProducers, one for each client or one for all."""
    return asyncio.run(_append(job, gate))


def _producer(job: Job) -> AsyncProducer:
    # Settings are paths: which of a config's fields they are, no type tells.
    return AsyncProducer(job.bootstrap, linger_ms=0, **cast("dict[str, Any]", job.settings))


async def _append(job: Job, gate: Gate) -> Sample:
    value = b"." * RECORD_BYTES

    def of(producer: AsyncProducer, partition: int) -> Callable[[], Awaitable[object]]:
        async def append() -> None:
            await (await producer.send(job.topic, value, partition=partition))

        return append

    async with AsyncExitStack() as open_:
        made = 1 if job.shared else len(job.clients)
        producers = [await open_.enter_async_context(_producer(job)) for _ in range(made)]
        appends = [
            of(producers[at % made], number % PARTITIONS) for at, number in enumerate(job.clients)
        ]
        return await closed_loops(appends, job, gate)


def pipeline(job: Job, gate: Gate) -> Sample:
    """One record per batch and one batch per request: the topic has one partition."""
    value = b"." * RECORD_BYTES
    with Producer(job.bootstrap, linger_ms=0, batch_bytes=ONE_RECORD_BYTES) as producer:
        send_warm(
            lambda: producer.send(job.topic, value),
            lambda: producer.flush(TIMEOUT_S),
            job.settle_s,
        )
        gate.wait()
        meter = Meter.start()
        first = producer.send(job.topic, value)
        for _ in range(job.records - 1):
            producer.send(job.topic, value)
        producer.flush(TIMEOUT_S)
        gate.done()
        sample = meter.sample(job.records)
        _check_alone(job, first.result(0).offset)
        undelivered = producer.close()
    if undelivered:
        raise SystemExit(f"{job.topic}: {undelivered} records were not delivered")
    return sample


def _check_alone(job: Job, offset: int) -> None:
    """Reads back what was stored from `offset` on: batches are stored as they were sent."""
    where, seen = TopicPartition(job.topic, 0), 0
    with Consumer(job.bootstrap) as consumer:
        consumer.assign([where])
        consumer.seek(where, offset)
        while seen < job.records:
            sizes = [batch.record_count for batch in consumer.poll(TIMEOUT_S)]
            if not sizes or max(sizes) > 1:
                raise SystemExit(f"{where}: after {seen} records batches of {sizes}, not of 1")
            seen += len(sizes)


def send(job: Job, gate: Gate) -> Sample:
    with Producer(job.bootstrap, linger_ms=LINGER_MS) as producer:

        def put(value: bytes, partition: int | None) -> None:
            producer.send(job.topic, value, partition=partition)

        sample = send_all(job, gate, put, lambda: producer.flush(TIMEOUT_S))
        undelivered = producer.close()
    if undelivered:
        raise SystemExit(f"{job.topic}: {undelivered} records were not delivered")
    return sample


def receive(job: Job, gate: Gate) -> Sample:
    partitions = [TopicPartition(job.topic, number) for number in range(PARTITIONS)]
    with Consumer(job.bootstrap) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)

        def poll(receipts: Receipts) -> None:
            for batch in consumer.poll(1.0):
                partition = batch.topic_partition.partition
                for record in batch.records():
                    receipts.take(partition, record.value or stamped(0), time.time_ns())

        return receive_all(gate, poll)
