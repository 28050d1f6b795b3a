"""Transactions through random calls, copies, losses, crashes, failovers (I10 to I12, I14, I16).

And the checks themselves: each planted bug must be found.
"""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.transaction_world import TransactionWorld

from penstock.core.transactions import branches, ending, producers
from penstock.core.transactions.contract import BatchAborted, Ended, Joined, Reply
from penstock.core.transactions.loading import Loader
from penstock.core.transactions.records import BranchRecord, EndReason, LedgerRecord
from penstock.core.transactions.state import Book, Branch
from penstock.errors import ClusterError, ErrorCode


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(20, 400))
def test_whatever_happens_a_transaction_ends_once_and_everybody_hears(
    seed: int, steps: int
) -> None:
    world = TransactionWorld(random.Random(seed))
    world.run(steps)
    world.settle()


def found(early: bool = False) -> str:
    """The first finding in a few hundred runs; "" if the checks are blind."""
    for seed in range(300):
        world = TransactionWorld(random.Random(seed), early=early)
        try:
            world.run(300)
            world.settle()
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return str(error)
    return ""


def test_an_epoch_that_stays_after_a_decision_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "next_epoch", lambda record: (record.producer_id, record.epoch))
    assert found()


def test_an_empty_transaction_that_keeps_its_epoch_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = ending.decide

    def lazy(book: Book, branch: Branch, *, commit: bool, reason: EndReason) -> None:
        if branch.record.is_open or reason is not EndReason.PRODUCER:
            right(book, branch, commit=commit, reason=reason)

    monkeypatch.setattr(ending, "decide", lazy)
    assert found()


def test_a_join_kept_in_memory_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Book.put_branch

    def forgetful(self: Book, branch: Branch, record: BranchRecord) -> None:
        is_join = len(record.joined) > len(branch.record.joined) > 0
        right(self, branch, record)
        if is_join:
            self.records.clear()

    monkeypatch.setattr(Book, "put_branch", forgetful)
    assert found() == "I16"


def test_a_repeated_end_that_is_refused_as_fenced_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def strict(book: Book, branch: Branch, event: Any) -> Any:
        raise ClusterError("an older epoch", ErrorCode.PRODUCER_FENCED)

    monkeypatch.setattr(producers, "_decided_before", strict)
    assert "(stuck)" in found()


def test_an_outcome_that_changes_when_an_end_is_repeated_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def obliging(book: Book, branch: Branch, event: Any) -> None:
        record, last = branch.record, branch.record.last
        if last is not None and last.epoch == event.producer_epoch:
            book.put_branch(branch, replace(record, last=replace(last, commit=event.commit)))

    monkeypatch.setattr(producers, "_decided_before", obliging)
    assert "decided twice" in found()


def test_finishing_that_is_not_loaded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Loader.fill

    def lossy(self: Loader, book: Book) -> None:
        right(self, book)
        book.unsettled.clear()

    monkeypatch.setattr(Loader, "fill", lossy)
    told = found()
    assert "(I14)" in told or "has no time of its end" in told, "stuck, or known too late"


def test_an_end_by_a_zombie_answered_with_the_next_epoch_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = producers._decided_before

    def generous(book: Book, branch: Branch, event: Any) -> Any:
        last = branch.record.last
        if last is not None and last.reason is EndReason.FENCED and not event.commit:
            return None
        return right(book, branch, event)

    monkeypatch.setattr(producers, "_decided_before", generous)
    assert "(I1" in found()


def test_a_timeout_that_leaves_the_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ending.decide

    def soft(book: Book, branch: Branch, *, commit: bool, reason: EndReason) -> None:
        epoch = branch.record.epoch
        right(book, branch, commit=commit, reason=reason)
        if reason is EndReason.TIMEOUT:
            book.put_branch(branch, replace(branch.record, epoch=epoch))

    monkeypatch.setattr(ending, "decide", soft)
    assert "is decided, and goes on" in found()


def test_a_participant_that_joins_again_before_it_has_heard_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hasty(book: Book, branch: Branch, event: Any) -> None:
        record, joins = branch.record, event.participant
        left = {p: e for p, e in record.finishing.items() if p != joins}
        joined = record.joined | {joins}
        book.put_branch(branch, replace(record, is_open=True, joined=joined, finishing=left))
        book.say(Reply(event.request_id, Joined()))

    monkeypatch.setattr(ending, "park", hasty)
    assert "has not heard" in found()


def test_a_branch_that_commits_before_its_ledger_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(branches, "_advance", lambda book, event, ledger: None)
    assert "without its ledger" in found()


def test_an_abort_that_does_not_ask_the_ledger_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(book: Book, event: Any) -> BatchAborted:
        return BatchAborted(already_committed=False)

    monkeypatch.setattr(branches, "abort_batch", blind)
    assert "was told that" in found()


def test_a_losing_twin_that_stays_open_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "_abort", lambda book, found: 0)
    assert "is open after its batch was committed" in found()


def test_a_ledger_that_compares_runs_instead_of_batches_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = branches._ledger

    def by_run(book: Book, application_id: str, checkpoint: str) -> LedgerRecord:
        ledger = right(book, application_id, checkpoint)
        return replace(ledger, batch=-1)

    monkeypatch.setattr(branches, "_ledger", by_run)
    assert "(I11)" in found()


def test_an_answer_before_its_record_is_committed_is_found() -> None:
    assert found(early=True)


def test_an_answer_that_waits_for_nobody_and_says_visible_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = ending.answer_when_visible

    def hasty(book: Book, request: Any, answer: Any, transactions: Any) -> Any:
        known = right(book, (request[0], 0), answer, transactions)
        return replace(known, visible=True) if isinstance(known, Ended) else known

    monkeypatch.setattr(ending, "answer_when_visible", hasty)
    assert "has not stored the marker" in found()
