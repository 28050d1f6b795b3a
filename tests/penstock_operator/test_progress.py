"""How far copies are, in words that are found in a text again."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_operator.progress import end_of, figures, without_figures

GIB, MIB = 1 << 30, 1 << 20
NOW = "2026-01-01T00:00:30Z"


@pytest.mark.parametrize(
    ("left", "rate", "after", "said"),
    [
        (None, 5, "", ""),
        (0, 5, "", ""),
        (15_247_133_901, 39 * MIB, "", ", 14.2 GiB at 39 MiB/s, about 7 min"),
        (3 * GIB, 40 * MIB, " left", ", 3 GiB left at 40 MiB/s, about 2 min"),
        (60 * MIB, MIB, "", ", 60 MiB at 1 MiB/s, less than a minute"),
        (3 * GIB, 0, "", ", 3 GiB to copy"),
        (3 * GIB, 0, " left", ", 3 GiB left"),
    ],
)
def test_bytes_rate_and_time_are_said(left: int | None, rate: int, after: str, said: str) -> None:
    assert figures(left, rate, after) == said


@given(
    left=st.none() | st.integers(0, 1 << 60),
    rate=st.integers(0, 1 << 40),
    after=st.sampled_from(["", " left", " to copy"]),
)
def test_every_such_text_is_found_again(left: int | None, rate: int, after: str) -> None:
    text = f"2 of them{figures(left, rate, after)}; broker 2{figures(left, rate)}"
    assert without_figures(text) == "2 of them; broker 2"


@given(seconds=st.integers(1, 1 << 40))
def test_the_end_is_a_whole_minute_and_not_too_early(seconds: int) -> None:
    said = end_of(seconds, NOW)
    assert said is not None
    at, now = datetime.fromisoformat(said), datetime.fromisoformat(NOW)
    assert at.second == 0
    needed = min(seconds, 365 * 86_400)
    assert needed <= (at - now).total_seconds() <= needed + 61


def test_the_end_stays_while_all_goes_as_it_did() -> None:
    said = [end_of(60 - at, f"2026-01-01T00:00:{at:02}Z") for at in range(50)]
    assert {*said} == {"2026-01-01T00:02:00Z"}


def test_nobody_knows_the_end_of_what_nobody_knows() -> None:
    assert end_of(None, NOW) is None


def test_the_time_that_is_said_may_be_longer_than_all_bytes_at_the_rate_of_all() -> None:
    assert figures(3 * GIB, 40 * MIB, seconds=400) == ", 3 GiB at 40 MiB/s, about 7 min"
