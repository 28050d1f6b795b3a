"""The judge of a bank: what adds up passes, whatever was aborted; what does not is named."""

from collections.abc import Callable

import pytest
from support.judging import judge

from penstock.verify.history import Event
from penstock.verify.report import summary

Edit = Callable[[list[Event]], None]

TRANSFERS = (
    (1, "committed", ((0, -30, 0), (1, 30, 0))),
    (2, "aborted", ((0, -5, 1), (1, 5, 1))),
    (3, "committed", ((0, 12, 1), (1, -12, 1))),
    (4, "committed", ((1, -7, 2), (0, 7, 2))),
)
"""Number, outcome, entries: (account, amount, entry number). Account n is on partition n."""


def good() -> list[Event]:
    """A sequence is never given twice, an entry's number is, if its transfer was aborted."""
    events: list[Event] = [{"e": "start", "run": 7, "topic": "t", "acks": "ALL"}]
    finals: list[Event] = []
    sequences = {0: 0, 1: 0}
    for transfer, how, entries in TRANSFERS:
        for account, amount, number in entries:
            at = sequences[account]
            sequences[account] += 1
            entry = {"s": account, "q": at, "n": 1, "x": transfer, "a": amount, "k": number}
            where = {"p": account, "o": 2 * at}  # a marker behind each
            events.append({"e": "send", **entry, "t": 1.0})
            if how == "committed":
                events.append({"e": "ack", **entry, **where, "t": 1.0})
                finals.append({"e": "final", "r": "final", **entry, **where, "t": 3.0})
        events.append({"e": "ended-tx", "x": transfer, "how": how, "t": 2.0})
    events += finals
    for partition in (0, 1):
        events.append({"e": "reached", "p": partition, "o": 8})
        events.append({"e": "ends", "p": partition, "lo": 0, "hi": 8, "hw": 8})
    return events


def found(events: list[Event], **fields: object) -> Event:
    return next(e for e in events if all(e.get(key) == value for key, value in fields.items()))


def drop(events: list[Event], transfer: int, *accounts: int) -> None:
    for account in accounts:
        events.remove(found(events, e="final", x=transfer, s=account))


def test_a_bank_that_adds_up_passes() -> None:
    verdict = judge(good())
    assert verdict.passed, verdict.breaches
    assert (verdict.transfers, verdict.balance, verdict.committed) == (3, 0, 3)
    assert ("sum of all accounts", "0") in summary(verdict)
    assert verdict.to_dict()["balance"] == 0


def half(events: list[Event]) -> None:
    drop(events, 3, 1)


def half_of_the_newest(events: list[Event]) -> None:
    drop(events, 4, 1)


def whole(events: list[Event]) -> None:
    drop(events, 3, 0, 1)


def another_amount(events: list[Event]) -> None:
    found(events, e="final", x=3, s=0)["a"] = 13


def half_of_an_unknown_one(events: list[Event]) -> None:
    found(events, e="ended-tx", x=4)["how"] = "unknown"
    drop(events, 4, 1)


def aborted(events: list[Event]) -> None:
    for account, amount in ((0, -5), (1, 5)):
        at = events.index(found(events, e="final", x=3, s=account))
        entry = {"s": account, "q": 1, "n": 1, "x": 2, "a": amount, "k": 1}
        events.insert(at, {"e": "final", "r": "final", **entry, "p": account, "o": 2})


@pytest.mark.parametrize(
    ("edit", "rules", "balance"),
    [
        (half, {"unbalanced": 1, "gap": 1, "torn": 1, "lost": 1}, 12),
        (half_of_the_newest, {"unbalanced": 1, "torn": 1, "lost": 1}, 7),
        (whole, {"gap": 2, "lost": 2}, 0),
        (another_amount, {"unbalanced": 2}, 1),
        (half_of_an_unknown_one, {"unbalanced": 1, "torn": 1}, 7),
        (aborted, {"gap": 2, "aborted read": 2}, 0),
    ],
)
def test_money_that_comes_or_goes_is_found(edit: Edit, rules: dict[str, int], balance: int) -> None:
    events = good()
    edit(events)
    verdict = judge(events)
    assert {rule: breach.records for rule, breach in verdict.breaches.items()} == rules
    assert verdict.balance == balance


def test_the_transfer_and_the_entries_are_named() -> None:
    events = good()
    half(events)
    breaches = judge(events).breaches
    assert breaches["unbalanced"].examples == ["transfer 3: 1 entries, sum +12"]
    assert breaches["gap"].examples == ["key 1: entries 1 to 1 are missing"]


def test_numbers_of_an_unknown_transfer_may_be_there_or_not() -> None:
    for shown in (True, False):
        events = good()
        found(events, e="ended-tx", x=3)["how"] = "unknown"
        if not shown:
            whole(events)
        verdict = judge(events)
        assert verdict.passed, verdict.breaches
        assert verdict.transfers == (3 if shown else 2)
