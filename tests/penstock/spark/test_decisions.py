"""The decisions of a trigger: how much, in which tasks, and what is gone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.types import TopicPartition
from penstock.spark.admission import Limit, Pacer, admit, backlog
from penstock.spark.data_loss import DataLossError, Known, LogView, find_losses, raise_losses
from penstock.spark.planning import SMALL_TASK_RECORDS, Limits, ReadRange, pack, plan, split

Backlog = tuple[dict[TopicPartition, int], dict[TopicPartition, int]]
"""Where to begin, and the end."""


def tp(partition: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, partition)


@st.composite
def backlogs(draw: st.DrawFn) -> Backlog:
    count = draw(st.integers(0, 9))
    begin = {tp(i): draw(st.integers(0, 2**62)) for i in range(count)}
    sizes = st.one_of(st.integers(0, 12), st.integers(0, 2**61))
    return begin, {p: at + draw(sizes) for p, at in begin.items()}


# --- admission


@given(backlogs(), st.integers(1, 40) | st.integers(1, 2**61))
def test_a_limit_is_kept_exactly_and_nobody_starves(case: Backlog, limit: int) -> None:
    begin, end = case
    new = admit(begin, end, Limit(max_rows=limit), {})
    total = sum(end.values()) - sum(begin.values())
    assert new.keys() == begin.keys()
    assert all(begin[p] <= new[p] <= end[p] for p in begin)
    assert sum(new.values()) - sum(begin.values()) == min(limit, total)
    waiting = backlog(begin, end)
    if limit >= len(waiting):
        assert all(new[p] > begin[p] for p in waiting)


@given(backlogs())
def test_without_a_limit_all_is_read(case: Backlog) -> None:
    begin, end = case
    assert admit(begin, end, Limit(), {}) == end


def test_shares_are_proportional_to_the_backlog() -> None:
    new = admit({tp(0): 0, tp(1): 50}, {tp(0): 900, tp(1): 150}, Limit(max_rows=100), {})
    assert new == {tp(0): 89, tp(1): 61}  # one each, the rest by size


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_limit_below_the_number_of_partitions_goes_round(limit: int) -> None:
    position = {tp(i): 0 for i in range(5)}
    for _ in range(5):  # everybody else is refilled for ever
        position = admit(position, {p: at + 1000 for p, at in position.items()}, Limit(limit), {})
    assert set(position.values()) == {limit}


def test_a_partition_that_moved_back_is_left_where_it_is() -> None:
    assert admit({tp(0): 9}, {tp(0): 5}, Limit(), {}) == {tp(0): 9}


def test_a_byte_limit_counts_mean_record_sizes() -> None:
    begin, end = {tp(0): 0, tp(1): 0}, {tp(0): 1000, tp(1): 1000}
    sizes = {tp(0): 100.0, tp(1): 300.0}
    new = admit(begin, end, Limit(max_bytes=40_000), sizes)
    assert new == {tp(0): 100, tp(1): 100}
    assert admit(begin, end, Limit(max_bytes=2048), {}) == {tp(0): 1, tp(1): 1}


def test_the_tighter_of_two_limits_wins_and_one_record_always_passes() -> None:
    begin, end, sizes = {tp(0): 0}, {tp(0): 1000}, {tp(0): 1000.0}
    assert admit(begin, end, Limit(max_rows=10, max_bytes=500_000), sizes) == {tp(0): 10}
    assert admit(begin, end, Limit(max_rows=10, max_bytes=5_000), sizes) == {tp(0): 5}
    assert admit(begin, end, Limit(max_bytes=1), sizes) == {tp(0): 1}


def test_the_pacer_waits_for_rows_or_time_but_not_at_first() -> None:
    pacer = Pacer(min_rows=100, max_delay_ms=1000)
    assert not pacer.holds_back(1, now_ms=50)
    assert pacer.holds_back(99, now_ms=100)
    assert not pacer.holds_back(100, now_ms=200)
    assert pacer.holds_back(1, now_ms=1199)
    assert not pacer.holds_back(1, now_ms=1200)
    assert not Pacer(None, 1000).holds_back(0, now_ms=0)


# --- planning

ranges = st.lists(
    st.builds(
        lambda p, lo, size: ReadRange("t", p, lo, lo + size),
        st.integers(0, 50),
        st.integers(0, 2**40),
        st.integers(1, 200_000),
    ),
    max_size=12,
    unique_by=lambda r: r.partition,
)
limits = st.builds(
    Limits,
    st.none() | st.integers(1, 30),
    st.none() | st.integers(20_000, 90_000),
    st.none() | st.integers(1, 30),
)


def rejoined(tasks: list[tuple[ReadRange, ...]]) -> list[ReadRange]:
    """All ranges, adjacent ones of one partition put together again."""
    joined: list[ReadRange] = []
    for r in sorted(r for task in tasks for r in task):
        last = joined[-1] if joined else None
        if last and (last.topic, last.partition, last.hi) == (r.topic, r.partition, r.lo):
            joined[-1] = ReadRange(r.topic, r.partition, last.lo, r.hi)
        else:
            joined.append(r)
    return joined


@given(ranges, limits)
def test_every_offset_is_read_once_and_in_order(wanted: list[ReadRange], limit: Limits) -> None:
    tasks = pack(split(wanted, limit), limit)
    assert rejoined(tasks) == sorted(wanted)
    assert all(list(task) == sorted(task) and task for task in tasks)
    if limit.max_tasks is not None:
        assert len(tasks) <= limit.max_tasks
    elif limit.max_records is not None:
        assert all(sum(r.size for r in task) <= limit.max_records for task in tasks)
    if limit.min_partitions is not None and limit.max_tasks is None and wanted:
        assert len(tasks) >= min(limit.min_partitions, sum(r.size for r in wanted))


@given(ranges)
def test_plans_are_the_same_every_time(wanted: list[ReadRange]) -> None:
    assert pack(wanted, Limits()) == pack(list(reversed(wanted)), Limits())


def test_small_ranges_share_a_task_and_large_ones_do_not() -> None:
    small = [ReadRange("t", i, 0, 1000) for i in range(12)]
    assert len(pack(small, Limits())) == 1
    large = [ReadRange("t", i, 0, 5 * SMALL_TASK_RECORDS) for i in range(6)]
    assert len(pack(large, Limits())) == 6
    assert [len(task) for task in pack(large, Limits(max_tasks=2))] == [3, 3]


def test_minimum_of_partitions_is_kept_for_small_backlogs() -> None:
    tasks = plan({tp(0): 0}, {tp(0): 10}, {"orders": "id"}, Limits(min_partitions=4))
    assert [len(task) for task in tasks] == [1, 1, 1, 1]
    assert rejoined(tasks) == [ReadRange("orders", 0, 0, 10)]
    assert all(r.topic_id == "id" for task in tasks for r in task)


def test_small_ranges_share_a_task_only_up_to_the_maximum_of_records() -> None:
    ranges_ = [ReadRange("t", i, 0, 12_000) for i in range(3)]
    assert len(pack(ranges_, Limits())) == 2
    assert len(pack(ranges_, Limits(max_records=20_000))) == 3


def test_many_pieces_are_packed_in_one_go() -> None:
    """With work per pair of pieces instead of per piece, this takes minutes."""
    wanted = ReadRange("t", 0, 0, 50_000_000)
    limit = Limits(max_records=1000)
    tasks = pack(split([wanted], limit), limit)
    assert len(tasks) == 50_000
    assert rejoined(tasks) == [wanted]


def test_nothing_to_read_is_no_task() -> None:
    assert plan({tp(0): 5, tp(1): 9}, {tp(0): 5, tp(1): 3}, {}, Limits(min_partitions=4)) == []


# --- data loss


def losses(known: Known, **view: Any) -> list[tuple[str, int | None]]:
    defaults: dict[str, Any] = {
        "ends": {tp(0): 100},
        "topic_ids": {"orders": "new"},
        "starts": {tp(0): 10},
    }
    return [(x.message, x.resume_at) for x in find_losses(known, LogView(**(defaults | view)))]


@pytest.mark.parametrize("position", [10, 50, 100])
def test_a_position_within_the_log_is_no_loss(position: int) -> None:
    assert losses(Known({tp(0): position}, {"orders": "new"})) == []


def test_retention_past_the_position_is_a_loss() -> None:
    [(message, resume_at)] = losses(Known({tp(0): 3}))
    assert message == (
        "orders/0 lost 7 records to retention: requested offset 3, available are 10 to 100"
    )
    assert resume_at == 10


def test_a_log_that_ends_before_the_position_is_a_loss() -> None:
    [(message, resume_at)] = losses(Known({tp(0): 101}))
    assert "ends before the query's position: requested offset 101" in message
    assert "available are 10 to 100" in message
    assert resume_at == 100


def test_a_topic_out_of_sight_is_not_said_to_be_gone() -> None:
    known = Known({tp(7): 3}, {"orders": "id"})
    for topic_ids in ({}, {"orders": "id"}):
        view = LogView({tp(0): 100}, topic_ids)
        [loss] = find_losses(known, view)
        assert loss.message == (
            "orders/7 does not exist, or this user may not see it any more; the query was at "
            "offset 3"
        )
        assert loss.out_of_sight
        with pytest.raises(DataLossError, match="penstock acl list"):
            raise_losses([loss])


def test_a_partition_that_a_topic_created_again_lacks_is_lost_for_good() -> None:
    [loss] = find_losses(Known({tp(7): 3}, {"orders": "old"}), LogView({}, {"orders": "new"}))
    assert "orders/7 was deleted and created again (topic id old, now new)" in loss.message
    assert (loss.resume_at, loss.out_of_sight) == (None, False)


def test_a_topic_created_again_is_a_loss_even_if_the_offsets_fit() -> None:
    [(message, resume_at)] = losses(Known({tp(0): 50}, {"orders": "old"}))
    assert "orders/0 was deleted and created again (topic id old, now new)" in message
    assert "offset 50" in message
    assert resume_at == 10


def test_an_unknown_topic_id_proves_nothing() -> None:
    assert losses(Known({tp(0): 50}, {"orders": "old"}), topic_ids={}) == []


def test_the_error_counts_the_others_and_names_the_option() -> None:
    view = LogView({tp(0): 9}, {}, {})
    found = find_losses(Known({tp(0): 20, tp(1): 5, tp(2): 5}), view)
    with pytest.raises(DataLossError) as caught:
        raise_losses(found)
    message = str(caught.value)
    assert message.startswith("orders/0 ends before")
    assert "(and 2 more partitions)" in message
    assert "failOnDataLoss" in message
    assert "\n" not in message
    assert not caught.value.retriable
    raise_losses([])
