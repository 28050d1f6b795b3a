"""Every cell of the event table: what an init, a join, an end does to IDLE(e) and to OPEN(e)."""

from dataclasses import replace

import pytest
from support.transaction_desk import FRESH, GROUP, P0, P1, U0, Desk, ends, refused

from penstock.core.transactions import TransactionConfig
from penstock.core.transactions import contract as c
from penstock.core.transactions.ending import EPOCH_LAST
from penstock.core.transactions.records import BranchKey, EndReason, encode_key, encode_value
from penstock.core.types import ProducerId
from penstock.errors import ErrorCode, PenstockError

# ---------------------------------------------------------------- Init


def test_a_new_id_gets_the_fresh_producer_id_with_epoch_0(desk: Desk) -> None:
    assert desk.init() == (FRESH, 0)
    assert not desk.record().is_open


def test_the_same_instance_gets_the_same_again_idle_or_open(desk: Desk) -> None:
    who = desk.init()
    assert desk.init() == who
    assert not desk.changes
    desk.join(who)
    assert desk.init() == who
    assert desk.record().is_open


def test_another_instance_gets_another_producer_id(desk: Desk) -> None:
    """And the next epoch: who aborts by id and epoch must not hit what has begun since."""
    assert desk.init() == (FRESH, 0)
    assert desk.init(instance="b") == (FRESH + 1, 1)
    assert desk.last() == (0, False, EndReason.FENCED)
    assert desk.init(instance="b") == (FRESH + 1, 1)


def test_another_instance_aborts_what_is_open_with_one_append(desk: Desk) -> None:
    desk.join(desk.init())
    assert desk.init(instance="b", timeout_ms=7_000) == (FRESH + 1, 1)
    assert desk.last() == (0, False, EndReason.FENCED)
    assert desk.ends == [(P0, 0, False)]
    assert desk.record().timeout_ms == 7_000
    assert [key for key, _ in desk.ready.records].count(encode_key(BranchKey("tx", 0))) == 1


def test_instances_without_a_name_are_never_the_same(desk: Desk) -> None:
    assert desk.init(instance="") == (FRESH, 0)
    assert desk.init(instance="") == (FRESH + 1, 1)


def test_an_instance_that_lost_the_id_never_gets_it_back(desk: Desk) -> None:
    """A copy of its init that was long on the way must not fence the present producer."""
    desk.init(instance="a", client_id="old")
    who = desk.init(instance="b", client_id="billing-1", client_host="10.0.0.7")
    with refused(ErrorCode.PRODUCER_FENCED, "'billing-1' at 10.0.0.7, 2023-11-14T22:13:20"):
        desk.init(instance="a")
    assert desk.init(instance="b") == who


def test_only_the_last_few_losers_are_remembered() -> None:
    desk = Desk(TransactionConfig(superseded_max=2))
    for instance in "abcd":
        desk.init(instance=instance)
    assert desk.machine.holders["tx"].record.superseded == ("b", "c")
    assert desk.init(instance="a") == (FRESH + 4, 4)


def test_an_init_with_a_bad_name_timeout_or_text_is_refused(desk: Desk) -> None:
    for name in ("", "x" * 250, "a\nb", "ü" * 125):
        with refused(ErrorCode.INVALID_REQUEST, "must have 1 to 249"):
            desk.init(name)
    for timeout_ms in (-1, 900_001):
        with refused(ErrorCode.INVALID_REQUEST, "the limit is 900000 ms"):
            desk.init(timeout_ms=timeout_ms)
    with refused(ErrorCode.INVALID_REQUEST, "client_id has 250 characters"):
        desk.init(client_id="x" * 250)
    assert not desk.machine.holders


def test_a_timeout_of_0_is_the_default_or_the_maximum_if_that_is_less() -> None:
    desk = Desk(TransactionConfig(max_timeout_ms=5_000))
    desk.init()
    assert desk.record().timeout_ms == 5_000


# ---------------------------------------------------------------- Join


def test_the_first_join_opens_the_transaction_on_record(desk: Desk) -> None:
    who = desk.init()
    desk.now_ms = 50
    assert desk.join(who, P0) == c.Joined()
    record = desk.record()
    assert record.is_open
    assert record.joined == {P0}
    assert record.started_ms == 1_700_000_000_050
    assert desk.ready.records == ((encode_key(BranchKey("tx", 0)), encode_value(record)),)


def test_more_join_an_open_transaction_and_its_time_runs_from_the_first(desk: Desk) -> None:
    who = desk.init()
    desk.join(who, P0)
    desk.now_ms = 9
    desk.join(who, GROUP)
    assert desk.record().joined == {P0, GROUP}
    assert desk.record().started_ms == 1_700_000_000_000


def test_a_join_again_is_answered_and_writes_nothing(desk: Desk) -> None:
    who = desk.init()
    desk.join(who)
    assert desk.join(who) == c.Joined()
    assert not desk.changes


def test_a_join_of_an_unknown_id_or_producer_is_refused(desk: Desk) -> None:
    with refused(ErrorCode.UNKNOWN_TRANSACTIONAL_ID, "'tx'"):
        desk.join((ProducerId(FRESH), 0))
    desk.init()
    other, _ = desk.init("other")
    for stranger in (other, ProducerId(4)):
        with refused(ErrorCode.PRODUCER_FENCED, "now has producer id"):
            desk.join((stranger, 0))


def test_a_join_with_an_older_epoch_is_fenced_idle_or_open(desk: Desk) -> None:
    producer_id, _ = desk.init()
    desk.end((producer_id, 0))
    for _ in range(2):
        for epoch in (0, -1):
            with refused(ErrorCode.PRODUCER_FENCED, "epoch 1"):
                desk.join((producer_id, epoch))
        assert not desk.changes
        desk.join((producer_id, 1))


def test_a_join_of_a_transaction_that_others_aborted_says_by_whom(desk: Desk) -> None:
    who = desk.init()
    for reason, by in (
        (EndReason.TIMEOUT, "by its timeout"),
        (EndReason.OPERATOR, "by an operator"),
        (EndReason.MEMBER_GONE, "by its group"),
    ):
        desk.join(who, U0 if who[1] else P0)
        if reason is EndReason.TIMEOUT:
            desk.pass_time(60_000)
        else:
            assert desk.abort(reason=reason) == 1
        for _ in range(2):
            with refused(ErrorCode.TRANSACTION_ABORTED, by):
                desk.join(who, P1)
            desk.finished(P0, U0, who=who)
            desk.join((who[0], who[1] + 1), P1)  # also while the next one is open
        desk.end((who[0], who[1] + 1))
        desk.finished(P1, who=(who[0], who[1] + 1))
        who = (who[0], who[1] + 2)


# ---------------------------------------------------------------- End


def test_an_end_decides_and_the_next_epoch_is_answered(desk: Desk) -> None:
    producer_id, _ = desk.init()
    for epoch, commit in ((0, True), (1, False)):
        desk.join((producer_id, epoch), P0)
        desk.join((producer_id, epoch), GROUP)
        assert desk.end((producer_id, epoch), commit=commit) == c.Ended(producer_id, epoch + 1)
        assert set(desk.ends) == {(P0, epoch, commit), (GROUP, epoch, commit)}
        assert desk.last() == (epoch, commit, EndReason.PRODUCER)
        record = desk.record()
        assert (record.is_open, record.epoch, record.joined) == (False, epoch + 1, frozenset())
        assert record.finishing.keys() == {P0, GROUP}
        assert len(desk.ready.records) == 1
        desk.finished(P0, GROUP, who=(producer_id, epoch))


def test_the_end_of_an_empty_transaction_takes_its_epoch_too(desk: Desk) -> None:
    """A copy of it, or a batch that is late, must not meet the next transaction's epoch."""
    producer_id, _ = desk.init()
    for epoch, commit in ((0, True), (1, False)):
        who = (producer_id, epoch)
        assert desk.end(who, commit=commit) == c.Ended(producer_id, epoch + 1, visible=True)
        with refused(ErrorCode.PRODUCER_FENCED):
            desk.join(who)
    desk.join((producer_id, 2))
    with refused(ErrorCode.PRODUCER_FENCED):
        desk.end((producer_id, 0))
    desk.end((producer_id, 1), commit=False)
    assert desk.record().is_open


def test_the_same_end_again_is_ok_idle_or_open() -> None:
    for commit in (True, False):
        desk = Desk()
        who = desk.init()
        desk.join(who)
        desk.end(who, commit=commit)
        desk.finished(P0, who=who)
        for _ in range(2):
            assert desk.end(who, commit=commit) == c.Ended(who[0], 1, visible=True)
            assert not desk.changes
            assert not desk.ends
            desk.join((who[0], 1))


def test_an_end_with_the_other_outcome_never_changes_it(desk: Desk) -> None:
    producer_id, _ = desk.init()
    for epoch, commit in ((0, True), (1, False)):
        desk.join((producer_id, epoch))
        desk.end((producer_id, epoch), commit=commit)
        desk.finished(P0, who=(producer_id, epoch))
        was = "was committed" if commit else "was aborted"
        with refused(ErrorCode.INVALID_TRANSACTION_STATE, was):
            desk.end((producer_id, epoch), commit=not commit)
        assert desk.last() == (epoch, commit, EndReason.PRODUCER)


def test_a_commit_of_what_others_aborted_hears_so_with_the_next_epoch(desk: Desk) -> None:
    who = desk.init()
    desk.join(who)
    desk.abort()
    for _ in range(2):
        answer = desk.end(who, commit=True, wait_visible_ms=1_000)
        assert (answer.producer_id, answer.producer_epoch) == (who[0], 1)
        assert isinstance(answer.error, PenstockError)
        assert answer.error.code is ErrorCode.TRANSACTION_ABORTED
        assert "by an operator" in answer.error.message
    assert desk.end(who, commit=False) == c.Ended(who[0], 1)  # what it asks for is what happened


def test_an_end_by_a_producer_that_lost_the_id_is_fenced_and_shown_no_epoch(desk: Desk) -> None:
    who = desk.init(client_id="old")
    desk.join(who)
    new = desk.init(instance="b", client_id="new", client_host="h")
    for commit in (True, False):
        with refused(ErrorCode.PRODUCER_FENCED, "taken over by client 'new' at h"):
            desk.end(who, commit=commit)
    desk.finished(P0, who=who)
    desk.join(new)  # also while the next one is open
    with refused(ErrorCode.PRODUCER_FENCED):
        desk.end(who, commit=False)


def test_an_end_of_an_older_transaction_is_fenced_idle_or_open(desk: Desk) -> None:
    producer_id, _ = desk.init()
    desk.end((producer_id, 0))
    desk.end((producer_id, 1))
    for _ in range(2):
        with refused(ErrorCode.PRODUCER_FENCED):
            desk.end((producer_id, 0))
        desk.join((producer_id, 2))
    assert desk.record().is_open


def test_a_newer_epoch_than_the_open_one_waits_for_who_knows_it(desk: Desk) -> None:
    """A deposed coordinator that has not heard of it must not end a producer that is well."""
    producer_id, _ = desk.init()
    desk.join((producer_id, 0))
    with refused(ErrorCode.NOT_COORDINATOR, "another broker probably coordinates it now"):
        desk.end((producer_id, 1))
    with refused(ErrorCode.NOT_COORDINATOR, "another broker probably coordinates it now"):
        desk.join((producer_id, 1))
    assert desk.record().is_open
    with refused(ErrorCode.UNKNOWN_TRANSACTIONAL_ID):
        desk.end((producer_id, 0), name="nobody")
    with refused(ErrorCode.PRODUCER_FENCED):
        desk.end((ProducerId(7), 0))


# ---------------------------------------------------------------- aborts by others


def test_aborts_by_others_do_nothing_to_an_idle_id(desk: Desk) -> None:
    who = desk.init()
    assert desk.abort() == 0
    desk.pass_time(100_000)
    assert desk.record().epoch == who[1]
    with refused(ErrorCode.UNKNOWN_TRANSACTIONAL_ID):
        desk.abort("nobody")


def test_an_operator_aborts_what_is_open_or_only_the_epoch_named(desk: Desk) -> None:
    who = desk.init()
    desk.join(who)
    assert desk.abort(producer_epoch=5) == 0
    assert desk.abort(producer_epoch=0, comment="stuck since noon") == 1
    assert desk.last() == (0, False, EndReason.OPERATOR)
    assert desk.ends == [(P0, 0, False)]
    assert any("stuck since noon" in d.fields.values() for d in desk.ready.decisions)
    assert [one.reason for one in desk.ready.ended] == [EndReason.OPERATOR]


def test_a_timeout_aborts_and_the_producer_goes_on(desk: Desk) -> None:
    who = desk.init(timeout_ms=1_000)
    desk.join(who)
    desk.pass_time(999)
    assert desk.record().is_open
    assert (P0, 0, False) in ends(desk.pass_time(1))
    assert desk.last() == (0, False, EndReason.TIMEOUT)
    desk.finished(P0, who=who)
    desk.join((who[0], 1))
    desk.end((who[0], 1))
    assert desk.last() == (1, True, EndReason.PRODUCER)


# ---------------------------------------------------------------- epochs that are used up


def worn_out(desk: Desk) -> tuple[ProducerId, int]:
    """The id with the last epoch there is."""
    who = desk.init()
    branch = desk.machine.holders["tx"].branches[0]
    desk.machine._book.put_branch(branch, replace(branch.record, epoch=EPOCH_LAST))
    return who[0], EPOCH_LAST


def test_after_the_last_epoch_a_decision_goes_on_with_another_producer_id(desk: Desk) -> None:
    who = worn_out(desk)
    desk.join(who)
    answer = desk.end(who)
    successor = (ProducerId(answer.producer_id), answer.producer_epoch)
    assert successor == (who[0] + (1 << 50), 0)
    assert desk.ends == [(P0, EPOCH_LAST, True)]
    assert desk.end(who).producer_id == successor[0], "the same end again"
    desk.restart()
    parked = desk.join_later(successor)  # the partition has yet to hear of the old one's end
    desk.finished(P0, who=who)
    assert desk.replies[parked] == c.Joined()
    with refused(ErrorCode.PRODUCER_FENCED):
        desk.join(who, P1)
    desk.end(successor)
    with refused(ErrorCode.PRODUCER_FENCED, "now has producer id"):
        desk.end(who)


@pytest.mark.parametrize("takeovers", [1, 2])
def test_who_lost_its_id_is_told_which_epoch_ended_and_who_has_it_now(
    desk: Desk, takeovers: int
) -> None:
    lost = desk.init(client_id="one")
    for number in range(takeovers):
        taken = desk.init(instance=f"b{number}", client_id="two", client_host="h")
    told = f"epoch {lost[1]} of producer id {lost[0]} has ended: transactional id 'tx' now has "
    told += f"producer id {taken[0]}, epoch {taken[1]}; it was taken over by client 'two' at h"
    with refused(ErrorCode.PRODUCER_FENCED, told):
        desk.join(lost)
