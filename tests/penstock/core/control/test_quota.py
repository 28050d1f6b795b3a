"""How many partitions a cluster may have, and how fast topics may change."""

from typing import Any

import pytest
from support.controller_world import World

from penstock.core.control import ControlConfig
from penstock.core.control import contract as c
from penstock.core.control.quota import BURST_S, MutationQuota
from penstock.core.topic import INTERNAL_TOPICS
from penstock.core.types import TopicId
from penstock.errors import ErrorCode, OverloadedError, PenstockError

INTERNAL: dict[str, Any] = {"partitions": 50, "configs": {"cleanup.policy": "compact"}}


def small(**changes: Any) -> World:
    world = World(config=ControlConfig(default_replication_factor=1, **changes))
    world.start()
    world.register(0)
    return world


def refusal(outcome: Any) -> PenstockError:
    error = outcome if isinstance(outcome, PenstockError) else outcome.error
    assert isinstance(error, PenstockError), outcome
    return error


# ---------------------------------------------------------------- how many


def test_the_last_partition_that_fits_is_created_and_the_next_is_not() -> None:
    world = small(partitions_max=10)
    assert world.create("a", partitions=6).error is None
    error = refusal(world.create("b", partitions=5))
    assert error.code is ErrorCode.INVALID_PARTITIONS
    assert not error.retriable
    assert error.message == (
        "topic 'b' requests 5 more partitions, but the cluster has 6 of at most 10 "
        "(max.partitions); delete topics, request fewer, or raise the limit"
    )
    assert world.create("b", partitions=4).error is None


def test_partitions_that_are_added_count() -> None:
    world = small(partitions_max=10)
    world.create("a", partitions=6)
    error = refusal(world.ask(c.CreatePartitions, topic="a", partitions=11))
    assert "requests 5 more partitions, but the cluster has 6 of at most 10" in error.message
    assert world.ask(c.CreatePartitions, topic="a", partitions=10) == c.Done()
    assert refusal(world.create("b")).code is ErrorCode.INVALID_PARTITIONS


def test_an_assignment_counts_and_so_do_topics_of_the_same_request() -> None:
    world = small(partitions_max=10)
    request_id = world.new_id()
    assignment = tuple((next(iter(world.cluster().brokers)),) for _ in range(4))
    topics = tuple(
        c.NewTopic(name=name, topic_id=TopicId(name), assignment=assignment) for name in "abc"
    )
    world.step(c.CreateTopics(request_id, "", topics))
    result = world.replies[request_id]
    assert isinstance(result, c.TopicsChanged)
    assert [outcome.error is None for outcome in result.outcomes] == [True, True, False]
    assert "has 8 of at most 10" in refusal(result.outcomes[2]).message


def test_a_deleted_topic_makes_room() -> None:
    world = small(partitions_max=10)
    world.create("a", partitions=10)
    assert refusal(world.create("b")).code is ErrorCode.INVALID_PARTITIONS
    delete(world)
    assert world.create("b", partitions=10).error is None


def test_what_brokers_need_is_always_created_and_does_not_count() -> None:
    world = small(partitions_max=10, mutation_rate=1)
    world.create("a", partitions=10)
    for number in range(9):
        alter(world, number)
    assert refusal(alter(world, 9)).code is ErrorCode.OVERLOADED
    for topic in sorted(INTERNAL_TOPICS - {"__transactions"}):
        assert world.create(topic, **INTERNAL).error is None
    world.pass_time(20)
    assert alter(world, 9) == c.Done()


def test_a_request_names_only_so_many_topics() -> None:
    world = small()
    topics = tuple((f"t{number}", TopicId("")) for number in range(1_001))
    error = refusal(world.ask(c.DeleteTopics, topics=topics))
    assert error.message == (
        "the request names 1001 topics, the limit is 1000; split it into several"
    )


# ---------------------------------------------------------------- how fast


def alter(world: World, number: int) -> Any:
    """Changes topic a."""
    changed = {"retention.ms": str(1_000 + number)}
    return world.ask(c.AlterConfigs, topic="a", set_configs=changed, unset_configs=())


def delete(world: World) -> Any:
    return world.ask(c.DeleteTopics, topics=(("a", TopicId("")),))


def test_a_bucket_is_emptied_owes_and_fills_again() -> None:
    quota = MutationQuota(10)
    quota.check(5_000)
    quota.charge(BURST_S * 10 + 5)
    with pytest.raises(OverloadedError) as caught:
        quota.check(5_400)
    assert caught.value.throttle_ms == 101
    assert "topics change too fast: 1 partitions more than the limit of 10 per second" in str(
        caught.value
    )
    quota.check(5_400 + 101)
    quota.charge(1_000)
    with pytest.raises(OverloadedError):
        quota.check(6_000)


def test_a_bucket_holds_no_more_than_a_burst() -> None:
    quota = MutationQuota(10)
    quota.check(0)
    quota.check(10_000_000)
    quota.charge(BURST_S * 10)
    with pytest.raises(OverloadedError):
        quota.check(10_000_000)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (c.CreatePartitions, {"topic": "a", "partitions": 60}),
        (
            c.AlterConfigs,
            {"topic": "a", "set_configs": {"retention.ms": "1"}, "unset_configs": ()},
        ),
        (c.DeleteTopics, {"topics": (("a", TopicId("")),)}),
    ],
)
def test_every_change_of_a_topic_is_paid_with_its_partitions(
    kind: type, fields: dict[str, Any]
) -> None:
    world = small(mutation_rate=1)
    world.create("a", partitions=50)
    assert not isinstance(world.ask(kind, **fields), PenstockError)
    error = refusal(delete(world))
    assert error.code is ErrorCode.OVERLOADED
    assert error.retriable


def test_what_changes_nothing_costs_nothing() -> None:
    world = small(mutation_rate=1)
    world.create("a", partitions=50)
    for _ in range(3):
        world.create("a", partitions=50)
        world.ask(c.DeleteTopics, topics=(("a", TopicId("")),), validate_only=True)
        world.ask(c.AlterConfigs, topic="a", set_configs={}, unset_configs=())
    assert isinstance(delete(world), c.TopicsChanged)
