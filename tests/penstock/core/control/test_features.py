"""What needs newer brokers waits for all of them, and keeps older ones out from then on."""

from typing import Any

from support.controller_world import World

from penstock.core.control import contract as c
from penstock.core.control.documents import decode_cluster, encode_cluster
from penstock.core.features import BROKER_FEATURES, FEATURE_OF_TOPIC, TRANSACTIONS, missing
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode

TOPIC = "__transactions"
NEW: dict[str, Any] = {
    "partitions": 1,
    "replication_factor": 1,
    "configs": {"cleanup.policy": "compact"},
}


def test_this_release_knows_all_that_any_topic_needs() -> None:
    assert set(FEATURE_OF_TOPIC.values()) <= set(BROKER_FEATURES)
    assert missing(
        TRANSACTIONS, {BrokerId(1): (), BrokerId(0): BROKER_FEATURES, BrokerId(2): ("other",)}
    ) == [1, 2]


def test_a_topic_waits_until_every_registered_broker_knows_its_feature(world: World) -> None:
    world.register(0, features=BROKER_FEATURES)
    world.register(1)
    refused = world.create(TOPIC, **NEW).error
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert "brokers [1] were registered by an older release" in refused.message
    assert world.create("users", partitions=1, replication_factor=1).error is None
    world.kill(1)
    assert world.create(TOPIC, **NEW).error is not None, "may return"
    world.register(1, run=2, features=BROKER_FEATURES)
    assert world.create(TOPIC, **NEW).error is None


def test_a_broker_that_is_gone_for_good_need_not_be_upgraded(world: World) -> None:
    world.register(0, features=BROKER_FEATURES)
    world.register(1)
    world.kill(1)
    world.ask(c.UnregisterBroker, broker_id=BrokerId(1))
    assert world.create(TOPIC, **NEW).error is None


def test_from_then_on_an_older_broker_is_refused_and_the_others_go_on(world: World) -> None:
    world.register(0, features=BROKER_FEATURES)
    assert world.create(TOPIC, **NEW).error is None
    old = world.register(1)
    error = world.refusal(old)
    assert "does not support 'transactions'" in str(error)
    assert BrokerId(1) not in world.cluster().brokers
    back = world.register(0, run=2)
    assert "start a release that supports it" in str(world.refusal(back))
    assert world.cluster().brokers[BrokerId(0)].incarnation == "run-0-1"
    world.register(1, run=2, features=BROKER_FEATURES)
    assert world.cluster().brokers[BrokerId(1)].features == BROKER_FEATURES


def test_features_are_kept_and_documents_without_them_stay_as_they_were(world: World) -> None:
    world.register(0)
    text = encode_cluster(world.cluster())
    assert "features" not in text
    assert decode_cluster(text, "here") == world.cluster()
    world.register(0, run=2, features=BROKER_FEATURES)
    text = encode_cluster(world.cluster())
    assert decode_cluster(text, "here").brokers[BrokerId(0)].features == BROKER_FEATURES
