"""Produce and consume throughput beside Kafka driven by confluent-kafka, in the same run.

acks=all, page-cache durability, 3 partitions, no compression, values of random bytes, for records
of 100 B and 1 KB and replication 1 and 3. Ours: the batch API (`send_columns`), the per-record API
(`send`), consuming to Arrow. Theirs: `Producer.produce`, `Consumer.consume(500)`.
Each is the best of `--rounds` runs; those of the peer follow ours.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.common import figure, local_cluster, progress
from benchmarks.kafka_peer import available, kafka
from penstock.client import Acks, Admin, Consumer, Producer, TopicPartition

PARTITIONS = 3
CHUNK = 2_000


def produce_columns(bootstrap: str, topic: str, value: bytes, count: int) -> float:
    """Records per second through `send_columns`, keys absent."""
    values = [value] * CHUNK
    with Producer(bootstrap, acks=Acks.ALL) as producer:
        began = time.perf_counter()
        deliveries = [producer.send_columns(topic, values) for _ in range(count // CHUNK)]
        producer.flush()
        took = time.perf_counter() - began
    for delivery in deliveries:
        delivery.result()
    return count / took


def produce_records(bootstrap: str, topic: str, value: bytes, count: int) -> float:
    """Records per second through `send`."""
    with Producer(bootstrap, acks=Acks.ALL) as producer:
        began = time.perf_counter()
        send = producer.send
        for _ in range(count):
            send(topic, value)
        producer.flush()
        return count / (time.perf_counter() - began)


def consume_arrow(bootstrap: str, topic: str, count: int) -> float:
    """Records per second to Arrow tables, from the beginning, one consumer."""
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    seen, began = 0, 0.0
    with Consumer(bootstrap) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        while seen < count:
            table = consumer.poll_arrow(10.0)
            if table is None or not table.num_rows:
                break
            if not began:
                began, count = time.perf_counter(), count - table.num_rows
                continue
            seen += table.num_rows
    return seen / (time.perf_counter() - began)


def kafka_produce(bootstrap: str, topic: str, value: bytes, count: int) -> float:
    producer = KafkaProducer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    began = time.perf_counter()
    for index in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        if index % 1000 == 0:
            producer.poll(0)
    left = producer.flush(180)
    if left:
        raise SystemExit(f"Kafka left {left} records undelivered")
    return count / (time.perf_counter() - began)


def kafka_consume(bootstrap: str, topic: str, count: int) -> float:
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.max.bytes": 52_428_800,
            "queued.max.messages.kbytes": 1 << 20,
        }
    )
    consumer.assign([KafkaPartition(topic, index, 0) for index in range(PARTITIONS)])
    seen, began = 0, 0.0
    while seen < count:
        messages = consumer.consume(500, 10)
        if not messages:
            break
        if not began:
            began, count = time.perf_counter(), count - len(messages)
            continue
        seen += len(messages)
    took = time.perf_counter() - began
    consumer.close()
    return seen / took


def kafka_topic(bootstrap: str, topic: str, replication: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, replication)]).values():
        future.result()
    time.sleep(1)


def measure_ours(bootstrap: str, size: int, replication: int, count: int) -> dict[str, float]:
    topic = f"bench-{size}-{time.monotonic_ns()}"
    with Admin(bootstrap) as admin:
        admin.create_topic(f"{topic}-c", PARTITIONS, replication)
        admin.create_topic(f"{topic}-r", PARTITIONS, replication)
    value = os.urandom(size)
    result = {
        "batch API": produce_columns(bootstrap, f"{topic}-c", value, count),
        "consume": consume_arrow(bootstrap, f"{topic}-c", count),
        "per-record API": produce_records(bootstrap, f"{topic}-r", value, count // 2),
    }
    with Admin(bootstrap) as admin:
        admin.delete_topic(f"{topic}-c")
        admin.delete_topic(f"{topic}-r")
    return result


def measure_theirs(bootstrap: str, size: int, replication: int, count: int) -> dict[str, float]:
    topic = f"bench-{size}-{time.monotonic_ns()}"
    kafka_topic(bootstrap, topic, replication)
    produced = kafka_produce(bootstrap, topic, os.urandom(size), count)
    return {"produce": produced, "consume": kafka_consume(bootstrap, topic, count)}


def best(rounds: int, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The best of each figure over the rounds."""
    results = [measure() for _ in range(rounds)]
    return {name: max(result[name] for result in results) for name in results[0]}


def report(label: str, ours: dict[str, float], theirs: dict[str, float] | None, size: int) -> None:
    vs = "confluent-kafka on Kafka 4.3" if theirs else None
    for name, peer in (
        ("batch API", "produce"),
        ("per-record API", "produce"),
        ("consume", "consume"),
    ):
        what = "consume to Arrow" if name == "consume" else f"produce, {name}"
        figure(f"{what}, {label}", ours[name], "records/s", vs, theirs[peer] if theirs else None)
    progress(f"{label}: {ours['batch API'] * size / 1e6:.0f} MB/s produced by the batch API")


def compare(replication: int, megabytes: int, rounds: int, *, with_kafka: bool) -> None:
    """All figures of one replication factor."""
    counts = {100: megabytes * 10_000 // CHUNK * CHUNK, 1_000: megabytes * 1_000}
    ours: dict[int, dict[str, float]] = {}
    theirs: dict[int, dict[str, float]] = {}
    with local_cluster(replication) as cluster:
        for size, count in counts.items():
            progress(f"penstock, {size} B, replication {replication}")
            run = partial(measure_ours, cluster.bootstrap, size, replication, count)
            ours[size] = best(rounds, run)
    if with_kafka:
        with kafka(replication) as peer:
            for size, count in counts.items():
                progress(f"Kafka, {size} B, replication {replication}")
                run = partial(measure_theirs, peer.bootstrap, size, replication, count)
                theirs[size] = best(rounds, run)
    for size in counts:
        report(f"{size} B, replication {replication}", ours[size], theirs.get(size), size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="payload per run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-kafka", action="store_true", help="only ours")
    parser.add_argument("--replication", type=int, action="append", choices=(1, 3))
    args = parser.parse_args()
    missing = "not asked for" if args.no_kafka else available()
    if missing:
        progress(f"no peer: {missing}")
    for replication in args.replication or (1, 3):
        compare(replication, args.megabytes, args.rounds, with_kafka=missing is None)


if __name__ == "__main__":
    main()
