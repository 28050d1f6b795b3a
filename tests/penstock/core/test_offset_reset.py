"""A reset goes where it says, or says why it cannot."""

import pytest

from penstock.core.offset_reset import Move, ResetKind, ResetTo, move, parse_duration_ms
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError, OffsetRange

HERE = TopicPartition("t", 3)
LOG = OffsetRange(10, 50)
NOW_MS = 1_000_000_000


@pytest.mark.parametrize(
    ("to", "committed", "at_time", "offset"),
    [
        (ResetTo(ResetKind.EARLIEST), -1, -1, 10),
        (ResetTo(ResetKind.LATEST), 20, -1, 50),
        (ResetTo(ResetKind.OFFSET, 10), 20, -1, 10),
        (ResetTo(ResetKind.OFFSET, 50), -1, -1, 50),
        (ResetTo(ResetKind.SHIFT, -5), 20, -1, 15),
        (ResetTo(ResetKind.SHIFT, 30), 20, -1, 50),
        (ResetTo(ResetKind.DATETIME, 7), 20, 33, 33),
        (ResetTo(ResetKind.DURATION, 7), -1, 33, 33),
        (ResetTo(ResetKind.DATETIME, 7), 20, -1, 50),
    ],
)
def test_every_way_leads_to_an_offset_in_the_log(
    to: ResetTo, committed: int, at_time: int, offset: int
) -> None:
    assert move(to, HERE, committed, LOG, at_time) == Move(offset)


@pytest.mark.parametrize(
    ("to", "wanted", "nearest"),
    [
        (ResetTo(ResetKind.OFFSET, 9), 9, 10),
        (ResetTo(ResetKind.OFFSET, 51), 51, 50),
        (ResetTo(ResetKind.SHIFT, -100), -80, 10),
        (ResetTo(ResetKind.SHIFT, 100), 120, 50),
    ],
)
def test_what_is_not_in_the_log_is_refused_or_moved_when_told_to(
    to: ResetTo, wanted: int, nearest: int
) -> None:
    with pytest.raises(MisuseError, match=f"t/3: offset {wanted} .* 10 to 50") as caught:
        move(to, HERE, 20, LOG, -1)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert move(to, HERE, 20, LOG, -1, clamp=True) == Move(nearest, wanted)


def test_nothing_committed_cannot_be_shifted() -> None:
    with pytest.raises(MisuseError, match="t/3: no offset is committed"):
        move(ResetTo(ResetKind.SHIFT, 1), HERE, -1, LOG, -1, clamp=True)


def test_only_times_need_to_be_looked_up() -> None:
    assert ResetTo(ResetKind.DATETIME, 77).time_ms(NOW_MS) == 77
    assert ResetTo(ResetKind.DURATION, 77).time_ms(NOW_MS) == NOW_MS - 77
    assert ResetTo(ResetKind.DURATION, NOW_MS + 1).time_ms(NOW_MS) == 0
    assert ResetTo(ResetKind.SHIFT, 77).time_ms(NOW_MS) is None


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("PT1H30M", 5_400_000),
        ("P1DT1S", 86_401_000),
        ("p1d", 86_400_000),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "5", "soon", "-1h", "1m1h", "1.5h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(MisuseError, match="is not a duration"):
        parse_duration_ms(text)
