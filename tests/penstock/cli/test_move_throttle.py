"""Which rates the throttle of moves takes."""

import pytest

from penstock.cli.move_throttle import Rate, parse
from penstock.cli.usage import WrongUsageError
from penstock.core.limits import COPY_RATE_MAX


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("40Mi", 40 << 20),
        ("40MiB", 40 << 20),
        ("none", 0),
        ("default", None),
        (str(COPY_RATE_MAX), COPY_RATE_MAX),
    ],
)
def test_a_rate_is_bytes_per_second(text: str, rate: int | None) -> None:
    assert parse(text) == Rate(rate)


@pytest.mark.parametrize("text", [str(COPY_RATE_MAX + 1), "9" * 20])
def test_a_rate_that_nothing_carries_is_refused_with_the_limit(text: str) -> None:
    with pytest.raises(WrongUsageError, match=f"'{text}' is {text} .* limit is {COPY_RATE_MAX};"):
        parse(text)
