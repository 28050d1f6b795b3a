"""A partition's position moves by what is handed out and by seeks, and by nothing else (I17)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.config import OutOfRangePolicy
from penstock.client.consumer.fetch_state import PAST_END_GRACE_MS, FetchState
from penstock.client.model import LATEST
from penstock.core.batch import Batch, BatchFlags
from penstock.core.records import build_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset, TopicPartition
from penstock.errors import ClusterError, ErrorCode, OffsetOutOfRangeError, OffsetRange

HERE = TopicPartition("t", 3)


def batch(base: int, count: int, *, control: bool = False) -> Batch:
    columns = encode_columns([b"%d" % (base + index) for index in range(count)], timestamps_ms=1)
    flags = BatchFlags.CONTROL if control else BatchFlags.NONE
    return build_batch(columns, flags=flags).stamped(Offset(base), LeaderEpoch(1), 0)


def state(position: int | None = 0) -> FetchState:
    made = FetchState(HERE, "id")
    made.seek(position)
    return made


def offsets(made: FetchState, max_records: int = 10**9) -> list[int]:
    seen: list[int] = []
    while (got := made.next_batch(max_records)) is not None:
        values = [int(value or b"") for value in got.values()]
        assert values == list(got.offsets())
        seen += values
    return seen


def test_a_position_inside_a_batch_trims_it() -> None:
    made = state(5)
    made.accept(5, [batch(0, 10), batch(10, 3)], 13)
    got = made.next_batch(100)
    assert got is not None
    assert (got.first_offset, got.last_offset, got.next_offset, len(got)) == (5, 9, 10, 5)
    assert (made.position, made.fetch_offset) == (10, 13)
    assert offsets(made) == [10, 11, 12]


def test_few_records_at_a_time_are_handed_out_without_loss() -> None:
    made = state(0)
    made.accept(0, [batch(0, 10)], 10)
    seen = []
    while (got := made.next_batch(3)) is not None:
        seen.append(list(got.offsets()))
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert made.buffered_bytes == 0


def test_an_answer_from_another_offset_is_dropped() -> None:
    made = state(0)
    made.accept(10, [batch(10, 10)], 20)
    assert made.fetch_offset == 0, "it would leave a gap"
    made.accept(0, [batch(0, 10)], 10)
    made.accept(0, [batch(0, 10)], 10)
    assert offsets(made) == list(range(10))


def test_more_is_known_to_follow_until_the_high_watermark_is_fetched() -> None:
    made = state(0)
    assert not made.has_more, "nothing is known yet"
    made.accept(0, [batch(0, 10)], 20)
    assert made.has_more
    made.accept(10, [batch(10, 10)], 20)
    assert not made.has_more
    made.seek(5)
    assert made.has_more


def test_nothing_is_expected_behind_an_open_transaction_until_it_ends() -> None:
    made = state(0)
    made.accept(0, [batch(0, 10)], 20, stable_offset=10)
    assert not made.has_more, "a fetch would wait"
    made.accept(10, [], 20, stable_offset=20)
    assert made.has_more


def test_batches_that_lie_before_the_fetch_offset_are_dropped() -> None:
    made = state(12)
    made.accept(12, [batch(0, 10), batch(10, 5)], 15)
    assert offsets(made) == [12, 13, 14]


def test_gaps_are_passed_over_and_control_batches_never_handed_out() -> None:
    made = state(0)
    made.accept(0, [batch(0, 2), batch(5, 2), batch(7, 1, control=True)], 8)
    assert offsets(made) == [0, 1, 5, 6]
    assert made.position == 8


def test_a_seek_forgets_what_was_fetched_and_changes_the_generation() -> None:
    made = state(0)
    made.accept(0, [batch(0, 10)], 10)
    before = made.generation
    made.seek(3)
    assert (made.position, made.fetch_offset, made.buffered_bytes) == (3, 3, 0)
    assert made.generation > before
    assert made.next_batch(1) is None


def test_pausing_drops_the_buffer_but_not_the_position() -> None:
    made = state(0)
    made.accept(0, [batch(0, 10)], 10)
    made.next_batch(4)
    made.drop_buffer()
    assert (made.position, made.fetch_offset, made.buffered_bytes) == (4, 4, 0)


def test_a_corrupt_batch_is_an_error_at_its_offset_and_the_position_stays() -> None:
    good = batch(10, 5)
    bad = Batch(good.header, good.payload[:-1] + bytes([good.payload[-1] ^ 1]))
    made = state(0)
    made.accept(0, [batch(0, 10), bad], 15)
    assert made.next_batch(100) is not None
    with pytest.raises(ClusterError, match=r"t/3 offset 10: .*CRC") as raised:
        made.next_batch(100)
    assert raised.value.code is ErrorCode.CORRUPT_BATCH
    assert made.position == 10
    assert made.error is raised.value
    made.seek(15)
    assert made.error is None


def out_of_range(
    made: FetchState, low: int, high: int, policy: OutOfRangePolicy, at_ms: int
) -> str | None:
    error = OffsetOutOfRangeError("no", OffsetRange(low, high))
    return made.out_of_range(error, policy, at_ms)


def test_truncated_retention_is_an_error_with_position_and_range() -> None:
    made = state(5)
    assert out_of_range(made, 20, 30, "error", 0) is None
    assert isinstance(made.error, OffsetOutOfRangeError)
    assert made.error.valid == OffsetRange(20, 30)
    for part in ("t/3", "offset 5", "20 to 30", "retention", "on_offset_out_of_range"):
        assert part in made.error.message


@pytest.mark.parametrize(("policy", "place"), [("earliest", "EARLIEST"), ("latest", "LATEST")])
def test_a_policy_moves_the_position_with_a_warning(policy: OutOfRangePolicy, place: str) -> None:
    made = state(5)
    warning = out_of_range(made, 20, 30, policy, 0)
    assert warning is not None
    assert "offset 5" in warning
    assert (made.position, made.start.name, made.error) == (None, place, None)


def test_a_position_below_one_brokers_log_start_never_goes_back_on_another_ones_word() -> None:
    made = state(12)
    assert out_of_range(made, 15, 30, "earliest", 0) is not None
    made.looked_up(8)
    assert made.position == 12
    assert out_of_range(made, 15, 30, "earliest", 0) is not None
    made.looked_up(15)
    assert made.position == 15


def test_a_position_past_the_end_for_too_long_goes_where_the_policy_says() -> None:
    made = state(50)
    assert out_of_range(made, 0, 30, "earliest", 0) is None
    assert out_of_range(made, 0, 30, "earliest", 1 + PAST_END_GRACE_MS) is not None
    made.looked_up(8)
    assert made.position == 8


def test_a_seek_goes_back_whatever_was_removed() -> None:
    made = state(12)
    assert out_of_range(made, 15, 30, "earliest", 0) is not None
    made.seek(None)
    made.looked_up(8)
    assert made.position == 8


def test_a_policy_waits_until_what_was_fetched_before_is_handed_out() -> None:
    made = state(0)
    made.accept(0, [batch(0, 10)], 10)
    assert out_of_range(made, 20, 30, "latest", 0) is None
    assert made.position == 0
    assert offsets(made) == list(range(10))
    assert out_of_range(made, 20, 30, "latest", 0) is not None
    assert made.start is LATEST


def test_a_position_past_the_end_is_taken_for_a_lagging_leader_first() -> None:
    made = state(50)
    assert out_of_range(made, 0, 30, "error", 1_000) is None
    assert out_of_range(made, 0, 30, "error", 1_000 + PAST_END_GRACE_MS) is None
    assert made.error is None
    assert out_of_range(made, 0, 30, "error", 1_001 + PAST_END_GRACE_MS) is None
    assert made.error is not None
    assert "never written" in made.error.message


def test_failures_pause_and_success_ends_them() -> None:
    made = state(0)
    for pause in (10, 20, 40, 40):
        made.back_off(10, 40, 1_000)
        assert made.retry_at_ms == 1_000 + pause
    made.accept(0, [batch(0, 1)], 1)
    assert made.failing_since_ms is None
    made.back_off(10, 40, 2_000)
    assert made.retry_at_ms == 2_010


def test_nothing_is_fetched_without_room_reason_or_position() -> None:
    assert state(0).wants_fetch(100)
    assert not state(None).wants_fetch(100)
    full = state(0)
    full.accept(0, [batch(0, 50)], 50)
    assert not full.wants_fetch(100)
    paused = state(0)
    paused.paused = True
    assert not paused.wants_fetch(100)


@given(st.integers(0, 40), st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_every_offset_comes_once_however_answers_overlap_and_polls_cut(
    start: int, counts: list[int], data: st.DataObject
) -> None:
    log, end = [], 0
    for count in counts:
        log.append(batch(end, count))
        end += count
    start = min(start, end)
    made, seen = state(start), []
    for _ in range(200):
        if made.position == end:
            break
        if data.draw(st.booleans()):
            asked = made.fetch_offset
            first = next((i for i, one in enumerate(log) if one.next_offset > asked), len(log))
            size = data.draw(st.integers(0, 3))
            answer = log[max(0, first - data.draw(st.integers(0, 1))) : first + size]
            stale = asked - 1 if data.draw(st.integers(0, 4)) == 0 else asked
            made.accept(stale, answer, end)
        got = made.next_batch(data.draw(st.integers(1, 5)))
        seen += [] if got is None else list(got.offsets())
    made.accept(made.fetch_offset, [one for one in log if one.next_offset > made.fetch_offset], end)
    seen += offsets(made)
    assert seen == list(range(start, end))


def test_batches_carry_the_broker_stamps() -> None:
    stamped = replace(batch(4, 2).header, leader_epoch=LeaderEpoch(9))
    made = state(4)
    made.accept(4, [Batch(stamped, batch(4, 2).payload)], 6)
    got = made.next_batch(9)
    assert got is not None
    assert (got.leader_epoch, got.high_watermark, got.topic_partition) == (9, 6, HERE)
