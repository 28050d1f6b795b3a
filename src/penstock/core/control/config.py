"""The controller's settings: times, defaults of new topics. Validated once, passed explicitly.

Keys on the command line are Kafka's where Kafka has one. Any topic config can be given too: it
becomes the cluster's default for topics that do not set it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.core.topic import CONFIG_KEYS, PARTITIONS_MAX, TopicConfig, explain_unknown_key
from penstock.errors import ErrorCode, MisuseError


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """All times in ms.

    `heartbeat_interval_ms`, `session_timeout_ms`: a frozen broker is dead after five missed
    heartbeats; more often costs CPU on idle clusters, less often costs availability.
    `session_grace_ms`: how long a broker whose stream broke may take to come back before its
    leaderships move. A killed process is noticed by its closed socket, so this is the
    fail-over time of a hard kill.
    `preferred_leader_interval_ms`, `preferred_leader_moves`: how often leadership returns to
    replicas[0], and how many partitions at a time. A broker must have been back for one
    interval, so that one that crashes in a loop is left alone.
    `away_hold_ms`: after all leaderships were moved off a broker, none returns for this long.
    `takeover_min_brokers`: how many must send their journals at a take-over; 0 = a majority.
    `partitions_max`: in all topics together, without internal ones. The documents of 20,000
    partitions are some megabytes, and etcd holds two gigabytes for a whole Kubernetes.
    `mutation_rate`: partitions' worth of changes to topics per second, see `quota`.
    `tick_gap_ms`: a longer pause between ticks means that the controller itself was paused.
    """

    heartbeat_interval_ms: int = 300
    session_timeout_ms: int = 1_800
    session_grace_ms: int = 300
    preferred_leader_interval_ms: int = 5_000
    preferred_leader_moves: int = 100
    away_hold_ms: int = 60_000
    tick_gap_ms: int = 500
    default_partitions: int = 1
    default_replication_factor: int = 3
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    producer_ids_per_block: int = 1_000
    max_pending_requests: int = 10_000
    takeover_min_brokers: int = 0
    partitions_max: int = 20_000
    mutation_rate: int = 200

    def topic_config(self, configs: Mapping[str, str]) -> TopicConfig:
        """A topic's settings: its own, then the cluster's defaults, then the built-in ones."""
        return TopicConfig.parse({**self.topic_defaults, **configs})

    @staticmethod
    def parse(mapping: Mapping[str, str]) -> "ControlConfig":
        """Raises MisuseError(INVALID_CONFIG) for an unknown key or a value out of range."""
        changes: dict[str, Any] = {}
        topic_defaults: dict[str, str] = {}
        for name, text in mapping.items():
            if name in CONTROL_NUMBERS:
                changes[CONTROL_NUMBERS[name].field] = parse_control_number(name, text)
            elif name in _TOPIC_KEYS:
                topic_defaults[name] = text
            else:
                known = [*CONTROL_NUMBERS, *_TOPIC_KEYS]
                raise MisuseError(
                    f"unknown controller config {name!r}: {explain_unknown_key(name, known)}",
                    ErrorCode.INVALID_CONFIG,
                )
        TopicConfig.parse(topic_defaults)
        config = replace(ControlConfig(), **changes, topic_defaults=topic_defaults)
        if config.session_timeout_ms < 2 * config.heartbeat_interval_ms:
            raise MisuseError(
                f"broker.session.timeout.ms is {config.session_timeout_ms}; it must be at least "
                f"twice broker.heartbeat.interval.ms, which is {config.heartbeat_interval_ms}",
                ErrorCode.INVALID_CONFIG,
            )
        return config


@dataclass(frozen=True, slots=True)
class ControlNumber:
    """A setting that is a number: field of ControlConfig, smallest and largest value, meaning."""

    field: str
    minimum: int
    maximum: int
    documentation: str


CONTROL_NUMBERS: Final = {
    "broker.heartbeat.interval.ms": ControlNumber(
        "heartbeat_interval_ms",
        20,
        60_000,
        "How often a broker sends a heartbeat to the controller, in milliseconds.",
    ),
    "broker.session.timeout.ms": ControlNumber(
        "session_timeout_ms",
        100,
        600_000,
        "Time without a heartbeat after which the controller considers a broker dead, in "
        "milliseconds; at least two heartbeat intervals.",
    ),
    "broker.session.grace.ms": ControlNumber(
        "session_grace_ms",
        0,
        600_000,
        "How long the controller waits for a broker to reconnect before it moves the broker's "
        "leaderships, in milliseconds.",
    ),
    "leader.imbalance.check.interval.ms": ControlNumber(
        "preferred_leader_interval_ms",
        100,
        86_400_000,
        "How often leaderships move back to preferred leaders, in milliseconds.",
    ),
    "leader.imbalance.moves": ControlNumber(
        "preferred_leader_moves",
        0,
        100_000,
        "How many leaderships move back at a time; 0 = none.",
    ),
    "controller.takeover.min.brokers": ControlNumber(
        "takeover_min_brokers",
        0,
        1_000,
        "How many registered brokers must answer before a controller takes over; 0 = a "
        "majority. With fewer, decisions made while the Kubernetes API was unavailable may be "
        "lost: set it only for a cluster that has lost most of its brokers for good.",
    ),
    "num.partitions": ControlNumber(
        "default_partitions",
        1,
        PARTITIONS_MAX,
        "Number of partitions of a topic that does not specify it.",
    ),
    "max.partitions": ControlNumber(
        "partitions_max",
        1,
        1_000_000,
        "Maximum number of partitions in the cluster, not counting internal topics. All topics "
        "are stored in the metadata store, on Kubernetes in its etcd, which holds little.",
    ),
    "controller.mutation.rate": ControlNumber(
        "mutation_rate",
        1,
        1_000_000,
        "How fast topics may change: how many partitions may be created, deleted or altered per "
        "second. What 100 seconds allow may be used at once. Beyond it, requests are refused as "
        "OVERLOADED, and clients try again.",
    ),
    "default.replication.factor": ControlNumber(
        "default_replication_factor",
        1,
        64,
        "Number of replicas of a topic that does not specify it; not set = 3, or the number of "
        "brokers if that is smaller.",
    ),
}
_DIGITS_MAX: Final = 19
"""More are out of every range, and int() refuses 4,300 with words of its own."""
_TOPIC_KEYS: Final = frozenset(key.name for key in CONFIG_KEYS)


def parse_control_number(name: str, text: str) -> int:
    """The number; `name` is a key of CONTROL_NUMBERS. Raises MisuseError(INVALID_CONFIG)."""
    number = CONTROL_NUMBERS[name]
    digits = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    if not digits or not number.minimum <= int(text) <= number.maximum:
        raise MisuseError(
            f"config {name} is {text!r}; it must be a whole number from {number.minimum} to "
            f"{number.maximum}",
            ErrorCode.INVALID_CONFIG,
        )
    return int(text)
