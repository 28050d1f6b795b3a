"""The recipes of docs/delivery.md, each with a crash at its worst moment."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import ConsumedBatch, Consumer, Producer, TopicPartition

COUNT = 30


@pytest.fixture
def topic(shared_broker: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of one partition with the numbers 0 … 29; also the group's name."""
    name = "".join(c if c.isalnum() else "." for c in request.node.name)[-200:]
    shared_broker.create_topic(name)
    with Producer(shared_broker.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d" % number)
        producer.flush(30)
    return name


class CrashError(Exception):
    """The process dies here."""


def opened(cluster: Cluster, topic: str, *, enable_auto_commit: bool) -> Consumer:
    consumer = Consumer(
        cluster.bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=enable_auto_commit,
        auto_commit_interval_ms=20,
    )
    consumer.subscribe(topic)
    return consumer


def some(consumer: Consumer, count: int = 10) -> ConsumedBatch:
    """At most `count` records, as soon as there are any."""
    got: list[ConsumedBatch] = []

    def turn() -> bool:
        got.extend(consumer.poll(0.2, max_records=count))
        return bool(got)

    wait_until(turn, what="records")
    return got[0]


def numbers(batch: ConsumedBatch) -> list[int]:
    return [int(value or b"") for value in batch.values()]


def test_at_most_once_commits_before_it_works(shared_broker: Cluster, topic: str) -> None:
    done: list[int] = []

    def process(crash_at: int) -> None:
        with closing(opened(shared_broker, topic, enable_auto_commit=False)) as consumer:
            while len(done) < COUNT and (not done or done[-1] < COUNT - 1):
                batch = some(consumer)
                consumer.commit()
                for number in numbers(batch):
                    if number == crash_at:
                        raise CrashError
                    done.append(number)

    with pytest.raises(CrashError):
        process(crash_at=14)
    process(crash_at=-1)
    assert done == [*range(14), *range(20, COUNT)], "14 to 19 are lost, nothing comes twice"


@pytest.mark.parametrize("enable_auto_commit", [False, True])
def test_at_least_once_works_before_it_commits(
    shared_broker: Cluster, topic: str, enable_auto_commit: bool
) -> None:
    done: list[int] = []

    def process(crash_at: int) -> None:
        with closing(
            opened(shared_broker, topic, enable_auto_commit=enable_auto_commit)
        ) as consumer:
            while not done or done[-1] < COUNT - 1:
                for number in numbers(some(consumer)):
                    if number == crash_at:
                        raise CrashError
                    done.append(number)
                if not enable_auto_commit:
                    consumer.commit()

    with pytest.raises(CrashError):
        process(crash_at=14)
    process(crash_at=-1)
    assert sorted(set(done)) == list(range(COUNT)), "nothing is lost"
    assert done[14:18] == [10, 11, 12, 13], "what was not committed is worked on again"
    assert len(done) == COUNT + 4


class Table:
    """Results and offsets in one database: both change in one transaction, or neither."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.db.execute("CREATE TABLE IF NOT EXISTS results (number INTEGER)")
        self.db.execute("CREATE TABLE IF NOT EXISTS offsets (place TEXT PRIMARY KEY, next INTEGER)")

    def offset(self, where: TopicPartition) -> int:
        row = self.db.execute("SELECT next FROM offsets WHERE place = ?", [str(where)]).fetchone()
        return int(row[0]) if row else 0

    def results(self) -> list[int]:
        return [row[0] for row in self.db.execute("SELECT number FROM results ORDER BY rowid")]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    with closing(sqlite3.connect(tmp_path / "results.db")) as db:
        yield Table(db)


class SeekToStored:
    """Offsets are the table's: a partition begins where the table says."""

    def __init__(self, consumer: Consumer, table: Table) -> None:
        self._consumer = consumer
        self._table = table

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        for where in partitions:
            self._consumer.seek(where, self._table.offset(where))

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        pass

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        pass


def test_offsets_kept_beside_the_results_make_it_exactly_once(
    shared_broker: Cluster, topic: str, table: Table
) -> None:
    def process(crash_at: int) -> None:
        with closing(
            Consumer(shared_broker.bootstrap, group_id=topic, enable_auto_commit=False)
        ) as consumer:
            consumer.subscribe(topic, listener=SeekToStored(consumer, table))
            while len(table.results()) < COUNT:
                batch = some(consumer)
                with table.db:  # a transaction: commits, or rolls back when something is raised
                    for number in numbers(batch):
                        if number == crash_at:
                            raise CrashError
                        table.db.execute("INSERT INTO results VALUES (?)", [number])
                    table.db.execute(
                        "REPLACE INTO offsets VALUES (?, ?)",
                        [str(batch.topic_partition), batch.next_offset],
                    )

    with pytest.raises(CrashError):
        process(crash_at=14)
    assert table.results() == list(range(10)), "the transaction with the crash left nothing"
    process(crash_at=-1)
    assert table.results() == list(range(COUNT)), "each once"
