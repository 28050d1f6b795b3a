"""The stored documents: read back as written, refused when they make no sense; settings."""

import json
from typing import Any

import pytest
from support.controller_world import World

from penstock.core.control import ControlConfig
from penstock.core.control.documents import (
    CLUSTER_KEY,
    decode_cluster,
    decode_topic,
    encode_cluster,
    encode_topic,
)
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, MisuseError, PenstockError


def test_documents_read_back_as_written(three: World) -> None:
    three.alter_isr(0, (0,))
    three.kill(0)
    three.register(0, run=2, data_intact=False)
    topic = three.topic()
    assert topic.partitions[0].elr or topic.partitions[0].lossy
    assert decode_topic(encode_topic(topic), "t") == topic
    cluster = three.cluster()
    assert decode_cluster(encode_cluster(cluster), "c") == cluster


PORTS = [
    "replication_port",
    "stream_port",
    "internal_port",
    "secure_port",
    "secure_internal_port",
    "certificate_port",
    "external_certificate_port",
]


@pytest.mark.parametrize("name", PORTS)
def test_a_port_for_streams_is_kept_and_documents_without_one_stay_as_they_were(
    world: World, name: str
) -> None:
    world.register(0)
    text = encode_cluster(world.cluster())
    assert name not in text
    assert getattr(decode_cluster(text, "c").brokers[BrokerId(0)], name) == 0
    world.register(0, run=2, **{name: 9096})
    text = encode_cluster(world.cluster())
    assert text.count("_port") == 1, "the other one is not there"
    assert getattr(decode_cluster(text, "c").brokers[BrokerId(0)], name) == 9096
    world.register(0, run=3)
    assert name not in encode_cluster(world.cluster()), "a broker may give it up again"


@pytest.mark.parametrize("port", [-1, 65_536])
@pytest.mark.parametrize("name", PORTS)
def test_a_port_for_streams_that_cannot_be_is_refused(world: World, name: str, port: int) -> None:
    refusal = world.refusal(world.register(0, **{name: port}))
    what = name.replace("_", " ")
    assert f"{what} {port}; it must be 0 (none) to 65535" in str(refusal)


@pytest.mark.parametrize(
    ("text", "mention"),
    [
        ("", "unreadable"),
        ("[]", "format"),
        ('{"format": 3}', "format 3, but this version reads 1 to 2"),
        ('{"format": true}', "format True"),
        ('{"format": "2"}', "format '2'"),
        ('{"format": 1}', "brokers"),
        ('{"format": 1, "brokers": 3}', "unreadable"),
    ],
)
def test_unreadable_documents_are_refused_by_name(text: str, mention: str) -> None:
    with pytest.raises(PenstockError, match="cluster") as caught:
        decode_cluster(text, CLUSTER_KEY)
    assert caught.value.code is ErrorCode.DATA_CORRUPTED
    assert mention in caught.value.message


@pytest.mark.parametrize(
    "change", [{"leader": 2, "isr": [0]}, {"isr": [7], "leader": 7}, {"replicas": []}]
)
def test_partitions_that_break_invariants_are_refused(three: World, change: dict[str, Any]) -> None:
    found = json.loads(encode_topic(three.topic()))
    found["partitions"][0].update(change)
    with pytest.raises(PenstockError) as caught:
        decode_topic(json.dumps(found), "topic/t")
    assert caught.value.code is ErrorCode.DATA_CORRUPTED


def test_a_thousand_partitions_fit_a_kubernetes_object(world: World) -> None:
    world.register_all(0, 1, 2)
    world.create(partitions=5_000, replication_factor=3)
    assert len(encode_topic(world.topic())) < 1_000_000


@pytest.mark.parametrize(
    ("mapping", "mention"),
    [
        ({"num.partition": "1"}, "did you mean 'num.partitions'"),
        ({"num.partitions": "0"}, "1 to 5000"),
        ({"num.partitions": "x"}, "whole number"),
        ({"broker.session.timeout.ms": "100"}, "twice"),
        ({"min.insync.replicas": "0"}, "1 to"),
    ],
)
def test_settings_that_are_refused(mapping: dict[str, str], mention: str) -> None:
    with pytest.raises(MisuseError, match=mention) as caught:
        ControlConfig.parse(mapping)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_settings_are_taken_over() -> None:
    config = ControlConfig.parse({"broker.session.grace.ms": "10", "retention.ms": "5"})
    assert config.session_grace_ms == 10
    assert config.topic_config({}).retention_ms == 5
    assert config.topic_config({"retention.ms": "6"}).retention_ms == 6
