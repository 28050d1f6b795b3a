"""Kafka's clients of `latency.py`: confluent-kafka, idempotent, acks=all, otherwise its defaults.

The settings are those of ours: no linger where ours has none, the same linger where it has one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Message
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaPartition

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
    receive_all,
    send_all,
    send_warm,
)

POLL_S = 1.0
RECORD = b"." * RECORD_BYTES
ANY_PARTITION = -1


def append(job: Job, gate: Gate) -> Sample:
    """A thread per client, which polls its producer until its record is reported. Clients that
    share a producer have one thread together, where the report of a record sends the next one:
    with a thread each, Python's handing over from thread to thread is what would be measured."""
    loops = _shared_loops if job.shared else _loops
    made = [_producer(job, 0) for _ in range(1 if job.shared else len(job.clients))]
    clients = [
        _Client(made[at % len(made)], job.topic, number % PARTITIONS)
        for at, number in enumerate(job.clients)
    ]
    loops(clients, job.settle_s)
    gate.wait()
    for client in clients:
        client.latencies_us.clear()
    meter = Meter.start()
    loops(clients, job.seconds)
    for client in clients:
        meter.latencies_us += client.latencies_us
    gate.done()
    return meter.sample()


class _Client:
    """Appends one record after the other until a time, and says how long each took."""

    def __init__(self, producer: KafkaProducer, topic: str, partition: int) -> None:
        self.producer = producer
        self.latencies_us: list[int] = []
        self._topic = topic
        self._partition = partition
        self._end_ns = self._began_ns = 0
        self.running = False
        """A record is under way, or the next one is about to be."""

    def begin(self, end_ns: int) -> None:
        """Sends the first record. Whoever polls the producer keeps it going."""
        self.running, self._end_ns = True, end_ns
        self._send()

    def _send(self) -> None:
        self._began_ns = time.perf_counter_ns()
        self.producer.produce(
            self._topic, RECORD, partition=self._partition, on_delivery=self._report
        )

    def _report(self, error: object, _message: Message) -> None:
        if error is not None:
            raise SystemExit(f"{self._topic}: not delivered: {error}")
        now_ns = time.perf_counter_ns()
        self.latencies_us.append((now_ns - self._began_ns) // 1_000)
        if now_ns < self._end_ns:
            self._send()
        else:
            self.running = False


def _shared_loops(clients: list[_Client], seconds: float) -> None:
    end_ns = time.perf_counter_ns() + int(1e9 * seconds)
    for client in clients:
        client.begin(end_ns)
    while any(client.running for client in clients):
        clients[0].producer.poll(POLL_S)


def _loops(clients: list[_Client], seconds: float) -> None:
    """All at once; raises what the first of them that failed raised."""
    end_ns = time.perf_counter_ns() + int(1e9 * seconds)
    failed: list[BaseException] = []

    def run(client: _Client) -> None:
        try:
            client.begin(end_ns)
            while client.running:
                client.producer.poll(POLL_S)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
            failed.append(error)

    threads = [threading.Thread(target=run, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def pipeline(job: Job, gate: Gate) -> Sample:
    """One record per request; librdkafka has five requests in flight when it is idempotent."""
    producer = _producer(job, 0, {"batch.num.messages": 1})
    reports = _Reports()
    put_one = reports.putter(producer, job.topic)
    send_warm(lambda: put_one(RECORD, None), lambda: _flush(producer), job.settle_s)
    gate.wait()
    meter = Meter.start()
    for _ in range(job.records):
        put_one(RECORD, None)
    _flush(producer)
    gate.done()
    sample = meter.sample(job.records)
    reports.check()
    return sample


def send(job: Job, gate: Gate) -> Sample:
    producer = _producer(job, LINGER_MS)
    reports = _Reports()
    sample = send_all(job, gate, reports.putter(producer, job.topic), lambda: _flush(producer))
    reports.check()
    return sample


def receive(job: Job, gate: Gate) -> Sample:
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": job.topic,
            "enable.auto.commit": False,
            "log_level": 3,
        }
    )
    consumer.assign(
        [KafkaPartition(job.topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
    )

    def poll(receipts: Receipts) -> None:
        message = consumer.poll(1.0)
        if message is None:
            return
        if message.error() is not None:
            raise SystemExit(f"Kafka's consumer: {message.error()}")
        receipts.take(message.partition() or 0, message.value() or b"", time.time_ns())

    try:
        return receive_all(gate, poll)
    finally:
        consumer.close()


class _Reports:
    """Failures of deliveries nobody waits for."""

    def __init__(self) -> None:
        self._failed: list[object] = []

    def putter(self, producer: KafkaProducer, topic: str) -> Callable[[bytes, int | None], None]:
        """`put(value, partition)` that takes reports on the way; partition None = any."""

        def report(error: object, _message: Message) -> None:
            if error is not None:
                self._failed.append(error)

        def put(value: bytes, partition: int | None) -> None:
            where = ANY_PARTITION if partition is None else partition
            producer.produce(topic, value, partition=where, on_delivery=report)
            producer.poll(0)

        return put

    def check(self) -> None:
        if self._failed:
            raise SystemExit(f"{len(self._failed)} not delivered, first: {self._failed[0]}")


def _producer(job: Job, linger_ms: int, more: dict[str, Any] | None = None) -> KafkaProducer:
    return KafkaProducer(
        {
            "bootstrap.servers": job.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": linger_ms,
            "log_level": 3,
        }
        | (more or {})
    )


def _flush(producer: KafkaProducer) -> None:
    left = producer.flush(TIMEOUT_S)
    if left:
        raise SystemExit(f"Kafka left {left} records undelivered")
