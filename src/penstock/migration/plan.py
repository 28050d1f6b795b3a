"""What happens to each topic, decided before anything is written.

    topics of the source + topics of the target + stored progress ──▶ TopicPlan each
    TopicPlan: create | continue | copy into an empty topic | refused, with the reason

Settings keep their names, which are Kafka's. One that the target does not have, or does not take
with this value, is dropped, and the plan says why. Nothing is copied while a topic is refused.
"""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock.core.partitioner import KeyHash, partition_for_key
from penstock.core.topic import (
    CONFIG_KEYS,
    PARTITIONER,
    PARTITIONS_MAX,
    TopicConfig,
    explain_unknown_key,
    is_internal,
    validate_topic_name,
)
from penstock.errors import MisuseError
from penstock.migration.model import Bounds, Topic

BATCH_HEADROOM_BYTES: Final = 1_024
"""Framing of our batch that Kafka's limit does not count."""
_KAFKA_FRAMING_BYTES: Final = 12
"""Kafka's default of max.message.bytes is 1 MiB and this much (Records.LOG_OVERHEAD)."""
_ENOUGH_KEYS: Final = 8
_OTHERWISE: Final = (
    "keys lie neither by murmur2 nor by crc32c: producers here put them elsewhere, so let all "
    "producers change over at once, after the last record was copied"
)
_MAX_MESSAGE: Final = "max.message.bytes"
_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_KEYS: Final = {key.name: key for key in CONFIG_KEYS}
_IN_KAFKA: Final = frozenset(_KEYS) - {PARTITIONER, "deletion.protection"}


def matching(patterns: Iterable[str], known: Sequence[str], where: str) -> list[str]:
    """Names that match, each once; patterns are names, or have * and ?. Raises MisuseError for a
    pattern without a match."""
    chosen: dict[str, None] = {}
    for pattern in patterns:
        found = fnmatch.filter(known, pattern)
        if not found:
            some = ", ".join(known[:20]) or "none"
            raise MisuseError(f"{where} has no topic {pattern!r}; it has: {some}")
        chosen.update(dict.fromkeys(found))
    return list(chosen)


class Action(Enum):
    CREATE = "create"
    CONTINUE = "continue"
    FILL = "fill the empty topic"
    REFUSED = "refused"


class Spread(Enum):
    """How the keys of a topic lie on its partitions."""

    CRC32C = KeyHash.CRC32C
    MURMUR2 = KeyHash.MURMUR2
    OTHERWISE = "otherwise"
    UNKNOWN = "unknown"
    """One partition, or too few keys to tell."""


@dataclass(frozen=True, slots=True)
class Translated:
    """Settings that the target gets, and those that are dropped with the reason, by name."""

    kept: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, tuple[str, str]] = field(default_factory=dict)
    """(value, reason)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """`wanted`: the topic to create. `reason`: why it is refused."""

    wanted: Topic
    action: Action
    settings: Translated
    reason: str = ""
    records: int = 0
    """Still to copy, at most: offsets, of which some may hold no record."""


def into_penstock(topic: Topic, spread: Spread) -> Translated:
    """Settings of a topic of Kafka, for one here; `spread`: how its keys are."""
    translated = Translated()
    for name, value in sorted(topic.configs.items()):
        problem = _problem(name, value)
        if name == _TIMESTAMP_TYPE and not problem and value != "CreateTime":
            problem = "records keep the time they have; set it when the copy has ended"
        if problem:
            translated.dropped[name] = (value, problem)
        elif name != _MAX_MESSAGE:
            translated.kept[name] = value
    limit = topic.max_message_bytes + BATCH_HEADROOM_BYTES
    if limit > TopicConfig().max_message_bytes:
        translated.kept[_MAX_MESSAGE] = str(min(limit, _KEYS[_MAX_MESSAGE].maximum))
    if spread is Spread.MURMUR2:
        translated.kept[PARTITIONER] = KeyHash.MURMUR2.value
    if spread is Spread.OTHERWISE:
        translated.dropped[PARTITIONER] = ("unknown", _OTHERWISE)
    return translated


def into_kafka(topic: Topic) -> Translated:
    """Settings of a topic here, for one of Kafka."""
    translated = Translated()
    for name, value in sorted(topic.configs.items()):
        if name in _IN_KAFKA:
            translated.kept[name] = value
        else:
            translated.dropped[name] = (value, "Kafka has no such setting")
    return translated


def spread_by(samples: Mapping[int, Iterable[bytes]], partitions: int) -> Spread:
    """From sampled keys, by their partition."""
    pairs = [(key, where) for where, keys in samples.items() for key in keys]
    if partitions < 2 or len({key for key, _ in pairs}) < _ENOUGH_KEYS:
        return Spread.UNKNOWN
    for key_hash in KeyHash:
        if all(partition_for_key(key, partitions, key_hash) == where for key, where in pairs):
            return Spread(key_hash)
    return Spread.OTHERWISE


def planned(
    topic: Topic,
    settings: Translated,
    there: Topic | None,
    bounds: Iterable[Bounds],
    *,
    started: bool,
    check: Callable[[Topic], str],
    records: int,
) -> TopicPlan:
    """`there`: the target's topic of this name, and the `bounds` of its partitions. `started`: it
    has progress of this copy. `check`: what the target refuses about a new topic, or ""."""
    wanted = Topic(
        name=topic.name,
        partitions=topic.partitions,
        replicas=topic.replicas,
        configs=settings.kept,
        max_message_bytes=topic.max_message_bytes,
    )
    if there is None:
        reason = check(wanted)
        action = Action.CREATE
    else:
        reason = _conflict(topic, there, bounds, started=started)
        action = Action.CONTINUE if started else Action.FILL
    return TopicPlan(
        wanted=wanted,
        action=Action.REFUSED if reason else action,
        settings=settings,
        reason=reason,
        records=records,
    )


def refused_here(topic: Topic) -> str:
    """What Penstock refuses about a topic, before it is asked to create it."""
    try:
        validate_topic_name(topic.name)
    except MisuseError as error:
        return error.message
    if is_internal(topic.name):
        return "its name begins with two underscores, as those of internal topics do"
    if topic.partitions > PARTITIONS_MAX:
        return f"it has {topic.partitions} partitions; a topic may have {PARTITIONS_MAX}"
    limit = _KEYS[_MAX_MESSAGE].maximum
    if topic.max_message_bytes > limit:
        return (
            f"its {_MAX_MESSAGE} is {topic.max_message_bytes}; at most {limit} is possible, and a "
            "record above that could not be copied: lower it in the source if there are none"
        )
    return ""


def _conflict(topic: Topic, there: Topic, bounds: Iterable[Bounds], *, started: bool) -> str:
    if there.partitions != topic.partitions:
        return (
            f"the target's topic has {there.partitions} partitions, the source's "
            f"{topic.partitions}; keys would lie elsewhere: make them equal, or delete the target's"
        )
    if there.max_message_bytes + _KAFKA_FRAMING_BYTES < topic.max_message_bytes:
        return (
            f"the target's {_MAX_MESSAGE} is {there.max_message_bytes}, and the source takes "
            f"batches of {topic.max_message_bytes}: raise the target's to "
            f"{topic.max_message_bytes + BATCH_HEADROOM_BYTES}"
        )
    if not started and any(each.first != each.end for each in bounds):
        return (
            "the target's topic has records, and no copy from this source was begun there: "
            "delete the topic, or choose others"
        )
    return ""


def _problem(name: str, value: str) -> str:
    key = _KEYS.get(name)
    if key is None:
        why = explain_unknown_key(name, _KEYS)
        return "there is no such setting" if why.startswith(("known", "did you")) else why
    try:
        key.parse(value)
    except MisuseError as error:
        return error.message
    return ""
