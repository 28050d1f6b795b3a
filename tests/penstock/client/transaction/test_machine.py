"""The machine of transactions, step by step: what it asks for, refuses and remembers."""

from typing import Any

import pytest

from penstock.client.producer.lane import Lane
from penstock.client.transaction.contract import (
    NOTHING,
    Abort,
    BatchLost,
    Begin,
    Commit,
    End,
    EndAnswered,
    EndFailed,
    Flushed,
    HandOver,
    Identified,
    OffsetsLost,
    Ready,
    TransactionError,
)
from penstock.client.transaction.machine import State, Transactions
from penstock.core.types import ProducerId, ProducerIdentity
from penstock.errors import (
    ClusterError,
    ErrorCode,
    MisuseError,
    OverloadedError,
    PenstockError,
    UnreachableError,
)

FIRST = ProducerIdentity(ProducerId(1 << 62), 0)
SECOND = ProducerIdentity(ProducerId(1 << 62), 1)
LOST = UnreachableError("connection lost")


def first_end(commit: bool, not_before_ms: int, deadline_ms: int, wait_ms: int = 0) -> End:
    """Of the first transaction."""
    return End(
        identity=FIRST,
        commit=commit,
        not_before_ms=not_before_ms,
        deadline_ms=deadline_ms,
        wait_visible_ms=wait_ms,
    )


def refused(code: ErrorCode) -> ClusterError:
    return ClusterError(f"scripted {code.name}", code)


def failure(ready: Ready) -> TransactionError:
    assert isinstance(ready.error, TransactionError)
    return ready.error


def ready_machine() -> Transactions:
    made = Transactions("billing-0", 10, 40)
    made.handle(Identified(FIRST), 0)
    return made


def opened() -> Transactions:
    made = ready_machine()
    assert made.handle(Begin(1_000), 0) == Ready(adopt=FIRST)
    return made


def committing(**more: Any) -> Transactions:
    """Everything is stored and the End has left."""
    made = opened()
    assert made.handle(Commit(1_000, **more), 0) == Ready(flush=True)
    ready = made.handle(Flushed(0), 5)
    assert ready.end is not None
    assert (ready.end.identity, ready.end.commit) == (FIRST, True)
    return made


def aborting() -> Transactions:
    made = opened()
    assert made.handle(Abort(1_000), 0).end == first_end(False, 0, 1_000)
    return made


def test_one_transaction_after_the_other_each_under_the_identity_that_the_last_answer_names() -> (
    None
):
    made = Transactions("billing-0", 10, 40)
    assert made.handle(Begin(1_000), 0) == Ready(identify=True)
    made.handle(Identified(FIRST), 0)
    assert made.handle(Begin(1_000), 0) == Ready(adopt=FIRST)
    assert (made.state, made.refusal) == (State.OPEN, None)
    assert made.handle(Commit(1_000), 1) == Ready(flush=True)
    assert made.state is State.ENDING
    assert made.handle(Flushed(0), 2) == Ready(end=first_end(True, 2, 1_000))
    assert made.handle(EndAnswered(SECOND, None, False), 3) == NOTHING
    assert made.handle(Begin(1_000), 4) == Ready(adopt=SECOND)


def test_the_same_epoch_again_is_never_used_for_the_next_transaction() -> None:
    made = aborting()
    assert made.handle(EndAnswered(FIRST, None, False), 1) == NOTHING
    assert made.handle(Begin(1_000), 2) == Ready(identify=True), "a late batch could join it"


@pytest.mark.parametrize("state", [State.READY, State.ENDING])
def test_records_are_refused_unless_a_transaction_is_open(state: State) -> None:
    made = committing() if state is State.ENDING else ready_machine()
    assert made.state is state
    assert isinstance(made.refusal, MisuseError)
    assert "'billing-0'" in made.refusal.message


def test_a_second_transaction_at_once_is_refused_and_the_first_goes_on() -> None:
    made = opened()
    with pytest.raises(MisuseError, match="already open"):
        made.handle(Begin(1_000), 0)
    assert made.state is State.OPEN


@pytest.mark.parametrize("then", [Commit(2_000), Abort(2_000)])
def test_a_commit_that_is_cut_short_while_it_flushes_can_still_be_ended_either_way(
    then: Commit | Abort,
) -> None:
    made = opened()
    made.handle(Commit(1_000), 0)
    assert made.may_abort
    with pytest.raises(MisuseError, match="interrupted"):
        made.handle(Begin(2_000), 0)
    ready = made.handle(then, 10)
    if isinstance(then, Commit):
        assert ready == Ready(flush=True)
        assert made.handle(Flushed(0), 10).end == first_end(True, 10, 2_000)
    else:
        assert ready.end == first_end(False, 10, 2_000)
        assert ready.discard is not None


def test_what_is_handed_over_is_ended_by_others_and_the_next_identity_is_told() -> None:
    made = opened()
    assert made.handle(HandOver(0), 5) == NOTHING
    assert made.state is State.READY
    assert made.handle(Begin(1_000), 6) == Ready(identify=True)


def test_nothing_is_handed_over_that_is_not_stored() -> None:
    made = opened()
    ready = made.handle(HandOver(2), 5)
    assert ready.error is not None
    assert ready.discard is not None
    assert made.state is State.FAILED
    with pytest.raises(TransactionError, match="2 batches or offsets were not delivered"):
        made.handle(HandOver(0), 6)
    with pytest.raises(MisuseError, match="without an open transaction"):
        ready_machine().handle(HandOver(0), 0)


@pytest.mark.parametrize("event", [Commit(1_000), Abort(1_000)])
def test_nothing_can_be_ended_that_was_not_begun(event: Commit | Abort) -> None:
    with pytest.raises(MisuseError, match="without an open transaction"):
        ready_machine().handle(event, 0)


def test_a_lost_batch_leaves_nothing_but_abort() -> None:
    made = opened()
    ready = made.handle(BatchLost(refused(ErrorCode.OUT_OF_ORDER_SEQUENCE)), 0)
    assert isinstance(ready.discard, TransactionError)
    assert ready == Ready(discard=ready.discard)
    assert made.state is State.FAILED
    assert made.refusal is ready.discard
    with pytest.raises(TransactionError, match="OUT_OF_ORDER") as aborted:
        made.handle(Commit(1_000), 0)
    assert (aborted.value.code, aborted.value.unknown_outcome) == (
        ErrorCode.TRANSACTION_ABORTED,
        False,
    )
    with pytest.raises(MisuseError, match="abort it first"):
        made.handle(Begin(1_000), 0)
    assert made.handle(Abort(1_000), 7).end == first_end(False, 7, 1_000)
    assert made.handle(EndAnswered(SECOND, None, True), 8) == NOTHING
    assert made.handle(Begin(1_000), 9) == Ready(adopt=SECOND)


def test_a_batch_lost_while_flushing_fails_the_commit() -> None:
    made = opened()
    made.handle(Commit(1_000), 0)
    assert made.handle(BatchLost(LOST), 1).discard is not None
    assert failure(made.handle(Flushed(0), 2)).code is ErrorCode.TRANSACTION_ABORTED
    assert made.state is State.FAILED


def test_a_flush_that_takes_too_long_fails_the_commit_and_nothing_is_asked_for() -> None:
    made = opened()
    made.handle(Commit(1_000), 0)
    ready = made.handle(Flushed(3), 1_000)
    assert ready.end is None
    assert ready.discard is not None
    assert "3 batches" in failure(ready).message
    assert made.state is State.FAILED


@pytest.mark.parametrize("made", [committing, aborting])
def test_batches_that_are_reported_late_change_nothing(made: Any) -> None:
    machine = made()
    assert machine.handle(BatchLost(LOST), 6) == NOTHING
    assert machine.state is State.ENDING


def test_an_abort_discards_what_was_sent_before_it_is_asked_for() -> None:
    made = opened()
    ready = made.handle(Abort(1_000), 0)
    assert ready.discard is not None
    assert ready.discard.code is ErrorCode.TRANSACTION_ABORTED


@pytest.mark.parametrize(
    "error",
    [LOST, *map(refused, (ErrorCode.INTERNAL, ErrorCode.NOT_COORDINATOR, ErrorCode.SHUTTING_DOWN))],
)
def test_after_a_lost_answer_the_same_is_asked_again_and_again(error: PenstockError) -> None:
    made = committing()
    now_ms, pauses = 10, []
    for _ in range(5):
        ready = made.handle(EndFailed(error), now_ms)
        assert ready.end is not None
        assert (ready.end.identity, ready.end.commit) == (FIRST, True)
        pauses.append(ready.end.not_before_ms - now_ms)
        now_ms = ready.end.not_before_ms
    assert pauses == [10, 20, 40, 40, 40]
    assert made.handle(EndAnswered(SECOND, None, False), now_ms) == NOTHING


def test_an_overloaded_coordinator_says_when_to_come_back() -> None:
    ready = committing().handle(EndFailed(OverloadedError("full", throttle_ms=300)), 10)
    assert ready.end is not None
    assert ready.end.not_before_ms == 310


def test_past_its_deadline_a_commit_is_unknown_until_it_is_asked_again() -> None:
    made = committing()
    error = failure(made.handle(EndFailed(LOST), 995))
    assert (error.code, error.unknown_outcome) == (ErrorCode.REQUEST_TIMED_OUT, True)
    for event in (Begin(2_000), Abort(2_000)):
        with pytest.raises(MisuseError, match="unknown"):
            made.handle(event, 1_500)
    assert made.handle(Commit(2_000), 1_500) == Ready(end=first_end(True, 1_500, 2_000))
    assert made.handle(EndAnswered(SECOND, None, False), 1_600) == NOTHING
    assert made.handle(Begin(3_000), 1_600) == Ready(adopt=SECOND)


def test_an_abort_that_nobody_confirmed_is_asked_on_by_the_next_begin() -> None:
    made = aborting()
    error = failure(made.handle(EndFailed(LOST), 1_000))
    assert not error.unknown_outcome
    assert made.handle(Begin(2_000), 1_500) == Ready(end=first_end(False, 1_500, 2_000))
    with pytest.raises(MisuseError, match="being aborted"):
        made.handle(Commit(2_000), 1_500)
    made.handle(EndAnswered(SECOND, None, False), 1_600)
    assert made.handle(Begin(2_000), 1_600) == Ready(adopt=SECOND)


def test_a_timeout_is_told_by_the_answer_and_the_producer_goes_on() -> None:
    by_timeout = refused(ErrorCode.TRANSACTION_ABORTED)
    made = committing()
    error = failure(made.handle(EndAnswered(SECOND, by_timeout, False), 10))
    assert (error.code, error.unknown_outcome) == (ErrorCode.TRANSACTION_ABORTED, False)
    assert made.handle(Begin(1_000), 11) == Ready(adopt=SECOND)
    made = aborting()
    assert made.handle(EndAnswered(SECOND, by_timeout, False), 10) == NOTHING
    assert made.handle(Begin(1_000), 11) == Ready(adopt=SECOND)


def test_an_abort_told_without_the_next_epoch_needs_a_new_identity() -> None:
    made = committing()
    assert failure(made.handle(EndFailed(refused(ErrorCode.TRANSACTION_ABORTED)), 10))
    assert made.handle(Begin(1_000), 11) == Ready(identify=True)


@pytest.mark.parametrize("made", [committing, aborting])
@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TRANSACTION_STATE])
def test_who_is_fenced_can_do_nothing_any_more(made: Any, code: ErrorCode) -> None:
    machine = made()
    error = failure(machine.handle(EndFailed(refused(code)), 10))
    assert (error.code, error.unknown_outcome) == (code, False)
    assert machine.state is State.FENCED
    assert machine.refusal is not None
    for event in (Begin(1_000), Commit(1_000), Abort(1_000)):
        with pytest.raises(TransactionError, match="new producer"):
            machine.handle(event, 11)


def test_who_is_fenced_after_a_lost_answer_does_not_know_how_it_ended() -> None:
    made = committing()
    made.handle(EndFailed(LOST), 10)
    error = failure(made.handle(EndFailed(refused(ErrorCode.PRODUCER_FENCED)), 20))
    assert error.unknown_outcome
    made = committing()
    made.handle(EndFailed(refused(ErrorCode.NOT_ENOUGH_REPLICAS)), 10)
    error = failure(made.handle(EndFailed(refused(ErrorCode.PRODUCER_FENCED)), 20))
    assert not error.unknown_outcome, "the first attempt was refused, not lost"


def test_a_commit_may_wait_until_every_partition_has_heard() -> None:
    made = opened()
    made.handle(Commit(200_000, wait_visible=True), 0)
    ready = made.handle(Flushed(0), 0)
    assert ready.end is not None
    assert ready.end.wait_visible_ms == 60_000, "the protocol's limit"
    ready = made.handle(EndAnswered(SECOND, None, False), 60_000)
    assert ready.end == first_end(True, 60_010, 200_000, 60_000), "the same is asked again"
    assert made.handle(EndAnswered(SECOND, None, True), 61_000) == NOTHING
    assert made.handle(Begin(300_000), 61_000) == Ready(adopt=SECOND)


@pytest.mark.parametrize(("deadline_ms", "wait_ms"), [(10_000, 9_000), (1_000, 500), (1, 1)])
def test_a_wait_to_be_visible_leaves_time_for_the_answer(deadline_ms: int, wait_ms: int) -> None:
    made = opened()
    made.handle(Commit(deadline_ms, wait_visible=True), 0)
    ready = made.handle(Flushed(0), 0)
    assert ready.end is not None
    assert ready.end.wait_visible_ms == wait_ms, "or nobody would know that it is committed"


@pytest.mark.parametrize("last", [EndAnswered(SECOND, None, False), EndFailed(LOST)])
def test_a_commit_that_is_not_visible_in_time_is_committed_all_the_same(last: Any) -> None:
    made = committing(wait_visible=True)
    made.handle(EndAnswered(SECOND, None, False), 500)
    ready = made.handle(last, 995)
    assert ready.error is not None
    assert not isinstance(ready.error, TransactionError)
    assert "is committed" in ready.error.message
    assert made.handle(Begin(2_000), 1_000) == Ready(adopt=SECOND)


# -- the lane of a transaction ---------------------------------------------------------------


def lane() -> Lane[str]:
    made: Lane[str] = Lane(
        max_in_flight=5, idempotent=True, transactional=True, backoff_ms=10, backoff_max_ms=100
    )
    made.adopt(FIRST)
    return made


@pytest.mark.parametrize(
    "code",
    [ErrorCode.PRODUCER_FENCED, ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.TRANSACTION_ABORTED],
)
def test_a_lane_gives_up_what_its_transaction_cannot_cure(code: ErrorCode) -> None:
    made = lane()
    entry = made.take("a", 1, 1_000)
    assert made.failed(entry, refused(code), 0)
    assert not made.needs_identity, "it never renews its identity by itself"


def test_a_gap_that_an_earlier_batch_will_fill_is_waited_for_but_no_other_producer_is() -> None:
    made = lane()
    first, second = made.take("a", 1, 1_000), made.take("b", 1, 1_000)
    assert not made.failed(second, refused(ErrorCode.OUT_OF_ORDER_SEQUENCE), 0)
    assert not made.failed(first, LOST, 0)
    assert [made.resend(100), made.resend(100)] == [first, second]
    assert made.failed(second, refused(ErrorCode.PRODUCER_FENCED), 100)


def test_a_discarded_window_is_forgotten_and_late_answers_mean_nothing() -> None:
    made = lane()
    made.expire(0)
    ghost, second, third = (
        made.take(name, 1, due) for name, due in zip("abc", (1, 9, 9), strict=True)
    )
    assert made.expire(5) == [ghost]
    made.failed(third, LOST, 5)
    assert made.discard() == [second, third], "the first was reported before"
    made.adopt(SECOND)
    assert made.can_take(5), "no pause is left of what went wrong"
    fresh = made.take("d", 1, 99)
    assert (fresh.sequence, fresh.identity) == (0, SECOND)
    made.succeeded(ghost)
    assert not made.failed(second, refused(ErrorCode.INVALID_REQUEST), 6)
    assert list(made.window) == [fresh]
    assert made.can_take(6)


@pytest.mark.parametrize("commits", [False, True])
def test_refused_offsets_fail_the_transaction_also_while_its_commit_waits(commits: bool) -> None:
    machine = opened()
    if commits:
        assert machine.handle(Commit(1_000), 0) == Ready(flush=True)
    assert machine.handle(OffsetsLost(refused(ErrorCode.UNKNOWN_MEMBER)), 1).discard is not None
    assert machine.state is State.FAILED
    if commits:
        told = failure(machine.handle(Flushed(0), 2))
        assert told.code is ErrorCode.TRANSACTION_ABORTED
    assert machine.handle(Abort(1_000), 3).end is not None
