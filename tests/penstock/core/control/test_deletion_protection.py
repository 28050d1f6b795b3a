"""A protected topic is deleted by nobody: not by name, not by id, not to be created anew."""

import pytest
from support.controller_world import World

from penstock.core.control import ControlConfig
from penstock.core.control import contract as c
from penstock.core.topic import DELETION_PROTECTION
from penstock.core.types import TopicId
from penstock.errors import ErrorCode, PenstockError

ON, OFF = {DELETION_PROTECTION: "true"}, {DELETION_PROTECTION: "false"}
LIFT = "penstock topic alter t --set deletion.protection=false"


def delete(
    world: World, topic_id: str = "", *, name: str = "t", dry: bool = False
) -> PenstockError | None:
    result = world.ask(c.DeleteTopics, topics=((name, TopicId(topic_id)),), validate_only=dry)
    assert isinstance(result, c.TopicsChanged)
    return result.outcomes[0].error


def refusal(error: PenstockError | None) -> str:
    assert error is not None
    assert error.code is ErrorCode.DELETION_PROTECTED
    assert not error.retriable
    assert "\n" not in error.message
    return error.message


@pytest.fixture
def protecting(make_world: type[World]) -> World:
    """Its topics are protected unless they say otherwise; `t` says nothing."""
    world = make_world(config=ControlConfig.parse(ON)).start()
    world.register_all(0)
    assert world.create(replication_factor=1).error is None
    return world


def test_a_protected_topic_stays_and_the_refusal_says_what_lifts_that(three: World) -> None:
    assert three.ask(c.AlterConfigs, topic="t", set_configs=ON) == c.Done()
    before = three.topic()
    for topic_id in ("", before.topic_id):
        told = refusal(delete(three, topic_id))
        assert told.startswith("topic 't' is protected from deletion (deletion.protection is true)")
        assert LIFT in told
        assert 'deletion.protection: "false" in its spec.config' in told
    assert three.topic() is before
    assert three.machine.image(0).deleted_topic_ids == ()
    assert three.ask(c.AlterConfigs, topic="t", set_configs=OFF) == c.Done()
    assert delete(three) is None
    assert three.machine.topic("t") is None


def test_a_check_without_deletion_says_the_same(three: World) -> None:
    assert delete(three, dry=True) is None
    three.ask(c.AlterConfigs, topic="t", set_configs=ON)
    assert LIFT in refusal(delete(three, dry=True))


def test_the_clusters_default_protects_topics_that_do_not_say_otherwise(protecting: World) -> None:
    told = refusal(delete(protecting))
    assert "(deletion.protection is true, the cluster's default)" in told
    protecting.ask(c.AlterConfigs, topic="t", set_configs=OFF)
    assert delete(protecting, dry=True) is None
    protecting.ask(c.AlterConfigs, topic="t", set_configs={}, unset_configs=(DELETION_PROTECTION,))
    refusal(delete(protecting))


def test_a_protected_topic_cannot_be_replaced_by_another_of_its_name(protecting: World) -> None:
    before = protecting.topic()
    refusal(delete(protecting))
    again = protecting.create(replication_factor=1).error
    assert again is not None
    assert again.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert protecting.topic() is before


def test_what_else_is_wrong_with_a_deletion_is_said_first(protecting: World) -> None:
    wrong = {
        delete(protecting, "another"): ErrorCode.TOPIC_ID_MISMATCH,
        delete(protecting, name="u"): ErrorCode.UNKNOWN_TOPIC,
        delete(protecting, name="__transactions"): ErrorCode.INVALID_TOPIC_NAME,
    }
    for error, code in wrong.items():
        assert error is not None
        assert error.code is code


def test_of_several_topics_only_the_protected_one_stays(three: World) -> None:
    three.create("u", replication_factor=3, configs=ON)
    both = (("t", TopicId("")), ("u", TopicId("")))
    result = three.ask(c.DeleteTopics, topics=both)
    assert isinstance(result, c.TopicsChanged)
    first, second = result.outcomes
    assert first.error is None
    refusal(second.error)
    assert three.machine.topic("t") is None
    assert three.machine.topic("u") is not None


@pytest.mark.parametrize("passed", [True, False])
def test_a_deletion_decided_before_the_topic_was_protected_has_one_answer(
    three: World, passed: bool
) -> None:
    """The write's outcome is unknown: what it did is its answer, not what would be decided now."""
    three.hold_writes = True
    request_id = three.new_id()
    three.step(c.DeleteTopics(request_id, "", (("t", TopicId("")),)))
    three.step(c.AlterConfigs(request_id=three.new_id(), cluster_id="", topic="t", set_configs=ON))
    three.finish_held(passed=passed, answered=False)
    result = three.replies[request_id]
    assert isinstance(result, c.TopicsChanged)
    assert result.outcomes[0].error is None
    assert three.machine.topic("t") is None
