"""A leader dies between its own write, its followers' and the answer: nothing acknowledged is lost.

    leader writes ─▶ sends to followers ─▶ they write ─▶ acknowledge ─▶ leader answers, readers see
     ▲ before        ▲ after                 ▲ its follower's

A producer waits for every record and repeats what it got no answer to; a consumer reads all the
time. Whatever the producer was told stands, once and in order, and what the consumer has read stays
(I7, I8).
"""

from collections.abc import Callable
from threading import Event, Thread
from typing import Self

import pytest
from support.cluster import Cluster
from support.faults import Faults
from support.waiting import wait_until

from penstock.client import Consumer, Producer, TopicPartition

_Entry = tuple[int, bytes | None]
VALUES = [b"before", b"cut", b"after"]


class Reader:
    """A consumer of partition 0 that goes on reading; `seen`: offsets and values, in order."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.seen: list[_Entry] = []
        self._bootstrap = cluster.bootstrap
        self._topic = topic
        self._over = Event()
        self._thread = Thread(target=self._read)

    def _read(self) -> None:
        with Consumer(self._bootstrap) as consumer:
            consumer.assign([TopicPartition(self._topic, 0)])
            while not self._over.is_set():
                for batch in consumer.poll(0.2):
                    self.seen.extend((record.offset, record.value) for record in batch.records())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait_for(self, value: bytes) -> list[_Entry]:
        """Everything read, once `value` is among it."""

        def there() -> bool:
            return any(found == value for _, found in self.seen)

        wait_until(there, what=f"{value!r} is read")
        return list(self.seen)


Plant = Callable[[list[Faults], Cluster, list[int]], list[int]]
"""Of the faults, the cluster and its brokers, the leader first: lets the leader die at the record
"cut"; returns which brokers die."""


def leader_before_its_write(faults: list[Faults], _: Cluster, brokers: list[int]) -> list[int]:
    faults[brokers[0]].die_at("record", "before")
    return brokers[:1]


def leader_after_its_write(faults: list[Faults], _: Cluster, brokers: list[int]) -> list[int]:
    faults[brokers[0]].die_at("record", "after")
    return brokers[:1]


def leader_after_a_followers_write(
    faults: list[Faults], cluster: Cluster, brokers: list[int]
) -> list[int]:
    faults[brokers[1]].kill_at("record", "after", cluster.brokers[brokers[0]])
    return brokers[:1]


def all_before_the_followers_writes(
    faults: list[Faults], cluster: Cluster, brokers: list[int]
) -> list[int]:
    """The leader has written it, and had half a second to tell somebody too early."""
    _, first, second = brokers
    faults[first].slow(0.5)
    faults[second].slow(5)
    victims = [cluster.brokers[broker_id] for broker_id in (brokers[0], second, first)]
    faults[first].kill_at("record", "before", *victims)
    return brokers


@pytest.mark.parametrize(
    "plant",
    [
        leader_before_its_write,
        leader_after_its_write,
        leader_after_a_followers_write,
        all_before_the_followers_writes,
    ],
    ids=lambda plant: plant.__name__.replace("_", "-"),
)
def test_what_was_acknowledged_and_what_was_read_stays(
    faulty: tuple[Cluster, list[Faults]], plant: Plant, request: pytest.FixtureRequest
) -> None:
    cluster, faults = faulty
    topic = f"cut-{request.node.callspec.id}"
    cluster.create_topic(topic)
    leader = cluster.leader(topic)
    brokers = [leader, *(each for each in cluster.brokers if each != leader)]
    with Producer(cluster.bootstrap) as producer, Reader(cluster, topic) as reader:
        told = [producer.send(topic, b"before", partition=0).result(60)]
        reader.wait_for(b"before")
        dying = plant(faults, cluster, brokers)
        cut = producer.send(topic, b"cut", key=b"cut", partition=0)
        for broker_id in dying:
            assert cluster.brokers[broker_id].wait_end() == -9
            faults[broker_id].heal()
        for broker_id in dying[1:]:
            cluster.brokers[broker_id].start()
        told.append(cut.result(60))
        assert cluster.wait_leader_is_not(topic, 0, leader) in brokers
        cluster.brokers[leader].start()
        told.append(producer.send(topic, b"after", partition=0).result(60))
        seen = reader.wait_for(b"after")
    expected = list(zip([each.offset for each in told], VALUES, strict=True))
    assert seen == expected
    cluster.wait_in_sync(topic)
    with Reader(cluster, topic) as again:
        assert again.wait_for(b"after") == expected, "the log is what the first reader saw"
