"""The judge of transactions catches what breaks one, and allows what markers and aborts leave."""

from collections.abc import Callable

import pytest
from support.judging import judge

from penstock.verify.history import Event
from penstock.verify.report import summary

Edit = Callable[[list[Event]], None]


def run(stream: int, first: int, count: int = 5) -> Event:
    return {"s": stream, "q": first, "n": count}


def good() -> list[Event]:
    """Transaction 1 commits on two partitions, 2 aborts, 3 commits; a marker behind each."""
    events: list[Event] = [{"e": "start", "run": 7, "topic": "t", "acks": "ALL"}]
    for number, how, pieces in (
        (1, "committed", [(0, 0, 0, 0), (1, 0, 1, 0)]),
        (2, "aborted", [(0, 5, 0, 6)]),
        (3, "committed", [(0, 10, 0, 12)]),
    ):
        for stream, first, partition, offset in pieces:
            where = {**run(stream, first), "x": number, "t": 1.0}
            events.append({"e": "send", **where})
            events.append({"e": "ack", **where, "p": partition, "o": offset})
        events.append({"e": "ended-tx", "x": number, "how": how, "t": 2.0})
    for reader, kind in (("reader-0", "read"), ("final", "final")):
        events += [
            {"e": kind, "r": reader, "p": 0, "o": 0, **run(0, 0), "t": 3.0},
            {"e": kind, "r": reader, "p": 0, "o": 12, **run(0, 10), "t": 3.0},
            {"e": kind, "r": reader, "p": 1, "o": 0, **run(1, 0), "t": 3.0},
        ]
    for partition, end in ((0, 18), (1, 6)):
        events.append({"e": "reached", "p": partition, "o": end})
        events.append({"e": "ends", "p": partition, "lo": 0, "hi": end, "hw": end})
    return events


def found(events: list[Event], **fields: object) -> Event:
    return next(e for e in events if all(e.get(key) == value for key, value in fields.items()))


def test_a_good_history_passes_and_counts_outcomes() -> None:
    verdict = judge(good())
    assert verdict.passed, verdict.breaches
    assert (verdict.committed, verdict.aborted, verdict.undecided) == (2, 1, 0)
    assert ("transactions committed", "2") in summary(verdict)


def tear(events: list[Event]) -> None:
    for kind in ("read", "final"):
        events.remove(found(events, e=kind, p=1))


def show_aborted_live(events: list[Event]) -> None:
    at = events.index(found(events, e="read", o=12))
    shown = {"e": "read", "r": "reader-0", "p": 0, "o": 6, **run(0, 5), "t": 3.0}
    events.insert(at, shown)


def tear_unknown(events: list[Event]) -> None:
    found(events, e="ended-tx", x=1)["how"] = "unknown"
    tear(events)


def stick(events: list[Event]) -> None:
    found(events, e="ends", p=0)["hw"] = 20


def lose(events: list[Event]) -> None:
    for kind in ("read", "final"):
        events.remove(found(events, e=kind, o=12))


def pass_over(events: list[Event]) -> None:
    events.remove(found(events, e="read", p=0, o=12))
    events.append({"e": "read", "r": "reader-0", "p": 0, "o": 14, **run(0, 12, 3), "t": 3.0})


def twice(events: list[Event]) -> None:
    for number in (8, 9):
        where = {**run(1, 20), "x": number, "t": 4.0}
        events.insert(1, {"e": "ended-tx", "x": number, "how": "committed", "t": 4.0})
        events.insert(1, {"e": "send", **where})
    shown = {"e": "final", "r": "final", "p": 1, **run(1, 20)}
    events += [{**shown, "o": 6}, {**shown, "o": 12}]


@pytest.mark.parametrize(
    ("edit", "rules", "records"),
    [
        (tear, {"torn", "lost"}, 5),
        (tear_unknown, {"torn"}, 5),
        (show_aborted_live, {"aborted read"}, 5),
        (stick, {"stuck"}, 2),
        (lose, {"lost"}, 5),
        (pass_over, {"skipped"}, 2),
        (twice, {"duplicated"}, 5),
    ],
)
def test_each_broken_promise_is_caught(edit: Edit, rules: set[str], records: int) -> None:
    events = good()
    edit(events)
    verdict = judge(events)
    assert set(verdict.breaches) == rules
    assert {breach.records for breach in verdict.breaches.values()} == {records}


def test_an_aborted_record_in_the_final_read_back_is_an_aborted_read() -> None:
    events = good()
    at = events.index(found(events, e="final", o=12))
    events.insert(at, {"e": "final", "r": "final", "p": 0, "o": 6, **run(0, 5)})
    verdict = judge(events)
    assert verdict.breaches["aborted read"].records == 5


def test_an_unknown_outcome_is_all_or_nothing() -> None:
    for show in (True, False):
        events = good()
        found(events, e="ended-tx", x=3)["how"] = "unknown"
        if not show:
            lose(events)
        verdict = judge(events)
        assert verdict.passed, verdict.breaches
        assert verdict.undecided == 1


def test_the_last_word_on_a_transaction_counts() -> None:
    events = good()
    at = events.index(found(events, e="ended-tx", x=1))
    events.insert(at, {"e": "ended-tx", "x": 1, "how": "unknown", "t": 1.5})
    assert judge(events).committed == 2
