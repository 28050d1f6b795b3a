"""Verified records prove which they are and show any change."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.verify.intervals import IntervalSet
from penstock.verify.records import Run, build_values, parse_values


def test_a_batch_of_one_stream_is_one_run() -> None:
    data = build_values(5, 3, 1000, 50, 128)
    assert len(data) == 50 * 128
    assert parse_values(5, data, 128, 70) == ([Run(70, 3, 1000, 50)], [])


def test_runs_break_where_stream_or_sequence_does() -> None:
    data = (
        build_values(5, 3, 0, 2, 64) + build_values(5, 4, 2, 2, 64) + build_values(5, 4, 9, 1, 64)
    )
    runs, odd = parse_values(5, data, 64, 0)
    assert runs == [Run(0, 3, 0, 2), Run(2, 4, 2, 2), Run(4, 4, 9, 1)]
    assert odd == []


@pytest.mark.parametrize("seed", range(20))
def test_any_changed_byte_is_seen(seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(build_values(5, 3, 0, 10, 64))
    position = chance.randrange(len(data))
    data[position] ^= 1 << chance.randrange(8)
    runs, odd = parse_values(5, bytes(data), 64, 100)
    assert odd == [100 + position // 64]
    assert sum(run.count for run in runs) == 9


def test_a_body_comes_back_with_its_sign() -> None:
    data = build_values(5, 3, 7, 2, 64, body=(9, -30, 1 << 40))
    assert parse_values(5, data, 64, 100, 3) == ([Run(100, 3, 7, 2, (9, -30, 1 << 40))], [])


def test_runs_break_where_the_body_does() -> None:
    data = build_values(5, 3, 7, 2, 64, body=(1, 4)) + build_values(5, 3, 9, 1, 64, body=(1, 5))
    runs, odd = parse_values(5, data, 64, 100, 2)
    assert runs == [Run(100, 3, 7, 2, (1, 4)), Run(102, 3, 9, 1, (1, 5))]
    assert odd == []


@pytest.mark.parametrize("seed", range(20))
def test_any_changed_byte_of_a_body_is_seen(seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(build_values(5, 3, 0, 1, 64, body=(9, -30, 4)))
    data[24 + chance.randrange(24)] ^= 1 << chance.randrange(8)
    assert parse_values(5, bytes(data), 64, 100, 3) == ([], [100])


def test_records_of_another_run_are_odd() -> None:
    assert parse_values(6, build_values(5, 3, 0, 2, 64), 64, 0) == ([], [0, 1])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20))), st.integers(0, 60))
def test_interval_sets_agree_with_sets_of_integers(
    ranges: list[tuple[int, int]], probe: int
) -> None:
    intervals, plain = IntervalSet(), set[int]()
    other = IntervalSet()
    other.add(probe, probe + 10)
    for lo, count in ranges:
        intervals.add(lo, lo + count)
        plain |= set(range(lo, lo + count))
    assert {x for lo, hi in intervals for x in range(lo, hi)} == plain
    assert intervals.count() == len(plain)
    inside = {x for lo, hi in intervals.overlap(probe, probe + 10) for x in range(lo, hi)}
    assert inside == plain & set(range(probe, probe + 10))
    rest = {x for lo, hi in intervals.minus(other) for x in range(lo, hi)}
    assert rest == plain - set(range(probe, probe + 10))
    lows = np.array([lo for lo, _ in intervals])
    assert (np.diff(lows) > 0).all()
