"""Placement: balanced within one, no broker twice, racks spread, deterministic."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.control.placement import Load, place
from penstock.core.types import BrokerId


def brokers(racks: list[int]) -> dict[BrokerId, str]:
    """Broker ids 0, 1, … with `racks[i]` brokers in rack i."""
    names = [f"rack-{index}" for index, size in enumerate(racks) for _ in range(size)]
    return {BrokerId(broker_id): rack for broker_id, rack in enumerate(names)}


def spread(counts: Counter[BrokerId], all_brokers: dict[BrokerId, str]) -> int:
    found = [counts[broker_id] for broker_id in all_brokers]
    return max(found) - min(found)


@st.composite
def equal_racks(draw: st.DrawFn) -> tuple[dict[BrokerId, str], int, int]:
    rack_of = brokers([draw(st.integers(1, 5))] * draw(st.integers(1, 5)))
    return rack_of, draw(st.integers(1, 40)), draw(st.integers(1, len(rack_of)))


@st.composite
def any_racks(draw: st.DrawFn) -> tuple[dict[BrokerId, str], int, int]:
    rack_of = brokers(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    return rack_of, draw(st.integers(1, 30)), draw(st.integers(1, len(rack_of)))


@given(equal_racks())
@settings(max_examples=300, deadline=None)
def test_replicas_and_leaders_differ_by_at_most_one(
    case: tuple[dict[BrokerId, str], int, int],
) -> None:
    rack_of, partitions, factor = case
    placed = place(rack_of, partitions, factor, Load())
    replicas = Counter(member for replicas in placed for member in replicas)
    leaders = Counter(replicas[0] for replicas in placed)
    assert spread(replicas, rack_of) <= 1
    assert spread(leaders, rack_of) <= 1


@given(equal_racks())
@settings(max_examples=300, deadline=None)
def test_a_rack_holds_no_more_of_a_partition_than_it_must(
    case: tuple[dict[BrokerId, str], int, int],
) -> None:
    rack_of, partitions, factor = case
    limit = -(-factor // len(set(rack_of.values())))
    for replicas in place(rack_of, partitions, factor, Load()):
        assert max(Counter(rack_of[member] for member in replicas).values()) <= limit


@given(any_racks())
@settings(max_examples=300, deadline=None)
def test_unequal_racks_are_used_as_evenly_as_their_sizes_allow(
    case: tuple[dict[BrokerId, str], int, int],
) -> None:
    rack_of, partitions, factor = case
    placed = place(rack_of, partitions, factor, Load())
    assert len(placed) == partitions
    sizes = Counter(rack_of.values())
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        used = Counter(rack_of[member] for member in replicas)
        for rack in sizes:
            if used[rack] < sizes[rack]:  # it had room: no other rack got two more
                assert max(used.values()) <= used[rack] + 1


@given(any_racks())
@settings(max_examples=100, deadline=None)
def test_the_same_request_gets_the_same_answer(
    case: tuple[dict[BrokerId, str], int, int],
) -> None:
    rack_of, partitions, factor = case
    again = dict(reversed(rack_of.items()))
    first = place(rack_of, partitions, factor, Load())
    assert first == place(again, partitions, factor, Load())


@given(st.integers(1, 6), st.integers(1, 20), st.data())
@settings(max_examples=100, deadline=None)
def test_many_small_topics_balance_the_cluster(
    count: int, topics: int, data: st.DataObject
) -> None:
    rack_of = brokers([count])
    factor = data.draw(st.integers(1, count))
    load = Load()
    for _ in range(topics):
        place(rack_of, 1, factor, load.for_topic())
    assert spread(load.replicas, rack_of) <= 1
    if factor == count:
        assert spread(load.leaders, rack_of) <= 1


def test_more_partitions_go_where_the_topic_has_least() -> None:
    rack_of = brokers([4])
    load = Load()
    first = place(rack_of, 2, 1, load.for_topic())
    more = place(rack_of, 2, 1, load.for_topic(first))
    assert sorted(replicas[0] for replicas in first + more) == [0, 1, 2, 3]
