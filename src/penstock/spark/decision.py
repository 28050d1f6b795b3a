"""What the results of a batch's tasks mean, and whether the coordinator's answer matches.

    TaskResult per task ─▶ decision_of ─▶ Decision ─▶ CommitBatch ─▶ check_outcome ─▶ done, or error
                                             └─▶ advice: what would make the batch cheaper

Plain data in and out: the driver (`exactly_once`) and the simulator obey it alike. Kept here: I11.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.spark.sink_options import OnReplayMismatch

if TYPE_CHECKING:
    from penstock.client import BatchOutcome, BatchRun, Branch

JOBS: Final = "df.write"
"""The checkpoint of jobs outside of any query, as far as Spark says."""
MARKERS_ADVISED_MAX: Final = 5_000
"""Per batch. Readers wait until each is stored on all in-sync replicas of its partition."""

_log = logging.getLogger("penstock.spark")


@dataclass(frozen=True)
class TaskResult:
    """What a task with rows tells the driver. `branch` None: the batch was already committed.

    `partitions`: how many the branch has written to. `digest`: of the rows, in any order.
    """

    run: "BatchRun"
    rows: int
    branch: "Branch | None"
    partitions: int = 0
    digest: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """What a batch's messages mean. `replayed`: a task has learned that the batch is committed.

    `markers`: one per branch and partition it has written to; 0 if nothing is to be committed.
    `digest`: of all rows, 64 bits.
    """

    run: "BatchRun"
    rows: int
    branches: "tuple[Branch, ...]"
    replayed: bool
    markers: int = 0
    digest: int = 0


def decision_of(messages: Iterable[object]) -> Decision | None:
    """What to request from the coordinator; None = no task had rows, or none answered.

    Only a `TaskResult` counts: a task without rows, or a lost one, sends something else.
    """
    written = [message for message in messages if isinstance(message, TaskResult)]
    if not written:
        return None
    replayed = any(message.branch is None for message in written)
    branches = tuple(message.branch for message in written if message.branch is not None)
    rows = sum(message.rows for message in written)
    markers = sum(message.partitions for message in written)
    digest = sum(message.digest for message in written) % 2**64
    # If a task learned that the batch is committed, its rows are in no branch: the others cannot
    # commit.
    if replayed:
        return Decision(written[0].run, rows, (), replayed, digest=digest)
    return Decision(written[0].run, rows, branches, replayed, markers, digest)


def advice(decision: Decision) -> str | None:
    """What to do about a batch with an expensive commit; None = nothing."""
    if decision.markers <= MARKERS_ADVISED_MAX:
        return None
    run, tasks = decision.run, len(decision.branches)
    return (
        f"batch {run.batch} of application {run.application_id!r} takes {decision.markers} markers "
        f"to commit, one per task and partition it wrote to, from {tasks} tasks; more than "
        f"{MARKERS_ADVISED_MAX} make commits slow: write with fewer tasks (coalesce), or to topics "
        "with fewer partitions"
    )


def timed_out(error: PenstockError, timeout_ms: int, *, late: bool = False) -> PenstockError:
    """The error, with what to do if the batch's timeout has ended a branch.

    `late`: more time than the timeout has passed since the branch was begun.
    """
    by_timeout = late or "by its timeout" in error.message
    if error.code is not ErrorCode.TRANSACTION_ABORTED or not by_timeout:
        return error
    return ClusterError(
        f"{error.message}; the batch took longer than the option transactionTimeout "
        f"({timeout_ms / 1000:g} s): raise it, or read less per batch (maxOffsetsPerTrigger)",
        error.code,
    )


def check_outcome(
    decision: Decision, outcome: "BatchOutcome", on_mismatch: OnReplayMismatch
) -> None:
    """Raises ClusterError if rows of the batch were not committed, neither now nor before."""
    name = f"batch {decision.run.batch} of application {decision.run.application_id!r}"
    if not outcome.already_committed:
        if decision.replayed:
            raise ClusterError(
                f"{name} was committed when its tasks began, but is no longer: its ledger was "
                "deleted meanwhile; nothing was written; restart the query",
                ErrorCode.LEDGER_MISMATCH,
            )
        return
    # Spark replays only the newest batch, whose number of rows is always known. An older one comes
    # from a restored checkpoint, or, without a query's id, from a fresh one that counts from 0.
    is_job = decision.run.checkpoint == JOBS
    may_be_fresh = is_job and outcome.rows_then <= 0
    # A job that is run again may compute other rows. Of what a query may replay, its newest batch,
    # the coordinator answers no digest: rows may differ if it is not deterministic.
    others = not is_job and 0 != outcome.digest_then != decision.digest != 0
    if not others and outcome.rows_then == decision.rows:
        return
    then = f"{outcome.rows_then or 'no'} rows"
    if outcome.rows_then == -1:
        then = "rows that are no longer known"
    elif others:
        then = f"{outcome.rows_then} other rows"
    if on_mismatch is OnReplayMismatch.SKIP:
        _log.warning(
            "%s is committed with %s and was replayed with %d: left as it is",
            name,
            then,
            decision.rows,
        )
        return
    if may_be_fresh:
        why = (
            "Spark replays only the newest batch, and this one is older. If the query has a fresh "
            "checkpoint, its batches count from 0 again: use another txnAppId, or run penstock "
            f"txn forget-ledger {decision.run.application_id}. If not, an old job was run again"
        )
    else:
        why = (
            "The checkpoint was restored from an older copy or is itself a copy, the query changed "
            "or is not deterministic, or it is a second output, which needs a txnAppId of its own"
        )
    raise ClusterError(
        f"{name} is committed with {then} and now has {decision.rows}: nothing was written. "
        f"{why}; set onReplayMismatch=skip to leave such batches as they are",
        ErrorCode.LEDGER_MISMATCH,
    )
