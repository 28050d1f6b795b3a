"""Topics as users name and configure them: the name rule and the table of configs.

    manifest, CLI, client, CreateTopics ──mapping of text──▶ TopicConfig.parse ──▶ typed values
    typed values ──▶ TopicConfig.to_mapping ──▶ DescribeConfigs, documents

Key names are Kafka's, so that people can use what they know; `CONFIG_KEYS` is the one table that
parsing, serialising, documentation and tests read. A key that does not exist here is refused,
never ignored: a typo in `retention.ms` must not mean "keep for seven days".
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum, StrEnum
from typing import Any, Final

from penstock.core.partitioner import KeyHash
from penstock.core.value import value
from penstock.errors import ClusterError, ErrorCode, MisuseError

TOPIC_NAME_MAX_CHARS: Final = 249
PARTITIONS_MAX: Final = 5_000
"""Per topic. One topic is one document, and a Kubernetes object holds at most 1 MiB."""
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transactions"})
"""Those that there are; `is_internal` reserves names for those to come."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]*")
_NAME_RULE: Final = (
    f"a topic name must have 1 to {TOPIC_NAME_MAX_CHARS} characters from a-z, A-Z, 0-9, '.', '_' "
    "and '-', and must not be '.' or '..'"
)
_NUMBER: Final = re.compile(r"-?[0-9]+")
_DIGITS_MAX: Final = 20
"""Of a number that is worth parsing: those of 64 bits have 19, and a sign."""
DELETION_PROTECTION: Final = "deletion.protection"
PARTITIONER: Final = "partitioner"
SHARE_PATTERN: Final = r"0(\.[0-9]{1,4})?|1(\.0{1,4})?"
"""A fraction as text: 0 to 1, with at most four decimal places."""
SHARE_RANGE: Final = "a number from 0 to 1 with at most four decimal places, like 0.5"
_INT64_MAX: Final = 2**63 - 1


def validate_topic_name(name: str) -> None:
    """Raises MisuseError(INVALID_TOPIC_NAME) that says what is wrong and where."""
    problem = ""
    if not name:
        problem = "the topic name is empty"
    elif name in {".", ".."}:
        problem = f"the topic name is {name!r}"
    elif len(name) > TOPIC_NAME_MAX_CHARS:
        problem = f"topic name {name[:40]!r}… has {len(name)} characters"
    else:
        matched = _LEGAL.match(name)
        legal = matched.end() if matched else 0
        if legal < len(name):
            problem = (
                f"topic name {name!r} has the illegal character {name[legal]!r} at position {legal}"
            )
    if problem:
        raise MisuseError(f"{problem}; {_NAME_RULE}", ErrorCode.INVALID_TOPIC_NAME)


def is_internal(name: str) -> bool:
    """Names with two leading underscores belong to the cluster itself."""
    return name.startswith("__")


def refuse_internal(topic: str, what: str) -> None:
    """Raises ClusterError(INVALID_TOPIC_NAME) for internal topics, which only brokers use.

    `what` says what cannot be done to them.
    """
    if is_internal(topic):
        raise ClusterError(
            f"topic {topic[:60]!r} is internal, like all names with two leading underscores: it "
            f"cannot be {what}; choose another name",
            ErrorCode.INVALID_TOPIC_NAME,
        )


def protected_text(topic: str, *, inherited: bool) -> str:
    """Why a topic is not deleted, and what lifts that. `inherited`: only the cluster says so."""
    whose = ", the cluster's default" if inherited else ""
    return (
        f"topic {topic!r} is protected from deletion ({DELETION_PROTECTION} is true{whose}); to "
        f"lift that: penstock topic alter {topic} --set {DELETION_PROTECTION}=false, or, if there "
        f'is a Topic resource for it, {DELETION_PROTECTION}: "false" in its spec.config'
    )


class TimestampType(StrEnum):
    """Which clock stamps records: the producer's or the leader's."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class CleanupPolicy(StrEnum):
    """How old records are removed: by age and size, by key, or both."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact,delete"

    @property
    def deletes(self) -> bool:
        """Whether retention.ms and retention.bytes apply."""
        return self is not CleanupPolicy.COMPACT

    @property
    def compacts(self) -> bool:
        """Whether only the newest value per key is promised to stay."""
        return self is not CleanupPolicy.DELETE


class CompressionType(StrEnum):
    """Brokers never re-encode: batches stay as the producer compressed them."""

    PRODUCER = "producer"


@value(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings. Field documentation: `CONFIG_KEYS`."""

    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    max_message_bytes: int = 1_048_576
    min_insync_replicas: int = 2
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = _INT64_MAX
    timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _INT64_MAX
    unclean_leader_election: bool = False
    deletion_protection: bool = False
    compression_type: CompressionType = CompressionType.PRODUCER
    partitioner: KeyHash = KeyHash.CRC32C

    @staticmethod
    def parse(mapping: Mapping[str, str], defaults: "TopicConfig | None" = None) -> "TopicConfig":
        """The settings in `mapping` on top of `defaults` (None: the built-in ones).

        Raises MisuseError(INVALID_CONFIG) for an unknown key or a value out of its range.
        """
        changes: dict[str, Any] = {}
        for name, text in mapping.items():
            key = _find_key(name)
            changes[key.field] = key.parse(text)
        return replace(defaults or TopicConfig(), **changes)

    def to_mapping(self) -> dict[str, str]:
        """Every key with its value as text; `parse` of it gives an equal object."""
        return {key.name: key.serialise(getattr(self, key.field)) for key in CONFIG_KEYS}

    def effective_min_insync_replicas(self, replication_factor: int) -> int:
        """The value for replication and election: at most the number of replicas.

        The default (2) must not make a topic with one replica unwritable. A topic that *sets*
        more than its replication factor is refused when it is created or altered.
        """
        return min(self.min_insync_replicas, replication_factor)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One config: Kafka's name, the field of `TopicConfig`, the range, what it means.

    Numbers: `minimum` <= value <= `maximum`, both inclusive. `share`: `SHARE_PATTERN`.
    """

    name: str
    field: str
    documentation: str
    minimum: int = 0
    maximum: int = _INT64_MAX
    choices: type[StrEnum] | None = None
    boolean: bool = False
    share: bool = False

    def parse(self, text: str) -> float | bool | StrEnum:
        """The typed value; raises MisuseError(INVALID_CONFIG)."""
        if self.boolean:
            if text in {"true", "false"}:
                return text == "true"
            raise self._refused(text, "true or false")
        if self.choices is not None:
            if text in set(self.choices):
                return self.choices(text)
            raise self._refused(text, " or ".join(choice.value for choice in self.choices))
        if self.share:
            if re.fullmatch(SHARE_PATTERN, text):
                return float(text)
            raise self._refused(text, SHARE_RANGE)
        # int() alone would also accept "1_000" and digits of other scripts.
        if not _NUMBER.fullmatch(text):
            raise self._refused(text, "a whole number")
        if len(text) > _DIGITS_MAX or not self.minimum <= int(text) <= self.maximum:
            raise self._refused(text, f"{self.minimum} to {self.maximum}")
        return int(text)

    def serialise(self, value: float | bool | Enum) -> str:
        """The text form `parse` reads."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value.value if isinstance(value, Enum) else value)

    def _refused(self, text: str, wanted: str) -> MisuseError:
        return MisuseError(
            f"config {self.name} is {text!r}; it must be {wanted}", ErrorCode.INVALID_CONFIG
        )


CONFIG_KEYS: Final = (
    ConfigKey(
        "retention.ms",
        "retention_ms",
        "How long a record is kept at least, in milliseconds; -1 = no limit by time.",
        minimum=-1,
    ),
    ConfigKey(
        "retention.bytes",
        "retention_bytes",
        "How much of a partition is kept at least, in bytes: its oldest batches are deleted while "
        "so much remains; -1 = no limit by size.",
        minimum=-1,
    ),
    ConfigKey(
        "max.message.bytes",
        "max_message_bytes",
        "Largest record batch as stored (header and compressed payload), in bytes.",
        minimum=1_024,
        maximum=32 * 1024 * 1024,
    ),
    ConfigKey(
        "min.insync.replicas",
        "min_insync_replicas",
        "Number of in-sync replicas needed before a record is acknowledged with acks=all or "
        "becomes visible. Capped at the replication factor if not set for the topic.",
        minimum=1,
        maximum=64,
    ),
    ConfigKey(
        "message.timestamp.type",
        "timestamp_type",
        "CreateTime: the producer's timestamp; LogAppendTime: the leader's clock at append.",
        choices=TimestampType,
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        "timestamp_before_max_ms",
        "How far a CreateTime may be before the broker's clock, in milliseconds.",
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        "timestamp_after_max_ms",
        "How far a CreateTime may be after the broker's clock, in milliseconds: a timestamp in "
        "the future would delay retention.",
    ),
    ConfigKey(
        "cleanup.policy",
        "cleanup_policy",
        "What happens to old records. delete: they are deleted by retention.ms and "
        "retention.bytes; compact: only the newest record of each key is kept, and every record "
        "needs a key; compact,delete: both.",
        choices=CleanupPolicy,
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        "min_cleanable_dirty_ratio",
        "Compaction starts when at least this fraction of a log has not been compacted.",
        share=True,
    ),
    ConfigKey(
        "delete.retention.ms",
        "delete_retention_ms",
        "How long a tombstone (a null value) is kept after compaction passed it, in "
        "milliseconds; a consumer that reads the whole log within that time sees every deletion.",
    ),
    ConfigKey(
        "min.compaction.lag.ms",
        "min_compaction_lag_ms",
        "How long a record is not compacted, in milliseconds.",
    ),
    ConfigKey(
        "max.compaction.lag.ms",
        "max_compaction_lag_ms",
        "Time after which a record is compacted even if min.cleanable.dirty.ratio is not "
        "reached, in milliseconds.",
        minimum=1,
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        "unclean_leader_election",
        "Elect a replica that may lack acknowledged records if no other is left. Loses data.",
        boolean=True,
    ),
    ConfigKey(
        DELETION_PROTECTION,
        "deletion_protection",
        "Whether the topic refuses to be deleted, whoever asks: set it to false first. In "
        "spec.config of a Cluster: of topics that do not set it, and of the Cluster itself.",
        boolean=True,
    ),
    ConfigKey(
        "compression.type",
        "compression_type",
        "producer: batches keep the producer's compression; brokers never re-encode them.",
        choices=CompressionType,
    ),
    ConfigKey(
        PARTITIONER,
        "partitioner",
        "Which partition a key belongs to; clients obey it. crc32c: crc32c(key) mod partitions; "
        "murmur2: as Kafka's Java clients choose, for topics that come from Kafka. A change moves "
        "keys to other partitions: what was sent before stays where it is.",
        choices=KeyHash,
    ),
)
_KEY_OF: Final = {key.name: key for key in CONFIG_KEYS}
assert {key.field for key in CONFIG_KEYS} == {field.name for field in fields(TopicConfig)}

_NOT_APPLICABLE: Final = {
    "segment.bytes": "logs have no segments; retention works batch by batch",
    "segment.ms": "logs have no segments; retention works batch by batch",
    "segment.index.bytes": "logs have no segments",
    "index.interval.bytes": "logs have no segments",
    "flush.messages": "ask for sync=DISK per produce request instead",
    "flush.ms": "ask for sync=DISK per produce request instead",
    "remote.storage.enable": "tiered storage is not supported",
}


def _find_key(name: str) -> ConfigKey:
    key = _KEY_OF.get(name)
    if key is None:
        raise MisuseError(
            f"unknown topic config {name!r}: {explain_unknown_key(name, _KEY_OF)}",
            ErrorCode.INVALID_CONFIG,
        )
    return key


def explain_unknown_key(name: str, known: Iterable[str]) -> str:
    """The second half of an "unknown config" message: why, or what was probably meant."""
    names = sorted(known)
    if name in _NOT_APPLICABLE:
        return _NOT_APPLICABLE[name]
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known are " + ", ".join(names)
