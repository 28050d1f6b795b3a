"""ISR changes, producer ids, leader moves, topics: what is granted and what is refused, and why."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.controller_world import World

from penstock.core.control import ControlConfig
from penstock.core.control import contract as c
from penstock.core.topic import PARTITIONS_MAX
from penstock.core.types import BrokerId, ControllerEpoch, TopicId, TopicPartition
from penstock.errors import ErrorCode, NotLeaderError, OverloadedError


def code(outcome: object) -> ErrorCode | None:
    """The error's code; None = it succeeded."""
    found = getattr(outcome, "error", outcome)
    return getattr(found, "code", None)


# ---------------------------------------------------------------- AlterIsr


def test_the_leader_changes_its_isr_by_version(three: World) -> None:
    before = three.topic().partitions[0].state
    outcome = three.alter_isr(0, (0, 2))
    assert outcome.error is None
    assert outcome.state is not None
    assert outcome.state.isr == (0, 2)
    assert outcome.state.version == before.version + 1
    assert outcome.state.leader_epoch == before.leader_epoch


def test_a_second_change_on_the_same_version_is_stale_and_told_what_is_stored(three: World) -> None:
    version = three.topic().partitions[0].state.version
    assert three.alter_isr(0, (0, 1)).error is None
    outcome = three.alter_isr(0, (0, 2), version=version)
    assert code(outcome) is ErrorCode.STALE_PARTITION_VERSION
    assert outcome.state is not None
    assert outcome.state.isr == (0, 1)
    assert three.state()[2] == (0, 1)


def test_the_same_change_asked_twice_succeeds_twice(three: World) -> None:
    version = three.topic().partitions[0].state.version
    first = three.alter_isr(0, (0, 1))
    second = three.alter_isr(0, (0, 1), version=version)
    assert second.error is None
    assert second.state == first.state


@pytest.mark.parametrize(
    ("leader", "changes", "expected"),
    [
        (1, {}, ErrorCode.NOT_LEADER),
        (0, {"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        (0, {"leader_epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (0, {"topic_id": "gone"}, ErrorCode.UNKNOWN_TOPIC),
        (0, {"partition": 1}, ErrorCode.UNKNOWN_PARTITION),
        (0, {"version": 99}, ErrorCode.STALE_PARTITION_VERSION),
        (0, {"isr": (1, 2)}, ErrorCode.INVALID_REQUEST),
        (0, {"isr": ()}, ErrorCode.INVALID_REQUEST),
        (0, {"isr": (0, 0)}, ErrorCode.INVALID_REQUEST),
        (0, {"isr": (0, 7)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_isr_changes_that_are_refused(
    three: World, leader: int, changes: dict[str, Any], expected: ErrorCode
) -> None:
    outcome = three.alter_isr(leader, **{"isr": (0, 1), **changes})
    assert code(outcome) is expected
    assert three.state() == (0, 1, (0, 1, 2))
    if isinstance(outcome.error, NotLeaderError):
        assert outcome.error.leader is not None
        assert outcome.error.leader.broker_id == 0


def test_a_dead_replica_cannot_join(three: World) -> None:
    three.kill(2)
    assert code(three.alter_isr(0, (0, 1, 2))) is ErrorCode.INELIGIBLE_REPLICA


def test_an_old_session_cannot_change_isrs(three: World) -> None:
    session, epoch = three.session(0), three.machine.epoch
    three.register(0)
    request = c.AlterIsr(
        request_id=three.new_id(),
        cluster_id="",
        broker_id=BrokerId(0),
        broker_session=session,
        controller_epoch=ControllerEpoch(epoch),
        changes=(),
    )
    three.step(request)
    assert code(three.replies[request.request_id]) is ErrorCode.STALE_BROKER_SESSION


@pytest.mark.parametrize("epoch", [0, 2])
def test_another_controller_epoch_is_refused(three: World, epoch: int) -> None:
    request = c.AlterIsr(
        request_id=three.new_id(),
        cluster_id="",
        broker_id=BrokerId(0),
        broker_session=three.session(0),
        controller_epoch=ControllerEpoch(epoch),
        changes=(),
    )
    three.step(request)
    assert code(three.replies[request.request_id]) is ErrorCode.STALE_CONTROLLER_EPOCH


def test_session_numbers_differ_between_controllers(three: World, make_world: type[World]) -> None:
    successor = make_world(three.documents).start()
    successor.register(0)
    assert successor.session(0) != three.session(0)


def test_the_elr_empties_when_the_isr_is_large_enough_again(three: World) -> None:
    three.alter_isr(0, (0,))
    assert three.topic().partitions[0].elr == (1, 2)
    three.alter_isr(0, (0, 1))
    assert three.topic().partitions[0].elr == ()


def test_lowering_min_isr_ends_the_eligibility_of_those_outside(three: World) -> None:
    three.alter_isr(0, (0,))
    three.ask(c.AlterConfigs, topic="t", set_configs={"min.insync.replicas": "1"})
    assert three.topic().partitions[0].elr == ()
    three.kill(0)
    assert three.state()[0] == -1, "1 and 2 may lack what 0 committed alone"


# ---------------------------------------------------------------- producer ids


def test_blocks_of_producer_ids_never_overlap_not_even_over_controllers(
    three: World, make_world: type[World]
) -> None:
    first = three.ask(c.AllocateProducerIds, broker_id=BrokerId(0), broker_session=three.session(0))
    second = three.ask(
        c.AllocateProducerIds, broker_id=BrokerId(1), broker_session=three.session(1)
    )
    successor = make_world(three.documents).start()
    successor.register(0)
    third = successor.ask(
        c.AllocateProducerIds, broker_id=BrokerId(0), broker_session=successor.session(0)
    )
    assert isinstance(first, c.ProducerIds)
    assert isinstance(second, c.ProducerIds)
    assert isinstance(third, c.ProducerIds)
    assert (first.first, second.first, third.first) == (0, 1_000, 2_000)
    assert first.count == 1_000
    assert (
        code(three.ask(c.AllocateProducerIds, broker_id=BrokerId(0), broker_session=1))
        is ErrorCode.STALE_BROKER_SESSION
    )


# ---------------------------------------------------------------- leaders


def test_preferred_election_says_why_it_cannot(three: World) -> None:
    three.kill(0)
    partition = (TopicPartition("t", 0),)
    assert "no session" in str(three.ask(c.ElectLeaders, partitions=partition))
    stream = three.register(0, run=2)
    assert "not in the ISR" in str(three.ask(c.ElectLeaders, partitions=partition))
    three.alter_isr(1, (0, 1, 2))
    assert three.ask(c.ElectLeaders, partitions=partition) == c.LeadersMoved(1)
    assert three.state() == (0, 3, (0, 1, 2))
    assert three.ask(c.ElectLeaders, partitions=partition) == c.LeadersMoved(0)
    three.step(c.HeartbeatReceived(stream_id=stream, metadata_version=0, wants_stop=True))
    assert "is shutting down" in str(three.ask(c.ElectLeaders, partitions=partition))


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (TopicPartition("nope", 0), ErrorCode.UNKNOWN_TOPIC),
        (TopicPartition("t", 9), ErrorCode.UNKNOWN_PARTITION),
    ],
)
def test_elections_of_unknown_partitions_are_refused(
    three: World, partition: TopicPartition, expected: ErrorCode
) -> None:
    assert code(three.ask(c.ElectLeaders, partitions=(partition,))) is expected


# ---------------------------------------------------------------- creating topics


@pytest.mark.parametrize(
    ("name", "fields", "expected", "mention"),
    [
        ("bad name", {}, ErrorCode.INVALID_TOPIC_NAME, "' '"),
        ("t", {}, ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
        ("n", {"replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR, "3 of 3"),
        ("n", {"partitions": PARTITIONS_MAX + 1}, ErrorCode.INVALID_PARTITIONS, "5000"),
        ("n", {"configs": {"retention.mss": "1"}}, ErrorCode.INVALID_CONFIG, "retention.ms"),
        ("n", {"configs": {"min.insync.replicas": "4"}}, ErrorCode.INVALID_CONFIG, "at most 3"),
        ("n", {"configs": {"cleanup.policy": "shrink"}}, ErrorCode.INVALID_CONFIG, "delete"),
        ("n", {"assignment": ((0, 0),)}, ErrorCode.INVALID_REPLICATION_FACTOR, "twice"),
        ("n", {"assignment": ((0, 9),)}, ErrorCode.INVALID_REPLICATION_FACTOR, "unknown brokers 9"),
        ("n", {"assignment": ((0, 1), (2,))}, ErrorCode.INVALID_REPLICATION_FACTOR, "partition 0"),
        ("n", {"assignment": ((0,),) * 5_001}, ErrorCode.INVALID_PARTITIONS, "5001 partitions"),
        ("n", {"assignment": ((0,), ())}, ErrorCode.INVALID_REPLICATION_FACTOR, "0 replicas"),
        (
            "n",
            {"assignment": ((0,),), "partitions": 1},
            ErrorCode.INVALID_REQUEST,
            "both must be 0",
        ),
    ],
)
def test_topics_that_cannot_be_created(
    three: World, name: str, fields: dict[str, Any], expected: ErrorCode, mention: str
) -> None:
    outcome = three.create(name, **fields)
    assert code(outcome) is expected
    assert mention in str(outcome.error)
    assert set(three.machine.stored.topics) == {"t"}


def test_names_twice_in_one_request_are_all_refused_and_others_created(three: World) -> None:
    topics = tuple(
        c.NewTopic(name=name, topic_id=TopicId(f"id{i}")) for i, name in enumerate(["a", "b", "a"])
    )
    result = three.ask(c.CreateTopics, topics=topics)
    assert isinstance(result, c.TopicsChanged)
    assert [code(outcome) for outcome in result.outcomes] == [
        ErrorCode.INVALID_REQUEST,
        None,
        ErrorCode.INVALID_REQUEST,
    ]
    assert set(three.machine.stored.topics) == {"t", "b"}


def test_validate_only_checks_everything_and_changes_nothing(three: World) -> None:
    writes, version = three.writes, three.machine.stored.metadata_version
    good, bad = (
        c.NewTopic(name="good", topic_id=TopicId("g")),
        c.NewTopic(name="b d", topic_id=TopicId("b")),
    )
    result = three.ask(c.CreateTopics, topics=(good, bad), validate_only=True)
    assert isinstance(result, c.TopicsChanged)
    assert [code(outcome) for outcome in result.outcomes] == [None, ErrorCode.INVALID_TOPIC_NAME]
    assert three.ask(c.CreatePartitions, topic="t", partitions=9, validate_only=True) == c.Done()
    assert (
        three.ask(
            c.AlterConfigs,
            topic="t",
            set_configs={"retention.ms": "1"},
            unset_configs=(),
            validate_only=True,
        )
        == c.Done()
    )
    result = three.ask(c.DeleteTopics, topics=(("t", TopicId("")),), validate_only=True)
    assert isinstance(result, c.TopicsChanged)
    assert result.outcomes[0].error is None
    assert (three.writes, three.machine.stored.metadata_version) == (writes, version)


def test_one_replica_works_with_the_default_min_isr(world: World) -> None:
    world.register(0)
    assert world.create(replication_factor=1).error is None
    assert world.machine.summary().under_min_isr_partitions == 0


def test_the_default_replication_factor_is_not_lowered_silently(world: World) -> None:
    world.register_all(0, 1)
    outcome = world.create()
    assert code(outcome) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "needs 3 replicas, but only 2 of 2 brokers" in str(outcome.error)


def test_cluster_defaults_apply_and_reach_brokers(make_world: type[World]) -> None:
    settings = {"num.partitions": "4", "default.replication.factor": "2", "retention.ms": "77"}
    world = make_world(config=ControlConfig.parse(settings)).start()
    world.register_all(0, 1)
    world.create("d")
    world.create("e", configs={"retention.ms": "5"})
    assert len(world.topic("d").partitions) == 4
    images = {topic.name: topic.configs for topic in world.machine.image(0).topics}
    assert images == {"d": {"retention.ms": "77"}, "e": {"retention.ms": "5"}}


def test_dead_replicas_of_an_assignment_start_outside_the_isr(three: World) -> None:
    three.kill(1)
    assert three.create("a", assignment=((1, 2, 0),)).error is None
    assert three.state(topic="a") == (2, 1, (2, 0))


def test_single_partition_topics_spread_over_brokers(world: World) -> None:
    world.register_all(0, 1, 2, 3)
    for number in range(8):
        world.create(f"t{number}", partitions=1, replication_factor=1)
    assert world.machine.summary().leaders == dict.fromkeys(range(4), 2)


# ---------------------------------------------------------------- changing topics


def test_partitions_grow_and_keep_what_was_there(three: World) -> None:
    before = three.topic().partitions[0]
    assert three.ask(c.CreatePartitions, topic="t", partitions=3) == c.Done()
    assert three.topic().partitions[0] is before
    leaders = [partition.state.leader for partition in three.topic().partitions]
    assert sorted(leaders) == [0, 1, 2]


@pytest.mark.parametrize("partitions", [0, 1, PARTITIONS_MAX + 1])
def test_partitions_never_shrink(three: World, partitions: int) -> None:
    error = three.ask(c.CreatePartitions, topic="t", partitions=partitions)
    assert code(error) is ErrorCode.INVALID_PARTITIONS
    assert "has 1 partitions" in str(error)


def test_deleting_checks_the_id(three: World) -> None:
    result = three.ask(c.DeleteTopics, topics=(("t", TopicId("another")),))
    assert isinstance(result, c.TopicsChanged)
    assert code(result.outcomes[0]) is ErrorCode.TOPIC_ID_MISMATCH
    result = three.ask(c.DeleteTopics, topics=(("t", three.topic().topic_id),))
    assert isinstance(result, c.TopicsChanged)
    assert result.outcomes[0].error is None
    assert three.machine.topic("t") is None


def test_a_topic_created_again_is_another_topic(three: World) -> None:
    first = three.topic().topic_id
    three.ask(c.DeleteTopics, topics=(("t", TopicId("")),))
    three.create("t", replication_factor=3)
    assert three.topic().topic_id != first
    image = three.machine.image(0)
    assert image.deleted_topic_ids == (first,)
    assert [topic.topic_id for topic in image.topics] == [three.topic().topic_id]


@pytest.mark.parametrize(
    ("put", "unset", "expected", "mention"),
    [
        ({"retention.ms": "-2"}, (), ErrorCode.INVALID_CONFIG, "-1 to"),
        ({"min.insync.replicas": "4"}, (), ErrorCode.INVALID_CONFIG, "3 replicas"),
        ({"retention.ms": "1"}, ("retention.ms",), ErrorCode.INVALID_REQUEST, "both set and unset"),
        ({}, ("retntion.ms",), ErrorCode.INVALID_CONFIG, "did you mean 'retention.ms'"),
        ({"segment.bytes": "1"}, (), ErrorCode.INVALID_CONFIG, "no segments"),
    ],
)
def test_configs_that_are_refused(
    three: World,
    put: Mapping[str, str],
    unset: tuple[str, ...],
    expected: ErrorCode,
    mention: str,
) -> None:
    error = three.ask(c.AlterConfigs, topic="t", set_configs=put, unset_configs=unset)
    assert code(error) is expected
    assert mention in str(error)
    assert three.topic().configs == {}


def test_changes_of_unknown_topics_are_refused(three: World) -> None:
    assert code(three.ask(c.AlterConfigs, topic="nope", set_configs={})) is ErrorCode.UNKNOWN_TOPIC
    assert (
        code(three.ask(c.CreatePartitions, topic="nope", partitions=3)) is ErrorCode.UNKNOWN_TOPIC
    )


def test_an_assignment_to_dead_brokers_only_is_refused(three: World) -> None:
    three.kill(1)
    outcome = three.create("a", assignment=((1,),))
    assert "no replica on a live broker" in str(outcome.error)


def test_configs_are_set_and_unset(three: World) -> None:
    three.ask(c.AlterConfigs, topic="t", set_configs={"retention.ms": "5", "retention.bytes": "7"})
    three.ask(
        c.AlterConfigs,
        topic="t",
        set_configs={"retention.bytes": "8"},
        unset_configs=("retention.ms", "max.message.bytes"),
    )
    assert three.topic().configs == {"retention.bytes": "8"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (c.CreateTopics, {"topics": ()}),
        (c.DeleteTopics, {"topics": ()}),
        (c.CreatePartitions, {"topic": "t", "partitions": 2}),
        (c.AlterConfigs, {"topic": "t", "set_configs": {}}),
        (c.ElectLeaders, {}),
        (c.AllocateProducerIds, {"broker_id": BrokerId(0), "broker_session": 0}),
        (
            c.AlterIsr,
            {
                "broker_id": BrokerId(0),
                "broker_session": 0,
                "controller_epoch": 1,
                "changes": (),
            },
        ),
    ],
)
def test_every_request_for_another_cluster_is_refused(
    three: World, kind: type, fields: dict[str, Any]
) -> None:
    request_id = three.new_id()
    three.step(kind(request_id=request_id, cluster_id="another", **fields))
    assert code(three.replies[request_id]) is ErrorCode.CLUSTER_ID_MISMATCH


# ---------------------------------------------------------------- images


def test_images_hold_what_changed_since_and_all_brokers(three: World) -> None:
    three.create("u", replication_factor=3)
    version = three.machine.stored.metadata_version
    three.alter_isr(0, (0, 1))
    image = three.machine.image(version)
    assert not image.full
    assert [topic.name for topic in image.topics] == ["t"]
    assert len(image.brokers) == 3
    assert image.metadata_version == version + 1
    assert three.machine.image(0).full
    assert len(three.machine.image(0).topics) == 2


def test_an_image_from_before_the_oldest_remembered_deletion_is_full(
    three: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.control.draft.TOMBSTONES_MAX", 3)
    monkeypatch.setattr("penstock.core.control.views.TOMBSTONES_MAX", 3)
    version = three.machine.stored.metadata_version
    for number in range(5):
        three.create(f"t{number}", replication_factor=3)
        three.ask(c.DeleteTopics, topics=((f"t{number}", TopicId("")),))
    assert three.machine.image(version).full
    assert not three.machine.image(three.machine.stored.metadata_version).full
    assert len(three.machine.image(0).deleted_topic_ids) == 3


def test_no_more_topics_are_deleted_at_once_than_brokers_can_be_told(
    three: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would keep the logs of the others for good."""
    monkeypatch.setattr("penstock.core.control.draft.TOMBSTONES_MAX", 3)
    monkeypatch.setattr("penstock.core.control.views.TOMBSTONES_MAX", 3)
    names = [f"t{number}" for number in range(5)]
    ids = {}
    for name in names:
        three.create(name, replication_factor=3)
        ids[name] = three.topic(name).topic_id
    version = three.machine.stored.metadata_version
    deletion = c.DeleteTopics(three.new_id(), "", tuple((name, TopicId("")) for name in names))
    three.step(deletion)
    result = three.replies[deletion.request_id]
    assert isinstance(result, c.TopicsChanged)
    assert [one.error is None for one in result.outcomes] == [True, True, True, False, False]
    assert all(isinstance(one.error, OverloadedError) for one in result.outcomes[3:])
    assert set(three.machine.image(version).deleted_topic_ids) == {ids[name] for name in names[:3]}
    again = three.ask(c.DeleteTopics, topics=tuple((name, TopicId("")) for name in names[3:]))
    assert isinstance(again, c.TopicsChanged)
    assert [one.error for one in again.outcomes] == [None, None]
