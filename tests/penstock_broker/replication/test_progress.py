"""How fast a copy is, from what was written here and what is left."""

from types import SimpleNamespace
from typing import Any, cast

from penstock.core.types import BrokerId, LeaderEpoch, PartitionState, ReplicaKey, TopicId
from penstock_broker.replication.progress import CopyWatch, Pace


def test_a_pace_is_that_of_the_last_ten_seconds() -> None:
    pace = Pace()
    assert pace.put(0, 0) == 0
    assert pace.put(2_000, 2_000) == 1_000
    for second in range(4, 14, 2):
        pace.put(second * 1_000, second * 1_000)
    assert pace.put(42_000, 14_000) == 3_800, "what was 12 s ago no longer counts"


def test_a_log_that_only_grows_is_not_copied() -> None:
    pace = Pace()
    written, left = 100, 100
    pace.put(written - left, 0)
    assert pace.put((written + 50) - (left + 50), 2_000) == 0


def test_a_copy_that_begins_anew_has_no_pace_until_it_moves() -> None:
    pace = Pace()
    pace.put(5_000, 0)
    assert pace.put(0, 2_000) == 0
    assert pace.put(1_000, 4_000) == 500


def test_a_copy_is_watched_from_the_image_on_that_names_its_leader() -> None:
    """The replica may lead only later, once its log is at rest, and no image comes then."""
    one, two, key = BrokerId(1), BrokerId(2), ReplicaKey(TopicId("t"), 0)
    state = PartitionState(
        leader=one,
        leader_epoch=LeaderEpoch(2),
        isr=(one,),
        replicas=(one,),
        version=3,
        adding=(two,),
    )
    replica = SimpleNamespace(key=key, marks=SimpleNamespace(is_leader=False))
    replicas = SimpleNamespace(broker_id=one, by_key={key: replica})
    view = SimpleNamespace(state=lambda _: state)
    watch = CopyWatch(*cast("tuple[Any, ...]", (replicas, view, None, None)))
    assert watch._running() == [(cast("Any", replica), two)]
