"""The judge of a ring: who read in a circle, what went round twice, got lost or was aborted."""

from collections.abc import Callable, Iterator

import pytest
from support.judging import judge

from penstock.verify.history import Event
from penstock.verify.report import summary

Edit = Callable[[list[Event]], None]
HOPS = 4
RECORDS = 10


def good() -> list[Event]:
    """One partition, ten records. Transaction 1 passes them on, 2 its output, and so on; 5 ends
    them. Transaction 9 took some of what 1 wrote before 2 did, and was aborted."""
    events: list[Event] = [{"e": "start", "run": 7, "topic": "t", "acks": "ALL", "ring": HOPS}]
    run = {"s": 0, "q": 0, "n": RECORDS, "p": 0}
    events += [
        {"e": "send", **run, "t": 1.0},
        {"e": "ack", **run, "o": 0, "t": 2.0},
        {"e": "final", "r": "final", **run, "o": 0, "t": 3.0},
        {"e": "ends", "p": 0, "lo": 0, "hi": RECORDS},
        {"e": "took", "x": 9, **run, "n": 5, "q": 5, "o": 5, "w": 1, "h": 1, "t": 1.0},
        {"e": "ended-ring", "x": 9, "how": "aborted", "t": 1.0},
    ]
    for hops in range(HOPS + 1):
        where = {**run, "w": hops, "h": hops, "o": (RECORDS + 1) * ((hops - 1) // 2 if hops else 0)}
        events.append({"e": "took", "r": "there-0.0", "x": hops + 1, **where, "t": 1.0})
        events.append({"e": "ended-ring", "x": hops + 1, "how": "committed", "t": 2.0})
        if hops:
            events.append({"e": "ringed", "r": "ring", **where, "t": 3.0})
    return events


def found(events: list[Event], **fields: object) -> Event:
    return next(e for e in events if all(e.get(key) == value for key, value in fields.items()))


def test_a_good_history_passes_and_counts() -> None:
    verdict = judge(good())
    assert verdict.passed, verdict.breaches
    assert (verdict.passed_on, verdict.ring_committed) == (HOPS * RECORDS, HOPS + 1)
    assert ("passed on in the ring", "40") in summary(verdict)


def read_the_next_ones(events: list[Event]) -> None:
    """1 wrote what 2 read, and ends what 2 wrote; 3 does not, and 4 and 5 have nothing to do."""
    found(events, e="took", w=2)["x"] = 1
    events[0]["ring"] = 2
    events[:] = [e for e in events if e.get("h", 0) <= 2 and e.get("x", 0) not in (3, 4, 5)]


def read_in_a_wide_circle(events: list[Event]) -> None:
    found(events, e="took", w=4)["x"] = 1


def read_itself(events: list[Event]) -> None:
    found(events, e="took", w=1, x=2)["x"] = 1


def take_twice(events: list[Event]) -> None:
    """9 committed as well, and ended what it took."""
    found(events, e="ended-ring", x=9)["how"] = "committed"


def take_a_part_twice(events: list[Event]) -> None:
    """A record in the middle of what 5 took, and three at its end."""
    taken = found(events, e="took", w=4)
    for offset, records in ((13, 1), (18, 3)):
        events.append({**taken, "x": 9, "o": offset, "n": records})
    take_twice(events)
    events.remove(found(events, e="took", w=1, x=9))


def show_twice(events: list[Event]) -> None:
    events.append({**found(events, e="ringed", h=3), "q": 8, "n": 2, "o": 22, "w": 6})


def drop_one(events: list[Event]) -> None:
    for shown in [e for e in events if e["e"] == "ringed" and e["h"] > 2]:
        shown["n"] = RECORDS - 1


def reverse(events: list[Event]) -> None:
    last = found(events, e="ringed", h=4)
    last |= {"q": 5, "n": 5}
    events.append({**last, "q": 0, "o": 30})


def show_aborted(events: list[Event]) -> None:
    """9 is aborted, and what it made can be seen, beside what 2 made of the same."""
    found(events, e="ringed", h=2)["w"] = 9


def take_aborted(events: list[Event]) -> None:
    """9 wrote something that nobody sees now; 5 took it."""
    events.append({**found(events, e="took", w=4), "w": 9, "o": 31, "n": 3})


def take_what_an_unknown_one_wrote(events: list[Event]) -> None:
    """Nothing of 9 is visible at the end: so it was aborted, whoever was told what."""
    found(events, e="ended-ring", x=9)["how"] = "unknown"
    take_aborted(events)


def take_of_an_aborted_producer(events: list[Event]) -> None:
    """It wrote ten more, in a transaction; 1 took three of them."""
    run = {"s": 0, "q": RECORDS, "n": RECORDS}
    events.append({"e": "send", **run, "x": 1, "t": 4.0})
    events.append({"e": "ended-tx", "x": 1, "how": "aborted", "t": 4.0})
    events.append({**found(events, e="took", w=0), **run, "n": 3, "o": 11})


@pytest.mark.parametrize(
    ("edit", "rules"),
    [
        (read_the_next_ones, {"cycle": 20}),
        (read_in_a_wide_circle, {"cycle": 40}),
        (read_itself, {"cycle": 10}),
        (take_twice, {"double commit": 5}),
        (take_a_part_twice, {"double commit": 4}),
        (show_twice, {"double commit": 2}),
        (drop_one, {"not piped": 1}),
        (reverse, {"piped late": 5}),
        (show_aborted, {"aborted read": 10}),
        (take_aborted, {"aborted read": 3}),
        (take_what_an_unknown_one_wrote, {"aborted read": 3}),
        (take_of_an_aborted_producer, {"aborted read": 3}),
    ],
    ids=lambda edit: getattr(edit, "__name__", ""),
)
def test_each_broken_promise_is_caught(edit: Edit, rules: dict[str, int]) -> None:
    events = good()
    edit(events)
    breaches = judge(events).breaches
    assert {rule: breach.records for rule, breach in breaches.items()} == rules


def examples(edit: Edit) -> Iterator[str]:
    events = good()
    edit(events)
    for breach in judge(events).breaches.values():
        yield from breach.examples


def test_what_is_broken_is_named() -> None:
    (cycle,) = examples(read_the_next_ones)
    assert cycle in {"transactions 1 ▶ 2 ▶ 1", "transactions 2 ▶ 1 ▶ 2"}
    (wide,) = examples(read_in_a_wide_circle)
    assert wide[len("transactions ") :] in {
        "1 ▶ 2 ▶ 3 ▶ 4 ▶ 1", "2 ▶ 3 ▶ 4 ▶ 1 ▶ 2", "3 ▶ 4 ▶ 1 ▶ 2 ▶ 3", "4 ▶ 1 ▶ 2 ▶ 3 ▶ 4"
    }, "in the order of writing and reading"  # fmt: skip
    assert list(examples(take_twice)) == [
        "there partition 0 offset 5, 5 records that transaction 9 took; 2 took 5 of them"
    ]
    assert list(examples(show_twice)) == [
        "hop 3: key 0 sequences 8 to 9, again at 0/22 of the target"
    ]


def test_an_unknown_outcome_counts_if_it_can_be_seen() -> None:
    for seen, passed in ((2, True), (9, True)):
        events = good()
        found(events, e="ended-ring", x=seen)["how"] = "unknown"
        assert judge(events).passed is passed
    events = good()
    read_in_a_wide_circle(events)
    found(events, e="ended-ring", x=3)["how"] = "unknown"
    assert set(judge(events).breaches) == {"cycle"}, "3 is visible, so the circle is closed"


def test_an_aborted_transaction_closes_no_circle() -> None:
    events = good()
    read = found(events, e="took", w=4)
    events.append({**read, "x": 9})
    assert judge(events).passed
    events.append({**read, "x": 4, "w": 9, "o": 31})
    assert set(judge(events).breaches) == {"aborted read"}


def test_without_a_ring_nothing_is_asked_of_it() -> None:
    kinds = ("took", "ended-ring", "ringed")
    events = [event for event in good() if event["e"] not in kinds]
    assert set(judge(events).breaches) == {"not piped"}
    del events[0]["ring"]
    verdict = judge(events)
    assert verdict.passed
    assert verdict.passed_on == 0
