"""The judge of a pipe: what is missing, there twice, out of order or made up is named."""

from collections.abc import Callable

import pytest
from support.judging import judge

from penstock.verify.history import Event

Edit = Callable[[list[Event]], None]


def good() -> list[Event]:
    """Two streams of ten records in two partitions, piped in runs of five."""
    events: list[Event] = [{"e": "start", "run": 7, "topic": "t", "acks": "ALL", "pipe": "t-piped"}]
    for stream in (0, 1):
        whole = {"s": stream, "q": 0, "n": 10, "p": stream, "o": 0}
        events.append({"e": "send", **whole, "t": 1.0})
        events.append({"e": "ack", **whole, "t": 2.0})
        events.append({"e": "final", "r": "final", **whole, "t": 3.0})
        events.append({"e": "ends", "p": stream, "lo": 0, "hi": 10})
        for first in (0, 5):
            where = {"s": stream, "q": first, "n": 5, "p": stream, "o": first + first // 5}
            events.append({"e": "piped", "r": "pipe", **where, "t": 3.0})
    return events


def piped(events: list[Event], stream: int, first: int) -> Event:
    return next(e for e in events if e["e"] == "piped" and (e["s"], e["q"]) == (stream, first))


def drop(events: list[Event]) -> None:
    events.remove(piped(events, 1, 5))


def drop_all(events: list[Event]) -> None:
    events[:] = [event for event in events if event["e"] != "piped"]


def again(events: list[Event]) -> None:
    events.append({**piped(events, 1, 5), "o": 12, "n": 2})


def swap(events: list[Event]) -> None:
    first = piped(events, 0, 0)
    events.remove(first)
    events.append({**first, "o": 12})


def invent(events: list[Event]) -> None:
    events.append({**piped(events, 1, 5), "o": 12, "q": 10, "n": 3})


@pytest.mark.parametrize(
    ("edit", "rules"),
    [
        (drop, {"not piped": 5}),
        (drop_all, {"not piped": 20}),
        (again, {"piped twice": 2}),
        (swap, {"piped late": 5}),
        (invent, {"made up": 3}),
    ],
)
def test_each_broken_promise_is_caught(edit: Edit, rules: dict[str, int]) -> None:
    events = good()
    assert judge(events).passed
    edit(events)
    found = judge(events).breaches
    assert {rule: breach.records for rule, breach in found.items()} == rules


def test_without_a_pipe_nothing_is_asked_of_it() -> None:
    events = good()
    drop_all(events)
    del events[0]["pipe"]
    verdict = judge(events)
    assert verdict.passed
    assert verdict.piped == 0
