"""Topic names and configs: Kafka's rules, errors that say what to do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.topic import (
    CONFIG_KEYS,
    TOPIC_NAME_MAX_CHARS,
    CleanupPolicy,
    TimestampType,
    TopicConfig,
    is_internal,
    validate_topic_name,
)
from penstock.errors import ErrorCode, MisuseError

LEGAL = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


@given(st.text(alphabet=LEGAL, min_size=1, max_size=TOPIC_NAME_MAX_CHARS))
def test_names_of_legal_characters_are_accepted(name: str) -> None:
    if name not in {".", ".."}:
        validate_topic_name(name)


@pytest.mark.parametrize(
    ("name", "mention"),
    [
        ("", "is empty"),
        (".", "'.'"),
        ("..", "'..'"),
        ("a" * 250, "250 characters"),
        ("or ders", "' ' at position 2"),
        ("bestellübersicht", "'ü' at position 7"),
        ("a\n", "at position 1"),
        ("٣", "position 0"),
    ],
)
def test_illegal_names_are_refused_with_the_reason_and_the_rule(name: str, mention: str) -> None:
    with pytest.raises(MisuseError) as caught:
        validate_topic_name(name)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_NAME
    assert mention in caught.value.message
    assert "1 to 249 characters" in caught.value.message


def test_two_underscores_make_a_topic_internal() -> None:
    assert is_internal("__consumer_offsets")
    assert not is_internal("_mine")


def test_defaults_are_those_users_expect() -> None:
    assert TopicConfig().to_mapping() == {
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "max.message.bytes": "1048576",
        "min.insync.replicas": "2",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": str(2**63 - 1),
        "message.timestamp.after.max.ms": "3600000",
        "cleanup.policy": "delete",
        "min.cleanable.dirty.ratio": "0.5",
        "delete.retention.ms": "86400000",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": str(2**63 - 1),
        "unclean.leader.election.enable": "false",
        "deletion.protection": "false",
        "compression.type": "producer",
        "partitioner": "crc32c",
    }


def test_every_value_survives_the_way_to_text_and_back() -> None:
    config = TopicConfig(
        retention_ms=-1,
        max_message_bytes=2_000,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        cleanup_policy=CleanupPolicy.COMPACT_DELETE,
        min_cleanable_dirty_ratio=0.05,
        unclean_leader_election=True,
        deletion_protection=True,
    )
    assert TopicConfig.parse(config.to_mapping()) == config


def test_only_what_is_given_differs_from_the_defaults_given() -> None:
    defaults = TopicConfig(retention_ms=5, retention_bytes=6)
    assert TopicConfig.parse({"retention.ms": "7"}, defaults) == TopicConfig(
        retention_ms=7, retention_bytes=6
    )


@pytest.mark.parametrize(
    ("name", "value", "mention"),
    [
        ("retention.ms", "-2", "-1 to"),
        ("retention.ms", "1_000", "whole number"),
        ("retention.ms", "٣", "whole number"),
        ("retention.ms", "1.5", "whole number"),
        ("retention.ms", "9" * 21, "it must be -1 to 9223372036854775807"),
        ("retention.ms", str(2**63), "-1 to"),
        ("retention.ms", "", "whole number"),
        ("max.message.bytes", "1", "1024 to"),
        ("min.insync.replicas", "0", "1 to"),
        ("message.timestamp.type", "createtime", "CreateTime or LogAppendTime"),
        ("cleanup.policy", "compaction", "delete or compact or compact,delete"),
        ("min.cleanable.dirty.ratio", "1.01", "from 0 to 1"),
        ("min.cleanable.dirty.ratio", "5e-1", "from 0 to 1"),
        ("min.cleanable.dirty.ratio", "-0.5", "from 0 to 1"),
        ("max.compaction.lag.ms", "0", "1 to"),
        ("compression.type", "zstd", "producer"),
        ("unclean.leader.election.enable", "True", "true or false"),
        ("deletion.protection", "yes", "true or false"),
        ("retention.mss", "1", "did you mean 'retention.ms'?"),
        ("segment.bytes", "1", "no segments"),
        ("flush.messages", "1", "sync=DISK"),
        ("zzz", "1", "known are"),
    ],
)
def test_bad_configs_are_refused_with_what_to_do(name: str, value: str, mention: str) -> None:
    with pytest.raises(MisuseError) as caught:
        TopicConfig.parse({name: value})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert mention in caught.value.message
    assert name in caught.value.message


def test_min_isr_never_exceeds_the_number_of_replicas() -> None:
    assert TopicConfig().effective_min_insync_replicas(1) == 1
    assert TopicConfig().effective_min_insync_replicas(3) == 2


def test_every_config_explains_itself() -> None:
    for key in CONFIG_KEYS:
        assert key.documentation.endswith("."), key.name
