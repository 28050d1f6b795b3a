"""A group's coordinator dies at each write of offsets in a transaction: they count as it was told.

    join ─▶ pending ─▶ decision ─▶ ended, and the offsets      before the write, or just after it

The victim dies by itself at the write (`support.faulty_child`) and comes back. The offsets have
moved exactly if the producer was told so, the same member and the same producer go on, and nothing
stays pending: who asks for what is committed gets an answer.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from support.cluster import Cluster
from support.faults import OFFSET_POINTS, Faults
from support.waiting import wait_until

from penstock.client import Admin, Consumer, Producer, TopicPartition, TransactionState
from penstock.core.groups.config import OFFSETS_TOPIC, coordinator_partition

COUNT = 6
CASES = [
    (point, when, how)
    for point in OFFSET_POINTS
    for when in ("before", "after")
    for how in ("commit", "abort")
]


class Member:
    """Of a group that reads one partition of numbers; its name is the topic's too."""

    def __init__(self, cluster: Cluster, name: str, consumer: Consumer) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._where = TopicPartition(name, 0)
        self.name = name

    def take(self, count: int) -> list[int]:
        """The next so many."""
        got: list[int] = []

        def turn() -> bool:
            batches = self._consumer.poll(0.5, max_records=count - len(got))
            got.extend(int(value or b"") for batch in batches for value in batch.values())
            return len(got) == count

        wait_until(turn, what=f"{count} records")
        return got

    def transact(self, producer: Producer, numbers: list[int], how: str) -> str:
        """Copies what was taken, with its offsets. Raises what the producer was told otherwise."""
        transaction = producer.transaction()
        transaction.begin()
        for number in numbers:
            transaction.send(f"{self.name}.out", b"%d" % number)
        transaction.commit_offsets(self._consumer)
        if how == "commit":
            transaction.commit()
        else:
            transaction.abort()
            self._consumer.seek_to_committed()
        return how

    def committed(self) -> int:
        """Waits while that is not stable."""
        found = self._consumer.committed([self._where])[self._where]
        return 0 if found is None else found.offset

    @property
    def coordinator(self) -> int:
        info = self._cluster.topic(OFFSETS_TOPIC)
        assert info is not None
        return self._cluster.leader(
            OFFSETS_TOPIC, coordinator_partition(self.name, len(info.partitions))
        )


@contextmanager
def member_of(cluster: Cluster, name: str) -> Iterator[Member]:
    for topic in (name, f"{name}.out"):
        cluster.create_topic(topic)
    with Producer(cluster.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d" % number, partition=0)
        assert producer.close(30) == 0
    with Consumer(
        cluster.bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        request_timeout_ms=60_000,
    ) as consumer:
        consumer.subscribe(name)
        yield Member(cluster, name, consumer)


def copied(cluster: Cluster, name: str, until: int) -> list[int]:
    """What a read_committed reader gets of the copy, up to a number."""
    seen: list[int] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(f"{name}.out", 0)])

        def passed() -> bool:
            seen.extend(int(r.value or b"") for b in consumer.poll(0.5) for r in b.records())
            return until in seen

        wait_until(passed, what="the copy is read")
    return seen


@pytest.mark.parametrize(("point", "when", "how"), CASES, ids=lambda word: word)
def test_offsets_count_as_it_was_told_wherever_their_coordinator_dies(
    faulty: tuple[Cluster, list[Faults]], point: str, when: str, how: str
) -> None:
    cluster, faults = faulty
    name = f"offsets-{point}-{when}-{how}"
    with (
        member_of(cluster, name) as member,
        Producer(cluster.bootstrap, transactional_id=name) as producer,
        Admin(cluster.bootstrap) as admin,
        ThreadPoolExecutor(1) as thread,
    ):
        member.transact(producer, member.take(2), "commit")
        assert member.committed() == 2
        victim = member.coordinator
        broker = cluster.brokers[victim]
        taken = member.take(2)
        faults[victim].die_at(point, when)
        told = thread.submit(member.transact, producer, taken, how)
        assert broker.wait_end() == -9
        faults[victim].heal()
        broker.start()
        assert told.result(timeout=180) == how
        assert member.committed() == (4 if how == "commit" else 2)
        rest = member.take(2 if how == "commit" else 4)
        member.transact(producer, rest, "commit")
        assert member.committed() == COUNT
        assert copied(cluster, name, until=COUNT - 1) == list(range(COUNT))

        def at_rest() -> bool:
            (branch,) = admin.describe_transaction(name).branches
            return branch.state is TransactionState.IDLE and not branch.finishing

        wait_until(at_rest, what="nothing is open or unfinished")
