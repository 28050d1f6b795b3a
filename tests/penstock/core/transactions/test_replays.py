"""A committed batch that comes again: replays count as committed, other outputs are told."""

import pytest
from support.transaction_desk import Desk, refused

from penstock.core.run_name import RunName
from penstock.core.transactions import contract as c
from penstock.errors import ErrorCode

THEN = 11
OTHERS = 12
LENIENT = c.BatchCommitted(True, 7)
TOLD = c.BatchCommitted(True, 7, digest_then=THEN)


def run(execution: str, topic: str | None = "paid", start: str = "start", at: str = "/c") -> str:
    return str(RunName.of_sink(execution, topic, start, at))


def commit(desk: Desk, name: str, batch: int = 0) -> None:
    desk.commit_batch(desk.begin(run=name, batch=batch), run=name, batch=batch, rows=7, digest=THEN)


def again(desk: Desk, name: str, batch: int = 0) -> c.BatchCommitted:
    """With other rows. The answer is lost, and the next coordinator gives the same one."""
    answers: list[c.BatchCommitted] = []
    for _ in range(2):
        assert desk.begin(run=name, batch=batch).already_committed
        answers.append(desk.commit_batch(run=name, batch=batch, rows=7, digest=OTHERS))
        desk.restart()
    assert answers[0] == answers[1]
    return answers[0]


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    commit(made, run("first"))
    return made


def test_a_restarted_driver_may_compute_other_rows(desk: Desk) -> None:
    assert again(desk, run("first")) == LENIENT, "the answer of the commit was lost"
    for start in ("second", "third"):
        assert again(desk, run(start, start=start)) == LENIENT
    commit(desk, run("next", start="third"), 1)
    assert again(desk, run("after", start="fourth"), 1) == LENIENT


def test_a_second_output_of_the_same_start_is_told(desk: Desk) -> None:
    assert again(desk, run("second output")) == TOLD


def test_a_second_output_of_a_later_start_is_told(desk: Desk) -> None:
    """The first start died between the outputs."""
    assert again(desk, run("replay", start="later")) == LENIENT
    assert again(desk, run("second output", start="later")) == TOLD
    assert again(desk, run("replay", start="later")) == LENIENT
    assert again(desk, run("replay", start="last")) == LENIENT
    assert again(desk, run("second output", start="last")) == TOLD


def test_a_batch_after_which_another_has_begun_is_told(desk: Desk) -> None:
    desk.begin(run=run("next"), batch=1)
    assert again(desk, run("restored", start="later")) == TOLD
    desk.abort_batch(run=run("next"), batch=1)
    assert again(desk, run("restored", start="later")) == TOLD
    assert again(desk, "of an older client") == TOLD


def test_a_checkpoint_that_has_replayed_an_older_batch_is_told_the_newest(desk: Desk) -> None:
    commit(desk, run("next"), 1)
    assert again(desk, run("restored", start="later")) == TOLD
    assert again(desk, run("restored next", start="later"), 1) == TOLD


def test_a_copied_checkpoint_is_told(desk: Desk) -> None:
    assert again(desk, run("copy", start="later", at="/copy")) == TOLD
    assert again(desk, run("elsewhere unknown", start="later", at="")) == LENIENT


@pytest.mark.parametrize("topic", ["other", None])
def test_another_topic_is_refused(desk: Desk, topic: str | None) -> None:
    words = "batch 0 of application 'app' was written to topic 'paid', and now comes for topic"
    with refused(ErrorCode.LEDGER_MISMATCH, words):
        desk.commit_batch(run=run("second output", topic, "later"), rows=7, digest=OTHERS)
    commit(desk, run("next", topic), 1)
    with refused(ErrorCode.LEDGER_MISMATCH, "and now comes for topic 'paid'"):
        desk.commit_batch(run=run("back", start="later"), batch=1, rows=7)


def test_nothing_is_known_of_names_of_an_older_client() -> None:
    desk = Desk()
    commit(desk, "bare")
    assert again(desk, run("upgraded")) == LENIENT
    assert again(desk, run("upgraded", "other", "later", "/d")) == LENIENT
    commit(desk, run("next", start="later"), 1)
    assert again(desk, "downgraded", 1) == LENIENT


def test_a_run_is_aborted_by_its_execution_alone(desk: Desk) -> None:
    begun = desk.begin(run=run("killed"), batch=1)
    desk.abort_batch(run=run("other", start="", at=""), batch=1)
    assert desk.record("app", begun.branch).is_open
    driver = run("killed", start="", at="")
    assert desk.abort_batch(run=driver, batch=1, checkpoint="unknown to the driver") is False
    assert not desk.record("app", begun.branch).is_open
    with refused(ErrorCode.PRODUCER_FENCED, "it was aborted"):
        desk.begin(run=run("killed"), batch=1, task=1)
    with refused(ErrorCode.LEDGER_MISMATCH):
        desk.abort_batch(run=driver, batch=1, checkpoint="unknown to the driver")
