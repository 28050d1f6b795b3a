"""The peer of `transactions.py`: confluent-kafka's transactional producer on a real Kafka.

The loops are those of ours, in the peer's own words, with the same settings: acks=all, linger of
5 ms, idempotent, the same bound of what may wait in the producer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import libversion
from confluent_kafka.admin import AdminClient, NewTopic

BUFFER_BYTES = 8 * 1024 * 1024
"""What may wait in a producer: with more, a commit every 100 ms sends for longer than that."""
PIPE_KB = 32 * 1024
"""What may wait in a pipe's producer: what is our clients' default."""
TIMEOUT_S = 60.0
POLLED = 1_000
"""Records per poll of a pipe, ours and theirs."""


def create_topic(bootstrap: str, topic: str, partitions: int, replication: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, replication)]).values():
        future.result()
    time.sleep(1)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its answers end with it
    for future in admin.delete_topics([topic]).values():
        future.result()


def producer_of(
    bootstrap: str, transactional_id: str = "", more: Mapping[str, Any] | None = None
) -> KafkaProducer:
    """With a transactional id: initialised."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
        "log_level": 3,  # else a word per retry while coordinators load
    }
    if transactional_id:
        config["transactional.id"] = transactional_id
    producer = KafkaProducer(config | dict(more or {}))
    if transactional_id:
        producer.init_transactions(TIMEOUT_S)
    return producer


def protocol(bootstrap: str) -> str:
    """Which transactions the peer speaks, by the requests it sends in one of them.

    With KIP-890 a client names no partitions before it produces (librdkafka#5423 asks for that).
    """
    create_topic(bootstrap, "protocol", 1, 1)
    seen: dict[str, int] = {}

    def count(text: str) -> None:
        for broker in json.loads(text)["brokers"].values():
            for name, requests in broker["req"].items():
                seen[name] = max(seen.get(name, 0), requests)

    producer = producer_of(
        bootstrap, "protocol", {"stats_cb": count, "statistics.interval.ms": 100}
    )
    producer.begin_transaction()
    producer.produce("protocol", b"x")
    producer.commit_transaction(TIMEOUT_S)
    limit = time.monotonic() + TIMEOUT_S
    while not seen.get("EndTxn"):
        if time.monotonic() > limit:
            raise SystemExit(f"librdkafka told of no EndTxn request: {seen}")
        producer.poll(0.1)
    kind = "KIP-98" if seen.get("AddPartitionsToTxn") else "KIP-890"
    return f"{kind} transactions of librdkafka {libversion()[0]}"


def put(producer: KafkaProducer, topic: str, value: bytes | None, key: bytes | None = None) -> None:
    """Waits for room."""
    while True:
        try:
            producer.produce(topic, value, key)
        except BufferError:
            producer.poll(0.01)
        else:
            return


def produce(
    bootstrap: str, topic: str, value: bytes, seconds: float, interval_s: float
) -> tuple[float, int]:
    """Records per second, and how many transactions they were; `interval_s` 0: none."""
    producer = producer_of(bootstrap, f"{topic}-id" if interval_s else "")
    put_many = 100
    records = transactions = 0
    _warm(producer, topic, value, transactional=interval_s > 0)
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        if interval_s:
            producer.begin_transaction()
        due = now + (interval_s or seconds)
        while time.perf_counter() < due:
            for _ in range(put_many):
                put(producer, topic, value)
            records += put_many
            producer.poll(0)
        if interval_s:
            producer.commit_transaction(TIMEOUT_S)
            transactions += 1
    left = producer.flush(TIMEOUT_S)
    if left:
        raise SystemExit(f"Kafka left {left} records undelivered")
    return records / (time.perf_counter() - began), transactions


def _warm(producer: KafkaProducer, topic: str, value: bytes, *, transactional: bool) -> None:
    if transactional:
        producer.begin_transaction()
    put(producer, topic, value)
    if transactional:
        producer.commit_transaction(TIMEOUT_S)
    producer.flush(TIMEOUT_S)


def latencies(bootstrap: str, topic: str, value: bytes, count: int) -> tuple[list[float], ...]:
    """Seconds of `count` produces of one record, and of as many commits of one."""
    plain = producer_of(bootstrap, "", {"linger.ms": 0})
    inside = producer_of(bootstrap, f"{topic}-id", {"linger.ms": 0})
    _warm(plain, topic, value, transactional=False)
    _warm(inside, topic, value, transactional=True)
    produced, committed = [], []
    for _ in range(count):
        began = time.perf_counter()
        put(plain, topic, value)
        plain.flush(TIMEOUT_S)
        produced.append(time.perf_counter() - began)
        inside.begin_transaction()
        put(inside, topic, value)
        inside.flush(TIMEOUT_S)
        began = time.perf_counter()
        inside.commit_transaction(TIMEOUT_S)
        committed.append(time.perf_counter() - began)
    return produced, committed


def one_by_one(bootstrap: str, topic: str, value: bytes, producers: int, seconds: float) -> float:
    """Transactions of one record per second, of so many producers, each in a thread."""
    made = [producer_of(bootstrap, f"{topic}-{number}") for number in range(producers)]
    for producer in made:
        _warm(producer, topic, value, transactional=True)
    counts = [0] * producers
    began = time.perf_counter()

    def run(number: int) -> None:
        while time.perf_counter() < began + seconds:
            made[number].begin_transaction()
            made[number].produce(topic, value)
            made[number].commit_transaction(TIMEOUT_S)
            counts[number] += 1

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def pipe(bootstrap: str, source: str, target: str, count: int, interval_s: float) -> float:
    """Records per second, consumed and produced in transactions that hold the group's offsets."""
    producer = producer_of(bootstrap, f"{target}-id", {"queue.buffering.max.kbytes": PIPE_KB})
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": target,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 3,
        }
    )
    consumer.subscribe([source])

    def commit() -> None:
        offsets = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)

    def work() -> int:
        messages = consumer.consume(POLLED, 1.0)
        for message in messages:
            if message.error() is not None:
                raise SystemExit(f"Kafka's consumer: {message.error()}")
            put(producer, target, message.value(), message.key())
        producer.poll(0)
        return len(messages)

    try:
        return drive_pipe(work, producer.begin_transaction, commit, count, interval_s)
    finally:
        consumer.close()


def drive_pipe(
    work: Callable[[], int],
    begin: Callable[[], object],
    commit: Callable[[], object],
    count: int,
    interval_s: float,
) -> float:
    """Records per second of a loop that commits every `interval_s`, from the first records on.

    `work` polls, sends, and says how many records it had.
    """
    begin()
    first = 0
    limit = time.monotonic() + TIMEOUT_S
    while not first:
        first = work()
        if time.monotonic() > limit:
            raise SystemExit(f"no records came within {TIMEOUT_S:.0f} s")
    commit()
    began, done = time.perf_counter(), first
    while done < count:
        begin()
        due = time.perf_counter() + interval_s
        while True:
            had = work()
            if not had:
                raise SystemExit(f"only {done} of {count} records came")
            done += had
            if done >= count or time.perf_counter() >= due:
                break
        commit()
    return (done - first) / (time.perf_counter() - began)
