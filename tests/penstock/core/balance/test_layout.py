"""The working copy of a plan: how it finds replicas by size."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.balance import BrokerFacts, Facts, PartitionFacts
from penstock.core.balance.layout import Layout
from penstock.core.types import BrokerId, TopicPartition

BROKER = BrokerId(0)


@given(
    sizes=st.lists(st.integers(0, 9), max_size=12),
    size=st.integers(-1, 10),
    most=st.integers(0, 14),
)
def test_the_nearest_few_are_the_first_of_all_the_nearest(
    sizes: list[int], size: int, most: int
) -> None:
    partitions = tuple(
        PartitionFacts(
            partition=TopicPartition(f"t-{at}", 0), replicas=(BROKER,), isr=(BROKER,),
            leader=BROKER, size_bytes=one, bytes_per_second=0,
        )
        for at, one in enumerate(sizes)
    )  # fmt: skip
    layout = Layout(Facts(brokers=(BrokerFacts(id=BROKER),), partitions=partitions))
    few = layout.around(0, size, most)
    assert few == list(islice(layout.nearest(0, size), most))
