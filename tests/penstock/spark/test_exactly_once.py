"""Exactly once without a JVM: a batch's tasks and driver on real brokers, and their decisions."""

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from support.cluster import Cluster
from support.metrics import scrape
from support.waiting import wait_until

from penstock.client import (
    Admin,
    BatchOutcome,
    BatchRun,
    Branch,
    Consumer,
    Producer,
    TopicPartition,
)
from penstock.core.run_name import RunName
from penstock.core.transactions.config import TransactionConfig
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.spark import exactly_once
from penstock.spark.batch import BatchReader
from penstock.spark.decision import (
    JOBS,
    MARKERS_ADVISED_MAX,
    advice,
    check_outcome,
    decision_of,
    timed_out,
)
from penstock.spark.exactly_once import (
    ExactlyOnceStreamWriter,
    WrittenBranch,
    abort,
    batch_run,
    commit,
    write_branch,
)
from penstock.spark.options import parse
from penstock.spark.sink import Written, check_cluster
from penstock.spark.sink_options import OnReplayMismatch, SinkOptions, parse_sink

RUN = BatchRun("app", "query", "run", 7)
FIRST, SECOND = Branch(1, 0), Branch(2, 5)
ERROR, SKIP = OnReplayMismatch.ERROR, OnReplayMismatch.SKIP
_numbers = itertools.count()

# ---------------------------------------------------------------- what messages come to


def test_a_commit_names_every_branch_and_the_sum_of_their_rows() -> None:
    decision = decision_of(
        [WrittenBranch(RUN, 3, FIRST), Written(0), WrittenBranch(RUN, 4, SECOND)]
    )
    assert decision is not None
    assert (decision.run, decision.rows) == (RUN, 7)
    assert (decision.branches, decision.replayed) == ((FIRST, SECOND), False)


def test_a_batch_without_rows_asks_for_nothing() -> None:
    assert decision_of([Written(0), Written(0)]) is None
    assert decision_of([None, None]) is None


def test_branches_do_not_commit_beside_rows_that_were_only_counted() -> None:
    decision = decision_of([WrittenBranch(RUN, 3, FIRST), WrittenBranch(RUN, 4, None)])
    assert decision is not None
    assert (decision.rows, decision.branches, decision.replayed) == (7, (), True)
    check_outcome(decision, BatchOutcome(already_committed=True, rows_then=7), ERROR)
    with pytest.raises(ClusterError, match="ledger was deleted meanwhile"):
        check_outcome(decision, BatchOutcome(already_committed=False), SKIP)


def test_a_replay_with_other_rows_is_an_error_that_names_both_numbers() -> None:
    decision = decision_of([WrittenBranch(RUN, 4, None)])
    assert decision is not None
    with pytest.raises(ClusterError) as refused:
        check_outcome(decision, BatchOutcome(already_committed=True, rows_then=5), ERROR)
    assert (
        "batch 7 of application 'app' is committed with 5 rows and now has 4"
        in refused.value.message
    )
    assert "onReplayMismatch=skip" in refused.value.message
    check_outcome(decision, BatchOutcome(already_committed=True, rows_then=5), SKIP)
    with pytest.raises(ClusterError, match=r"no longer known and now has 4: .* restored from an"):
        check_outcome(decision, BatchOutcome(already_committed=True, rows_then=-1), ERROR)
    check_outcome(decision, BatchOutcome(already_committed=True, rows_then=-1), SKIP)


def test_without_a_querys_id_a_batch_too_old_to_be_known_is_an_error() -> None:
    decision = decision_of([WrittenBranch(replace(RUN, checkpoint=JOBS), 4, None)])
    assert decision is not None
    with pytest.raises(ClusterError) as refused:
        check_outcome(decision, BatchOutcome(already_committed=True, rows_then=-1), ERROR)
    assert refused.value.code is ErrorCode.LEDGER_MISMATCH
    for words in ("another txnAppId", "txn forget-ledger app.", "onReplayMismatch=skip"):
        assert words in refused.value.message
    check_outcome(decision, BatchOutcome(already_committed=True, rows_then=-1), SKIP)
    with pytest.raises(ClusterError, match=r"committed with no rows .* this one is older"):
        check_outcome(decision, BatchOutcome(already_committed=True, rows_then=0), ERROR)
    check_outcome(decision, BatchOutcome(already_committed=True, rows_then=4), ERROR)


@pytest.mark.parametrize(
    ("tasks", "partitions", "advised"),
    [(50, 100, False), (5_001, 1, True), (1, 5_001, True), (73, 69, True), (4_096, 1, False)],
)
def test_more_than_5000_markers_are_advised_against(
    tasks: int, partitions: int, advised: bool
) -> None:
    decision = decision_of(WrittenBranch(RUN, 1, Branch(n, 0), partitions) for n in range(tasks))
    assert decision is not None
    words = advice(decision)
    assert (words is not None) is advised
    if words is not None:
        assert words.startswith(
            f"batch 7 of application 'app' takes {tasks * partitions} markers to commit"
        )
        assert f"from {tasks} tasks" in words
        assert "fewer tasks (coalesce), or to topics with fewer partitions" in words


def test_a_batch_that_is_in_already_is_not_advised_on() -> None:
    many = WrittenBranch(RUN, 1, FIRST, MARKERS_ADVISED_MAX + 1)
    decision = decision_of([many, WrittenBranch(RUN, 4, None)])
    assert decision is not None
    assert advice(decision) is None, "nothing of it is committed"


# ---------------------------------------------------------------- on a cluster


class Query:
    """A topic, and a query's tasks and driver, with checkpoint and application id of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.name = f"query-{next(_numbers)}"
        cluster.create_topic(self.name, partitions=1)
        self.options = self.parse()

    def parse(self, **more: str) -> SinkOptions:
        given = {
            "penstock.bootstrap.servers": self.bootstrap,
            "topic": self.name,
            "delivery": "exactly-once",
        }
        return parse_sink(given | more, streaming=True)

    def run(self, batch: int = 0) -> BatchRun:
        app_id = f"spark/{self.name}"
        return batch_run(self.options, app_id, self.name, str(uuid.uuid4()), batch)

    def task(self, run: BatchRun, task: int, *values: str, attempt: int = 0) -> WriterCommitMessage:
        return write_branch(self.options, run, (task, attempt), batches(*values))

    def seen(self) -> list[str]:
        """What readers see, once nothing is open any more."""
        end = b"end-%d" % next(_numbers)
        with Producer(self.bootstrap) as plain:
            plain.send(self.name, end).result(30)
        values: list[bytes] = []
        with Consumer(self.bootstrap) as consumer:
            consumer.assign([TopicPartition(self.name, 0)])

            def passed() -> bool:
                values.extend(r.value or b"" for b in consumer.poll(0.5) for r in b.records())
                return end in values

            wait_until(passed, what="the reader has passed everything")
        return sorted(v.decode() for v in values if not v.startswith(b"end-"))


def batches(*values: str) -> Iterator[pa.RecordBatch]:
    """An empty batch, then one per value, as Spark may cut them."""
    yield pa.record_batch({"value": pa.array([], pa.binary())})
    for value in values:
        yield pa.record_batch({"value": pa.array([value.encode()])})


def forget_producers() -> None:
    for key in list(exactly_once._producers):
        exactly_once._close(key)


def has_open_branches(query: Query, run: BatchRun) -> bool:
    with Admin(query.bootstrap) as admin:
        branches = admin.describe_transaction(run.application_id).branches
    return any(branch.started_ms for branch in branches)


@pytest.fixture
def query(shared_cluster: Cluster) -> Iterator[Query]:
    yield Query(shared_cluster)
    forget_producers()


def test_a_batch_is_in_once_however_often_it_is_replayed(query: Query) -> None:
    for attempt in range(3):
        run = query.run()
        messages = [query.task(run, 0, "a", "b"), query.task(run, 1, "c"), query.task(run, 2)]
        wrote = [m.branch is None for m in messages[:2] if isinstance(m, WrittenBranch)]
        assert wrote == [attempt > 0] * 2
        commit(query.options, messages, wait_visible_ms=0)
    assert query.seen() == ["a", "b", "c"]


def test_a_commit_that_is_asked_for_twice_and_then_aborted_stands(query: Query) -> None:
    messages = [query.task(query.run(), 0, "a")]
    commit(query.options, messages, wait_visible_ms=0)
    commit(query.options, messages, wait_visible_ms=0)
    abort(query.options, messages)
    assert query.seen() == ["a"]


def test_an_aborted_batch_leaves_nothing_and_its_replay_is_in(query: Query) -> None:
    run = query.run()
    abort(query.options, [query.task(run, 0, "a"), None])
    replay = query.run()
    commit(query.options, [query.task(replay, 0, "a")], wait_visible_ms=0)
    assert query.seen() == ["a"]


def test_what_no_task_of_a_job_can_tell_of_is_aborted_at_once(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver does not know the query's id."""
    commit(query.options, [query.task(query.run(), 0, "first")], wait_visible_ms=0)
    execution = str(uuid.uuid4())
    run = replace(query.run(1), application_id=f"job-{query.name}", checkpoint=JOBS)
    at_task = RunName.of_sink(execution, query.name, "start", "/checkpoint")
    run = replace(run, run=str(at_task))
    query.task(run, 0, "of a killed worker")
    at_driver = batch_run(query.options, run.application_id, JOBS, execution, 1)
    abort(query.options, [None], at_driver)
    assert not has_open_branches(query, run)
    abort(query.options, [None], batch_run(query.options, run.application_id, JOBS, "new", 1))
    assert not caplog.records
    commit(query.options, [query.task(query.run(1), 0, "a")], wait_visible_ms=0)
    assert query.seen() == ["a", "first"]


def test_what_no_task_of_a_query_can_tell_of_is_aborted_by_the_next_run(query: Query) -> None:
    """Spark makes a new writer to abort a micro-batch, so the driver cannot name the run."""
    query.options = query.parse(txnappid=f"app-{query.name}")
    lost = replace(query.run(), application_id=f"app-{query.name}")
    query.task(lost, 0, "of a killed worker")
    forget_producers()  # the driver is another process
    ExactlyOnceStreamWriter(query.options).abort([None], 0)
    assert not exactly_once._producers, "nothing is requested"
    assert has_open_branches(query, lost)
    again = replace(query.run(), application_id=lost.application_id)
    commit(query.options, [query.task(again, 0, "a")], wait_visible_ms=0)
    assert not has_open_branches(query, lost)
    assert query.seen() == ["a"]


def test_a_task_that_fails_after_writing_aborts_its_branch_and_its_retry_counts(
    query: Query,
) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches("lost")
        (producer,) = exactly_once._producers.values()
        producer.flush()  # stored, as much of it may be when a task fails
        raise ValueError("the query's own mistake")

    run = query.run()
    with pytest.raises(ValueError, match="own mistake"):
        write_branch(query.options, run, (0, 0), failing())
    assert query.seen() == [], "and nothing is open: the branch was aborted at once"
    commit(query.options, [query.task(run, 0, "a", attempt=1)], wait_visible_ms=0)
    assert query.seen() == ["a"]


def test_of_two_attempts_of_a_task_one_is_in(query: Query) -> None:
    run = query.run()
    query.task(run, 0, "a", attempt=0)
    commit(query.options, [query.task(run, 0, "a", attempt=1)], wait_visible_ms=0)
    assert query.seen() == ["a"]


def test_a_replay_with_other_rows_writes_nothing(query: Query) -> None:
    commit(query.options, [query.task(query.run(3), 0, "a", "b")], wait_visible_ms=0)
    messages = [query.task(query.run(3), 0, "a")]
    with pytest.raises(ClusterError, match="is committed with 2 rows and now has 1"):
        commit(query.options, messages, wait_visible_ms=0)
    skipping = query.parse(onreplaymismatch="skip")
    commit(skipping, messages, wait_visible_ms=0)
    assert query.seen() == ["a", "b"]


def test_an_empty_batch_that_has_rows_when_it_is_replayed_is_an_error(query: Query) -> None:
    for batch, values in enumerate((("a",), (), ("b",))):
        commit(query.options, [query.task(query.run(batch), 0, *values)], wait_visible_ms=0)
    messages = [query.task(query.run(1), 0, "c", "d")]
    with pytest.raises(ClusterError, match=r"batch 1 .* committed with no rows and now has 2"):
        commit(query.options, messages, wait_visible_ms=0)
    commit(query.parse(onreplaymismatch="skip"), messages, wait_visible_ms=0)
    assert query.seen() == ["a", "b"]


def test_as_many_other_rows_of_an_older_batch_are_an_error(
    query: Query, shared_cluster: Cluster
) -> None:
    for batch, value in enumerate(("a", "b", "c")):
        commit(query.options, [query.task(query.run(batch), 0, value, "x")], wait_visible_ms=0)

    def replay(batch: int, *values: str) -> None:
        run = query.run(batch)
        # Its rows may come from other tasks, in another order.
        messages = [query.task(run, task, value) for task, value in enumerate(values)]
        commit(query.options, messages, wait_visible_ms=0)

    replay(1, "x", "b")
    replay(2, "x", "not deterministic")  # Spark replays the newest batch after a crash
    words = (
        "batch 1 of .* committed with 2 other rows and now has 2: .* restored from an older copy"
    )
    with pytest.raises(ClusterError, match=words) as refused:
        replay(1, "x", "d")
    assert refused.value.code is ErrorCode.LEDGER_MISMATCH
    shared_cluster.create_topic(f"{query.name}-copy", partitions=1)
    copying = replace(query.options, topic=f"{query.name}-copy")
    skipping = replace(copying, on_replay_mismatch=SKIP)
    query.options, written = copying, query.options
    with pytest.raises(ClusterError, match="or is itself a copy"):
        replay(1, "x", "b")
    query.options = skipping
    replay(1, "x", "b")
    query.options = written
    assert query.seen() == ["a", "b", "c", "x", "x", "x"]


def test_two_outputs_of_a_batch_under_one_application_id_are_an_error(
    query: Query, shared_cluster: Cluster
) -> None:
    second = replace(query.options, topic=f"{query.name}-second")
    shared_cluster.create_topic(f"{query.name}-second", partitions=1)

    def write(options: SinkOptions, batch: int) -> None:
        query.options, kept = options, query.options
        messages = [query.task(query.run(batch), 0, "a", "b")]
        query.options = kept
        commit(options, messages, wait_visible_ms=0)

    write(query.options, 0)
    words = r"batch 0 of .* was written to .*query-\d+', and now .*-second': .* txnAppId of its own"
    for options in second, replace(second, on_replay_mismatch=SKIP):
        with pytest.raises(ClusterError, match=words) as ended:
            write(options, 0)
        assert ended.value.code is ErrorCode.LEDGER_MISMATCH
    write(query.options, 0)
    write(second, 1)
    assert query.seen() == ["a", "b"], "a replay of the first counts, and a topic may change"


def test_a_job_that_runs_again_with_other_rows_is_skipped_as_before() -> None:
    decision = decision_of([WrittenBranch(replace(RUN, checkpoint=JOBS), 4, None, digest=1)])
    assert decision is not None
    check_outcome(decision, BatchOutcome(already_committed=True, rows_then=4, digest_then=2), ERROR)


@pytest.mark.parametrize(("then", "now"), [(0, 5), (5, 0), (5, 5)])
def test_an_unknown_digest_proves_nothing(then: int, now: int) -> None:
    decision = decision_of([WrittenBranch(RUN, 4, None, digest=now)])
    assert decision is not None
    outcome = BatchOutcome(already_committed=True, rows_then=4, digest_then=then)
    check_outcome(decision, outcome, ERROR)


def test_a_fresh_checkpoint_is_refused_under_an_application_id_that_has_batches(
    query: Query,
) -> None:
    run = query.run(5)
    commit(query.options, [query.task(run, 0, "a")], wait_visible_ms=0)
    fresh = replace(query.run(0), checkpoint="fresh")
    with pytest.raises(ClusterError, match=r"penstock txn forget-ledger spark/query-") as refused:
        query.task(fresh, 0, "a")
    assert refused.value.code is ErrorCode.LEDGER_MISMATCH
    assert not exactly_once._producers, "the next task takes another one"
    assert query.seen() == ["a"]


def test_without_a_querys_id_a_fresh_checkpoint_is_refused_at_its_first_batch(
    query: Query,
) -> None:
    def write(batch: int, value: str) -> None:
        run = replace(query.run(batch), checkpoint=JOBS)
        commit(query.options, [query.task(run, 0, value)], wait_visible_ms=0)

    old = [f"{batch:02}" for batch in range(TransactionConfig().rows_kept + 1)]
    for batch, value in enumerate(old):
        write(batch, value)
    write(len(old) - 1, old[-1])  # Spark replays the newest batch
    with pytest.raises(ClusterError, match=r"batch 0 of application .* fresh checkpoint"):
        write(0, "fresh")
    assert query.seen() == old


def test_a_checkpoint_restored_from_a_much_older_copy_ends_the_query_at_its_first_batch(
    query: Query,
) -> None:
    old = [f"{batch:02}" for batch in range(TransactionConfig().rows_kept + 1)]
    for batch, value in enumerate(old):
        commit(query.options, [query.task(query.run(batch), 0, value)], wait_visible_ms=0)
    messages = [query.task(query.run(0), 0, old[0], "arrived since")]
    with pytest.raises(ClusterError, match=r"batch 0 .* no longer known .* older copy"):
        commit(query.options, messages, wait_visible_ms=0)
    assert query.seen() == old


@pytest.mark.parametrize("named", ["other", None])
def test_both_directions_refuse_another_cluster_and_need_no_permission_for_it(
    query: Query, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(query.bootstrap) as admin:
        given = {
            "penstock.bootstrap.servers": query.bootstrap,
            "penstock.cluster.id": named or admin.describe_cluster().cluster_id,
        }
    monkeypatch.delattr(Admin, "describe_cluster")
    source = parse(given | {"subscribe": query.name})
    if named is None:
        check_cluster(source.client)
        assert BatchReader(source).partitions() == []
        return
    with pytest.raises(MisuseError, match="is cluster"):
        check_cluster(source.client)
    with pytest.raises(ClusterError, match="nothing was read") as refused:
        BatchReader(source).partitions()
    assert refused.value.code is ErrorCode.CLUSTER_ID_MISMATCH


def test_a_process_keeps_few_producers(query: Query) -> None:
    for _ in range(exactly_once.PRODUCERS_MAX + 2):
        run = replace(query.run(), application_id=f"job-{uuid.uuid4()}")
        commit(query.options, [query.task(run, 0, "a")], wait_visible_ms=0)
    assert len(exactly_once._producers) == exactly_once.PRODUCERS_MAX


def test_the_versions_of_an_application_share_a_producer(query: Query) -> None:
    for version in range(2):
        query.options = parse_sink(
            {
                "penstock.bootstrap.servers": query.bootstrap,
                "topic": query.name,
                "txnAppId": query.name,
                "txnVersion": str(version),
            }
        )
        run = batch_run(query.options, query.name, JOBS, str(uuid.uuid4()), version)
        commit(query.options, [query.task(run, 0, f"v{version}")], wait_visible_ms=0)
    assert len(exactly_once._producers) == 1
    assert query.seen() == ["v0", "v1"]


# ---------------------------------------------------------------- what a batch costs

TASKS, PARTITIONS, BROKERS = 8, 12, 3
CALLS = ("InitProducer", "BeginBranch", "JoinTransactions", "CommitBatch", "EndAtParticipants")


def spread(partitions: int) -> Iterator[pa.RecordBatch]:
    """Two rows for each partition."""
    for _ in range(2):
        where = pa.array(range(partitions), pa.int32())
        yield pa.record_batch({"value": pa.array([b"a"] * partitions), "partition": where})


@pytest.fixture
def wide(query: Query, shared_cluster: Cluster) -> Query:
    """The same, into a topic of 12 partitions."""
    name = f"{query.name}-wide"
    shared_cluster.create_topic(name, partitions=PARTITIONS)
    query.options = replace(query.options, topic=name)
    return query


def calls_of(cluster: Cluster) -> dict[str, int]:
    """Calls about transactions that the brokers have answered, by method."""
    pages = [scrape(port) for port in cluster.metrics_ports.values()]
    names = {call: f"penstock_request_seconds_count{{{call}}}" for call in CALLS}
    return {call: int(sum(page[name] for page in pages)) for call, name in names.items()}


def test_a_batch_takes_calls_per_task_and_broker_and_not_per_task_and_partition(
    wide: Query, shared_cluster: Cluster
) -> None:
    def trigger() -> dict[str, int]:
        before, run = calls_of(shared_cluster), wide.run(next(_numbers))
        messages = [
            write_branch(wide.options, run, (task, 0), spread(PARTITIONS)) for task in range(TASKS)
        ]
        commit(wide.options, messages, wait_visible_ms=60_000)
        return {call: count - before[call] for call, count in calls_of(shared_cluster).items()}

    trigger()  # finds the coordinator
    # A call that is not answered for seconds is made again. Hardly in each of three batches.
    seen = [trigger() for _ in range(3)]
    least = {call: min(one[call] for one in seen) for call in CALLS}
    assert (least["InitProducer"], least["BeginBranch"], least["CommitBatch"]) == (0, TASKS, 1)
    # A join waits for no other: what a task sends to a broker may take two. The coordinator's own
    # partitions join, and end, without a call.
    assert TASKS <= least["JoinTransactions"] <= 2 * TASKS * BROKERS < TASKS * PARTITIONS
    assert 1 <= least["EndAtParticipants"] <= 2 * BROKERS < TASKS


def test_a_batch_with_many_markers_is_warned_of_when_it_is_committed(
    wide: Query, caplog: pytest.LogCaptureFixture
) -> None:
    run = wide.run()
    message = write_branch(wide.options, run, (0, 0), spread(PARTITIONS))
    assert isinstance(message, WrittenBranch)
    assert (message.rows, message.partitions) == (2 * PARTITIONS, PARTITIONS)
    commit(wide.options, [message], wait_visible_ms=0)
    assert "markers" not in caplog.text
    run = wide.run(1)
    message = write_branch(wide.options, run, (0, 0), spread(PARTITIONS))
    assert isinstance(message, WrittenBranch)
    costly = replace(message, partitions=MARKERS_ADVISED_MAX + 1)
    commit(wide.options, [costly], wait_visible_ms=0)
    (warned,) = [one for one in caplog.records if "markers" in one.getMessage()]
    assert (warned.levelname, warned.name) == ("WARNING", "penstock.spark")
    assert f"batch 1 of application {run.application_id!r} takes 5001 markers" in caplog.text


def test_a_batch_that_takes_longer_than_its_timeout_is_told_which_option_to_raise(
    query: Query,
) -> None:
    query.options = query.parse(transactiontimeout="1s")
    words = r"longer than the option transactionTimeout \(1 s\): raise it"

    def expired(run: BatchRun) -> None:
        wait_until(
            lambda: not has_open_branches(query, run),
            what="the coordinator has aborted the branch",
        )

    def slow(run: BatchRun) -> Iterator[pa.RecordBatch]:
        yield from batches("a")
        expired(run)
        yield from batches("b")

    run = query.run()
    messages = [query.task(run, 0, "a")]
    expired(run)
    with pytest.raises(ClusterError, match=words) as refused:
        commit(query.options, messages, wait_visible_ms=0)
    assert refused.value.code is ErrorCode.TRANSACTION_ABORTED
    run = query.run()
    with pytest.raises(ClusterError, match=words):
        write_branch(query.options, run, (0, 0), slow(run))
    assert query.seen() == []
    other = ClusterError("fenced", ErrorCode.PRODUCER_FENCED)
    assert timed_out(other, 1000, late=True) is other
    by_operator = ClusterError("was aborted by an operator", ErrorCode.TRANSACTION_ABORTED)
    assert timed_out(by_operator, 1000) is by_operator


def test_the_option_transaction_timeout_reaches_the_coordinator(query: Query) -> None:
    for option, wanted_ms in ({"transactiontimeout": "70s"}, 70_000), ({}, 900_000):
        options, run = query.parse(**option), query.run()
        write_branch(options, run, (0, 0), batches("a"))
        with Admin(query.bootstrap) as admin:
            (branch,) = admin.describe_transaction(run.application_id).branches
        assert branch.started_ms is not None
        assert branch.timeout_ms == wanted_ms
