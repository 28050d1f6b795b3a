"""The judge of groups catches each broken promise, and allows what loss allows."""

from collections.abc import Iterator

import pytest
from support.judging import judge

from penstock.verify.history import Event


def history(*group: Event, count: int = 10) -> Iterator[Event]:
    """A run that wrote `count` records to partition 0 and read them back, and these events."""
    at = {"s": 0, "q": 0, "n": count, "p": 0, "o": 0}
    yield {"e": "start", "run": 1, "topic": "t", "acks": "ALL"}
    yield {"e": "send", **at, "t": 1.0}
    yield {"e": "ack", **at, "t": 2.0}
    yield {"e": "stored", "p": 0, "o": 0, "t": 0.0, "first": 1}
    yield from group
    yield {"e": "ends", "p": 0, "lo": 0, "hi": count}
    yield {"e": "final", "r": "final", **at}


def owns(member: str) -> Event:
    return {"e": "owns", "r": member, "p": 0, "t": 3.0}


def leaves(member: str, how: str = "revoked") -> Event:
    return {"e": "leaves", "r": member, "p": 0, "t": 3.0, "how": how}


def got(member: str, lo: int, hi: int) -> Event:
    return {"e": "got", "r": member, "p": 0, "o": lo, "s": 0, "q": lo, "n": hi - lo, "t": 3.0}


def stored(offset: int) -> Event:
    return {"e": "stored", "p": 0, "o": offset, "t": 3.0}


GOOD = [owns("a"), got("a", 0, 6), stored(4), leaves("a"), owns("b"), got("b", 4, 10), stored(10)]


def test_a_good_history_passes_and_counts_what_came_again() -> None:
    verdict = judge(history(*GOOD))
    assert verdict.passed, verdict.breaches
    assert (verdict.delivered, verdict.redelivered) == (12, 2)


@pytest.mark.parametrize(
    ("rule", "records", "events"),
    [
        ("undelivered", 3, [owns("a"), got("a", 0, 7)]),
        ("undelivered", 10, [owns("a")]),
        ("shared", 1, [owns("a"), got("a", 0, 10), owns("b"), leaves("a")]),
        ("shared", 1, [owns("a"), got("a", 0, 10), owns("b")]),
        ("shared", 5, [owns("a"), got("a", 0, 5), leaves("a"), got("a", 5, 10)]),
        ("passed over", 2, [owns("a"), got("a", 0, 8), got("a", 6, 10)]),
        ("ahead", 4, [owns("a"), got("a", 0, 6), stored(10), got("a", 6, 10)]),
        ("went back", 3, [owns("a"), got("a", 0, 10), stored(10), stored(7)]),
        (
            "repeated",
            2,
            [owns("a"), got("a", 0, 6), stored(6), leaves("a"), owns("b"), got("b", 4, 10)],
        ),
    ],
)
def test_each_broken_promise_is_caught(rule: str, records: int, events: list[Event]) -> None:
    verdict = judge(history(*events))
    assert set(verdict.breaches) == {rule}
    assert verdict.breaches[rule].records == records


def test_a_member_that_learns_late_that_it_lost_is_no_breach() -> None:
    verdict = judge(
        history(
            owns("a"), got("a", 0, 6), stored(4), owns("b"), got("b", 4, 10), got("a", 6, 8),
            leaves("a", "lost"),
        )
    )  # fmt: skip
    assert verdict.passed, verdict.breaches


def test_a_run_without_a_group_is_not_judged_as_one() -> None:
    assert judge(event for event in history() if event["e"] != "stored").passed
