"""Every setting of a Cluster's `spec.config`, by key: its values and which process reads it.

    spec.config ──split_config──▶ broker: `--config` of the broker processes
                            └───▶ controller: `--config` of the controllers, topics' defaults

One table per reader. The processes build their typed settings from it, manifests and the CRDs
refuse what is not in it: the operator, which has no broker code, has the same keys.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.core.control.config import CONTROL_NUMBERS, ControlConfig
from penstock.core.limits import COPY_RATE_MAX, INT32_MAX, INT64_MAX
from penstock.core.replication.producers import KEPT_MS, PRODUCERS_PER_BROKER
from penstock.core.topic import CONFIG_KEYS, ConfigKey, TopicConfig, explain_unknown_key
from penstock.errors import ErrorCode, MisuseError

MIB: Final = 1024 * 1024
MAX_REPLICA_MESSAGE_BYTES: Final = 16 * MIB
"""With the largest batch, of 32 MiB, and what names the partitions: below the 64 MiB that a stream
between brokers takes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key. Numbers: `minimum` <= value <= `maximum`; otherwise one of `choices`.

    A `share` is a number from 0 to 1 (`topic.SHARE_PATTERN`). `default` as text; settings whose
    default depends on the number of brokers say so in `documentation`.
    """

    key: str
    default: str
    documentation: str
    minimum: int = 1
    maximum: int = INT64_MAX
    choices: tuple[str, ...] = ()
    share: bool = False


BROKER_SETTINGS: Final = (
    Setting(
        "produce.inflight.bytes",
        str(128 * MIB),
        "Total payload of produce requests that wait for acknowledgement, in bytes; above it, "
        "further requests are refused as OVERLOADED (I23).",
    ),
    Setting(
        "fetch.inflight.bytes",
        str(128 * MIB),
        "Total payload of fetch answers being built and sent, in bytes.",
    ),
    Setting(
        "fetch.parked.max",
        "10000",
        "Maximum number of fetches that wait for records at the same time.",
    ),
    Setting(
        "rpcs.max",
        "40000",
        "Maximum number of calls and streams open at the same time. At most half of them are "
        "streams, and at most a quarter streams of one host, so that other calls are answered "
        "however many streams are held open.",
        maximum=INT32_MAX,
    ),
    Setting(
        "produce.stream.inflight.max",
        "64",
        "Maximum number of unanswered requests per ProduceStream.",
    ),
    Setting(
        "cache.bytes",
        str(48 * MIB),
        "Memory for the newest batches, from which followers and consumers at the log's end "
        "are served, in bytes.",
    ),
    Setting(
        "replica.window.bytes",
        str(32 * MIB),
        "How much a leader may send ahead of this broker's acknowledgements, per leader "
        "broker, in bytes.",
        maximum=2**32 - 1,
    ),
    Setting(
        "replica.message.bytes",
        str(2 * MIB),
        "Target size of a replication message, in bytes. It may be larger by one batch.",
        maximum=MAX_REPLICA_MESSAGE_BYTES,
    ),
    Setting(
        "replica.copy.bytes.per.second",
        str(40 * MIB),
        "How fast partitions move from this broker and to it, each, in bytes per second, beside "
        "what is written to them meanwhile; 0 = as fast as they can. Replicas that catch up after "
        "a restart are not limited.",
        minimum=0,
        maximum=COPY_RATE_MAX,
    ),
    Setting(
        "disk.reserve.bytes",
        "0",
        "Writes are refused while less disk space than this is free, in bytes; 0 = the "
        "larger of 64 MiB and 1 %.",
        minimum=0,
    ),
    Setting(
        "disk.check.interval.ms", "1000", "How often free disk space is checked, in milliseconds."
    ),
    Setting(
        "log.retention.check.interval.ms",
        "30000",
        "How often logs are checked for records to delete, in milliseconds.",
    ),
    Setting(
        "log.cleaner.backoff.ms",
        "15000",
        "How often logs of topics with cleanup.policy=compact are checked, in milliseconds.",
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        str(64 * MIB),
        "Memory for the keys of one pass of compaction, about 200 bytes each; a log with more "
        "new keys takes several passes.",
        minimum=4096,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        str(16 * MIB),
        "Maximum bytes that compaction reads and writes per second, over all partitions of "
        "a broker.",
        minimum=1024,
    ),
    Setting(
        "scrub.interval.days",
        "7",
        "Each broker reads every stored batch once in so many days, to find what its disk has "
        "damaged; 0 = only when somebody asks for it.",
        minimum=0,
        maximum=365,
    ),
    Setting(
        "offsets.retention.minutes",
        "10080",
        "How long the committed offsets of a consumer group are kept after its last member "
        "left, in minutes; a group with members keeps its offsets.",
        maximum=INT32_MAX,
    ),
    Setting(
        "transaction.max.timeout.ms",
        "900000",
        "The largest transaction timeout that a producer may request, in milliseconds. If a "
        "producer dies, readers of committed records wait up to that long for its transaction.",
        maximum=INT32_MAX,
    ),
    Setting(
        "transactional.id.expiration.ms",
        "604800000",
        "How long an unused transactional id is remembered, in milliseconds.",
        minimum=60_000,
    ),
    Setting(
        "ledger.expiration.ms",
        "7776000000",
        "How long the ledger of an application id is kept after its last batch, in "
        "milliseconds; after that, its next batch counts as its first.",
        minimum=60_000,
    ),
    Setting(
        "transaction.orphan.grace.ms",
        "300000",
        "A transaction that has been open in a partition or a group for "
        "transaction.max.timeout.ms plus this time, in milliseconds, is ended there as its "
        "coordinator remembers, or aborted if no coordinator knows it.",
        minimum=1_000,
        maximum=INT32_MAX,
    ),
    Setting(
        "transactions.topic.partitions",
        "16",
        "Partitions of the internal topic __transactions, over whose leaders transactional ids "
        "are spread. Read only once, when the first transactional id is used.",
        maximum=1_000,
    ),
    Setting(
        "producer.id.expiration.ms",
        "86400000",
        "How long a partition remembers an idempotent producer that does not write, in "
        "milliseconds; when it goes on later, it gets a new producer id. Sooner, if the "
        f"partitions of a broker have more than {PRODUCERS_PER_BROKER} of them to remember.",
        minimum=KEPT_MS,
    ),
    Setting(
        "producer.snapshot.bytes",
        str(16 * MIB),
        "Bytes of log between two snapshots of producer state: a restart reads this part again.",
    ),
    Setting(
        "shutdown.timeout.ms",
        "5000",
        "How long a broker waits after SIGTERM for its leaderships to move away before it "
        "stops anyway, in milliseconds.",
    ),
)
"""Read by the broker process. Sizes are in bytes, times in ms; all are whole numbers."""

BROKER_KEYS: Final = frozenset(setting.key for setting in BROKER_SETTINGS)

CONTROLLER_SETTINGS: Final = tuple(
    Setting(
        key,
        str(getattr(ControlConfig(), number.field)),
        number.documentation,
        number.minimum,
        number.maximum,
    )
    for key, number in CONTROL_NUMBERS.items()
)
"""Read by the controller."""


def _topic_setting(key: ConfigKey) -> Setting:
    default = key.serialise(getattr(TopicConfig(), key.field))
    if key.boolean:
        return Setting(key.name, default, key.documentation, choices=("true", "false"))
    choices = tuple(str(choice.value) for choice in key.choices or ())
    return Setting(
        key.name, default, key.documentation, key.minimum, key.maximum, choices, key.share
    )


TOPIC_SETTINGS: Final = tuple(_topic_setting(key) for key in CONFIG_KEYS)
"""Set on a Topic; on a Cluster they are inherited by its topics."""

CLUSTER_SETTINGS: Final = (*CONTROLLER_SETTINGS, *TOPIC_SETTINGS, *BROKER_SETTINGS)
"""Everything that `spec.config` of a Cluster may contain."""

_BROKER: Final = {setting.key: setting for setting in BROKER_SETTINGS}
_CLUSTER_KEYS: Final = frozenset(setting.key for setting in CLUSTER_SETTINGS)


def split_config(config: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """`config` as (settings of the brokers, everything else, which is the controller's)."""
    broker = {key: value for key, value in config.items() if key in BROKER_KEYS}
    controller = {key: value for key, value in config.items() if key not in BROKER_KEYS}
    return broker, controller


def check_cluster_keys(names: Iterable[str]) -> dict[str, str]:
    """What is wrong with each name that no process knows, by name."""
    return {
        name: f"unknown cluster config {name!r}: {explain_unknown_key(name, _CLUSTER_KEYS)}"
        for name in names
        if name not in _CLUSTER_KEYS
    }


def parse_broker_setting(key: str, text: str) -> int:
    """The number. Raises MisuseError(INVALID_CONFIG); `key` must be one of BROKER_KEYS."""
    setting = _BROKER[key]
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(INT64_MAX))
    if not digits or not setting.minimum <= int(text) <= setting.maximum:
        wanted = f"from {setting.minimum} to {setting.maximum}"
        if setting.maximum == INT64_MAX:
            wanted = f"of at least {setting.minimum}"
        raise MisuseError(
            f"config {key} is {text!r}; it must be a whole number {wanted}",
            ErrorCode.INVALID_CONFIG,
        )
    return int(text)
