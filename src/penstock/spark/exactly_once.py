"""Writers whose rows become visible once: a micro-batch or job is committed as a whole or not at
all.

    task 0: first row ─▶ begin a branch ─▶ rows ─▶ all stored ─▶ WrittenBranch ─┐
    task 1: first row ─▶ begin ─▶ "the batch is in" ─▶ counts its rows ─────────┤
    driver: commit(messages) ─▶ one CommitBatch with all branches ◀─────────────┘

The ledger of the application id, on the cluster, lists the committed batches, so a batch that Spark
replays is written again or not at all, but never twice (I11). Every attempt of a task has its own
branch: failed and speculative attempts are aborted with the batch's commit, its abort or next run.
Spark re-creates the object that commits, so messages carry all it needs. Tasks without rows begin
nothing, and a batch without rows does not change the ledger. `decision` decides what messages and
answers mean.
"""

import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.core.run_name import RunName
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.spark.decision import (
    JOBS,
    TaskResult,
    advice,
    check_outcome,
    decision_of,
    timed_out,
)
from penstock.spark.edge import at_edge
from penstock.spark.sink import Sending, Written, make_producer
from penstock.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client import BatchRun, Branches, Producer

VISIBLE_WAIT_MS: Final = 10_000
"""When a job returns, its rows are readable; a stream does not wait, its next batch hides the
delay."""
ABORT_S: Final = 10.0
PRODUCERS_MAX: Final = 4
"""For how many application ids a worker process keeps a producer; it runs one task at a time."""

_log = logging.getLogger("penstock.spark")
_producers: "dict[tuple[int, SinkOptions, str], Producer]" = {}


@dataclass(frozen=True)
class WrittenBranch(TaskResult, WriterCommitMessage):
    """What a task with rows tells the driver, as Spark wants it."""


class ExactlyOnceStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: every micro-batch is committed once, even if it is replayed."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = str(
            uuid.uuid4()
        )  # made once per execution of a batch, and passed to all its tasks

    @at_edge
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Executor side. Raises PenstockError in one line; Spark retries the task."""
        query, batch = _property("sql.streaming.queryId"), _property("streaming.sql.batchId")
        app_id = self._options.app_id or f"spark/{query}"
        run = batch_run(self._options, app_id, query, self._run, int(batch))
        return write_branch(self._options, run, _attempt(), iterator)

    @at_edge
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 (Spark's name)
        """Decides. Raises PenstockError: the query fails, and its restart replays the batch."""
        commit(self._options, messages, wait_visible_ms=0)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 (Spark's name)
        """Aborts what is open, unless the batch is committed. If no task could tell what it has
        written, nothing: Spark makes another writer for this call, which does not know the run."""
        abort(self._options, messages)


class ExactlyOnceBatchWriter(DataSourceArrowWriter):
    """`df.write`: the job is one transaction; with txnVersion it can be run again."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = str(uuid.uuid4())

    @at_edge
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Executor side. Raises PenstockError in one line; Spark retries the task."""
        options = self._options
        # Within foreachBatch the query's id tells a fresh checkpoint, whose batches begin at 0.
        # Spark Connect and the user's own threads do not have it: see `decision.check_outcome`.
        checkpoint = (options.app_id and _found("sql.streaming.queryId")) or JOBS
        return write_branch(options, self._batch_run(checkpoint), _attempt(), iterator)

    @at_edge
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decides, and waits until readers see it. Raises PenstockError: the job fails."""
        commit(self._options, messages, wait_visible_ms=VISIBLE_WAIT_MS)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Aborts what is open, unless the batch is committed; also if no task could tell what it
        has written."""
        abort(self._options, messages, self._batch_run(JOBS))

    def _batch_run(self, checkpoint: str) -> "BatchRun":
        app_id = self._options.app_id or f"spark/{self._run}"
        version = self._options.version or 0
        return batch_run(self._options, app_id, checkpoint, self._run, version)


# ---------------------------------------------------------------- executors


def write_branch(
    options: SinkOptions,
    run: "BatchRun",
    attempt: tuple[int, int],
    batches: "Iterator[pa.RecordBatch]",
) -> WriterCommitMessage:
    """One attempt of a task: all its rows stored in a branch, or counted if the batch is committed.

    `attempt`: the task, and a number that no other attempt of it has. Raises PenstockError; the
    branch is aborted then.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return Written(0)
    producer = _producer(options, run.application_id)
    branches = producer.branches()
    began_s = time.monotonic()
    try:
        branch = branches.begin(run, *attempt)
    except PenstockError:
        _close(_key(options, run.application_id))
        raise
    if branch is None:
        rows, digest = _count_all(options, chain((first,), filled))
        return WrittenBranch(run, rows, None, digest=digest)
    try:
        sending, digest = _send_all(options, branches, chain((first,), filled))
        branches.hand_over()
        rows = sending.finish()
    except BaseException as error:
        _give_up(options, run.application_id, branches)
        late_s = time.monotonic() - began_s - options.transaction_timeout_ms / 1000
        if isinstance(error, PenstockError):
            raise timed_out(error, options.transaction_timeout_ms, late=late_s > 0) from None
        raise
    return WrittenBranch(run, rows, branch, len(sending.partitions), digest)


def _send_all(
    options: SinkOptions, branches: "Branches", batches: "Iterator[pa.RecordBatch]"
) -> tuple[Sending, int]:
    """What is in flight, and the digest of its rows."""
    from penstock.spark.rows import digest_of, rows_of  # noqa: PLC0415 - pyarrow, in executors only

    sending, digest = Sending(branches), 0
    for batch in batches:
        for part in rows_of(batch, options.topic):
            sending.send(part)
            digest += digest_of(part)
    return sending, digest


def _count_all(options: SinkOptions, batches: "Iterator[pa.RecordBatch]") -> tuple[int, int]:
    """How many rows there are, and their digest."""
    from penstock.spark.rows import digest_of, rows_of  # noqa: PLC0415 - pyarrow, in executors only

    rows, digest = 0, 0
    for batch in batches:
        rows += batch.num_rows
        digest += sum(digest_of(part) for part in rows_of(batch, options.topic))
    return rows, digest


def _give_up(options: SinkOptions, app_id: str, branches: "Branches") -> None:
    """Aborts the open branch; the next task takes another producer."""
    try:
        branches.abort(ABORT_S)
    except PenstockError as error:
        _log.warning("a branch of %r is not aborted yet: %s", app_id, error.message)
    _close(_key(options, app_id))


def batch_run(
    options: SinkOptions, app_id: str, checkpoint: str, execution: str, batch: int
) -> "BatchRun":
    """The run of a task, or, on the driver, with its execution and target alone."""
    from penstock.client import BatchRun  # noqa: PLC0415 - grpc, in executors only

    query_run = "" if checkpoint == JOBS else _query_run()
    run = RunName.of_sink(execution, options.topic, query_run, options.checkpoint)
    return BatchRun(app_id, checkpoint, str(run), batch)


def _query_run() -> str:
    """The id of this start of the query: Spark groups its jobs by it, unless the user does."""
    group = _found("spark.jobGroup.id") or ""
    try:
        return str(uuid.UUID(group))
    except ValueError:
        return ""


def _attempt() -> tuple[int, int]:
    context = TaskContext.get()
    assert context is not None, "a writer runs in a task"
    return context.partitionId(), context.taskAttemptId()


def _property(name: str) -> str:
    value = _found(name)
    if value is None:
        raise MisuseError(f"delivery=exactly-once needs Spark's {name}, which this task lacks")
    return value


def _found(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


# ---------------------------------------------------------------- the driver


def commit(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], *, wait_visible_ms: int
) -> None:
    """Commits all branches of the batch at once. Raises PenstockError."""
    decision = decision_of(messages)
    if decision is None:
        return
    costly = advice(decision)
    if costly is not None:
        _log.warning("%s", costly)
    branches = _producer(options, decision.run.application_id).branches()
    try:
        outcome = branches.commit_batch(
            decision.run,
            decision.rows,
            decision.branches,
            digest=decision.digest,
            wait_visible_ms=wait_visible_ms,
        )
    except PenstockError as error:
        if error.code is ErrorCode.CLUSTER_ID_MISMATCH:
            _close(_key(options, decision.run.application_id))
        raise timed_out(error, options.transaction_timeout_ms) from None
    check_outcome(decision, outcome, options.on_replay_mismatch)


def abort(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    unnamed: "BatchRun | None" = None,
) -> None:
    """Best effort: what stays open is aborted by the batch's next run, or at its timeout. Spark
    also calls this if a commit raised although it took effect: the ledger knows that, and nothing
    is done.

    `unnamed`: the run of a job, if no message names it: worker processes that were killed send
    none. The coordinator knows it by its execution.
    """
    decision = decision_of(messages)
    run = unnamed if decision is None else decision.run
    if run is None:
        return
    try:
        branches = _producer(options, run.application_id).branches()
        branches.abort_batch(run, timeout_s=ABORT_S)
    except PenstockError as error:
        if decision is None and error.code is ErrorCode.LEDGER_MISMATCH:
            return  # nothing of it is open: its first begin would have made the run known
        _log.warning("batch %d is not aborted yet: %s", run.batch, error.message)


# ---------------------------------------------------------------- both


def _producer(options: SinkOptions, app_id: str) -> "Producer":
    """This process's producer for the application."""
    key = _key(options, app_id)
    if key not in _producers:
        while len(_producers) >= PRODUCERS_MAX:
            _close(next(iter(_producers)))
        _producers[key] = make_producer(options, app_id)
    return _producers[key]


def _key(options: SinkOptions, app_id: str) -> tuple[int, SinkOptions, str]:
    """Without the version: foreachBatch writes each batch with another one."""
    return os.getpid(), replace(options, version=None), app_id


def _close(key: "tuple[int, SinkOptions, str]") -> None:
    producer = _producers.pop(key)
    if key[0] == os.getpid():
        producer.close(ABORT_S)
