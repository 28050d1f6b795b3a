"""What a topic of Kafka becomes, and what is refused before anything is written."""

from dataclasses import replace

import pytest

from penstock.core.partitioner import KeyHash, partition_for_key
from penstock.core.types import TopicPartition
from penstock.migration.model import Bounds, Topic
from penstock.migration.plan import (
    HELD_MS,
    Action,
    Spread,
    TopicPlan,
    due,
    gone,
    into_kafka,
    into_penstock,
    planned,
    refused_here,
    spread_by,
)

TIME_LIMITS = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
TIMES = {"message.timestamp.type": "CreateTime"}
HELD_TIMES = TIMES | dict.fromkeys(TIME_LIMITS, str(2**63 - 1))
KAFKAS_LIMIT = 1_048_588
"""Kafka's default of max.message.bytes."""


def topic(name: str = "t", partitions: int = 3, limit: int = KAFKAS_LIMIT, **configs: str) -> Topic:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return Topic(
        name=name, partitions=partitions, replicas=2, configs=named, max_message_bytes=limit
    )


def plan(there: Topic | None, *bounds: Bounds, started: bool = False, check: str = "") -> TopicPlan:
    source = topic()
    settings = into_penstock(source, Spread.UNKNOWN)
    return planned(
        source, settings, there, bounds, started=started, check=lambda _: check, records=5
    )


def test_settings_keep_their_names_and_values() -> None:
    found = into_penstock(
        topic(retention_ms="60000", cleanup_policy="compact", min_insync_replicas="2"),
        Spread.UNKNOWN,
    )
    assert found.kept == {
        "retention.ms": "60000",
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(HELD_MS),
        "min.insync.replicas": "2",
        "max.message.bytes": str(KAFKAS_LIMIT + 1_024),
        **HELD_TIMES,
    }
    lags = ("min.compaction.lag.ms", "max.compaction.lag.ms")
    assert found.afterwards == dict.fromkeys((*lags, *TIME_LIMITS))
    assert list(found.dropped) == ["partitioner", "min.compaction.lag.ms"]
    assert "looked at again when the copy ends" in found.dropped["partitioner"][1]


def test_what_a_topic_inherits_is_set_on_the_copy() -> None:
    """The target's defaults are others: it would delete what the source keeps for ever."""
    inherited = {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "min.insync.replicas": "3",
        "delete.retention.ms": "86400000",
        "message.timestamp.before.max.ms": "1000",
        "segment.ms": "1",
    }
    source = replace(topic(), replicas=3, inherited=inherited)
    for translate in (lambda one: into_penstock(one, Spread.UNKNOWN), into_kafka):
        found = translate(source)
        assert found.kept == {
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "cleanup.policy": "delete",
            "min.insync.replicas": "3",
            "message.timestamp.before.max.ms": str(2**63 - 1),
            "max.message.bytes": str(KAFKAS_LIMIT + 1_024),
            **(TIMES if translate is into_kafka else HELD_TIMES),
        }
        assert found.afterwards["message.timestamp.before.max.ms"] == "1000"
        assert found.dropped.keys() - {"partitioner"} == {"message.timestamp.before.max.ms"}
        own = translate(replace(source, configs={"retention.ms": "5"}))
        assert own.kept["retention.ms"] == "5"


@pytest.mark.parametrize(
    ("inherited", "replicas", "here", "there"),
    [("1", 3, None, None), ("2", 3, None, "2"), ("3", 3, "3", "3"), ("3", 1, None, None)],
)
def test_inherited_replicas_in_sync_are_never_fewer_than_by_default(
    inherited: str, replicas: int, here: str | None, there: str | None
) -> None:
    """Of new clusters Kafka shows its default of 1 as if somebody had set it."""
    source = replace(topic(), replicas=replicas, inherited={"min.insync.replicas": inherited})
    assert into_penstock(source, Spread.UNKNOWN).kept.get("min.insync.replicas") == here
    assert into_kafka(source).kept.get("min.insync.replicas") == there


def test_what_is_dropped_has_its_value_and_a_reason() -> None:
    dropped = into_penstock(
        topic(
            segment_bytes="1000",
            compression_type="lz4",
            follower_replication_throttled_replicas="*",
        ),
        Spread.UNKNOWN,
    ).dropped
    assert dropped["segment.bytes"][1].startswith("logs have no segments")
    assert dropped["compression.type"] == (
        "lz4",
        "config compression.type is 'lz4'; it must be producer",
    )
    assert dropped["follower.replication.throttled.replicas"] == ("*", "there is no such setting")


@pytest.mark.parametrize("key_hash", KeyHash)
def test_the_partitioner_is_found_from_the_keys(key_hash: KeyHash) -> None:
    keys = [b"key-%d" % index for index in range(40)]
    samples: dict[int, list[bytes]] = {index: [] for index in range(6)}
    for key in keys:
        samples[partition_for_key(key, 6, key_hash)].append(key)
    assert spread_by(samples, 6) is Spread(key_hash)
    samples[0].append(next(key for key in keys if key not in samples[0]))
    assert spread_by(samples, 6) is Spread.OTHERWISE


def test_too_few_keys_tell_nothing() -> None:
    """Of two partitions, eight keys are in the right ones once in 256 times."""
    few = {0: [b"k%d" % i for i in range(8) if not partition_for_key(b"k%d" % i, 2)]}
    few[1] = [b"k%d" % i for i in range(8) if partition_for_key(b"k%d" % i, 2)]
    assert spread_by(few, 2) is Spread.UNKNOWN
    assert spread_by({0: [b"a"], 1: [b"a"] * 100}, 2) is Spread.UNKNOWN
    assert spread_by({0: [b"k%d" % index for index in range(100)]}, 1) is Spread.UNKNOWN


def test_a_partitioner_that_is_not_the_default_is_set() -> None:
    assert into_penstock(topic(), Spread.MURMUR2).kept["partitioner"] == "murmur2"
    assert "partitioner" not in into_penstock(topic(), Spread.CRC32C).kept
    otherwise = into_penstock(topic(), Spread.OTHERWISE)
    assert "all producers change over at once" in otherwise.dropped["partitioner"][1]


def test_what_only_we_have_is_not_taken_back() -> None:
    found = into_kafka(topic(retention_ms="1", partitioner="murmur2", deletion_protection="true"))
    limit = str(KAFKAS_LIMIT + 1_024)
    assert found.kept == {"retention.ms": "1", "max.message.bytes": limit} | TIMES
    assert found.dropped == {
        "partitioner": ("murmur2", "Kafka has no such setting"),
        "deletion.protection": ("true", "Kafka has no such setting"),
    }


def test_an_export_says_that_kafkas_clients_spread_keys_otherwise() -> None:
    for source in (topic(), topic(partitioner="crc32c")):
        value, why = into_kafka(source).dropped["partitioner"]
        assert (value, "Kafka's clients spread keys by murmur2" in why) == ("crc32c", True)


@pytest.mark.parametrize("inherited", [False, True])
def test_times_stay_while_a_topic_is_copied(inherited: bool) -> None:
    """LogAppendTime comes back when it has been compared."""
    appended = {"message.timestamp.type": "LogAppendTime"}
    source = replace(topic(), inherited=appended)
    if not inherited:
        source = replace(topic(), configs=appended)
    for found in (into_penstock(source, Spread.UNKNOWN), into_kafka(source)):
        assert found.kept["message.timestamp.type"] == "CreateTime"
        assert found.dropped["message.timestamp.type"][0] == "LogAppendTime"
        copied = replace(topic(), configs=found.kept)
        assert due(found, copied)["message.timestamp.type"] == "LogAppendTime"
        assert "message.timestamp.type" not in due(found, source)
        there = replace(source, partitions=3)
        for started in (False, True):
            refused = planned(topic(), found, there, [], started=started,
                              check=lambda _: "", records=1)  # fmt: skip
            assert "has message.timestamp.type=LogAppendTime: all records would" in refused.reason


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    ("spread", "has", "refused"),
    [
        (Spread.MURMUR2, {}, True),
        (Spread.MURMUR2, {"partitioner": "crc32c"}, True),
        (Spread.MURMUR2, {"partitioner": "murmur2"}, False),
        (Spread.CRC32C, {"partitioner": "murmur2"}, True),
        (Spread.CRC32C, {}, False),
        (Spread.UNKNOWN, {"partitioner": "murmur2"}, False),
        (Spread.OTHERWISE, {}, False),
    ],
)
def test_a_topic_that_spreads_keys_otherwise_is_refused(
    spread: Spread, has: dict[str, str], refused: bool, started: bool
) -> None:
    settings = into_penstock(topic(), spread)
    found = planned(
        topic(),
        settings,
        replace(topic(), configs=has),
        [],
        started=started,
        check=lambda _: "",
        records=5,
    )
    assert (found.action is Action.REFUSED) is refused
    if refused:
        wanted = spread.value
        assert f"penstock topic alter t --set partitioner={wanted}" in found.reason


@pytest.mark.parametrize(
    ("reached", "why"),
    [
        (4, "has removed offsets 4 to 4 before they were copied"),
        (5, ""),
        (9, ""),
        (10, "ends at 9, and 10 was reached"),
    ],
)
def test_a_source_that_lost_what_was_not_copied_is_told(reached: int, why: str) -> None:
    assert why in gone(TopicPartition("t", 0), reached, Bounds(5, 9))
    assert bool(gone(TopicPartition("t", 0), reached, Bounds(5, 9))) is bool(why)


def test_a_topic_is_created_filled_or_continued() -> None:
    assert plan(None).action is Action.CREATE
    assert plan(topic(), Bounds(0, 0)).action is Action.FILL
    assert plan(topic(), Bounds(0, 9), started=True).action is Action.CONTINUE


@pytest.mark.parametrize(
    ("source", "there", "reason"),
    [
        ({"retention.ms": "-1"}, {"retention.ms": "9"}, "retention.ms=9, and the source keeps -1"),
        ({"retention.ms": "10"}, {"retention.ms": "9"}, "retention.ms=9, and the source keeps 10"),
        ({"retention.ms": "9"}, {"retention.ms": "9"}, ""),
        ({"retention.ms": "9"}, {"retention.ms": "-1"}, ""),
        ({"retention.bytes": "9"}, {"retention.bytes": "8"}, "retention.bytes=8"),
        ({"cleanup.policy": "compact", "retention.ms": "9"}, {"retention.ms": "9"}, "keeps -1"),
        ({"retention.ms": "-1"}, {"cleanup.policy": "compact", "retention.ms": "9"}, ""),
    ],
)
def test_an_empty_topic_that_keeps_less_is_refused(
    source: dict[str, str], there: dict[str, str], reason: str
) -> None:
    """And the plan shows what the target's topic has."""
    wanted = replace(topic(), inherited=source)
    settings = into_penstock(wanted, Spread.UNKNOWN)
    has = replace(topic(), inherited=there)
    for started in (False, True):
        found = planned(wanted, settings, has, [], started=started, check=lambda _: "", records=1)
        refused = bool(reason) and not started
        assert (found.action is Action.REFUSED) is refused
        if refused:
            assert reason in found.reason
        for name in settings.kept.keys() & there.keys():
            assert found.shown[name] == there[name]


def test_our_default_limit_is_as_good_as_kafkas() -> None:
    assert plan(topic(limit=1_048_576), Bounds(0, 0)).action is Action.FILL


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (plan(None, check="no"), "no"),
        (plan(topic(partitions=4)), "has 4 partitions, the source's 3"),
        (plan(topic(limit=1_000_000)), "raise the target's to 1049612"),
        (plan(topic(), Bounds(0, 0), Bounds(3, 4)), "has records, and no copy from this source"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(found: TopicPlan, reason: str) -> None:
    assert found.action is Action.REFUSED
    assert reason in found.reason


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (topic("a b"), "illegal character"),
        (topic("__mine"), "two underscores"),
        (topic(partitions=5_001), "5001 partitions"),
        (topic(limit=64 * 1024 * 1024), "at most 33554432"),
    ],
)
def test_topics_that_cannot_be_here(refused: Topic, reason: str) -> None:
    assert reason in refused_here(refused)
    assert not refused_here(topic())
