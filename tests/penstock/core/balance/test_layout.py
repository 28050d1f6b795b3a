"""The working copy of a plan: how it finds replicas by size."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.balance import BrokerFacts, Facts, PartitionFacts
from penstock.core.balance.layout import Layout
from penstock.core.balance.score import Band
from penstock.core.types import BrokerId, TopicPartition

BROKER = BrokerId(0)


OTHER = BrokerId(1)
SIZES = st.lists(st.integers(0, 9), max_size=12)


def layout_of(sizes: list[int], *, shared: frozenset[int] = frozenset(), full: int = 0) -> Layout:
    """Partitions of these sizes on the first broker, some of them on the second one as well, whose
    disk has room for `full` more bytes; 0: for any."""
    partitions = []
    for at, one in enumerate(sizes):
        replicas = (BROKER, OTHER) if at in shared else (BROKER,)
        partitions.append(
            PartitionFacts(
                partition=TopicPartition(f"t-{at}", 0), replicas=replicas, isr=replicas,
                leader=BROKER, size_bytes=one, bytes_per_second=0,
            )
        )  # fmt: skip
    disk_bytes, free_bytes = (1_000, 200 + full) if full else (0, 0)
    other = BrokerFacts(id=OTHER, disk_bytes=disk_bytes, free_bytes=free_bytes)
    brokers = (BrokerFacts(id=BROKER), other)
    return Layout(Facts(brokers=brokers, partitions=tuple(partitions)))


@given(sizes=SIZES, size=st.integers(-1, 10), most=st.integers(0, 14))
def test_those_around_a_size_are_the_nearest_ones(sizes: list[int], size: int, most: int) -> None:
    """Of two that are equally far, the larger."""
    layout = layout_of(sizes)
    found = layout.around(0, size, most)
    far = [(abs(layout.size[at] - size), layout.size[at] < size) for at in found]
    assert far == sorted((abs(one - size), one < size) for one in sizes)[:most]
    assert len(set(found)) == len(found)


@given(
    sizes=SIZES,
    size=st.integers(-1, 10),
    shared=st.frozensets(st.integers(0, 11)),
    full=st.integers(0, 9),
)
def test_what_can_be_given_is_what_is_near_and_may_be_placed(
    sizes: list[int], size: int, shared: frozenset[int], full: int
) -> None:
    layout = layout_of(sizes, shared=shared, full=full)
    near = layout.around(0, size, len(sizes))
    expected = [one for one in near if layout.may_place(one, 1, 0)]
    assert list(layout.givable(0, 1, size)) == expected


_VALUES = st.integers(-30, 30)


@given(_VALUES, st.integers(0, 9), _VALUES, _VALUES, _VALUES)
def test_a_change_of_the_excess_is_the_difference(
    low: int, wide: int, source: int, target: int, amount: int
) -> None:
    band = Band(low, low + wide)
    before = band.total((source, target))
    after = band.total((source - amount, target + amount))
    assert band.change(source, target, amount) == after - before
    assert band.changes(source, target)(amount) == after - before
