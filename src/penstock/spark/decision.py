"""What the results of a batch's tasks mean, and whether the coordinator's answer matches.

    TaskResult per task ─▶ decision_of ─▶ Decision ─▶ CommitBatch ─▶ check_outcome ─▶ done, or error
                                             └─▶ advice: what would make the batch cheaper

Plain data in and out: the driver (`exactly_once`) and the simulator obey it alike. Kept here: I11.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ClusterError, ErrorCode
from penstock.spark.sink_options import OnReplayMismatch

if TYPE_CHECKING:
    from penstock.client import BatchOutcome, BatchRun, Branch

MARKERS_ADVISED_MAX: Final = 5_000
"""Per batch. Readers wait until each is stored on all in-sync replicas of its partition."""

_log = logging.getLogger("penstock.spark")


@dataclass(frozen=True)
class TaskResult:
    """What a task with rows tells the driver. `branch` None: the batch was already committed.

    `partitions`: how many the branch has written to.
    """

    run: "BatchRun"
    rows: int
    branch: "Branch | None"
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """What a batch's messages mean. `replayed`: a task has learned that the batch is committed.

    `markers`: one per branch and partition it has written to; 0 if nothing is to be committed.
    """

    run: "BatchRun"
    rows: int
    branches: "tuple[Branch, ...]"
    replayed: bool
    markers: int = 0


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
    # If a task learned that the batch is committed, its rows are in no branch: the others cannot
    # commit.
    if replayed:
        return Decision(written[0].run, rows, (), replayed)
    return Decision(written[0].run, rows, branches, replayed, markers)


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
    if outcome.rows_then in {-1, decision.rows}:
        return
    if on_mismatch is OnReplayMismatch.SKIP:
        _log.warning(
            "%s is committed with %d rows and was replayed with %d: left as it is",
            name,
            outcome.rows_then,
            decision.rows,
        )
        return
    raise ClusterError(
        f"{name} is committed with {outcome.rows_then} rows and now has {decision.rows}: nothing "
        "was written. The checkpoint was restored from an older copy, or the query changed or "
        "is not deterministic; set onReplayMismatch=skip to leave such batches as they are",
        ErrorCode.LEDGER_MISMATCH,
    )
