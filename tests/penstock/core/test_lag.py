"""Lag is real: not holes, not expired records, not 0 where nobody knows (I19)."""

from dataclasses import replace

import pytest

from penstock.core.batch import Batch, BatchFlags
from penstock.core.lag import Unread, fetch_from, oldest_unread, partition_lag
from penstock.core.records import build_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset

NOW_MS = 1_000_000


def batch(base: int, times: list[int], flags: BatchFlags = BatchFlags.NONE) -> Batch:
    columns = encode_columns([b"v"] * len(times), timestamps_ms=times)
    return build_batch(columns, flags=flags).stamped(Offset(base), LeaderEpoch(1), 0)


@pytest.mark.parametrize(
    ("committed", "log_start", "end", "asked"),
    [
        (5, 0, 10, 5),
        (5, 7, 10, 7),
        (10, 0, 10, None),
        (12, 0, 10, None),
        (-1, 0, 10, None),
        (0, 0, 0, None),
    ],
)
def test_the_oldest_unread_record_is_sought_where_reading_would_go_on(
    committed: int, log_start: int, end: int, asked: int | None
) -> None:
    assert fetch_from(committed, log_start, end) == asked


def test_a_position_inside_a_batch_finds_its_own_record() -> None:
    batches = [batch(0, [100, 200, 300]), batch(3, [400])]
    assert oldest_unread(batches, 1) == Unread(1, 200)
    assert oldest_unread(batches, 3) == Unread(3, 400)
    assert oldest_unread(batches, 4) is None


def test_control_batches_and_gaps_between_batches_are_no_records() -> None:
    marker = batch(3, [350], BatchFlags.CONTROL)
    assert oldest_unread([marker, batch(9, [900])], 3) == Unread(9, 900)
    assert oldest_unread([marker], 3) is None


def test_a_batch_that_cannot_be_opened_answers_by_its_header() -> None:
    good = batch(5, [500, 600])
    corrupt = Batch(replace(good.header, crc=good.header.crc ^ 1), good.payload)
    assert oldest_unread([corrupt], 6) == Unread(6, 500)


def test_lag_counts_from_the_first_unread_record() -> None:
    lag = partition_lag(3, 0, 20, Unread(9, NOW_MS - 7_000), NOW_MS)
    assert (lag.records, lag.lag_ms) == (11, 7_000)


def test_lag_of_who_has_read_everything_is_zero_even_before_a_hole() -> None:
    lag = partition_lag(3, 0, 20, None, NOW_MS)
    assert (lag.records, lag.lag_ms) == (0, 0)


def test_lag_without_a_committed_offset_is_unknown() -> None:
    lag = partition_lag(-1, 0, 20, None, NOW_MS)
    assert (lag.records, lag.lag_ms) == (None, None)


def test_a_timestamp_from_the_future_is_not_negative_lag() -> None:
    assert partition_lag(3, 0, 20, Unread(3, NOW_MS + 5_000), NOW_MS).lag_ms == 0
