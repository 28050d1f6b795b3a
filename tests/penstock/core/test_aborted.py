"""The newest aborted transactions in memory: either what the store would say, or nothing."""

import random
from collections.abc import Iterator

import pytest

from penstock.core import aborted
from penstock.core.aborted import AbortedIndex, AbortedTransaction, overlapping
from penstock.core.types import Offset, ProducerId


def entry(marker: int, first: int, stable: int | None = None) -> AbortedTransaction:
    return AbortedTransaction(
        marker_offset=Offset(marker),
        first_offset=Offset(first),
        producer_id=ProducerId(1),
        producer_epoch=marker,
        stable_offset=Offset(marker + 1 if stable is None else stable),
    )


def markers(found: tuple[AbortedTransaction, ...] | None) -> list[int] | None:
    return None if found is None else [one.marker_offset for one in found]


def test_a_scan_ends_where_no_later_transaction_can_begin_before_the_end() -> None:
    looked: list[int] = []

    def stored() -> Iterator[AbortedTransaction]:
        for one in (entry(10, 2, 5), entry(12, 5, 13), entry(20, 15)):
            looked.append(one.marker_offset)
            yield one

    assert markers(overlapping(stored(), Offset(8))) == [10, 12]
    assert looked == [10, 12], "the LSO behind the second is past the end"


def test_an_entry_whose_data_begin_behind_the_end_is_passed_over() -> None:
    found = overlapping([entry(10, 8, 3), entry(11, 3)], Offset(5))
    assert markers(found) == [11]


def test_fewer_than_the_limit_are_all_that_the_log_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborted, "NEWEST_MAX", 3)
    index = AbortedIndex([entry(50, 40), entry(60, 55)])
    assert markers(index.between(Offset(0), Offset(200))) == [50, 60]


def test_of_as_many_as_the_limit_older_ones_are_not_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborted, "NEWEST_MAX", 2)
    index = AbortedIndex([entry(100, 40), entry(105, 95)])
    assert index.between(Offset(99), Offset(200)) is None
    assert markers(index.between(Offset(100), Offset(200))) == [100, 105]
    index.extend([entry(110, 90), entry(120, 115)])
    assert index.between(Offset(105), Offset(200)) is None
    assert markers(index.between(Offset(106), Offset(200))) == [110, 120]


def test_what_is_appended_is_known() -> None:
    index = AbortedIndex()
    assert index.between(Offset(100), Offset(200)) == ()
    index.extend([entry(110, 90), entry(120, 115)])
    assert markers(index.between(Offset(100), Offset(200))) == [110, 120]
    assert markers(index.between(Offset(111), Offset(200))) == [120]
    assert markers(index.between(Offset(100), Offset(115))) == [110]


def test_beyond_the_limit_the_oldest_go_and_are_not_denied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aborted, "NEWEST_MAX", 3)
    index = AbortedIndex()
    for number in range(10):
        index.extend([entry(10 * number + 9, 10 * number)])
        assert len(index) <= 3
    assert index.complete_from == 70
    assert index.between(Offset(69), Offset(200)) is None
    assert markers(index.between(Offset(70), Offset(200))) == [79, 89, 99]


def test_what_is_cut_is_gone_and_what_follows_is_complete_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aborted, "NEWEST_MAX", 2)
    index = AbortedIndex([entry(110, 90), entry(120, 115)])
    index.cut(Offset(120))
    assert markers(index.between(Offset(110), Offset(200))) == [110]
    assert index.between(Offset(109), Offset(200)) is None
    index.cut(Offset(50))
    assert index.complete_from == 50, "nothing is stored from there on"
    index.extend([entry(55, 51)])
    assert markers(index.between(Offset(50), Offset(200))) == [55]


def test_it_says_what_all_entries_would_say_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    monkeypatch.setattr(aborted, "NEWEST_MAX", 5)
    index, end, answered = AbortedIndex(), 0, 0
    all_known: list[AbortedTransaction] = []
    for _ in range(2_000):
        if rng.random() < 0.1:
            end = rng.randint(max(0, end - 30), end)
            index.cut(Offset(end))
            all_known = [one for one in all_known if one.marker_offset < end]
        end += rng.randint(1, 9)
        new = entry(end, rng.randint(max(0, end - 20), end), max(0, end - 25))
        index.extend([new])
        all_known.append(new)
        start, stop = (Offset(rng.randint(max(0, end - 60), end + 2)) for _ in range(2))
        found = index.between(start, stop)
        if found is not None:
            answered += 1
            assert found == overlapping((o for o in all_known if o.marker_offset >= start), stop)
        else:
            assert start < index.complete_from
    assert answered > 100
