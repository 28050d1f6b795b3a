"""Offsets in transactions, on real brokers: they count exactly if the transaction commits.

The program of docs/delivery.md that commits offsets itself runs as it stands there.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from support.cluster import Cluster
from support.names import own_name
from support.recipes import at, recipes
from support.waiting import wait_exit, wait_until

from penstock.client import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
    TopicPartition,
    TransactionError,
)
from penstock.errors import ClusterError, ErrorCode, MisuseError

MakeCluster = Callable[..., Cluster]
COUNT = 20


@pytest.fixture
def topic(shared_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """Numbers in two partitions; also the group's name. What is made of them goes to `.out`."""
    name = own_name(request)
    shared_cluster.create_topic(name, partitions=2)
    shared_cluster.create_topic(f"{name}.out")
    fill(shared_cluster, name)
    return name


def fill(cluster: Cluster, topic: str) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(topic, b"%d" % number, partition=number % 2)
        assert producer.close(120) == 0


def member(cluster: Cluster, topic: str, **options: Any) -> Consumer:
    made = Consumer(
        cluster.bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **options,
    )
    made.subscribe(topic)
    return made


def take(consumer: Consumer, count: int) -> list[int]:
    """Polls until so many records were handed out."""
    got: list[int] = []

    def turn() -> bool:
        batches = consumer.poll(0.2, max_records=count - len(got))
        got.extend(int(value or b"") for batch in batches for value in batch.values())
        return len(got) == count

    wait_until(turn, what=f"{count} records")
    return got


def places(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]


def committed(consumer: Consumer, topic: str) -> int:
    """How many records the group is done with; waits while that is not stable."""
    found = consumer.committed(places(topic)).values()
    return sum(0 if each is None else each.offset for each in found)


def output(cluster: Cluster, topic: str) -> list[int]:
    """What readers see, up to a record behind all transactions: so all of them have ended."""
    where, end = TopicPartition(f"{topic}.out", 0), b"end"
    with Producer(cluster.bootstrap) as plain:
        plain.send(where.topic, end).result(120)
    seen: list[bytes] = []
    with Consumer(cluster.bootstrap) as reader:
        reader.assign([where])

        def passed() -> bool:
            seen.extend(value or b"" for batch in reader.poll(1.0) for value in batch.values())
            return end in seen

        wait_until(passed, what="the reader has passed everything")
    return [int(value) for value in seen if value != end]


def test_offsets_count_when_the_transaction_commits_and_not_before(
    shared_cluster: Cluster, topic: str
) -> None:
    with (
        Producer(shared_cluster.bootstrap, transactional_id=topic) as producer,
        member(shared_cluster, topic) as consumer,
        Consumer(shared_cluster.bootstrap, group_id=topic, request_timeout_ms=500) as onlooker,
    ):
        for half in range(2):
            with producer.transaction() as tx:
                for number in take(consumer, COUNT // 2):
                    tx.send(f"{topic}.out", b"%d" % number)
                tx.commit_offsets(consumer)

                def is_told() -> bool:
                    with pytest.raises(ClusterError) as refused:
                        onlooker.committed(places(topic))
                    return refused.value.code is ErrorCode.UNSTABLE_OFFSETS  # or time was up

                wait_until(is_told, what="offsets that are pending are unstable")
            assert committed(consumer, topic) == COUNT // 2 * (half + 1)
        with producer.transaction() as tx:
            tx.commit_offsets(consumer)  # nothing new was handed out
    assert sorted(output(shared_cluster, topic)) == list(range(COUNT))


def test_after_an_abort_the_group_reads_again(shared_cluster: Cluster, topic: str) -> None:
    with (
        Producer(shared_cluster.bootstrap, transactional_id=topic) as producer,
        member(shared_cluster, topic) as consumer,
    ):
        with producer.transaction() as tx:
            first = take(consumer, 5)
            tx.commit_offsets(consumer)
        tx = producer.transaction()
        tx.begin()
        second = take(consumer, 5)
        tx.send(f"{topic}.out", b"-1")
        tx.commit_offsets(consumer)
        tx.abort()
        assert committed(consumer, topic) == 5
        consumer.seek_to_committed()
        rest = take(consumer, COUNT - 5)
        assert set(second) <= set(rest)
        assert sorted(first + rest) == list(range(COUNT))
        with producer.transaction() as tx:
            tx.commit_offsets(consumer)
        assert committed(consumer, topic) == COUNT


def test_where_nothing_is_committed_an_abort_goes_back_to_the_beginning(
    shared_cluster: Cluster, topic: str
) -> None:
    with Consumer(
        shared_cluster.bootstrap,
        group_id=topic,
        auto_offset_reset="latest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.assign(places(topic))
        assert sum(consumer.position(where) for where in places(topic)) == COUNT
        fill(shared_cluster, topic)
        seen = take(consumer, COUNT)
        consumer.seek_to_committed()
        assert sorted(take(consumer, COUNT)) == sorted(seen), "not at the end: they did not count"


def test_the_offsets_of_a_member_that_was_put_out_are_refused_with_its_transaction(
    shared_cluster: Cluster, topic: str
) -> None:
    with (
        Producer(shared_cluster.bootstrap, transactional_id=f"{topic}.zombie") as producer,
        Producer(shared_cluster.bootstrap, transactional_id=f"{topic}.heir") as heir,
        closing(member(shared_cluster, topic, max_poll_interval_ms=1_000)) as zombie,
        member(shared_cluster, topic) as other,
    ):
        tx = producer.transaction()
        tx.begin()
        for number in take(zombie, COUNT):
            tx.send(f"{topic}.out", b"%d" % number)
        with heir.transaction() as good:  # the zombie does not poll: it has left by itself
            for number in take(other, COUNT):
                good.send(f"{topic}.out", b"%d" % number)
            good.commit_offsets(other)
        with pytest.raises(ClusterError) as refused:
            tx.commit_offsets(zombie)
        assert refused.value.code is ErrorCode.UNKNOWN_MEMBER
        with pytest.raises(TransactionError, match="can no longer be committed"):
            tx.commit()
        tx.abort()
        assert committed(other, topic) == COUNT
    assert sorted(output(shared_cluster, topic)) == list(range(COUNT))


def test_a_consumer_that_cannot_take_part_is_told_and_the_transaction_goes_on(
    shared_cluster: Cluster, shared_broker: Cluster, topic: str
) -> None:
    fresh = f"{topic}.elsewhere"
    shared_broker.create_topic(fresh)
    with (
        Producer(shared_cluster.bootstrap, transactional_id=topic) as producer,
        Consumer(shared_cluster.bootstrap) as groupless,
        Consumer(shared_cluster.bootstrap, group_id=topic) as automatic,
        Consumer(shared_broker.bootstrap, group_id=topic, enable_auto_commit=False) as foreign,
        Consumer(shared_cluster.bootstrap, group_id=topic, enable_auto_commit=False) as good,
    ):
        foreign.assign([TopicPartition(fresh, 0)])
        tx = producer.transaction()
        with pytest.raises(MisuseError, match="before begin"):
            tx.commit_offsets(good)
        with tx:
            for consumer, said in (
                (groupless, "group_id"),
                (automatic, "enable_auto_commit"),
                (foreign, "cluster"),
            ):
                with pytest.raises(MisuseError, match=said):
                    tx.commit_offsets(consumer)
            with pytest.raises(MisuseError, match="log ends"):
                tx.commit_offsets(good, {TopicPartition(topic, 0): 10_000})
            tx.commit_offsets(good, {TopicPartition(topic, 0): 3})
        with pytest.raises(MisuseError, match="after the end"):
            tx.commit_offsets(good)
        assert committed(good, topic) == 3


async def test_commit_waits_for_offsets_that_are_under_way(
    shared_cluster: Cluster, topic: str
) -> None:
    options: dict[str, Any] = {"group_id": topic, "enable_auto_commit": False}
    async with (
        AsyncProducer(shared_cluster.bootstrap, transactional_id=topic) as producer,
        AsyncConsumer(shared_cluster.bootstrap, **options) as consumer,
    ):
        for offset in range(1, 6):
            async with asyncio.TaskGroup() as group:
                tx = producer.transaction()
                await tx.begin()
                wanted = {TopicPartition(topic, 0): offset}
                group.create_task(tx.commit_offsets(consumer, wanted))
                group.create_task(tx.commit())  # begins after the other, and waits for it
            found = await consumer.committed([TopicPartition(topic, 0)])
            assert [each and each.offset for each in found.values()] == [offset]


async def test_offsets_that_were_given_up_on_fail_the_transaction(
    shared_cluster: Cluster, topic: str
) -> None:
    options: dict[str, Any] = {"group_id": topic, "enable_auto_commit": False}
    async with (
        AsyncProducer(shared_cluster.bootstrap, transactional_id=topic) as producer,
        AsyncConsumer(shared_cluster.bootstrap, **options) as consumer,
    ):
        tx = producer.transaction()
        await tx.begin()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await tx.commit_offsets(consumer, {TopicPartition(topic, 0): 1})
        with pytest.raises(TransactionError, match="cancelled"):
            await tx.commit()
        await tx.abort()
        assert await consumer.committed([TopicPartition(topic, 0)]) == {
            TopicPartition(topic, 0): None
        }


KILLED = """
import sys
from penstock.client import Consumer, Producer
bootstrap, topic, transactional_id = sys.argv[1:]
consumer = Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest",
    enable_auto_commit=False, transactional_id=transactional_id)
consumer.subscribe(topic)
producer = Producer(bootstrap, transactional_id=transactional_id, transaction_timeout_ms=600_000)
tx = producer.transaction()
tx.begin()
count = 0
while count < 20:
    count += sum(batch.record_count for batch in consumer.poll(0.2))
tx.send(topic + ".out", b"-1").result(30)
tx.commit_offsets(consumer)
print("pending", flush=True)
sys.stdin.read()
"""


def test_a_killed_members_transaction_ends_with_its_membership(
    shared_cluster: Cluster, topic: str
) -> None:
    arguments = [shared_cluster.bootstrap, topic, f"{topic}.killed"]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"pending\n"
        process.send_signal(signal.SIGKILL)
    with (
        Producer(shared_cluster.bootstrap, transactional_id=f"{topic}.heir") as heir,
        member(shared_cluster, topic) as other,
        heir.transaction() as tx,
    ):
        for number in take(other, COUNT):
            tx.send(f"{topic}.out", b"%d" % number)
        tx.commit_offsets(other)
    # Its own timeout is ten minutes; no wait here takes as long.
    assert sorted(output(shared_cluster, topic)) == list(range(COUNT))


PRICE = """
import os, signal, sys
from penstock.client import Consumer, Producer
from penstock.errors import ClusterError

left = int(sys.argv[1])

def price(record):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return record.value
"""


def test_every_record_is_in_the_output_once_though_members_are_killed(
    shared_cluster: Cluster, topic: str
) -> None:
    out = TopicPartition(f"{topic}.out", 0)
    (recipe,) = [
        each for each in recipes("Exactly once between topics") if "commit_offsets" in each
    ]
    seen: list[int] = []
    members: list[subprocess.Popen[bytes]] = []

    def join(killed_at: int) -> None:
        """`killed_at`: how many records it takes in hand, the last in vain; 0 = no end."""
        names = {"billing": topic, "orders": topic, "paid": f"{topic}.out"}
        names["billing_0"] = f"{topic}.{len(members)}"
        program = PRICE + at(shared_cluster, recipe, **names)
        members.append(subprocess.Popen([sys.executable, "-c", program, str(killed_at)]))

    def has(count: int) -> bool:
        for batch in reader.poll(0.2):
            seen.extend(int(value or b"") for value in batch.values())
        return len(seen) >= count

    try:
        with Consumer(shared_cluster.bootstrap) as reader:
            reader.assign([out])
            join(killed_at=3 * COUNT // 2)
            wait_until(lambda: has(COUNT), what="the first member works", timeout_s=60)
            for _ in range(14):
                fill(shared_cluster, topic)
            assert wait_exit(members[0], 60) == -signal.SIGKILL
            join(killed_at=0)
            wait_until(lambda: has(15 * COUNT), what="the other goes on", timeout_s=60)
            wait_until(lambda: reader.lag()[out] == 0, what="all is read")
            has(0)
    finally:
        for process in members:
            process.kill()
            process.wait()
    assert sorted(seen) == sorted(list(range(COUNT)) * 15)


def test_a_replay_after_a_seek_back_is_committed_with_its_output(
    shared_cluster: Cluster, topic: str
) -> None:
    first = TopicPartition(topic, 0)
    with (
        Producer(shared_cluster.bootstrap, transactional_id=topic) as producer,
        member(shared_cluster, topic) as consumer,
    ):
        take(consumer, COUNT)
        with producer.transaction() as tx:
            tx.commit_offsets(consumer)
        assert committed(consumer, topic) == COUNT
        consumer.seek(first, 2)
        take(consumer, 3)
        with producer.transaction() as tx:
            tx.commit_offsets(consumer)
        assert committed(consumer, topic) == COUNT // 2 + 5
        with producer.transaction() as tx:
            consumer.seek(first, 0)
            tx.commit_offsets(consumer)
            tx.abort()
        assert committed(consumer, topic) == COUNT // 2 + 5, "it was aborted"
        consumer.seek_to_committed()
        take(consumer, 1)
        with producer.transaction() as tx:
            tx.commit_offsets(consumer)
        assert committed(consumer, topic) == COUNT // 2 + 6
