"""A broker dies in the middle of a batch that many tasks write: it is in once, as a whole (I11).

    tasks: begin, join, data ─▶ driver: commit = decision ─▶ markers

As a Spark job does it. The victim coordinates the application and leads one of the two partitions;
it dies by itself at the write and comes back. The driver is told nothing, or the truth; whatever it
then asks again, repeats or gives up, the rows are there once.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.cluster import Cluster
from support.faults import Faults
from support.waiting import wait_until

from penstock.client import (
    Admin,
    BatchOutcome,
    BatchRun,
    Branch,
    Consumer,
    Producer,
    TopicPartition,
    TransactionState,
)
from penstock.core.transactions.config import TRANSACTIONS_TOPIC, coordinator_partition

CASES = [
    ("join", "after"),
    ("data", "before"),
    ("data", "after"),
    ("decision", "before"),
    ("decision", "after"),
    ("marker", "before"),
]
ROWS = 4


def write(cluster: Cluster, topic: str, run: BatchRun, task: int) -> Branch:
    """One task: two rows, one per partition."""
    with Producer(cluster.bootstrap, transactional_id=run.application_id) as producer:
        calls = producer.branches()
        branch = calls.begin(run, task, 0)
        assert branch is not None
        for partition in (0, 1):
            calls.send_columns(topic, [b"%d.%d" % (task, partition)], partition=partition)
        calls.hand_over()
        return branch


def play(cluster: Cluster, topic: str, run: BatchRun, driver: Producer) -> BatchOutcome:
    """Two tasks, and the commit of what they wrote."""
    branches = [write(cluster, topic, run, task) for task in (0, 1)]
    return driver.branches().commit_batch(run, ROWS, branches)


def read(cluster: Cluster, topic: str) -> list[bytes]:
    """What a read_committed reader gets, up to plain records at the ends."""
    with Producer(cluster.bootstrap) as plain:
        for partition in (0, 1):
            plain.send(topic, b"end", partition=partition).result(30)
    seen: list[bytes | None] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in (0, 1)])

        def passed() -> bool:
            seen.extend(r.value for batch in consumer.poll(0.5) for r in batch.records())
            return seen.count(b"end") == 2

        wait_until(passed, what="the reader has passed everything")
    return sorted(value for value in seen if value is not None and value != b"end")


@pytest.mark.parametrize(("point", "when"), CASES, ids=lambda word: word)
def test_a_batch_is_in_once_wherever_a_broker_dies(
    faulty: tuple[Cluster, list[Faults]], point: str, when: str
) -> None:
    cluster, faults = faulty
    name = f"batch-{point}-{when}"
    info = cluster.topic(TRANSACTIONS_TOPIC)
    assert info is not None
    victim = cluster.leader(TRANSACTIONS_TOPIC, coordinator_partition(name, len(info.partitions)))
    others = [broker_id for broker_id in cluster.brokers if broker_id != victim]
    cluster.create_topic(name, assignment=[[victim, *others], [*reversed(others), victim]])
    run = BatchRun(name, "query", str(uuid.uuid4()), 0)
    with (
        Producer(cluster.bootstrap, transactional_id=name) as driver,
        Admin(cluster.bootstrap) as admin,
        ThreadPoolExecutor(1) as thread,
    ):
        faults[victim].die_at(point, when)
        told = thread.submit(play, cluster, name, run, driver)
        assert cluster.brokers[victim].wait_end() == -9
        faults[victim].heal()
        cluster.brokers[victim].start()
        told.result(timeout=180)
        calls = driver.branches()
        again = calls.commit_batch(run, ROWS, [])
        assert (again.already_committed, again.rows_then) == (True, ROWS), "it can be asked again"
        assert not calls.abort_batch(run), "Spark's abort after a lost answer takes nothing back"
        replay = BatchRun(name, "query", str(uuid.uuid4()), 0)
        assert calls.begin(replay, 0, 0) is None, "nor does a replay write anything"
        assert read(cluster, name) == [b"0.0", b"0.1", b"1.0", b"1.1"]

        def at_rest() -> bool:
            return all(
                branch.state is TransactionState.IDLE and not branch.finishing
                for branch in admin.describe_transaction(name).branches
            )

        wait_until(at_rest, what="nothing is open or unfinished")
