"""Consume, transform, produce on real brokers: each record once in the output, in order per key."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import (
    Consumer,
    Out,
    Producer,
    Record,
    TopicPartition,
    Transformer,
)

KEYS = 7
PARTITIONS = 3


@pytest.fixture
def source(shared_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions; also the group's name. Its output: `.out`, letters: `.dlt`."""
    name = "".join(c if c.isalnum() else "." for c in request.node.name)[-200:]
    shared_cluster.create_topic(name, partitions=PARTITIONS)
    shared_cluster.create_topic(f"{name}.out", partitions=PARTITIONS)
    shared_cluster.create_topic(f"{name}.dlt")
    return name


def fill(cluster: Cluster, topic: str, numbers: range) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, b"key-%d" % (number % KEYS))
        assert producer.close(30) == 0


class Output:
    """What a read_committed reader sees of a topic from its beginning."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int = PARTITIONS) -> None:
        self.seen: list[Record] = []
        self._reader = Consumer(cluster.bootstrap)
        self._reader.assign([TopicPartition(topic, number) for number in range(partitions)])

    def has(self, count: int) -> bool:
        for batch in self._reader.poll(0.1):
            self.seen.extend(batch.records())
        return len(self.seen) >= count

    def all(self, count: int) -> list[int]:
        """Waits for so many, and reads on to the end: there may be more."""
        wait_until(lambda: self.has(count), what=f"{count} records of output", timeout_s=90)
        wait_until(lambda: not any(self._reader.lag().values()), what="all is read")
        self.has(0)
        return [int(record.value or b"") for record in self.seen]

    def check(self, numbers: range) -> None:
        """Each once, and each key in order."""
        got = self.all(len(numbers))
        twice = {number: count for number, count in Counter(got).items() if count > 1}
        assert not twice, f"more than once: {twice}"
        assert sorted(got) == list(numbers)
        per_key: dict[bytes | None, list[int]] = defaultdict(list)
        for record in self.seen:
            per_key[record.key].append(int(record.value or b""))
        for key, found in per_key.items():
            assert found == sorted(found), f"{key!r} out of order"

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def output(shared_cluster: Cluster, source: str) -> Iterator[Output]:
    made = Output(shared_cluster, f"{source}.out")
    yield made
    made.close()


def copy_to(source: str):  # type: ignore[no-untyped-def]  # a handler
    def copy(record: Record, out: Out) -> None:
        out.send(f"{source}.out", record.value, record.key)

    return copy


def test_a_handler_is_called_for_every_record_and_its_output_is_there_once(
    shared_cluster: Cluster, source: str, output: Output
) -> None:
    fill(shared_cluster, source, range(1_000))
    with Transformer(shared_cluster.bootstrap, group_id=source, source=source) as loop:
        running = threading.Thread(target=loop.run, args=(copy_to(source),))
        running.start()
        output.check(range(1_000))
        fill(shared_cluster, source, range(1_000, 1_200))
        output.check(range(1_200))
        loop.stop()
        running.join(30)
        assert not running.is_alive()
    output.check(range(1_200))
    assert loop.core.model.committed_records == 1_200
    with Consumer(shared_cluster.bootstrap, group_id=source) as onlooker:
        places = [TopicPartition(source, number) for number in range(PARTITIONS)]
        found = onlooker.committed(places).values()
        assert sum(each.offset for each in found if each is not None) == 1_200


def test_what_fails_twice_works_then_and_what_fails_for_good_becomes_a_letter_once(
    shared_cluster: Cluster, source: str, output: Output
) -> None:
    fill(shared_cluster, source, range(300))
    calls: Counter[int] = Counter()

    def handle(record: Record, out: Out) -> None:
        number = int(record.value or b"")
        calls[number] += 1
        out.send(f"{source}.out", record.value, record.key)  # of a failing one as well: aborted
        if number == 100 or (number in (50, 200) and calls[number] < 3):
            raise ValueError(f"cannot do {number}")

    with Transformer(
        shared_cluster.bootstrap,
        group_id=source,
        source=source,
        retries=2,
        backoff_ms=1,
        dead_letter_topic=f"{source}.dlt",
    ) as loop:
        running = threading.Thread(target=loop.run, args=(handle,))
        running.start()
        letters = Output(shared_cluster, f"{source}.dlt", 1)
        assert letters.all(1) == [100]
        good = [number for number in range(300) if number != 100]
        assert sorted(output.all(299)) == good
        loop.stop()
        running.join(30)
    assert letters.all(1) == [100]
    letters.close()
    headers = dict(letters.seen[0].headers)
    assert headers["penstock-dlt-error"] == b"ValueError: cannot do 100"
    assert headers["penstock-dlt-attempts"] == b"3"
    assert calls[100] == 3, "attempts are counted per record"
    assert loop.core.model.committed_letters == 1
