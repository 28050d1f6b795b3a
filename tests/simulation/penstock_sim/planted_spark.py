"""Bugs in batches that many tasks write, and with topics deleted under transactions.

Planted on purpose, as in `planted`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from penstock.core.transactions import branches, ending
from penstock.core.transactions import contract as tc
from penstock.core.transactions.records import LedgerRecord
from penstock.core.transactions.state import Book, Branch
from penstock_broker.logged.host import MachineHost
from penstock_broker.transactions.coordinator import Coordinator
from penstock_sim.planted_shells import all_of, in_text

commit_a_batch_in_two_appends = all_of(
    in_text(
        MachineHost,
        "_obey",
        "self._unsent.append(ready.records)",
        """
        from penstock.core.transactions.records import LedgerKey, decode_key

        ledger = [one for one in ready.records if isinstance(decode_key(one[0]), LedgerKey)]
        branches = [one for one in ready.records if one not in ledger]
        if ledger and branches:
            self._handed += 1
            self._unsent.append(tuple(branches))
            self._unsent.append(tuple(ledger))
        else:
            self._unsent.append(ready.records)
        """,
    ),
    in_text(MachineHost, "_flush", "if records and size_bytes > self.append_bytes:", "if records:"),
)
"""The branches first, then the ledger: a failover in between has the rows without it."""


def abort_without_asking_the_ledger(patch: Any) -> None:
    """A driver whose commit raised, but succeeded, is told that nothing of the batch is
    committed."""

    def abort_batch(book: Book, event: tc.AbortBatchRequested) -> tc.BatchAborted:
        ledger = branches._ledger(book, event.application_id, event.checkpoint)
        holder = book.holders.get(event.application_id)
        if holder is not None and event.run == ledger.run:
            branches._abort(book, branches._open_branches(holder))
            superseded = branches._superseded(book, ledger, event.run)
            book.put_ledger(event.application_id, replace(ledger, run="", superseded=superseded))
        return tc.BatchAborted(already_committed=False)

    patch.setattr(branches, "abort_batch", abort_batch)


def leave_the_losing_twin_open(patch: Any) -> None:
    """Only the named branches are decided."""
    commit_batch, abort = branches.commit_batch, branches._abort

    def named_only(book: Book, event: tc.CommitBatchRequested) -> Any:
        branches._abort = lambda book, branches: 0
        try:
            return commit_batch(book, event)
        finally:
            branches._abort = abort

    patch.setattr(branches, "commit_batch", named_only)


def commit_the_losing_twin(patch: Any) -> None:
    """Every open branch of the run commits, named or not."""
    named = branches._named

    def all_open(book: Book, holder: Any, event: tc.CommitBatchRequested) -> dict[int, Branch]:
        found = named(book, holder, event)
        return found | {one.number: one for one in branches._of_run(holder, event.run)}

    patch.setattr(branches, "_named", all_open)


class _OfRun(int):
    """A ledger's batch, compared by the run that wrote it."""

    is_same: bool = False

    def __ge__(self, _batch: int) -> bool:
        return self.is_same


def compare_runs_instead_of_batches(patch: Any) -> None:
    """A batch is committed only if this very run has committed it: a replay writes it again."""
    begin, commit_batch, ledger_of = branches.begin, branches.commit_batch, branches._ledger
    runs: list[str] = []

    def by_run(book: Book, application_id: str, checkpoint: str) -> LedgerRecord:
        ledger = ledger_of(book, application_id, checkpoint)
        batch = _OfRun(ledger.batch)
        batch.is_same = bool(runs) and ledger.batch_run == runs[-1]
        return replace(ledger, batch=batch)

    def within(run: str, call: Callable[[], Any]) -> Any:
        runs.append(run)
        try:
            return call()
        finally:
            runs.pop()

    patch.setattr(branches, "_ledger", by_run)
    patch.setattr(
        branches, "begin", lambda book, event: within(event.attempt.run, lambda: begin(book, event))
    )
    patch.setattr(
        branches,
        "commit_batch",
        lambda book, event: within(event.run, lambda: commit_batch(book, event)),
    )


def commit_what_is_left_of_a_batch(patch: Any) -> None:
    """Branches that have ended meanwhile are ignored."""
    named = branches._named

    def lenient(book: Book, holder: Any, event: tc.CommitBatchRequested) -> dict[int, Branch]:
        left = tuple(
            (number, epoch)
            for number, epoch in event.branches
            if (branch := holder.branches[number]).record.is_open and branch.record.epoch == epoch
        )
        return named(book, holder, replace(event, branches=left))

    patch.setattr(branches, "_named", lenient)


SPARK_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "commit_a_batch_in_two_appends": commit_a_batch_in_two_appends,
} | {
    bug.__name__: bug
    for bug in (
        abort_without_asking_the_ledger,
        leave_the_losing_twin_open,
        commit_the_losing_twin,
        compare_runs_instead_of_batches,
        commit_what_is_left_of_a_batch,
    )
}
"""How each is planted. Found with all faults."""


wait_for_a_deleted_topic = in_text(
    Coordinator, "image_changed", "deleted = frozenset(gone)", "deleted = frozenset()"
)
"""Nobody tells the coordinator of deletions: it sends Ends to where nothing is."""


def let_go_of_all_with_a_deleted_topic(patch: Any) -> None:
    """Once a topic is deleted, the coordinator waits for no participant of a transaction."""

    def careless(book: Book, branch: Branch) -> list[tc.JoinRequested]:
        return ending._heard(book, branch, list(branch.finishing) if book.gone else [])

    patch.setattr(ending, "forget_gone", careless)


DELETION_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "wait_for_a_deleted_topic": wait_for_a_deleted_topic,
    "let_go_of_all_with_a_deleted_topic": let_go_of_all_with_a_deleted_topic,
}
"""How each is planted. Found with all faults where a topic is deleted."""
