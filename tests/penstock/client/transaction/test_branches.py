"""A batch written by many producers on real brokers: in as a whole, once, or not at all."""

import itertools
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.cluster import Cluster
from support.waiting import wait_until

from penstock.client import (
    Admin,
    BatchRun,
    Branch,
    Consumer,
    Producer,
    TopicPartition,
    TransactionError,
)
from penstock.client.cluster import coordinator as any_coordinator
from penstock.client.transaction import branches as branches_module
from penstock.errors import ClusterError, ErrorCode, MisuseError

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is repeated because its answer is late: the second answer would be another one."""
    for module in (any_coordinator, branches_module):
        monkeypatch.setattr(module, "PATIENCE_S", 60.0)


class Job:
    """An application with a topic of its own, and what drives it."""

    def __init__(self, cluster: Cluster) -> None:
        number = next(_numbers)
        self.cluster = cluster
        self.topic = f"branches-{number}"
        self.application_id = f"job-{number}"
        cluster.create_topic(self.topic, partitions=2)
        self.driver = self.producer()

    def producer(self, **more: Any) -> Producer:
        return Producer(
            self.cluster.bootstrap, transactional_id=self.application_id, client_id="task", **more
        )

    def run(self, batch: int, checkpoint: str = "query") -> BatchRun:
        return BatchRun(self.application_id, checkpoint, str(uuid.uuid4()), batch)

    def write(self, run: BatchRun, task: int, *values: str, attempt: int = 0) -> Branch | None:
        """One attempt of a task."""
        with self.producer() as producer:
            branches = producer.branches()
            branch = branches.begin(run, task, attempt)
            if branch is not None:
                branches.send_columns(self.topic, [value.encode() for value in values])
                branches.hand_over()
            return branch

    def seen(self) -> list[str]:
        """What readers see, once nothing is open any more."""
        end = b"end-%d" % next(_numbers)
        with Producer(self.cluster.bootstrap) as plain:
            for partition in range(2):
                plain.send(self.topic, end, partition=partition).result(120)
        values: list[bytes | None] = []
        with Consumer(self.cluster.bootstrap) as consumer:
            consumer.assign([TopicPartition(self.topic, partition) for partition in range(2)])

            def passed() -> bool:
                values.extend(r.value for b in consumer.poll(0.5) for r in b.records())
                return values.count(end) == 2

            wait_until(passed, what="the reader has passed everything")
        return sorted(v.decode() for v in values if v is not None and not v.startswith(b"end-"))


@pytest.fixture
def job(shared_cluster: Cluster) -> Iterator[Job]:
    made = Job(shared_cluster)
    yield made
    made.driver.close(5)


def named(*branches: Branch | None) -> list[Branch]:
    assert None not in branches
    return [branch for branch in branches if branch is not None]


def test_what_the_commit_names_is_read_and_other_attempts_never(job: Job) -> None:
    run = job.run(0)
    first = job.write(run, 0, "a", "b")
    job.write(run, 1, "twin", attempt=0)
    second = job.write(run, 1, "c", attempt=1)
    outcome = job.driver.branches().commit_batch(run, 3, named(first, second))
    assert not outcome.already_committed
    assert job.seen() == ["a", "b", "c"]


def test_a_batch_that_is_in_is_not_written_again_whatever_its_run(job: Job) -> None:
    run = job.run(0)
    branches = named(job.write(run, 0, "a"))
    calls = job.driver.branches()
    assert not calls.commit_batch(run, 1, branches).already_committed
    again = calls.commit_batch(run, 1, branches)
    assert (again.already_committed, again.rows_then) == (True, 1)
    assert not calls.abort_batch(run), "it is in: nothing to abort"
    replay = job.run(0)
    assert job.write(replay, 0, "a") is None
    assert calls.commit_batch(replay, 7, []).rows_then == 1
    assert job.seen() == ["a"]


def test_a_batch_without_rows_leaves_no_trace(job: Job) -> None:
    calls = job.driver.branches()
    assert not calls.commit_batch(job.run(0), 0, []).already_committed
    assert not calls.commit_batch(job.run(0), 0, []).already_committed


def test_an_aborted_batch_is_never_read_and_its_run_is_over(job: Job) -> None:
    run = job.run(0)
    branches = named(job.write(run, 0, "lost"))
    calls = job.driver.branches()
    assert calls.abort_batch(run)
    assert job.seen() == []
    with pytest.raises(ClusterError) as late:
        calls.commit_batch(run, 1, branches)
    assert late.value.code is ErrorCode.PRODUCER_FENCED
    with pytest.raises(ClusterError):
        job.write(run, 1, "late")


def test_a_new_run_aborts_what_the_old_one_left_and_a_commit_of_the_old_one_is_refused(
    job: Job,
) -> None:
    old, new = job.run(0), job.run(0)
    left = named(job.write(old, 0, "old"))
    branches = named(job.write(new, 0, "new"))
    with pytest.raises(ClusterError) as late:
        job.driver.branches().commit_batch(old, 1, left)
    assert late.value.code is ErrorCode.PRODUCER_FENCED
    job.driver.branches().commit_batch(new, 1, branches, wait_visible_ms=10_000)
    assert job.seen() == ["new"]


def test_a_producer_writes_one_branch_after_the_other(job: Job) -> None:
    with job.producer() as producer:
        branches = producer.branches()
        for batch in range(3):
            run = job.run(batch)
            branch = branches.begin(run, 0, 0)
            assert branch is not None
            branches.send_columns(job.topic, [b"%d.%d" % (batch, n) for n in range(3)])
            branches.hand_over()
            with pytest.raises(MisuseError, match="no transaction is open"):
                branches.send_columns(job.topic, [b"behind"])
            branches.commit_batch(run, 3, [branch])
        branches.begin(job.run(3), 0, 0)
        with pytest.raises(MisuseError, match="can only send in an open transaction"):
            producer.send(job.topic, b"beside")
        branches.send_columns(job.topic, [b"given up"])
        branches.abort()
    assert job.seen() == [f"{batch}.{n}" for batch in range(3) for n in range(3)]


def test_a_branch_that_the_cluster_ended_cannot_be_handed_over(job: Job) -> None:
    with job.producer(delivery_timeout_ms=20_000) as producer:
        late = producer.branches()
        late.begin(job.run(0), 0, 0)
        late.send_columns(job.topic, [b"a"], partition=0).result(120)
        newer = job.run(0)
        branches = named(job.write(newer, 0, "b"))
        late.send_columns(job.topic, [b"a"], partition=1)  # a partition that asks the coordinator
        with pytest.raises(TransactionError):
            late.hand_over()
        job.driver.branches().commit_batch(newer, 1, branches)
    assert job.seen() == ["b"]


def test_a_branch_that_expired_fails_its_batch_as_a_whole_and_the_replay_is_in(job: Job) -> None:
    run = job.run(0)
    with job.producer(transaction_timeout_ms=1_500) as producer:
        calls = producer.branches()
        expired = calls.begin(run, 0, 0)
        calls.send_columns(job.topic, [b"lost"], partition=0)
        with suppress(TransactionError):  # a machine that stalled let it expire before
            calls.hand_over()
    stays = job.write(run, 1, "lost too")
    with Admin(job.cluster.bootstrap) as admin:
        wait_until(
            lambda: any(
                one.last_reason == "timeout"
                for one in admin.describe_transaction(job.application_id).branches
            ),
            what="the first branch expires",
        )
    with pytest.raises(ClusterError) as refused:
        job.driver.branches().commit_batch(run, 2, named(expired, stays))
    assert refused.value.code is ErrorCode.TRANSACTION_ABORTED
    replay = job.run(0)
    branches = named(job.write(replay, 0, "a"), job.write(replay, 1, "b"))
    assert not job.driver.branches().commit_batch(replay, 2, branches).already_committed
    assert job.seen() == ["a", "b"]


def test_an_operator_ends_what_a_driver_that_never_came_back_left(job: Job) -> None:
    run = job.run(0)
    left = named(job.write(run, 0, "lost"), job.write(run, 1, "lost too"))
    with Admin(job.cluster.bootstrap) as admin:
        assert admin.abort_transaction(job.application_id, reason="a test") == 2
    assert job.seen() == [], "readers go on at once"
    with pytest.raises(ClusterError) as late:
        job.driver.branches().commit_batch(run, 2, left)
    assert late.value.code is ErrorCode.TRANSACTION_ABORTED
    assert "operator" in late.value.message


def test_another_checkpoint_is_refused_with_the_way_out(job: Job) -> None:
    run = job.run(4)
    job.driver.branches().commit_batch(run, 1, named(job.write(run, 0, "a")))
    with pytest.raises(ClusterError) as refused:
        job.write(job.run(0, "fresh"), 0, "b")
    assert refused.value.code is ErrorCode.LEDGER_MISMATCH
    assert f"penstock txn forget-ledger {job.application_id}" in refused.value.message


def test_a_batch_of_another_application_is_a_mistake(job: Job) -> None:
    with pytest.raises(MisuseError, match="transactional_id"):
        job.driver.branches().begin(BatchRun("other", "query", "run", 0), 0, 0)
    with (
        Producer(job.cluster.bootstrap) as plain,
        pytest.raises(MisuseError, match="no transactional_id"),
    ):
        plain.branches()
