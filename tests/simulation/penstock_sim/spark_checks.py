"""Checks of the batches that a query writes (I11): each is committed once, whole, from one run.

Checked in each step: the committed log of `__transactions`, append by append, and the answers to
drivers. At the end: what readers of committed records have seen of every attempt of every task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from penstock.core.transactions import contract as tc
from penstock.core.transactions.records import Attempt, BranchKey, BranchRecord, LedgerRecord
from penstock.errors import ErrorCode, PenstockError
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock_sim.spark import Execution, Query
    from penstock_sim.world import World

_Value = TypeVar("_Value")


@dataclass(slots=True)
class _Batch:
    """A committed batch, by the committed log. attempts: of its tasks, whose branches committed.

    rows: according to the ledger.
    """

    run: str
    attempts: dict[int, int] = field(default_factory=dict)
    rows: int = -1


class SparkChecks:
    """Checks the one query of a history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.batches: dict[int, _Batch] = {}
        self._ledger = LedgerRecord()
        self._open: dict[BranchKey, Attempt] = {}

    @property
    def void(self) -> bool:
        return self.world.transaction_checks.void

    # ------------------------------------------------------------ the coordinator's log

    def branch_changed(
        self, key: BranchKey, before: BranchRecord | None, now: BranchRecord
    ) -> None:
        """The next record of a task's branch."""
        if now.is_open:
            self._open[key] = _known(now.attempt)
            return
        attempt = self._open.pop(key, None)
        last = now.last
        if attempt is None or last is None or before is None or not last.commit:
            return
        if (last.producer_id, last.epoch) == (before.producer_id, before.epoch):
            self._branch_committed(attempt)

    def _branch_committed(self, attempt: Attempt) -> None:
        batch = self.batches.setdefault(attempt.batch, _Batch(attempt.run))
        if batch.run != attempt.run:
            raise RuleError(f"I11: {attempt} commits, the batch is in by run {batch.run}")
        other = batch.attempts.setdefault(attempt.task, attempt.attempt)
        if other != attempt.attempt:
            raise RuleError(f"I11: {attempt} commits, and so does attempt {other}")

    def ledger_changed(self, now: LedgerRecord) -> None:
        """The next record of the ledger."""
        before, self._ledger = self._ledger, now
        if now.batch < before.batch:
            raise RuleError(f"I11: the ledger goes back from {before} to {now}")
        if now.batch > before.batch:
            batch = self.batches.get(now.batch)
            if batch is None or batch.run != now.batch_run:
                raise RuleError(f"I11: {now} says that a batch is in, committed is {batch}")
            batch.rows = dict(now.rows)[now.batch]

    def appended(self) -> None:
        """A whole append is committed: a failover can happen between it and the next."""
        ledger = self._ledger
        newest = max(self.batches, default=-1)
        if newest > ledger.batch:
            raise RuleError(f"I11: batch {newest} is in, and {ledger} does not say so")
        late = [each for each in self._open.values() if each.batch <= ledger.batch]
        if late:
            raise RuleError(f"I11: batch {ledger.batch} is in, and {late} have not ended")

    # ------------------------------------------------------------ drivers

    def told(self, execution: Execution, answer: tc.BatchCommitted) -> None:
        """A driver is told that its batch is committed."""
        run, decision = execution.run, execution.decision
        assert decision is not None
        if self.void:
            return
        if not answer.already_committed and not decision.branches:
            raise RuleError(f"I11: {run} is told to have committed nothing: {answer}")
        if self._ledger.batch < run.batch:
            raise RuleError(f"I11: {run} is told {answer}, by the ledger it is not: {self._ledger}")
        batch = self.batches.get(run.batch)
        if not answer.already_committed and (batch is None or batch.run != run.run):
            raise RuleError(f"I11: {run} is told {answer}, committed is {batch}")
        if answer.rows_then >= 0 and batch is not None and answer.rows_then != batch.rows:
            raise RuleError(f"I11: {run} is told {answer}, the batch that is in is {batch}")

    def refused(self, execution: Execution, error: PenstockError) -> None:
        """A driver is told that its commit has failed, or gets no answer."""
        run, batch = execution.run, self.batches.get(execution.run.batch)
        known = {ErrorCode.TRANSACTION_ABORTED, ErrorCode.PRODUCER_FENCED}
        if self.void or error.retriable:
            return
        if error.code not in known:
            raise RuleError(f"I11: {run} hears {error.code.name}: {error}")
        if batch is not None and batch.run == run.run:
            raise RuleError(f"I11: {run} hears {error.code.name}, and is in: {batch}")

    def aborted(self, execution: Execution, answer: tc.BatchAborted) -> None:
        """A driver is told whether its abort came in time."""
        run, batch = execution.run, self.batches.get(execution.run.batch)
        if self.void:
            return
        if answer.already_committed and self._ledger.batch < run.batch:
            raise RuleError(f"I11: {run} is told {answer}, by the ledger it is not: {self._ledger}")
        if not answer.already_committed and batch is not None and batch.run == run.run:
            raise RuleError(f"I11: {run} is told that it is aborted, and is in: {batch}")

    def finished(self, execution: Execution) -> None:
        """A batch is written to the commit log: it is never executed again."""
        run, decision = execution.run, execution.decision
        if decision is not None and self._ledger.batch < run.batch and not self.void:
            raise RuleError(f"I11: {run} is in the commit log, and not in: {self._ledger}")

    # ------------------------------------------------------------ the end

    def check_end(self, query: Query, seen: set[bytes], missed: set[bytes]) -> None:
        """What was read is what was decided. `missed`: retention removed it before it was read."""
        if self.void:
            return
        for execution in query.executions:
            batch = self.batches.get(execution.run.batch)
            is_in = batch is not None and batch.run == execution.run.run
            decided = execution.decision.branches if execution.decision is not None else ()
            for written in execution.written:
                visible = written.payloads & seen
                wins = is_in and _known(batch).attempts.get(written.task) == written.attempt
                if visible and not wins:
                    raise RuleError(f"I11: {visible} of {execution.run} was read, in is {batch}")
                if wins and written.payloads - seen - missed:
                    raise RuleError(f"I11: {written} of {execution.run} was not read whole")
                if wins and written.branch not in decided:
                    raise RuleError(f"I11: {written} is in, its driver has named {decided}")
            rows = sum(one.rows for one in execution.written if one.branch in decided)
            if is_in and rows != _known(batch).rows:
                raise RuleError(f"I11: {rows} rows of {execution.run} are in: {batch}")


def _known(value: _Value | None) -> _Value:
    assert value is not None
    return value
