"""What a batch's tasks come to, and whether the coordinator's answer is what was meant.

    TaskResult per task ─▶ decision_of ─▶ Decision ─▶ CommitBatch ─▶ check_outcome ─▶ done, or error

Plain data in and out: the driver (`exactly_once`) and the simulator obey it alike. Kept here: I11.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ClusterError, ErrorCode
from penstock.spark.sink_options import OnReplayMismatch

if TYPE_CHECKING:
    from penstock.client import BatchOutcome, BatchRun, Branch

_log = logging.getLogger("penstock.spark")


@dataclass(frozen=True)
class TaskResult:
    """What a task with rows tells the driver. `branch` None: the batch was in already."""

    run: "BatchRun"
    rows: int
    branch: "Branch | None"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a batch's messages come to. `replayed`: a task has heard that the batch is in."""

    run: "BatchRun"
    rows: int
    branches: "tuple[Branch, ...]"
    replayed: bool


def decision_of(messages: Iterable[object]) -> Decision | None:
    """What to ask of the coordinator; None = no task had rows, or none answered.

    Only a `TaskResult` counts: a task without rows, or one that was lost, says something else.
    """
    written = [message for message in messages if isinstance(message, TaskResult)]
    if not written:
        return None
    replayed = any(message.branch is None for message in written)
    branches = tuple(message.branch for message in written if message.branch is not None)
    rows = sum(message.rows for message in written)
    # If a task heard that the batch is in, its rows are in no branch: the others cannot commit.
    return Decision(written[0].run, rows, () if replayed else branches, replayed)


def check_outcome(
    decision: Decision, outcome: "BatchOutcome", on_mismatch: OnReplayMismatch
) -> None:
    """Raises ClusterError if rows of the batch are neither in now nor were before."""
    name = f"batch {decision.run.batch} of application {decision.run.application_id!r}"
    if not outcome.already_committed:
        if decision.replayed:
            raise ClusterError(
                f"{name} was in when its tasks began, and is not any more: its ledger was "
                "forgotten meanwhile; nothing was written, start the query again",
                ErrorCode.LEDGER_MISMATCH,
            )
        return
    if outcome.rows_then in {-1, decision.rows}:
        return
    if on_mismatch is OnReplayMismatch.SKIP:
        _log.warning(
            "%s is in with %d rows and came again with %d: left as it is",
            name,
            outcome.rows_then,
            decision.rows,
        )
        return
    raise ClusterError(
        f"{name} is in with {outcome.rows_then} rows and now has {decision.rows}: nothing was "
        "written. The checkpoint was restored from an older copy, or the query changed or is not "
        "repeatable; set onReplayMismatch=skip to leave such batches as they are",
        ErrorCode.LEDGER_MISMATCH,
    )
