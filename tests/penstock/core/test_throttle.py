"""The throttle of copies: its law over any 10 s, and that no move waits for ever (I31, I32)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.throttle import (
    BURST_MS,
    UNLIMITED_CREDIT,
    WINDOW_MS,
    Bucket,
    Growth,
    grants,
    may_go,
)

MIB = 1 << 20
RATES = st.integers(100_000, 10 * MIB)
SIZES = st.integers(50_000, MIB)
GROWTH_LASTS_MS = 2_000


def most_in_a_window(sent: list[tuple[float, int]]) -> list[tuple[float, float, int]]:
    """For every message: the 10 s from then on, and the bytes sent in them."""
    windows = []
    for at_ms, _ in sent:
        end_ms = at_ms + WINDOW_MS
        windows.append((at_ms, end_ms, sum(size for ms, size in sent if at_ms <= ms < end_ms)))
    return windows


@given(
    RATES,
    st.lists(
        st.tuples(st.floats(0, 400), SIZES, st.integers(0, 2 * MIB), st.booleans()), max_size=80
    ),
)
def test_no_ten_seconds_take_more_than_the_rate_growth_and_one_message(
    rate: int, steps: list[tuple[float, int, int, bool]]
) -> None:
    bucket, growth, now_ms = Bucket(rate), Growth(), 0.0
    sent: list[tuple[float, int]] = []
    grown: list[tuple[float, int]] = []
    for pause_ms, size, growing, waits in steps:
        now_ms += pause_ms + (bucket.wait_ms(now_ms) if waits else 0)
        growth.gain(growing, now_ms)
        grown.append((now_ms, growing))
        while len(sent) < 400 and may_go(bucket, growth, now_ms):
            bucket.take(growth.pay(size, now_ms), now_ms)
            sent.append((now_ms, size))
    largest = max((size for _, size in sent), default=0)
    for start_ms, end_ms, total in most_in_a_window(sent):
        free = sum(size for ms, size in grown if start_ms - GROWTH_LASTS_MS <= ms < end_ms)
        assert total <= rate * WINDOW_MS / 1_000 + free + largest + 1


@given(RATES, st.lists(st.tuples(st.floats(0, 300), SIZES), min_size=1, max_size=50))
def test_a_copy_never_waits_longer_than_its_debt(rate: int, steps: list[tuple[float, int]]) -> None:
    bucket, now_ms, taken = Bucket(rate), 0.0, 0
    for pause_ms, size in steps:
        now_ms += pause_ms
        bucket.take(size, now_ms)
        taken += size
        wait_ms = bucket.wait_ms(now_ms)
        assert wait_ms <= taken / rate * 1_000 * 1.04
        now_ms += wait_ms + 1e-3
        assert may_go(bucket, Growth(), now_ms)


@pytest.mark.parametrize("rate", [50_000, 10 * MIB])
@pytest.mark.parametrize("written_mib", [0, 0.1, 1, 10, 100])
def test_a_move_ends_whatever_is_written_meanwhile(written_mib: float, rate: int) -> None:
    """It counts no live bytes: 20 s of backlog take 20 s at any rate of writes, also where the debt
    of one message takes ten seconds to pay off."""
    bucket, growth = Bucket(rate), Growth()
    backlog, now_ms = 20 * rate, 0.0
    message = 512 * 1024
    while backlog > 0:
        now_ms += 10
        written = int(written_mib * MIB / 100)
        growth.gain(written, now_ms)
        backlog += written
        while backlog > 0 and may_go(bucket, growth, now_ms):
            size = min(message, backlog)
            bucket.take(growth.pay(size, now_ms), now_ms)
            backlog -= size
        assert now_ms < 21_000
    assert now_ms > 20_000 - (message / rate + BURST_MS / 1_000) * 1_000


def test_growth_is_kept_for_as_long_as_it_is_owed_and_no_more_of_it() -> None:
    growth = Growth()
    growth.gain(100, 0)
    assert not growth.pays(150, 500)
    growth.gain(70, 30_000)
    assert growth.unused(60_000) == 150
    assert growth.pays(150, 60_000)
    assert growth.pay(150, 60_000) == 0
    growth.gain(10, 60_500)
    assert growth.pays(0, 60_500)
    assert growth.unused(63_000) == 0


def test_growth_that_nobody_used_is_forgotten() -> None:
    growth = Growth()
    growth.gain(100, 0)
    growth.gain(10, 900)
    assert growth.unused(1_999) == 110
    assert growth.pay(30, 1_999) == 0
    assert growth.unused(1_999) == 80
    growth.gain(5, 2_000)
    assert growth.unused(2_000) == 5
    assert growth.pay(7, 2_000) == 2
    growth.gain(9, 2_100)
    assert growth.unused(9_000) == 0


def test_a_timer_that_is_late_loses_nothing_within_a_burst() -> None:
    bucket, taken, now_ms = Bucket(MIB), 0, 0.0
    while now_ms < 10_000:
        now_ms += BURST_MS * 0.9
        while may_go(bucket, Growth(), now_ms):
            bucket.take(1_000, now_ms)
            taken += 1_000
    assert 0.9 <= taken / (MIB * now_ms / 1_000) <= 1.0


def test_the_rate_changes_at_once_and_debts_stay() -> None:
    bucket = Bucket(1_000)
    bucket.take(10_100, 0)
    assert bucket.wait_ms(0) == pytest.approx(10_000 * 1_000 / 970)
    bucket.set_rate(10_000, 0)
    assert bucket.wait_ms(0) == pytest.approx(1_000 * 1_000 / 970)
    bucket.set_rate(None, 0)
    assert (bucket.wait_ms(0), may_go(bucket, Growth(), 0)) == (0, True)
    bucket.take(1 << 40, 0)
    assert may_go(bucket, Growth(), 0)
    bucket.set_rate(1_000, 5)
    assert bucket.tokens(5) == 100


def test_a_clock_that_stands_still_or_goes_back_fills_nothing() -> None:
    bucket = Bucket(1_000)
    bucket.take(1_100, 1_000)
    assert bucket.tokens(500) == bucket.tokens(1_000) == -1_000
    assert bucket.tokens(2_000) == pytest.approx(-30)


# ---------------------------------------------------------------- the receiver

LINKS = st.dictionaries(st.integers(1, 5), st.integers(-MIB, 10 * MIB), min_size=1, max_size=5)


@given(RATES, LINKS)
def test_grants_take_what_the_bucket_has_and_fill_nobody_beyond_a_share(
    rate: int, unused: dict[int, int]
) -> None:
    bucket = Bucket(rate)
    before = bucket.tokens(0)
    granted = grants(bucket, unused, 0)
    assert sum(granted.values()) == pytest.approx(before - bucket.tokens(0))
    assert sum(granted.values()) <= before
    share = max(rate * BURST_MS // 1_000 // len(unused), 1)
    lack = {link: max(share - has, 0) for link, has in unused.items()}
    assert all(0 < granted[link] <= lack[link] for link in granted)
    if sum(granted.values()) < int(before) - len(unused):
        assert all(granted.get(link, 0) == lack[link] for link in unused), "nobody is left short"


@given(
    RATES,
    st.lists(st.tuples(st.floats(0, 200), st.sets(st.integers(1, 3)), SIZES), max_size=80),
)
def test_leaders_together_stay_within_the_receivers_rate(
    rate: int, steps: list[tuple[float, set[int], int]]
) -> None:
    """Leaders that copy, in any order, use all of what they were granted, or nothing for long."""
    bucket, now_ms = Bucket(rate), 0.0
    unused = dict.fromkeys((1, 2, 3), 0)
    sent: list[tuple[float, int]] = []
    for pause_ms, senders, size in steps:
        now_ms += pause_ms
        for link, more in grants(bucket, unused, now_ms).items():
            unused[link] += more
        for link in senders:
            while unused[link] > 0:
                unused[link] -= size
                sent.append((now_ms, size))
    largest = max((size for _, size in sent), default=0)
    for _, _, total in most_in_a_window(sent):
        assert total <= rate * WINDOW_MS / 1_000 + 3 * largest + 1


def test_what_one_leader_does_not_use_the_others_get() -> None:
    bucket, unused, now_ms = Bucket(10 * MIB), {1: 0}, 0.0
    for link, more in grants(bucket, unused, now_ms).items():
        unused[link] += more  # alone, then it stops
    unused[2], used = 0, 0
    for _ in range(200):
        now_ms += 50
        for link, more in grants(bucket, unused, now_ms).items():
            unused[link] += more
        used += unused[2]
        unused[2] = 0
    assert used / (10 * MIB * 10) > 0.9


def test_a_leader_that_sent_more_than_it_had_pays_it_back() -> None:
    bucket = Bucket(1_000)
    assert grants(bucket, {1: -500}, 0) == {1: 100}
    assert grants(bucket, {1: -400}, 0) == {}
    assert grants(bucket, {1: -400}, 100) == {1: 97}


def test_without_a_limit_every_leader_has_credit_without_end() -> None:
    assert grants(Bucket(None), {1: 0, 2: 7}, 0) == {
        1: UNLIMITED_CREDIT,
        2: UNLIMITED_CREDIT - 7,
    }
    assert grants(Bucket(5), {}, 0) == {}


def test_buckets_of_any_rate_begin_full() -> None:
    for low, high in pairwise((1, 1_000, MIB)):
        assert Bucket(low).tokens(0) < Bucket(high).tokens(7)
