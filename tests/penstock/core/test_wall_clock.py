"""When a wall clock is trusted: not after a jump, until it is back or has held (I20)."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.wall_clock import DOUBT_MS, HOLD_MS, WallClockGuard, WallTime

ZERO_MS = 1_800_000_000_000
DAY_MS = 24 * 3_600_000
MINUTE_MS = 60_000
JUMPS = st.one_of(
    st.integers(DOUBT_MS + 1, 400 * DAY_MS), st.integers(-400 * DAY_MS, -DOUBT_MS - 1)
)
TIMES = st.lists(st.integers(0, HOLD_MS // 20), max_size=15).map(lambda gaps: [*accumulate(gaps)])
"""Of looks, in less than an hour."""


class Node:
    """A broker, and two wall clocks: its own, and the controller's. Each is ahead by so much."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.guard = WallClockGuard()
        self.now_ms = 5_000
        self.ahead_ms = ahead_ms

    @property
    def right_ms(self) -> int:
        return ZERO_MS + self.now_ms

    def told(self, ahead_ms: int = 0) -> None:
        self.guard.told(self.right_ms + ahead_ms, self.now_ms)

    def look(self, after_ms: int = 0) -> WallTime:
        self.now_ms += after_ms
        return self.guard.look(self.right_ms + self.ahead_ms, self.now_ms)


@given(JUMPS, TIMES)
def test_a_clock_that_jumped_is_not_trusted_within_an_hour(jump_ms: int, times: list[int]) -> None:
    node = Node()
    assert node.look() == WallTime(node.right_ms, True, node.right_ms)
    node.ahead_ms = jump_ms
    for before_ms, at_ms in pairwise([0, *times]):
        seen = node.look(at_ms - before_ms)
        assert seen == WallTime(node.right_ms, False, node.right_ms + jump_ms)
    node.ahead_ms = 0
    assert node.look().is_trusted, "it is back"


@given(JUMPS)
def test_a_clock_that_has_held_for_an_hour_was_set_on_purpose(jump_ms: int) -> None:
    node = Node()
    node.look()
    node.ahead_ms = jump_ms
    assert not node.look().is_trusted
    assert not node.look(HOLD_MS - 1).is_trusted
    assert node.look(1) == WallTime(node.right_ms + jump_ms, True, node.right_ms + jump_ms)
    node.ahead_ms = 0
    assert not node.look().is_trusted, "from now on this would be the jump"


def test_the_hour_begins_again_with_each_jump() -> None:
    node = Node()
    node.look()
    for number in range(1, 6):
        node.ahead_ms = number * DAY_MS
        assert not node.look(HOLD_MS - 1).is_trusted
        assert not node.look(HOLD_MS - 1).is_trusted
    assert node.look(1).is_trusted


@given(st.lists(st.integers(-DOUBT_MS // 2, DOUBT_MS // 2), min_size=1), st.integers(0, HOLD_MS))
def test_a_clock_that_is_set_by_minutes_stays_trusted(steps: list[int], every_ms: int) -> None:
    node = Node()
    node.look()
    for step_ms in steps:
        node.ahead_ms = step_ms
        assert node.look(every_ms).is_trusted


def test_a_clock_that_drifts_stays_trusted_and_one_that_runs_away_does_not() -> None:
    node = Node()
    node.look()
    for _ in range(100):
        node.ahead_ms += 9 * MINUTE_MS
        assert node.look(HOLD_MS).is_trusted
    for _ in range(3):
        node.ahead_ms += 9 * MINUTE_MS
        seen = node.look(MINUTE_MS)
    assert not seen.is_trusted


def test_time_goes_on_from_the_last_one_that_was_trusted() -> None:
    node = Node()
    node.look()
    node.ahead_ms = 9 * MINUTE_MS
    before = node.look(MINUTE_MS)
    node.ahead_ms = DAY_MS
    assert node.look(7).ms == before.ms + 7
    assert node.look(9).ms == before.ms + 16


# ---------------------------------------------------------------- the controller's clock


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_clock_that_is_wrong_at_the_start_is_not_trusted_before_it_is_set(
    is_told_first: bool,
) -> None:
    node = Node(8 * DAY_MS)
    for tell in (node.told, node.look) if is_told_first else (node.look, node.told):
        tell()
    for _ in range(30):
        assert node.look(HOLD_MS) == WallTime(node.right_ms, False, node.right_ms + node.ahead_ms)
        node.told()
    node.ahead_ms = -MINUTE_MS
    assert node.look().is_trusted, "at once: it never had a time that counted"
    node.ahead_ms = 8 * DAY_MS
    assert not node.look().is_trusted


def test_a_wrong_clock_that_is_set_to_another_wrong_time_is_not_trusted() -> None:
    node = Node(8 * DAY_MS)
    node.told()
    node.look()
    node.ahead_ms = 4 * DAY_MS
    for _ in range(4):
        assert node.look(HOLD_MS) == WallTime(node.right_ms, False, node.right_ms + node.ahead_ms)


def test_a_controllers_wrong_clock_is_overruled_by_one_that_is_right() -> None:
    node = Node()
    node.look()
    node.told(ahead_ms=8 * DAY_MS)
    assert not node.look(HOLD_MS).is_trusted
    node.told()
    assert node.look().is_trusted
    node.told(ahead_ms=8 * DAY_MS)
    assert node.look(HOLD_MS).is_trusted, "the clocks have agreed once: it is the controller's"


def test_a_jump_that_the_controller_does_not_see_is_never_trusted() -> None:
    node = Node()
    node.look()
    node.told()
    node.ahead_ms = DAY_MS
    for _ in range(5):
        assert node.look(HOLD_MS) == WallTime(node.right_ms, False, node.right_ms + DAY_MS)


def test_a_jump_of_both_clocks_is_not_trusted_within_an_hour_but_stamped_with() -> None:
    """They are on one machine, or this one has slept, which its monotonic clock did not count."""
    node = Node()
    node.told()
    node.look()
    node.ahead_ms = DAY_MS
    node.told(ahead_ms=DAY_MS)
    assert node.look() == WallTime(node.right_ms + DAY_MS, False, node.right_ms + DAY_MS)
    assert node.look(HOLD_MS).is_trusted
