"""A topic's document fits into its object, whatever becomes of the topic after it was accepted."""

from typing import Any

import pytest
from support.controller_world import World

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control.documents import FORMAT_MOVES, TopicDocument, encode_topic, topic_key
from penstock.core.control.move_requests import OPEN_MOVES_MAX
from penstock.core.control.partition import PartitionDocument
from penstock.core.control.sizes import PartitionSizes
from penstock.core.limits import DOCUMENT_BYTES_MAX
from penstock.core.topic import PARTITIONS_MAX
from penstock.core.types import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    MoveReason,
    PartitionState,
    TopicId,
)
from penstock.errors import ErrorCode, PenstockError

BROKERS = 64


def ids(first: int, count: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId((first + number) % BROKERS) for number in range(count))


def code(outcome: Any) -> ErrorCode | None:
    error = outcome if isinstance(outcome, Exception) else getattr(outcome, "error", None)
    assert error is None or isinstance(error, PenstockError)
    return None if error is None else error.code


@pytest.fixture
def world() -> World:
    world = World().start()
    world.register_all(*range(BROKERS))
    return world


def assigned(world: World, partitions: int, replicas: int) -> c.TopicOutcome:
    return world.create(assignment=tuple(ids(number, replicas) for number in range(partitions)))


def test_a_topic_that_could_outgrow_its_object_is_not_created(world: World) -> None:
    refused = assigned(world, PARTITIONS_MAX, BROKERS)
    assert code(refused) is ErrorCode.INVALID_REQUEST
    assert "'t' with its 5000 partitions, their replicas and moves may take 2" in str(refused.error)
    assert "the limit is 917504; use fewer partitions or fewer replicas" in str(refused.error)
    assert code(assigned(world, PARTITIONS_MAX, 10)) is None


def test_more_partitions_are_added_only_if_they_fit(world: World) -> None:
    assert code(assigned(world, 10, BROKERS)) is None
    more = world.ask(c.CreatePartitions, topic="t", partitions=PARTITIONS_MAX)
    assert code(more) is ErrorCode.INVALID_REQUEST
    assert len(world.topic("t").partitions) == 10
    assert code(world.ask(c.CreatePartitions, topic="t", partitions=1_000)) is None


def change(world: World, partition: int, *target: BrokerId) -> m.ReplicaChange:
    expected = world.topic("t").partitions[partition].state.replicas
    return m.ReplicaChange(topic="t", partition=partition, expected=expected, target=target)


def alter(world: World, *changes: m.ReplicaChange) -> list[ErrorCode | None]:
    found = world.ask(m.AlterReplicas, changes=changes, why=MoveReason.DRAIN, change_factor=True)
    assert isinstance(found, m.ReplicasAltered), found
    return [code(outcome) for outcome in found.outcomes]


def test_more_replicas_are_given_only_if_they_fit_and_moves_wait_for_others(world: World) -> None:
    assert code(assigned(world, 4_700, 20)) is None
    wider = alter(world, *(change(world, number, *ids(number, 60)) for number in range(600)))
    first = wider.index(ErrorCode.INVALID_REQUEST)
    assert first > 10, "as many as fit"
    assert set(wider[first:]) == {ErrorCode.INVALID_REQUEST}
    same = [change(world, number, *ids(number + 30, 20)) for number in range(1_000, 2_000)]
    moves = alter(world, *same)
    assert moves[-1] is ErrorCode.QUEUE_FULL
    cancels = [m.ReplicaChange(topic="t", partition=number, cancel=True) for number in range(first)]
    assert alter(world, *cancels) == [None] * first
    assert alter(world, same[-1]) == [None], "there is room again"


def test_what_was_accepted_fits_with_large_numbers_in_bad_times_and_with_many_moves() -> None:
    def partition(number: int, replicas: int) -> PartitionDocument:
        found, third = ids(number, replicas), replicas // 3
        moves = number < OPEN_MOVES_MAX
        state = PartitionState(
            leader=found[0],
            leader_epoch=LeaderEpoch(100_000),
            isr=found[:third],
            replicas=found,
            version=1_000_000,
            adding=ids(number + 30, replicas) if moves else (),
            dropping=found if moves else (),
        )
        target = ids(number + 30, replicas) if moves else ()
        why = MoveReason.DRAIN if moves else None
        return PartitionDocument(state, elr=found[third:], target=target, why=why)

    empty = PartitionDocument(
        PartitionState(
            leader=BrokerId(0), leader_epoch=LeaderEpoch(0), isr=(), replicas=(), version=0
        )
    )
    accepted = []
    for replicas in range(1, BROKERS):
        partitions = tuple(partition(number, replicas) for number in range(PARTITIONS_MAX))
        sizes = PartitionSizes("t", (empty,) * PARTITIONS_MAX)
        try:
            for after in partitions:
                sizes.change(empty, after)
        except PenstockError:
            break
        document = TopicDocument(
            name="t" * 249,
            topic_id=TopicId("x" * 36),
            controller_epoch=ControllerEpoch(1_000_000),
            metadata_version=1_000_000_000,
            configs={},
            partitions=partitions,
            format=FORMAT_MOVES,
        )
        size = len(topic_key(document.name)) + len(encode_topic(document))
        assert size <= DOCUMENT_BYTES_MAX - 32 * 1024, "its rules may take as much"
        accepted.append(replicas)
    assert len(accepted) > 5
