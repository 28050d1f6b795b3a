"""What tests of copies from and to a real Kafka share: topics, records, and what has arrived."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.missing import cannot_run
from support.waiting import wait_until

from benchmarks.kafka_peer import Peer, available, kafka
from penstock.client import LATEST, Admin, Consumer, TopicPartition

TIMEOUT_S = 180


@contextmanager
def running_kafka() -> Iterator[Peer]:
    """A Kafka of one broker; skips the test where none can be run."""
    missing = available()
    if missing is not None:
        cannot_run(f"{missing}; both are needed to run Kafka")
    with ExitStack() as held:
        try:
            running = held.enter_context(kafka(1))
        except (subprocess.CalledProcessError, SystemExit) as error:
            cannot_run(f"Kafka cannot be run here: {error}")
        yield running


def make(peer: Peer, name: str, partitions: int, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    # Records have times of long ago.
    named = {"retention.ms": "-1"} | {k.replace("_", "."): v for k, v in configs.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=named)])[name].result(TIMEOUT_S)


def produce(peer: Peer, name: str, count: int, *, first: int = 0, **settings: Any) -> None:
    """Record `index`, from `first` on, has a time of that many milliseconds after a fixed one."""
    producer = ck.Producer({"bootstrap.servers": peer.bootstrap, **settings})
    for index in range(first, first + count):
        value = None if index % 50 == 49 else b"value %d" % index
        headers: Any = [("h", b"%d" % index), ("null", None)] if index % 7 == 0 else None
        producer.produce(
            name, value, b"key-%d" % (index % 100), timestamp=1_700_000_000_000 + index,
            headers=headers or [],
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def everything(bootstrap: str, topic: str, count: int) -> list[tuple[object, ...]]:
    """All records of a topic here: partition, key, value, time, headers."""
    with Admin(bootstrap) as admin:
        partitions = len(admin.describe_topics([topic])[topic].partitions)
    found: list[tuple[object, ...]] = []
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        wheres = [TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(wheres)
        consumer.seek_to_beginning(wheres)

        def more() -> bool:
            for batch in consumer.poll(0.2):
                found.extend(
                    (each.partition, each.key, each.value, each.timestamp_ms, tuple(each.headers))
                    for each in batch.records()
                )
            return len(found) >= count

        wait_until(more, what=f"{count} records of {topic}")
    return found


def while_it_runs(process: "subprocess.Popen[bytes]", holds: Callable[[], bool], what: str) -> None:
    """A program that ends first fails the test with its words."""

    def seen() -> bool:
        if process.poll() is not None and not holds():
            pytest.fail(f"it ended before {what}: {process.communicate()}")
        return holds()

    wait_until(seen, what=what)


def written(admin: Admin, topic: str) -> int:
    if topic not in admin.list_topics():
        return 0
    partitions = admin.describe_topics([topic])[topic].partitions
    with_ends = admin.list_offsets(
        {TopicPartition(topic, each.partition): LATEST for each in partitions}
    )
    return sum(each.offset for each in with_ends.values())
