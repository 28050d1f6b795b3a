"""The end of copies is that of the broker that has most left for its rate."""

from hypothesis import given
from hypothesis import strategies as st
from support.operator_world import copying

from penstock.client import CopyDescription, MoveDescription
from penstock.client.admin.move_model import MoveState
from penstock.client.admin.receiving import Receiving, receiving, seconds_left
from penstock.core.types import MoveReason, TopicPartition

SIZES = {TopicPartition("t", at): 100 for at in range(9)}


def move(partition: int, target: tuple[int, ...], *copies: CopyDescription) -> MoveDescription:
    """Of a partition on brokers 0 and 3."""
    return MoveDescription(
        where=TopicPartition("t", partition),
        topic_id="id",
        state=MoveState.COPYING if copies else MoveState.QUEUED,
        reason=MoveReason.DRAIN,
        leader=0,
        replicas=(0, 3),
        isr=(0, 3),
        target=target,
        adding=tuple(each.broker_id for each in copies),
        dropping=(),
        damaged=(),
        waiting_for="",
        copies=copies,
    )


def test_a_broker_receives_what_runs_and_what_is_queued() -> None:
    running = move(0, (0, 1), copying(1, left=30, rate=5))
    both = move(1, (1, 2), copying(1, left=10, rate=5), copying(2, left=10, rate=8))
    queued = move(2, (0, 2))
    unknown = move(20, (0, 2))
    assert receiving([running, both, queued, unknown], SIZES) == {
        1: Receiving(left=40, rate=10),
        2: Receiving(left=110, rate=8),
    }


def test_the_slowest_to_receive_all_decides() -> None:
    quick, slow = Receiving(left=100, rate=10), Receiving(left=300, rate=10)
    assert seconds_left([quick, slow]) == 30, "all at the rate of all would be 20"
    assert seconds_left([quick, Receiving(left=95, rate=20)]) == 10
    assert seconds_left([Receiving(left=101, rate=10)]) == 11, "rounded up"


def test_what_does_not_arrive_yet_counts_at_the_rate_of_the_others() -> None:
    assert seconds_left([Receiving(left=100, rate=10), Receiving(left=300)]) == 40
    assert seconds_left([Receiving(left=100, rate=10)], unplanned=200) == 30


def test_nobody_knows_the_time_while_nothing_is_copied() -> None:
    assert seconds_left([Receiving(left=100)]) is None
    assert seconds_left([Receiving(left=0, rate=10)]) is seconds_left([]) is None


@given(st.lists(st.builds(Receiving, st.integers(1, 1 << 50), st.integers(1, 1 << 40)), min_size=1))
def test_nobody_is_promised_the_end_before_all_could_have_arrived(brokers: list[Receiving]) -> None:
    seconds = seconds_left(brokers)
    assert seconds is not None
    assert all(one.rate * seconds >= one.left for one in brokers)
