"""What happens to each topic, decided before anything is written.

    topics of the source + topics of the target + stored progress ──▶ TopicPlan each
    TopicPlan: create | continue | copy into an empty topic | refused, with the reason

Settings keep their names, which are Kafka's. One that the target does not have, or does not take
with this value, is dropped, and the plan says why. Nothing is copied while a topic is refused.
"""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import log2
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
from penstock.core.types import TopicPartition
from penstock.errors import MisuseError
from penstock.migration.model import Bounds, Topic

BATCH_HEADROOM_BYTES: Final = 1_024
"""Framing of our batch that Kafka's limit does not count."""
_KAFKA_FRAMING_BYTES: Final = 12
"""Kafka's default of max.message.bytes is 1 MiB and this much (Records.LOG_OVERHEAD)."""
_ENOUGH_BITS: Final = 20
"""Keys, times the bits that tell their partition: one chance in a million to be wrong."""
_OTHERWISE: Final = (
    "keys lie neither by murmur2 nor by crc32c: producers here put them elsewhere, so let all "
    "producers change over at once, after the last record was copied"
)
_TOO_FEW: Final = (
    "there are too few keys to tell how they lie on partitions; looked at again when the copy ends"
)
_NOT_KAFKAS: Final = (
    "Kafka's clients spread keys by murmur2: let all producers change over at once, after the last "
    "record was copied"
)
_MAX_MESSAGE: Final = "max.message.bytes"
_LAG: Final = "min.compaction.lag.ms"
_LAG_MAX: Final = "max.compaction.lag.ms"
HELD_MS: Final = 10**15
"""Longer than any record is old; and no age that a person would set."""
_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_CREATE_TIME: Final = "CreateTime"
_MIN_INSYNC: Final = "min.insync.replicas"
_KAFKAS_MIN_INSYNC: Final = 1
_RETENTION: Final = ("cleanup.policy", "retention.bytes", "retention.ms")
"""What deletes records. A copy has them set, for the target's defaults may be others, or become
so."""
_TIME_LIMITS: Final = ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms")
_IF_DIFFERENT: Final = ("delete.retention.ms", _LAG, _LAG_MAX, _TIMESTAMP_TYPE, *_TIME_LIMITS)
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
    afterwards: dict[str, str | None] = field(default_factory=dict)
    """What is set when the copy has been compared, in place of `kept`. None: the default."""
    partitioner: KeyHash | None = None
    """By which keys lie in the source. None: by another one, or it does not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """`wanted`: the topic to create. `reason`: why it is refused."""

    wanted: Topic
    action: Action
    settings: Translated
    reason: str = ""
    records: int = 0
    """Still to copy, at most: offsets, of which some may hold no record."""
    meets: Topic | None = None
    """The target's topic, as it is or will be; None: `wanted`."""

    @property
    def shown(self) -> dict[str, str]:
        """The settings that were translated, as the target's topic has them or will have them."""
        topic = self.meets or self.wanted
        return {name: topic.in_force(name, "") for name in self.settings.kept}


def into_penstock(topic: Topic, spread: Spread) -> Translated:
    """Settings of a topic of Kafka, for one here; `spread`: how its keys are."""
    by_hash = spread in (Spread.MURMUR2, Spread.CRC32C)
    translated = Translated(partitioner=KeyHash(spread.value) if by_hash else None)
    for name, value in sorted(_in_force(topic, TopicConfig().min_insync_replicas).items()):
        problem = _problem(name, value)
        if problem:
            translated.dropped[name] = (value, problem)
        elif name != _MAX_MESSAGE:
            translated.kept[name] = value
    limit = max(topic.max_message_bytes + BATCH_HEADROOM_BYTES, TopicConfig().max_message_bytes)
    translated.kept[_MAX_MESSAGE] = str(min(limit, _KEYS[_MAX_MESSAGE].maximum))
    if spread is Spread.MURMUR2:
        translated.kept[PARTITIONER] = KeyHash.MURMUR2.value
    if spread is Spread.OTHERWISE:
        translated.dropped[PARTITIONER] = ("unknown", _OTHERWISE)
    if spread is Spread.UNKNOWN and topic.partitions > 1:
        translated.dropped[PARTITIONER] = ("unknown", _TOO_FEW)
    _hold_times(translated, _TIME_LIMITS)
    return _held(translated)


def into_kafka(topic: Topic) -> Translated:
    """Settings of a topic here, for one of Kafka."""
    translated = Translated()
    for name, value in sorted(_in_force(topic, _KAFKAS_MIN_INSYNC).items()):
        if name in _IN_KAFKA:
            translated.kept[name] = value
        else:
            translated.dropped[name] = (value, "Kafka has no such setting")
    translated.kept[_MAX_MESSAGE] = str(topic.max_message_bytes + BATCH_HEADROOM_BYTES)
    if topic.configs.get(PARTITIONER, KeyHash.CRC32C) != KeyHash.MURMUR2:
        translated.dropped[PARTITIONER] = (KeyHash.CRC32C.value, _NOT_KAFKAS)
    _hold_times(translated, [name for name in _TIME_LIMITS if name in translated.kept])
    return _held(translated)


def _in_force(topic: Topic, min_insync: int) -> dict[str, str]:
    """What was set on the topic, and what it inherits and a copy must keep. `min_insync`: the
    target's default, below which nobody goes who did not ask for it."""
    built_in = TopicConfig().to_mapping()
    found = {
        name: value
        for name, value in topic.inherited.items()
        if name in _RETENTION or (name in _IF_DIFFERENT and value != built_in[name])
    }
    least = min(int(topic.inherited.get(_MIN_INSYNC, 1)), topic.replicas)
    if least > min_insync:
        found[_MIN_INSYNC] = str(least)
    return found | dict(topic.configs)


def _hold_times(translated: Translated, limits: Iterable[str]) -> None:
    """Records keep the time they have while they are copied, however old they are. `limits`: those
    that the target knows."""
    held = {name: _KEYS[name].maximum for name in limits} | {_TIMESTAMP_TYPE: _CREATE_TIME}
    for name, value in held.items():
        was = translated.kept.get(name)
        translated.kept[name] = str(value)
        if was not in (None, str(value)):
            translated.dropped[name] = (str(was), "set when the copy has been compared")
        if was is not None or name != _TIMESTAMP_TYPE:
            translated.afterwards[name] = was


def due(settings: Translated, topic: Topic) -> dict[str, str | None]:
    """What is to be set on a topic that has been copied: in place of what only a copy sets."""
    return {
        name: value
        for name, value in settings.afterwards.items()
        if (
            is_held(topic)
            if name in (_LAG, _LAG_MAX)
            else topic.configs.get(name) == settings.kept[name] != value
        )
    }


def _held(translated: Translated) -> Translated:
    """A topic is not compacted while it is copied: what is compared would be gone."""
    if "compact" in translated.kept.get("cleanup.policy", ""):
        for name in (_LAG, _LAG_MAX):
            translated.afterwards[name] = translated.kept.pop(name, None)
        translated.kept[_LAG] = str(HELD_MS)
        was = translated.afterwards[_LAG] or "0"
        translated.dropped[_LAG] = (was, "set when the copy has been compared: not compacted yet")
    return translated


def is_held(topic: Topic) -> bool:
    """Whether a copy keeps it from being compacted."""
    return topic.configs.get(_LAG) == str(HELD_MS)


def spread_by(samples: Mapping[int, Iterable[bytes]], partitions: int) -> Spread:
    """From sampled keys, by their partition."""
    pairs = [(key, where) for where, keys in samples.items() for key in keys]
    if len({key for key, _ in pairs}) * log2(partitions) < _ENOUGH_BITS:
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
    gone: str = "",
) -> TopicPlan:
    """`there`: the target's topic of this name, and the `bounds` of its partitions. `started`: it
    has progress of this copy. `check`: what the target refuses about a new topic, or "". `gone`:
    why a copy that was started cannot go on, or ""."""
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
        reason = gone or _conflict(topic, there, bounds, started=started)
        reason = reason or other_keys(settings.partitioner, there)
        action = Action.CONTINUE if started else Action.FILL
    return TopicPlan(
        wanted=wanted,
        action=Action.REFUSED if reason else action,
        settings=settings,
        reason=reason,
        records=records,
        meets=there or replace(wanted, max_message_bytes=int(settings.kept[_MAX_MESSAGE])),
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
    stamped = there.in_force(_TIMESTAMP_TYPE, _CREATE_TIME)
    if stamped != _CREATE_TIME:
        return (
            f"the target's topic has {_TIMESTAMP_TYPE}={stamped}: all records would get the time "
            f"of the copy; set {_TIMESTAMP_TYPE}={_CREATE_TIME} there until it has ended"
        )
    if not started and any(each.first != each.end for each in bounds):
        return (
            "the target's topic has records, and no copy from this source was begun there, or none "
            "has run for so long that its progress has expired (offsets.retention.minutes, 7 days "
            "by default): delete the topic, or choose others"
        )
    return "" if started else _shorter_retention(topic, there)


def _shorter_retention(topic: Topic, there: Topic) -> str:
    """An empty topic that somebody made must not delete what the source keeps."""
    policies = [each.in_force("cleanup.policy", "delete") for each in (topic, there)]
    if "delete" not in policies[1]:
        return ""
    for name in ("retention.ms", "retention.bytes"):
        keeps = topic.in_force(name, "") if "delete" in policies[0] else "-1"
        has = there.in_force(name, "")
        if keeps and has not in ("", "-1") and (keeps == "-1" or int(has) < int(keeps)):
            return (
                f"the target's topic has {name}={has}, and the source keeps {keeps}: records would "
                f"be deleted; set {name}={keeps} there"
            )
    return ""


def other_keys(partitioner: KeyHash | None, there: Topic) -> str:
    """Why producers would put keys elsewhere at the target than its older records, or ""."""
    has = there.in_force(PARTITIONER, KeyHash.CRC32C.value)
    if partitioner is None or has == partitioner:
        return ""
    return (
        f"the target's topic has {PARTITIONER}={has}, and the source's keys lie by "
        f"{partitioner.value}: producers here would put a key elsewhere than its older records, "
        f"and its order would be lost; `penstock topic alter {there.name} --set "
        f"{PARTITIONER}={partitioner.value}` makes them equal"
    )


def created_again(topic: Topic, topic_id: str) -> str:
    """Why a copy of the source's topic with this id cannot go on with `topic`, or ""."""
    if not topic.topic_id or topic_id in ("", topic.topic_id):
        return ""
    return (
        "the source's topic was deleted and created again since it was copied; delete the target's "
        "topic and start over"
    )


def gone(where: TopicPartition, source_next: int, bounds: Bounds) -> str:
    """Why a copy that has come to `source_next` cannot go on with what the source has, or ""."""
    start_over = "delete the target's topic and start over"
    if source_next < bounds.first:
        return (
            f"{where.topic}/{where.partition}: the source has removed offsets {source_next} to "
            f"{bounds.first - 1} before they were copied; {start_over}"
        )
    if source_next > bounds.end:
        return (
            f"{where.topic}/{where.partition}: the source ends at {bounds.end}, and {source_next} "
            f"was reached before: it has lost records or was created again; {start_over}"
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
