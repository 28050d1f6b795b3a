"""Formats of stored documents: an older release finds nothing that it would lose (I36)."""

import json
from dataclasses import replace
from typing import Any

import pytest
from support.controller_world import Documents, World

from penstock.core.control import contract as c
from penstock.core.control import move_contract as m
from penstock.core.control.documents import (
    CLUSTER_KEY,
    FORMATS,
    ClusterDocument,
    Cordon,
    decode_cluster,
    decode_topic,
    encode_cluster,
    encode_topic,
    topic_key,
)
from penstock.core.control.partition import PartitionDocument, partition_to_json
from penstock.core.topic import DELETION_PROTECTION, PARTITIONER
from penstock.core.types import BrokerId, ControllerEpoch, LeaderEpoch, MoveReason, PartitionState
from penstock.errors import ErrorCode, PenstockError

OLD = (
    '{"format":1,"cluster_id":"the-cluster","controller_epoch":3,"metadata_version":7,'
    '"next_producer_id":2000,"brokers":[{"broker_id":0,"host":"127.0.0.1","port":7000,"rack":"",'
    '"directory_id":"dir-0","incarnation":"run-0-1","alive":true,"features":["transactions"]}],'
    '"deleted_topics":[]}'
)
OLD_TOPIC = (
    '{"format":1,"name":"t","topic_id":"id-t","controller_epoch":3,"metadata_version":7,'
    '"configs":{},"partitions":[{"leader":0,"epoch":1,"isr":[0],"replicas":[0,1,2],"version":2,'
    '"elr":[1],"lossy":[2]}]}'
)
PROTECTED = {DELETION_PROTECTION: "true"}
SETTLED = PartitionDocument(
    PartitionState(
        leader=BrokerId(0),
        leader_epoch=LeaderEpoch(1),
        isr=(BrokerId(0), BrokerId(1)),
        replicas=(BrokerId(0), BrokerId(1)),
        version=4,
    )
)


def old_world(*brokers: int) -> World:
    """A cluster that an older release has made: its documents have format 1."""
    documents = Documents()
    cluster = ClusterDocument(
        cluster_id="the-cluster", controller_epoch=ControllerEpoch(3), metadata_version=7
    )
    documents.texts[CLUSTER_KEY] = (encode_cluster(cluster), "v0")
    world = World(documents).start()
    world.register_all(*brokers)
    return world


def formats(world: World) -> dict[str, int]:
    return {key: json.loads(text)["format"] for key, (text, _) in world.documents.texts.items()}


def finalize(world: World, to: int = 0, **fields: Any) -> m.FormatChosen | PenstockError:
    outcome = world.ask(m.Finalize, to=to, **fields)
    assert isinstance(outcome, m.FormatChosen | PenstockError)
    return outcome


def refused(outcome: object, code: ErrorCode) -> str:
    assert isinstance(outcome, PenstockError), outcome
    assert outcome.code is code
    return outcome.message


def put_partition(world: World, partition: PartitionDocument, topic: str = "t") -> None:
    """As a controller with moves would have stored it; the machine reads it at a take-over."""
    text, version = world.documents.texts[topic_key(topic)]
    found = json.loads(text)
    found["partitions"][0] = partition_to_json(partition)
    world.documents.texts[topic_key(topic)] = (json.dumps(found), version)


# ---------------------------------------------------------------- documents


def test_a_document_of_format_one_is_written_as_the_release_before_wrote_it() -> None:
    assert encode_cluster(decode_cluster(OLD, CLUSTER_KEY)) == OLD
    assert encode_topic(decode_topic(OLD_TOPIC, "topic/t")) == OLD_TOPIC


def test_a_cluster_of_format_one_is_stored_in_format_one() -> None:
    world = old_world(0, 1, 2)
    world.create(partitions=3)
    world.alter_isr(world.state()[0], (0, 1))
    world.kill(0)
    assert set(formats(world).values()) == {1}
    texts = "".join(text for text, _ in world.documents.texts.values())
    news = ("fresh", "cordons", "target", "why", "adding", "dropping", "damaged", "software")
    assert not [name for name in news if name in texts]


def test_a_new_cluster_has_the_newest_format(world: World) -> None:
    world.register_all(0, 1, 2)
    world.create()
    assert formats(world) == {CLUSTER_KEY: 2, "topic/t": 2}


def test_the_parts_of_a_move_are_read_back_as_written(three: World) -> None:
    state = replace(
        SETTLED.state,
        adding=(BrokerId(3),),
        dropping=(BrokerId(5), BrokerId(2)),
        damaged=(BrokerId(1),),
    )
    moving = replace(SETTLED, state=state, target=(BrokerId(3), BrokerId(0)), why=MoveReason.DRAIN)
    topic = replace(three.topic(), partitions=(moving,))
    assert decode_topic(encode_topic(topic), "topic/t") == topic
    cordons = {
        BrokerId(2): Cordon(
            directory_id="dir-2", placement=True, leadership=False, why="disk", by="ana"
        ),
        BrokerId(1): Cordon(directory_id="dir-1", placement=False, leadership=True),
    }
    cluster = replace(three.cluster(), cordons=cordons)
    assert all(broker.fresh for broker in cluster.brokers.values())
    assert decode_cluster(encode_cluster(cluster), CLUSTER_KEY) == cluster


def test_what_format_one_does_not_have_is_never_written_into_it(three: World) -> None:
    topic = replace(three.topic(), format=1)
    encode_topic(topic)
    for moving in (
        replace(SETTLED, target=(BrokerId(3),), why=MoveReason.MANUAL),
        replace(SETTLED, state=replace(SETTLED.state, dropping=(BrokerId(3),))),
        replace(SETTLED, state=replace(SETTLED.state, damaged=(BrokerId(1),))),
    ):
        with pytest.raises(AssertionError):
            encode_topic(replace(topic, partitions=(moving,)))
    cordon = Cordon(directory_id="dir-1", placement=True, leadership=False)
    plain = replace(three.cluster(), format=1, brokers={})
    encode_cluster(plain)
    with pytest.raises(AssertionError):
        encode_cluster(replace(plain, cordons={BrokerId(1): cordon}))
    with pytest.raises(AssertionError):
        encode_cluster(replace(plain, brokers=three.cluster().brokers))


@pytest.mark.parametrize(
    ("change", "mention"),
    [
        ({"adding": [1], "target": [1]}, "twice"),
        ({"dropping": [0]}, "twice"),
        ({"adding": [3], "target": [3], "dropping": [3]}, "twice"),
        ({"adding": [3, 3], "target": [3]}, "twice"),
        ({"target": [3, 3]}, "target"),
        ({"adding": [3], "target": [4]}, "adding"),
        ({"adding": [3]}, "adding"),
        ({"elr": [3]}, "elr"),
        ({"lossy": [3]}, "lossy"),
        ({"damaged": [3]}, "damaged"),
        ({"target": [3], "why": "for fun"}, "for fun"),
    ],
)
def test_a_move_that_breaks_the_rules_is_refused(
    three: World, change: dict[str, Any], mention: str
) -> None:
    found = json.loads(encode_topic(three.topic()))
    found["partitions"][0] = {**partition_to_json(SETTLED), "why": "drain", **change}
    with pytest.raises(PenstockError, match=mention) as caught:
        decode_topic(json.dumps(found), "topic/t")
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    decode_topic(json.dumps({**found, "format": 1}), "topic/t")  # there it means nothing


# ---------------------------------------------------------------- registration


def test_a_broker_that_does_not_read_the_format_is_refused_by_name(world: World) -> None:
    stream = world.register(4, formats=(1,), software_version="0.9.3")
    error = world.refusal(stream)
    assert "broker 4" in refused(error, ErrorCode.FORMAT_TOO_OLD)
    assert "0.9.3" in str(error)
    assert "format 2" in str(error)
    assert BrokerId(4) not in world.cluster().brokers


def test_before_it_is_finalized_releases_of_both_formats_are_welcome() -> None:
    world = old_world(0)
    world.register(1, formats=(1,))
    assert set(world.cluster().brokers) == {0, 1}


def test_a_broker_that_names_too_many_formats_is_refused(world: World) -> None:
    stream = world.register(0, formats=tuple(range(17)))
    assert "17 formats" in refused(world.refusal(stream), ErrorCode.INVALID_REQUEST)
    stream = world.register(0, software_version="x" * 65)
    assert "software_version" in refused(world.refusal(stream), ErrorCode.INVALID_REQUEST)


def test_a_broker_stays_fresh_when_it_registers_again_and_becomes_so_with_another_disk(
    world: World,
) -> None:
    world.register(0)
    assert world.cluster().brokers[BrokerId(0)].fresh
    world.register(0, run=2)
    assert world.cluster().brokers[BrokerId(0)].fresh
    seen = replace(world.cluster().brokers[BrokerId(0)], fresh=False)
    cluster = replace(world.cluster(), brokers={BrokerId(0): seen})
    world.documents.texts[CLUSTER_KEY] = (encode_cluster(cluster), "by hand")
    later = World(world.documents).start()
    later.register(0, run=3)
    assert not later.cluster().brokers[BrokerId(0)].fresh
    later.kill(0)
    later.register(0, run=4, directory_id="another")
    assert later.cluster().brokers[BrokerId(0)].fresh


# ---------------------------------------------------------------- finalize


def test_finalize_raises_the_format_and_rewrites_nothing() -> None:
    world = old_world(0, 1, 2)
    world.create()
    assert finalize(world, validate_only=True) == m.FormatChosen(1, 2)
    assert formats(world)[CLUSTER_KEY] == 1
    assert finalize(world) == m.FormatChosen(1, 2)
    assert formats(world) == {CLUSTER_KEY: 2, "topic/t": 1}
    assert "format chosen" in world.events()
    assert finalize(world) == m.FormatChosen(2, 2)
    world.alter_isr(world.state()[0], (0, 1, 2)[:2])
    assert formats(world)["topic/t"] == 2
    assert not world.cluster().brokers[BrokerId(0)].fresh, "they have had their share long since"


def test_finalize_names_every_broker_that_is_in_the_way() -> None:
    world = old_world(0, 1)
    world.register(2, formats=(1,), software_version="0.9.3")
    message = refused(finalize(world), ErrorCode.FORMAT_TOO_OLD)
    assert "broker 2 (release 0.9.3) reads [1]" in message
    assert "broker 0" not in message
    world.register(2, run=2, formats=(1,))
    assert "release unknown" in refused(finalize(world), ErrorCode.FORMAT_TOO_OLD)
    world.kill(2)
    message = refused(finalize(world), ErrorCode.FORMAT_TOO_OLD)
    assert "broker 2 has no session" in message
    world.register(2, run=3)
    assert finalize(world) == m.FormatChosen(1, 2)


def test_finalize_waits_until_brokers_have_registered_with_a_new_controller() -> None:
    world = old_world(*range(7))
    later = World(world.documents).start()
    message = refused(finalize(later), ErrorCode.FORMAT_TOO_OLD)
    assert "broker 0 has not registered again yet" in message
    assert "and 2 more" in message
    for broker_id in range(7):
        later.register(broker_id)
    assert finalize(later) == m.FormatChosen(1, 2)


@pytest.mark.parametrize("wanted", [3, 7])
def test_a_format_that_does_not_exist_is_refused(world: World, wanted: int) -> None:
    assert f"format {wanted}" in refused(finalize(world, wanted), ErrorCode.INVALID_REQUEST)


def test_no_format_is_chosen_in_a_journal() -> None:
    world = old_world(0)
    world.step(c.StoreState(journaling=True))
    refused(finalize(world), ErrorCode.MOVES_PAUSED)
    world.step(c.StoreState(journaling=False))
    assert finalize(world) == m.FormatChosen(1, 2)


def test_the_write_that_chooses_a_format_must_not_reach_a_journal() -> None:
    world = old_world(0)
    world.hold_writes = True
    world.step(m.Finalize(request_id=99, cluster_id=""))
    assert world.held is not None
    assert world.held.stored_only
    world.finish_held(passed=True, answered=True)
    world.hold_writes = True
    world.step(c.AllocateProducerIds(100, "", BrokerId(0), world.session(0)))
    assert world.held is not None
    assert not world.held.stored_only


def test_a_topic_is_written_in_the_newer_format_only_once_the_cluster_has_it() -> None:
    world = old_world(0, 1, 2)
    world.create()
    world.hold_writes = True
    world.step(c.AllocateProducerIds(100, "", BrokerId(0), world.session(0)))
    world.step(m.Finalize(request_id=99, cluster_id=""))
    world.step(c.AlterConfigs(
        request_id=101, cluster_id="", topic="t", set_configs={"retention.ms": "9"}
    ))  # fmt: skip
    world.finish_held(passed=True, answered=True)
    assert world.replies[99] == m.FormatChosen(1, 2)
    assert formats(world) == {CLUSTER_KEY: 2, "topic/t": 1}


# ---------------------------------------------------------------- and back


def test_an_unused_format_is_given_up_again_and_then_everything_has_the_older_one(
    three: World,
) -> None:
    three.create("u")
    assert set(formats(three).values()) == {2}
    assert finalize(three, 1) == m.FormatChosen(2, 1)
    assert set(formats(three).values()) == {1}
    three.register(3, formats=(1,))
    assert not three.cluster().brokers[BrokerId(3)].fresh


def test_giving_up_a_format_that_was_interrupted_is_done_again(three: World) -> None:
    three.hold_writes = True
    three.step(m.Finalize(request_id=99, cluster_id="", to=1))
    three.finish_partly(1)
    assert three.replies[99] == m.FormatChosen(2, 1)
    assert set(formats(three).values()) == {1}


@pytest.mark.parametrize(
    ("partition", "mention"),
    [
        (replace(SETTLED, target=(BrokerId(2),), why=MoveReason.DRAIN), "t/0 is moved to 2;"),
        (
            replace(SETTLED, state=replace(SETTLED.state, dropping=(BrokerId(2),))),
            "t/0 is deleted on 2;",
        ),
        (
            replace(SETTLED, state=replace(SETTLED.state, damaged=(BrokerId(1),))),
            "t/0 is damaged on 1;",
        ),
    ],
)
def test_a_format_in_use_is_not_given_up(
    three: World, partition: PartitionDocument, mention: str
) -> None:
    put_partition(three, partition)
    later = World(three.documents).start()
    later.register_all(0, 1, 2)
    assert mention in refused(finalize(later, 1), ErrorCode.INVALID_REQUEST)
    assert formats(later)[CLUSTER_KEY] == 2


def test_a_format_with_cordons_is_not_given_up(three: World) -> None:
    cordon = Cordon(directory_id="dir-1", placement=True, leadership=False)
    cluster = replace(three.cluster(), cordons={BrokerId(1): cordon})
    three.documents.texts[CLUSTER_KEY] = (encode_cluster(cluster), "by hand")
    later = World(three.documents).start()
    later.register_all(0, 1, 2)
    message = refused(finalize(later, 1), ErrorCode.INVALID_REQUEST)
    assert "broker 1 is cordoned" in message
    assert FORMATS == (1, 2)


@pytest.mark.parametrize("setting", [PROTECTED, {PARTITIONER: "murmur2"}], ids=str)
def test_a_setting_that_the_release_before_cannot_read_needs_the_newer_format(
    setting: dict[str, str],
) -> None:
    """Its controller would stop at the next broker that dies, and so could not be gone back to."""
    world = old_world(0, 1, 2)
    error = world.create("u", replication_factor=1, configs=setting).error
    assert "penstock cluster finalize" in refused(error, ErrorCode.FORMAT_TOO_OLD)
    assert world.create(replication_factor=1).error is None
    changing = world.ask(c.AlterConfigs, topic="t", set_configs=setting)
    assert "has format 1" in refused(changing, ErrorCode.FORMAT_TOO_OLD)
    assert finalize(world) == m.FormatChosen(1, 2)
    assert world.ask(c.AlterConfigs, topic="t", set_configs=setting) == c.Done()
    giving_up = finalize(world, 1)
    gone = tuple(setting)
    assert f"topic 't' sets {gone[0]}" in refused(giving_up, ErrorCode.INVALID_REQUEST)
    unset = world.ask(c.AlterConfigs, topic="t", set_configs={}, unset_configs=gone)
    assert unset == c.Done()
    assert finalize(world, 1) == m.FormatChosen(2, 1)
