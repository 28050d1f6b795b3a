"""Batches that many tasks write: every row of the table of what may happen to them."""

from typing import Any

import pytest
from support.transaction_desk import FRESH, P0, P1, TIME_MS, Desk, refused

from penstock.core.transactions import TransactionConfig
from penstock.core.transactions import contract as c
from penstock.core.transactions.records import EndReason, LedgerKey, Participant, encode_key
from penstock.core.types import NO_PRODUCER, ProducerId
from penstock.errors import ErrorCode

Who = tuple[ProducerId, int]


def who(begun: c.BranchBegun) -> Who:
    return begun.producer_id, begun.producer_epoch


def written(desk: Desk, begun: c.BranchBegun, *participants: Participant) -> c.BranchBegun:
    """The attempt has written to these partitions."""
    for participant in participants or (P0,):
        desk.join(who(begun), participant, "app")
    return begun


def finish(desk: Desk, *begun: c.BranchBegun) -> None:
    for one in begun:
        desk.finished(P0, P1, who=who(one))


def outcome(desk: Desk, begun: c.BranchBegun) -> tuple[int, bool, EndReason]:
    return desk.last("app", begun.branch)


# ---------------------------------------------------------------- begin


def test_each_attempt_gets_a_branch_of_its_own(desk: Desk) -> None:
    first, second = desk.begin(task=0), desk.begin(task=1)
    assert first == c.BranchBegun(False, 1, ProducerId(FRESH), 0)
    assert second == c.BranchBegun(False, 2, ProducerId(FRESH + 1), 0)
    assert desk.record("app", 1).is_open
    assert desk.ledger().run == "r1"


def test_the_same_begin_again_is_the_same_branch(desk: Desk) -> None:
    first = desk.begin()
    assert desk.begin() == first
    assert not desk.changes
    desk.restart()
    assert desk.begin() == first


def test_the_begin_of_an_attempt_that_has_ended_is_refused(desk: Desk) -> None:
    first = desk.begin()
    desk.end(who(first), commit=False, name="app")
    with refused(ErrorCode.PRODUCER_FENCED):
        desk.begin()
    second = desk.begin(attempt=1)
    desk.abort("app")
    with refused(ErrorCode.TRANSACTION_ABORTED, "by an operator"):
        desk.begin(attempt=1)
    assert second.branch == 1, "it took the place of the first"


def test_branches_are_used_again_and_first_those_that_wait_for_nothing(desk: Desk) -> None:
    begun = [written(desk, desk.begin(task=task)) for task in range(3)]
    desk.commit_batch(*begun)
    finish(desk, begun[1])
    again = [desk.begin(task=task, run="r2", batch=1) for task in range(4)]
    assert [one.branch for one in again] == [2, 1, 3, 4]
    assert [one.producer_epoch for one in again] == [1, 1, 1, 0]
    assert who(again[0])[0] == who(begun[1])[0]


def test_a_branch_that_was_not_begun_again_takes_no_joins(desk: Desk) -> None:
    first = written(desk, desk.begin())
    desk.commit_batch(first)
    with refused(ErrorCode.INVALID_TRANSACTION_STATE, "'app' branch 1"):
        desk.join((first.producer_id, 1), P1, "app")


def test_begins_with_bad_names_or_numbers_are_refused(desk: Desk) -> None:
    for fields in ({"name": ""}, {"run": ""}, {"batch": -1}, {"batch": 2**63}, {"timeout_ms": -1}):
        with refused(ErrorCode.INVALID_REQUEST):
            desk.begin(**fields)
    for field in ("checkpoint", "run", "client_id"):
        named: dict[str, Any] = {field: "x" * 250}
        with refused(ErrorCode.INVALID_REQUEST, f"{field} has 250"):
            desk.begin(**named)
    assert not desk.log


def test_a_plain_producer_of_the_same_id_is_left_alone(desk: Desk) -> None:
    desk.begin()
    plain = desk.init("app", instance="p", client_id="plain")
    desk.join(plain, P1, "app")
    desk.begin(run="r2", batch=1)
    assert desk.commit_batch(batch=1, run="r2") == c.BatchCommitted(already_committed=False)
    assert desk.record("app", 0).is_open
    assert desk.init("app", instance="p") == plain
    assert desk.abort("app") == 1, "the empty batch has ended its branches"


# ---------------------------------------------------------------- what happens


def test_a_task_that_fails_ends_its_branch_and_the_retry_has_a_new_one(desk: Desk) -> None:
    failed = written(desk, desk.begin(attempt=0))
    assert desk.end(who(failed), commit=False, name="app") == c.Ended(NO_PRODUCER, -1)
    assert desk.ends == [(P0, 0, False)]
    retry = written(desk, desk.begin(attempt=1), P1)
    desk.commit_batch(retry)
    assert outcome(desk, retry) == (retry.producer_epoch, True, EndReason.PRODUCER)


def test_a_branch_is_never_committed_alone(desk: Desk) -> None:
    first = written(desk, desk.begin())
    with refused(ErrorCode.INVALID_TRANSACTION_STATE, "CommitBatch"):
        desk.end(who(first), commit=True, name="app")
    assert desk.record("app", 1).is_open


def test_an_attempt_that_died_silently_is_aborted_by_the_commit(desk: Desk) -> None:
    died, retry = written(desk, desk.begin(attempt=0)), written(desk, desk.begin(attempt=1), P1)
    desk.commit_batch(retry)
    assert outcome(desk, died) == (0, False, EndReason.SUPERSEDED)


def test_a_losing_twin_is_aborted_in_the_same_append(desk: Desk) -> None:
    twins = [written(desk, desk.begin(attempt=n), P0) for n in (0, 1)]
    idle_twin = desk.begin(attempt=2)
    assert desk.commit_batch(twins[1], rows=7) == c.BatchCommitted(already_committed=False)
    assert len(desk.ready.records) == 4  # three branches and the ledger, in one Ready
    assert set(desk.ends) == {(P0, 0, False), (P0, 0, True)}
    assert outcome(desk, twins[0]) == (0, False, EndReason.SUPERSEDED)
    assert outcome(desk, twins[1]) == (0, True, EndReason.PRODUCER)
    for loser in (twins[0], idle_twin):
        with refused(ErrorCode.TRANSACTION_ABORTED, "newer run or batch"):
            desk.join(who(loser), P1, "app")
    ledger = desk.ledger()
    assert (ledger.batch, ledger.batch_run, ledger.rows) == (0, "r1", ((0, 7),))


def test_a_driver_that_died_before_commit_is_superseded_by_the_first_begin_of_the_next(
    desk: Desk,
) -> None:
    old = [written(desk, desk.begin(task=task)) for task in range(2)]
    new = written(desk, desk.begin(run="r2"), P1)
    for one in old:
        assert desk.record("app", one.branch).last is not None
    assert new.branch in {1, 2}
    for call in (
        lambda: desk.begin(task=5),
        lambda: desk.commit_batch(*old),
        desk.commit_batch,
    ):
        with refused(ErrorCode.PRODUCER_FENCED, "run 'r2' has replaced it"):
            call()
    assert desk.abort_batch() is False
    assert desk.record("app", new.branch).is_open, "an abort of the old run ends nothing new"
    desk.commit_batch(new, run="r2")
    assert desk.ledger().batch_run == "r2"


def test_a_new_runs_first_begin_tells_the_old_ones_partitions_at_once(desk: Desk) -> None:
    written(desk, desk.begin(), P0, P1)
    desk.begin(run="r2")
    assert set(desk.ends) == {(P0, 0, False), (P1, 0, False)}


def test_a_new_run_says_what_it_aborts_and_counts_as_use(desk: Desk) -> None:
    written(desk, desk.begin())
    desk.pass_time(70)
    desk.begin(run="r2")
    decision = desk.ready.decisions[-1]
    assert decision.event == "run superseded"
    assert decision.fields == {"id": "app", "run": "r2", "older": "r1", "aborted": 1}
    assert desk.machine.holders["app"].record.used_ms == TIME_MS + 70
    assert desk.ledger().used_ms == TIME_MS + 70


def test_a_new_run_that_aborts_nothing_says_nothing(desk: Desk) -> None:
    desk.commit_batch(written(desk, desk.begin()))
    desk.begin(run="r2", batch=1)
    assert not desk.ready.decisions


def test_forgetting_a_ledger_says_how_many_branches_it_aborts(desk: Desk) -> None:
    for task in range(2):
        written(desk, desk.begin(task=task))
    assert desk.ask(c.ForgetLedgerRequested, application_id="app").forgotten
    assert desk.ready.decisions[-1].fields == {"id": "app", "aborted": 2}


def test_a_replay_of_a_batch_that_is_in_writes_nothing_and_compares_rows(desk: Desk) -> None:
    desk.commit_batch(written(desk, desk.begin()), rows=10)
    begun = desk.begin(run="r2")
    assert begun == c.BranchBegun(already_committed=True)
    assert not desk.changes, "an older batch does not even supersede"
    assert desk.commit_batch(run="r2", rows=10) == c.BatchCommitted(True, 10)
    assert not desk.ready.decisions
    assert desk.commit_batch(run="r2", rows=11) == c.BatchCommitted(True, 10)
    assert desk.ready.decisions[0].fields["rows_then"] == 10
    assert not desk.changes


def test_a_batch_without_entry_was_empty_unless_it_is_older_than_those_that_are_stored(
    desk: Desk,
) -> None:
    kept = desk.config.rows_kept
    desk.commit_batch(desk.begin(batch=3), batch=3, rows=7)
    desk.commit_batch(desk.begin(batch=5), batch=5, rows=7)
    replayed = {n: desk.commit_batch(batch=n, run="r2", rows=9).rows_then for n in (2, 3, 4, 5)}
    assert replayed == {2: 0, 3: 7, 4: 0, 5: 7}
    for number in range(6, 6 + 2 * kept, 2):
        desk.commit_batch(desk.begin(batch=number), batch=number, rows=1)
    assert desk.ledger().rows[0] == (6, 1), "the oldest that is stored"
    replayed = {n: desk.commit_batch(batch=n, run="r2", rows=9).rows_then for n in (4, 5, 6, 7)}
    assert replayed == {4: -1, 5: -1, 6: 1, 7: 0}


def test_other_rows_are_told_by_their_digest_unless_the_batch_is_the_newest(desk: Desk) -> None:
    for number in (1, 3):
        desk.commit_batch(desk.begin(batch=number), batch=number, rows=7, digest=number * 11)
    desk.restart()
    assert desk.commit_batch(batch=1, run="r2", rows=7, digest=11) == c.BatchCommitted(
        True, 7, digest_then=11
    )
    assert not desk.ready.decisions
    assert desk.commit_batch(batch=1, run="r2", rows=7, digest=12).digest_then == 11
    assert desk.ready.decisions[0].fields["others"] is True
    assert desk.commit_batch(batch=1, run="r2", rows=7) == c.BatchCommitted(True, 7, digest_then=11)
    assert not desk.ready.decisions, "an older driver sends none"
    newest = desk.commit_batch(batch=3, run="r2", rows=7, digest=12)
    assert newest == c.BatchCommitted(True, 7), "computed again after a crash, rows may differ"


def test_digests_are_kept_as_long_as_rows(desk: Desk) -> None:
    kept = desk.config.rows_kept
    for number in range(kept + 3):
        digest = 0 if number == kept else number + 1
        desk.commit_batch(desk.begin(batch=number), batch=number, rows=1, digest=digest)
    assert [batch for batch, _ in desk.ledger().rows] == [*range(3, kept + 3)]
    assert desk.ledger().digests == tuple((n, n + 1) for n in range(3, kept + 3) if n != kept)


def test_a_commit_again_after_a_lost_answer_is_already_committed(desk: Desk) -> None:
    begun = written(desk, desk.begin())
    desk.commit_batch(begun, rows=3)
    desk.restart()
    assert desk.commit_batch(begun, rows=3) == c.BatchCommitted(True, 3)


def test_an_abort_after_a_commit_does_nothing(desk: Desk) -> None:
    begun = written(desk, desk.begin())
    desk.commit_batch(begun)
    for run in ("r1", "r2"):
        assert desk.abort_batch(run=run) is True
        assert not desk.changes
    assert outcome(desk, begun) == (0, True, EndReason.PRODUCER)
    desk.begin(run="r1", batch=1)


def test_an_abort_ends_all_of_the_run_which_is_refused_from_then_on(desk: Desk) -> None:
    begun = [written(desk, desk.begin(task=task)) for task in range(2)]
    assert desk.abort_batch() is False
    for one in begun:
        assert outcome(desk, one) == (0, False, EndReason.SUPERSEDED)
    for call in (lambda: desk.begin(task=3), lambda: desk.commit_batch(*begun)):
        with refused(ErrorCode.PRODUCER_FENCED, "it was aborted"):
            call()
    assert desk.abort_batch() is False
    assert not desk.changes
    assert desk.abort_batch(name="nobody") is False
    written(desk, retry := desk.begin(run="r2"), P1)
    desk.commit_batch(retry, run="r2")


def test_a_branch_that_expired_makes_the_commit_refused_as_a_whole(desk: Desk) -> None:
    short = written(desk, desk.begin(task=0, timeout_ms=1_000))
    long = written(desk, desk.begin(task=1, timeout_ms=9_000), P1)
    desk.pass_time(1_000)
    with refused(ErrorCode.TRANSACTION_ABORTED, "by its timeout"):
        desk.commit_batch(long, short)
    assert desk.record("app", long.branch).is_open
    assert desk.ledger().batch == -1
    assert not desk.changes


def test_an_expired_branch_that_another_task_uses_again_is_told_as_expired(desk: Desk) -> None:
    """The driver has messages of both, and names one branch in two epochs."""
    expired = written(desk, desk.begin(task=0, timeout_ms=1_000))
    desk.pass_time(1_000)
    again = written(desk, desk.begin(task=1), P1)
    assert (again.branch, again.producer_epoch) == (expired.branch, expired.producer_epoch + 1)
    with refused(ErrorCode.TRANSACTION_ABORTED, "by its timeout"):
        desk.commit_batch(again, expired)
    assert desk.record("app", again.branch).is_open
    assert desk.ledger().batch == -1


def test_a_branch_that_its_own_task_ended_cannot_be_committed(desk: Desk) -> None:
    begun = written(desk, desk.begin())
    desk.end(who(begun), commit=False, name="app")
    with refused(ErrorCode.TRANSACTION_ABORTED, "write the batch again"):
        desk.commit_batch(begun)
    desk.begin(attempt=1)
    with refused(ErrorCode.TRANSACTION_ABORTED, "write the batch again"):
        desk.commit_batch(begun)


def test_a_fresh_checkpoint_does_not_go_on_with_anothers_ledger(desk: Desk) -> None:
    desk.begin(checkpoint="other")
    desk.commit_batch(written(desk, desk.begin(run="r2")), run="r2")
    for call in (
        lambda: desk.begin(checkpoint="other", batch=1, run="r3"),
        lambda: desk.commit_batch(checkpoint="other", batch=1, run="r3"),
        lambda: desk.abort_batch(checkpoint="other", batch=1, run="r3"),
    ):
        with refused(ErrorCode.LEDGER_MISMATCH, "up to 0 for checkpoint 'cp'"):
            call()


def test_a_forgotten_ledger_lets_another_checkpoint_begin(desk: Desk) -> None:
    desk.commit_batch(written(desk, desk.begin()))
    open_one = desk.begin(run="r2", batch=1)
    assert desk.ask(c.ForgetLedgerRequested, application_id="app").forgotten
    assert outcome(desk, open_one)[2] is EndReason.OPERATOR
    assert (encode_key(LedgerKey("app")), None) in desk.ready.records
    assert not desk.ask(c.ForgetLedgerRequested, application_id="app").forgotten
    begun = written(desk, desk.begin(checkpoint="new"), P1)
    desk.commit_batch(begun, checkpoint="new")
    assert desk.ledger().checkpoint == "new"


def test_of_two_drivers_the_first_commit_wins_and_the_other_hears_that_it_is_in(
    desk: Desk,
) -> None:
    one = written(desk, desk.begin(run="r1"))
    two = written(desk, desk.begin(run="r2"), P1)
    with refused(ErrorCode.PRODUCER_FENCED):
        desk.commit_batch(one, run="r1")
    desk.commit_batch(two, run="r2", rows=4)
    assert desk.commit_batch(one, run="r1", rows=4) == c.BatchCommitted(True, 4)


def test_a_query_that_never_comes_back_leaves_nothing_open(desk: Desk) -> None:
    begun = [written(desk, desk.begin(task=0)), desk.begin(task=1)]
    desk.pass_time(60_000)
    for one in begun:
        assert outcome(desk, one) == (0, False, EndReason.TIMEOUT)


def test_an_operator_aborts_all_branches_at_once(desk: Desk) -> None:
    for task in range(3):
        written(desk, desk.begin(task=task))
    assert desk.abort("app") == 3


def test_an_empty_batch_does_not_touch_the_ledger_and_ends_failed_attempts(desk: Desk) -> None:
    desk.commit_batch(written(desk, desk.begin()))
    failed = desk.begin(run="r2", batch=1)
    desk.feed(c.Tick())
    assert desk.commit_batch(run="r2", batch=1).already_committed is False
    assert outcome(desk, failed)[1:] == (False, EndReason.SUPERSEDED)
    assert desk.ledger().batch == 0
    assert desk.commit_batch(name="nobody") == c.BatchCommitted(already_committed=False)


# ---------------------------------------------------------------- details of the commit


def test_a_commit_may_wait_until_all_its_branches_are_visible(desk: Desk) -> None:
    begun = [written(desk, desk.begin(task=task)) for task in range(2)]
    with pytest.raises(KeyError):
        desk.commit_batch(*begun, wait_visible_ms=5_000)
    request = desk.last_request
    finish(desk, begun[0])
    assert request not in desk.replies
    finish(desk, begun[1])
    assert desk.replies[request] == c.BatchCommitted(already_committed=False, visible=True)


def test_a_commit_that_names_what_is_not_there_is_refused(desk: Desk) -> None:
    begun = written(desk, desk.begin())
    plain = desk.init("app", instance="p")
    ghost = c.BranchBegun(False, 9, ProducerId(FRESH), 0)
    with refused(ErrorCode.INVALID_REQUEST, "has no branch 9"):
        desk.commit_batch(begun, ghost)
    with refused(ErrorCode.INVALID_REQUEST, "has no branch 0"):
        desk.commit_batch(c.BranchBegun(False, 0, *plain))
    with refused(ErrorCode.INVALID_REQUEST, "belongs to batch 0"):
        desk.commit_batch(begun, batch=1)
    with refused(ErrorCode.INVALID_REQUEST, "name each branch once"):
        desk.commit_batch(begun, begun)
    with refused(ErrorCode.INVALID_REQUEST, "-1 rows"):
        desk.commit_batch(begun, rows=-1)
    with refused(ErrorCode.UNKNOWN_TRANSACTIONAL_ID):
        desk.commit_batch(begun, name="nobody")
    assert desk.record("app", 1).is_open


def test_rows_are_known_for_the_last_20_batches(desk: Desk) -> None:
    for batch in range(22):
        begun = written(desk, desk.begin(batch=batch, run=f"r{batch}"))
        desk.commit_batch(begun, batch=batch, run=f"r{batch}", rows=batch)
        finish(desk, begun)
    assert desk.commit_batch(batch=1, rows=99) == c.BatchCommitted(True, -1)
    assert desk.commit_batch(batch=2, rows=99) == c.BatchCommitted(True, 2)
    assert len(desk.ledger().superseded) == 5


# ---------------------------------------------------------------- limits


def test_a_batch_has_so_many_branches_and_no_more() -> None:
    desk = Desk(TransactionConfig(branches_max=2))
    desk.init("app")
    begun = [desk.begin(task=task) for task in range(2)]
    with refused(ErrorCode.TRANSACTION_TOO_LARGE, "2 branches"):
        desk.begin(task=2)
    with refused(ErrorCode.TRANSACTION_TOO_LARGE, "names 3 branches"):
        desk.commit_batch(*begun, begun[0])
    desk.commit_batch(*begun)


def test_what_one_decision_writes_has_a_limit() -> None:
    desk = Desk(TransactionConfig(id_bytes_max=200))
    begun = [desk.begin(task=task) for task in range(2)]
    with refused(ErrorCode.TRANSACTION_TOO_LARGE, "the limit is 200"):
        desk.begin(task=2)
    with refused(ErrorCode.TRANSACTION_TOO_LARGE, "the limit is 200"):
        desk.join(who(begun[0]), P0, "app")
    assert desk.machine.holders["app"].branch_bytes == sum(
        branch.size_bytes for branch in desk.machine.holders["app"].branches.values()
    )
