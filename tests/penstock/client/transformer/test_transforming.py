"""Consume, transform, produce on real brokers: each record once in the output, in order per key.

Programs that docs/delivery.md shows are run as they stand there.
"""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.cluster import Cluster
from support.names import own_name
from support.recipes import at, recipes
from support.transforming import PARTITIONS, Output, Running, copy_to, fill, make_source
from support.waiting import wait_until

from penstock.client import (
    Admin,
    Consumer,
    Out,
    Record,
    TopicPartition,
    Transformer,
)
from penstock.client.sync.transformer import Handle

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def source(shared_cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions; also the group's name. Its output: `.out`, letters: `.dlt`."""
    name = make_source(shared_cluster, own_name(request))
    shared_cluster.create_topic(f"{name}.dlt")
    return name


@pytest.fixture
def output(shared_cluster: Cluster, source: str) -> Iterator[Output]:
    made = Output(shared_cluster, f"{source}.out")
    yield made
    made.close()


Run = Callable[..., Running]


@pytest.fixture
def run(shared_cluster: Cluster, source: str) -> Iterator[Run]:
    """Starts transformers of the test's group: run(handle, **options)."""
    with ExitStack() as ends:

        def start(handle: Handle, **options: Any) -> Running:
            made = Running(shared_cluster, source, handle, **options)
            ends.callback(made.stop)
            return made

        yield start


def test_a_handler_is_called_for_every_record_and_its_output_is_there_once(
    shared_cluster: Cluster, source: str, output: Output, run: Run
) -> None:
    fill(shared_cluster, source, range(1_000))
    one = run(copy_to(source))
    output.check(range(1_000))
    fill(shared_cluster, source, range(1_000, 1_200))
    output.check(range(1_200))
    one.stop()
    output.check(range(1_200))
    assert one.model.committed_records == 1_200
    with Consumer(shared_cluster.bootstrap, group_id=source) as onlooker:
        places = [TopicPartition(source, number) for number in range(PARTITIONS)]
        found = onlooker.committed(places).values()
        assert sum(each.offset for each in found if each is not None) == 1_200


def test_what_fails_twice_works_then_and_what_fails_for_good_becomes_a_letter_once(
    shared_cluster: Cluster, source: str, output: Output, run: Run
) -> None:
    fill(shared_cluster, source, range(300))
    calls: Counter[int] = Counter()

    def handle(record: Record, out: Out) -> None:
        number = int(record.value or b"")
        calls[number] += 1
        out.send(f"{source}.out", record.value, record.key)  # of a failing one as well: aborted
        if number == 100 or (number in (50, 200) and calls[number] < 3):
            raise ValueError(f"cannot do {number}")

    one = run(handle, retries=2, backoff_ms=1, dead_letter_topic=f"{source}.dlt")
    letters = Output(shared_cluster, f"{source}.dlt", 1)
    try:
        assert letters.all(1) == [100]
        good = [number for number in range(300) if number != 100]
        assert sorted(output.all(299)) == good
        one.stop()
        assert letters.all(1) == [100]
    finally:
        letters.close()
    headers = dict(letters.seen[0].headers)
    assert headers["penstock-dlt-error"] == b"ValueError: cannot do 100"
    assert headers["penstock-dlt-attempts"] == b"3"
    assert calls[100] == 3, "attempts are counted per record"
    assert calls[50] >= 3, "again, if the record after it failed in the same transaction"
    assert one.model.committed_letters == 1


def test_each_record_is_there_once_while_members_join_and_leave(
    shared_cluster: Cluster, source: str, output: Output, run: Run
) -> None:
    members: list[Running] = []
    for number in range(6):
        fill(shared_cluster, source, range(number * 500, (number + 1) * 500))
        members.append(run(copy_to(source), commit_interval_ms=30, max_records=50))
        wanted = number * 500 + 100
        wait_until(lambda: output.has(wanted), what="it goes on", timeout_s=90)  # noqa: B023
        if number % 2:
            members[number // 2].stop()
    output.check(range(3_000))
    for member in members:
        member.stop()
    output.check(range(3_000))
    assert sum(member.model.committed_records for member in members) == 3_000
    assert len([member for member in members if member.model.committed_records]) > 2


def test_a_partition_leaves_in_mid_transaction_after_a_commit_inside_the_poll(
    shared_cluster: Cluster, source: str, output: Output, run: Run
) -> None:
    patient = {"commit_interval_ms": 500_000, "transaction_timeout_ms": 600_000}
    fill(shared_cluster, source, range(200))
    one = run(copy_to(source), **patient)
    wait_until(lambda: one.model.open_records == 200, what="one has all, in one transaction")
    assert one.model.committed_records == 0
    two = run(copy_to(source), **patient)
    output.check(range(200))
    assert one.model.aborts == 0
    assert one.model.committed_records == 200
    fill(shared_cluster, source, range(200, 300))
    wait_until(lambda: one.model.open_records + two.model.open_records == 100, what="both work")
    two.stop()
    one.stop()
    output.check(range(300))
    assert two.model.committed_records > 0


KILLED = """
import sys
from penstock.client import transform
bootstrap, name = sys.argv[1:]
count = 0

def handle(record, out):
    global count
    out.send(name + ".out", b"-1", record.key).result(60)
    count += 1
    if count == 20:
        print("stored", flush=True)
        sys.stdin.read()

transform(bootstrap, group_id=name, source=name, handle=handle, commit_interval_ms=500_000,
    transaction_timeout_ms=600_000)
"""


def test_the_successor_of_a_killed_one_goes_on_at_once_and_nothing_is_there_twice(
    shared_cluster: Cluster, source: str, output: Output, run: Run
) -> None:
    fill(shared_cluster, source, range(500))
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, shared_cluster.bootstrap, source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"stored\n"
        process.send_signal(signal.SIGKILL)
    one = run(copy_to(source))
    output.check(range(500))  # the killed one's transaction would last for ten minutes
    with Admin(shared_cluster.bootstrap) as admin:
        found = [t for t in admin.list_transactions() if t.transactional_id.startswith(source)]
        mine = one.loop.core.transactional_id
        (killed,) = {each.transactional_id for each in found} - {mine}
        (branch,) = admin.describe_transaction(killed).branches
        assert (branch.started_ms, branch.last_outcome) == (None, "aborted")
        assert branch.last_reason not in ("timeout", "producer")


HELPERS = """
import sys
from penstock.client import Transformer, transform

def amount(value):
    return value

def amounts(batch):
    return batch.values()
"""


def test_the_recipes_of_exactly_once_between_topics_hold_though_members_are_killed(
    shared_cluster: Cluster,
) -> None:
    for name in ("orders", "paid"):
        shared_cluster.create_topic(name, partitions=PARTITIONS)
    called, by_hand, _ = [
        HELPERS + at(shared_cluster, program) for program in recipes("Exactly once between topics")
    ]
    output = Output(shared_cluster, "paid")
    members: list[subprocess.Popen[bytes]] = []
    try:
        for number, program in enumerate((called, by_hand, called)):
            fill(shared_cluster, "orders", range(number * 1_000, (number + 1) * 1_000))
            members.append(subprocess.Popen([sys.executable, "-c", program]))
            wanted = number * 1_000 + 200
            wait_until(lambda: output.has(wanted), what="it works", timeout_s=90)  # noqa: B023
            if number:
                members[number - 1].kill()
        output.check(range(3_000))
        fill(shared_cluster, "orders", range(3_000, 3_100))
        output.check(range(3_100))
    finally:
        output.close()
        for process in members:
            process.kill()
            process.wait()


def is_open(admin: Admin, loop: Transformer) -> bool:
    """Whether the cluster has an open transaction of it."""
    branches = admin.describe_transaction(loop.core.transactional_id).branches
    return any(branch.started_ms is not None for branch in branches)


def test_what_takes_longer_than_the_timeout_is_aborted_and_done_again(
    shared_cluster: Cluster, source: str, output: Output, run: Run
) -> None:
    fill(shared_cluster, source, range(100))
    calls: Counter[int] = Counter()
    with Admin(shared_cluster.bootstrap) as admin:

        def handle(record: Record, out: Out) -> None:
            number = int(record.value or b"")
            calls[number] += 1
            delivery = out.send(f"{source}.out", record.value, record.key)
            if number == 42 and calls[42] == 1:
                delivery.result(60)
                wait_until(lambda: not is_open(admin, one.loop), what="the cluster aborts it")

        one = run(handle, transaction_timeout_ms=3_000)
        output.check(range(100))
        one.stop()
    assert calls[42] >= 2, "and again if the machine held that up, too"
    assert one.model.aborts >= 1
    output.check(range(100))


def test_a_loop_that_takes_too_long_for_a_pass_gets_fewer_records_until_it_commits(
    shared_cluster: Cluster,
    source: str,
    output: Output,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As if every record took a quarter of the timeout."""
    fill(shared_cluster, source, range(12))
    with (
        Admin(shared_cluster.bootstrap) as admin,
        Transformer(
            shared_cluster.bootstrap,
            group_id=source,
            source=source,
            transaction_timeout_ms=1_000,
            commit_interval_ms=1,
        ) as loop,
    ):
        for batches, out in loop:
            count = 0
            for batch in batches:
                out.send_columns(f"{source}.out", batch.values(), batch.keys()).result(60)
                count += batch.record_count
            if count > 3:
                wait_until(lambda: not is_open(admin, loop), what="the cluster aborts it")
            elif loop.core.model.committed_records + count == 12:
                loop.stop()
    assert loop.core.model.aborts >= 1
    assert "with fewer records, because it was open for longer than" in caplog.text
    output.check(range(12))


def test_one_of_its_sources_is_deleted_while_a_transaction_has_records_of_it(
    shared_cluster: Cluster, source: str, output: Output
) -> None:
    gone = f"{source}.gone"
    shared_cluster.create_topic(gone)
    fill(shared_cluster, source, range(20))
    fill(shared_cluster, gone, range(1))
    deleted = False
    with Admin(shared_cluster.bootstrap) as admin:

        def handle(record: Record, out: Out) -> None:
            nonlocal deleted
            if record.topic == source:
                out.send(f"{source}.out", record.value, record.key)
            elif not deleted:
                deleted = True
                admin.delete_topic(gone)
                wait_until(lambda: gone not in admin.list_topics(), what="it is gone")

        one = Running(
            shared_cluster, source, handle, source=[source, gone], request_timeout_ms=1_000
        )
        try:
            wait_until(lambda: deleted, what="it has read both")
            fill(shared_cluster, source, range(20, 40))
            output.check(range(40))
        finally:
            one.stop()
    assert one.errors == []


def test_it_goes_on_when_its_coordinators_are_killed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3)
    safe = {"min.insync.replicas": "2"}
    cluster.create_topic("in", partitions=PARTITIONS, configs=safe)
    cluster.create_topic("in.out", partitions=PARTITIONS, configs=safe)
    fill(cluster, "in", range(300))
    output = Output(cluster, "in.out")
    one = Running(cluster, "in", copy_to("in"), backoff_max_ms=500)
    try:
        for number in range(3):
            output.check(range(300 * (number + 1)))
            for topic in ("in", "in.out", "__consumer_offsets", "__transactions"):
                cluster.wait_in_sync(topic)
            fill(cluster, "in", range(300 * (number + 1), 300 * (number + 2)))
            broker = cluster.brokers[number]  # in turn: each coordinates something
            broker.kill()
            output.check(range(300 * (number + 2)))
            broker.start()
            broker.wait_serving()
    finally:
        one.stop()
        output.close()
    assert not one.errors
