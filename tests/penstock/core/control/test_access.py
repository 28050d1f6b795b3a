"""Rules of access as the controller keeps them: stored, checked, shown to brokers."""

import json
from dataclasses import replace
from typing import Any

import pytest
from support.controller_world import World

from penstock.core.authorization import CLUSTER, AccessRole, Kind, Operation, Prefix, Resource, Rule
from penstock.core.control import contract as c
from penstock.core.control.documents import (
    decode_cluster,
    decode_topic,
    encode_cluster,
    encode_topic,
)
from penstock.core.types import TopicId
from penstock.errors import ErrorCode, PenstockError

ETL = "serviceaccount:etl/spark"
T = Resource(Kind.TOPIC, "t")
G = Resource(Kind.GROUP, "g")
READ = (Rule(principals=(ETL,), operations=(Operation.READ,)),)
ADMIN = (Rule(principals=(ETL,), role=AccessRole.ADMIN),)


def alter(world: World, resource: Resource, rules: tuple[Rule, ...], **fields: Any) -> None:
    outcome = world.ask(c.AlterAccess, resource=resource, rules=rules, **fields)
    assert outcome == c.Done(), outcome


def refusal(
    world: World, resource: Resource, rules: tuple[Rule, ...], **fields: Any
) -> PenstockError:
    outcome = world.ask(c.AlterAccess, resource=resource, rules=rules, **fields)
    assert isinstance(outcome, PenstockError)
    return outcome


def test_documents_without_rules_stay_as_they_were(three: World) -> None:
    assert "access" not in encode_cluster(three.cluster())
    assert "access" not in encode_topic(three.topic())


def test_rules_are_stored_and_read_back(three: World) -> None:
    alter(three, T, READ)
    alter(three, G, READ)
    alter(three, CLUSTER, ADMIN)
    topic, cluster = three.topic(), three.cluster()
    assert topic.access == READ
    assert (cluster.access.rules, cluster.access.groups) == (ADMIN, {"g": READ})
    assert decode_topic(encode_topic(topic), "t") == topic
    assert decode_cluster(encode_cluster(cluster), "c") == cluster
    assert json.loads(encode_topic(topic))["access"] == [
        {"principals": [ETL], "operations": ["Read"]}
    ]


def test_rules_outlive_their_controller(three: World, make_world: type[World]) -> None:
    alter(three, T, READ)
    alter(three, G, READ)
    next_one = make_world(three.documents).start()
    assert next_one.topic().access == READ
    assert next_one.cluster().access.groups == {"g": READ}


def test_images_carry_what_changed(three: World) -> None:
    alter(three, G, READ)
    before = three.machine.stored.metadata_version
    assert three.machine.image(0).access == three.cluster().access
    three.ask(c.AllocateProducerIds, broker_id=0, broker_session=three.session(0))
    assert three.machine.stored.metadata_version > before, "the cluster's document was written"
    assert three.machine.image(before).access is None
    alter(three, CLUSTER, ADMIN)
    assert three.machine.image(before).access == three.cluster().access
    before = three.machine.stored.metadata_version
    alter(three, T, READ)
    image = three.machine.image(before)
    assert image.access is None
    assert [topic.access for topic in image.topics] == [READ]


def test_the_same_rules_again_write_nothing(three: World) -> None:
    for resource, rules in ((T, READ), (G, READ), (CLUSTER, ADMIN)):
        alter(three, resource, rules)
        before = three.machine.stored.metadata_version
        alter(three, resource, rules)
        assert three.machine.stored.metadata_version == before


@pytest.mark.parametrize(("resource", "others"), [(T, READ), (G, READ), (CLUSTER, ADMIN)])
def test_rules_that_are_not_the_expected_ones_stay(
    three: World, resource: Resource, others: tuple[Rule, ...]
) -> None:
    alter(three, resource, others, expected=())
    mine = (*others, replace(others[0], principals=("cert:ada",)))
    error = refusal(three, resource, mine[1:], expected=())
    assert error.code is ErrorCode.STALE_RULES
    assert not error.retriable, "the same request never succeeds"
    error = refusal(three, resource, mine[1:], expected=(), validate_only=True)
    assert error.code is ErrorCode.STALE_RULES
    alter(three, resource, mine, expected=others)
    alter(three, resource, mine, expected=others)  # again, after an answer that was lost
    alter(three, resource, (), expected=mine)


def test_a_trial_changes_nothing(three: World) -> None:
    for resource, rules in ((T, READ), (G, READ), (CLUSTER, ADMIN)):
        alter(three, resource, rules, validate_only=True)
    assert not three.topic().access
    assert three.cluster().access.version == 0
    assert "principal 'x'" in refusal(three, T, bad(), validate_only=True).message


def bad() -> tuple[Rule, ...]:
    return (Rule(principals=("x",), operations=(Operation.READ,)),)


def test_no_rules_take_those_of_a_resource_away(three: World) -> None:
    for resource, rules in ((T, READ), (G, READ), (CLUSTER, ADMIN)):
        alter(three, resource, rules)
        alter(three, resource, ())
    assert "access" not in encode_topic(three.topic())
    access = three.cluster().access
    assert (access.rules, access.groups) == ((), {})
    assert access.version > 0, "brokers that have the rules must hear of it"


def test_a_topics_rules_go_with_it_and_a_groups_stay(three: World) -> None:
    alter(three, T, READ)
    alter(three, G, READ)
    three.ask(c.DeleteTopics, topics=(("t", TopicId("")),))
    three.create("t", partitions=1, replication_factor=3)
    assert three.topic().access == ()
    assert three.cluster().access.groups == {"g": READ}


@pytest.mark.parametrize(
    ("resource", "rules", "code", "seen"),
    [
        (Resource(Kind.TOPIC, "gone"), READ, ErrorCode.UNKNOWN_TOPIC, "no topic 'gone'"),
        (
            Resource(Kind.TOPIC, "__transactions"),
            READ,
            ErrorCode.INVALID_TOPIC_NAME,
            "cannot be given rules",
        ),
        (T, bad(), ErrorCode.INVALID_REQUEST, "rule 0 of topic t: principal 'x'"),
        (Resource(Kind.GROUP, "g" * 250), READ, ErrorCode.INVALID_REQUEST, "has 250 characters"),
        (Resource(Kind.TRANSACTIONAL_ID, "x"), READ, ErrorCode.INVALID_REQUEST, "no rules of its"),
        (CLUSTER, READ, ErrorCode.INVALID_REQUEST, "either a role"),
    ],
)
def test_what_is_refused(
    three: World, resource: Resource, rules: tuple[Rule, ...], code: ErrorCode, seen: str
) -> None:
    before = three.machine.stored
    error = refusal(three, resource, rules)
    assert error.code is code
    assert seen in error.message
    assert three.machine.stored is before


def test_rules_for_another_cluster_are_refused(three: World) -> None:
    number = three.new_id()
    three.step(c.AlterAccess(request_id=number, cluster_id="other", resource=CLUSTER, rules=ADMIN))
    outcome = three.replies[number]
    assert isinstance(outcome, PenstockError)
    assert outcome.code is ErrorCode.CLUSTER_ID_MISMATCH


def test_all_rules_together_stay_small(three: World) -> None:
    principals = tuple("cert:" + "x" * 490 for _ in range(60))
    large = (Rule(principals=principals, operations=(Operation.READ,)),)
    for number in range(8):
        alter(three, Resource(Kind.GROUP, f"g{number}"), large)
    error = refusal(three, Resource(Kind.GROUP, "g8"), large)
    assert "of all groups take" in error.message
    prefix = Prefix(Kind.TOPIC, "")
    more = (Rule(principals=principals, operations=(Operation.READ,), prefix=prefix),)
    assert "of all groups take" in refusal(three, CLUSTER, more).message


@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize("resource", [T, G], ids=str)
def test_an_unknown_write_is_decided_again(three: World, resource: Resource, passed: bool) -> None:
    before = three.machine.stored.metadata_version
    three.hold_writes = True
    number = three.new_id()
    three.step(c.AlterAccess(request_id=number, cluster_id="", resource=resource, rules=READ))
    three.hold_writes = False
    three.finish_held(passed=passed, answered=False)
    assert three.replies[number] == c.Done()
    found = three.topic().access if resource is T else three.cluster().access.groups.get("g")
    assert found == READ
    image = three.machine.image(before)
    assert image.access is not None or image.topics, "brokers are told, whoever wrote it"
