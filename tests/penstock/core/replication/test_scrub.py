"""Which log is read next to look for damage, and how fast."""

from penstock.core.replication.scrub import (
    RATE_MAX,
    RATE_MIN,
    ScrubProgress,
    Urgency,
    next_due,
    scrub_rate,
)
from penstock.core.types import Offset, ReplicaKey, TopicId

DAY = 24 * 60 * 60 * 1000
WEEK = 7 * DAY
A, B, C = (ReplicaKey(TopicId(name), 0) for name in "abc")


def test_a_log_is_due_once_its_interval_is_over() -> None:
    log = ScrubProgress(DAY)
    assert not log.is_due(DAY + WEEK - 1, WEEK)
    assert log.is_due(DAY + WEEK, WEEK)


def test_a_clock_that_was_set_back_delays_nothing() -> None:
    assert ScrubProgress(5 * WEEK).is_due(WEEK, WEEK)


def test_without_an_interval_only_what_is_wanted_is_due() -> None:
    log = ScrubProgress(1)
    assert not log.is_due(10 * WEEK, 0)
    assert not log.begun(5).is_due(10 * WEEK, 0)
    assert log.wanted(Urgency.ASKED).is_due(2, 0)


def test_a_pass_that_was_interrupted_goes_on_where_it_was() -> None:
    log = ScrubProgress(0).begun(WEEK).read_to(Offset(70))
    assert log.is_due(WEEK + 1, WEEK)
    assert log.begun(WEEK + 9) == log
    assert log.finished() == ScrubProgress(WEEK), "all was read since the pass began"


def test_what_is_wanted_is_read_from_its_start_but_only_once() -> None:
    begun = ScrubProgress(0).begun(5).read_to(Offset(70))
    wanted = begun.wanted(Urgency.ASKED)
    assert wanted == ScrubProgress(0, Urgency.ASKED)
    under_way = wanted.begun(6).read_to(Offset(40))
    assert under_way.wanted(Urgency.ASKED) is under_way
    assert under_way.wanted(Urgency.MENDED) == ScrubProgress(0, Urgency.MENDED)


def test_mended_logs_come_first_then_those_asked_for_then_the_unknown_and_the_oldest() -> None:
    logs = {A: ScrubProgress(3), B: ScrubProgress(2), C: ScrubProgress(1)}
    now = WEEK + DAY
    assert next_due(logs, now, WEEK) == C
    logs[B] = logs[B].begun(now)
    assert next_due(logs, now, WEEK) == B, "what was begun is ended first"
    logs[A] = ScrubProgress(now, Urgency.UNKNOWN)
    assert next_due(logs, now, WEEK) == A
    logs[C] = logs[C].wanted(Urgency.ASKED)
    assert next_due(logs, now, WEEK) == C
    logs[B] = logs[B].wanted(Urgency.MENDED)
    assert next_due(logs, now, WEEK) == B
    assert next_due({A: ScrubProgress(now)}, now, WEEK) is None


def test_a_pass_takes_half_of_the_interval_within_limits() -> None:
    total = 5 * RATE_MIN * WEEK // 2000
    assert scrub_rate(total, WEEK, Urgency.REGULAR) == 5 * RATE_MIN
    assert scrub_rate(1, WEEK, Urgency.REGULAR) == RATE_MIN
    assert scrub_rate(1 << 60, WEEK, Urgency.REGULAR) == RATE_MAX
    assert scrub_rate(1, WEEK, Urgency.ASKED) == RATE_MAX
    assert scrub_rate(1, 0, Urgency.REGULAR) == RATE_MAX
