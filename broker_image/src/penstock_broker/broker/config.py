"""A broker's settings, by subject, validated once when the process starts.

The command line names identity and addresses; everything else has a default that suits a small
cluster and can be set with `--config key=value`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, MisuseError

MIB = 1024 * 1024


def _setting(key: str, default: int, documentation: str, *, minimum: int = 1) -> Any:
    """A field settable as `--config key=…`; all settings are whole numbers >= `minimum`."""
    return field(
        default=default,
        metadata={"key": key, "documentation": documentation, "minimum": minimum},
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The tunables. Sizes in bytes, times in ms."""

    produce_inflight_bytes: int = _setting(
        "produce.inflight.bytes",
        128 * MIB,
        "Payload of produce requests that wait for their acknowledgement, all together; "
        "beyond it producers are told to come back (I23).",
    )
    fetch_inflight_bytes: int = _setting(
        "fetch.inflight.bytes",
        128 * MIB,
        "Payload of fetch answers being built and sent, all together.",
    )
    fetch_parked_max: int = _setting(
        "fetch.parked.max", 10_000, "Fetches that may wait for records at one time."
    )
    rpcs_max: int = _setting("rpcs.max", 20_000, "Calls and streams open at one time.")
    stream_inflight_max: int = _setting(
        "produce.stream.inflight.max", 64, "Unanswered requests per ProduceStream."
    )
    cache_bytes: int = _setting(
        "cache.bytes",
        48 * MIB,
        "Newest batches kept in memory for followers and consumers at the log's end.",
    )
    replica_window_bytes: int = _setting(
        "replica.window.bytes",
        32 * MIB,
        "What a leader may send ahead of this broker's acknowledgements, per leader broker.",
    )
    replica_message_bytes: int = _setting(
        "replica.message.bytes", 2 * MIB, "Aimed-at size of one replication message."
    )
    disk_reserve_bytes: int = _setting(
        "disk.reserve.bytes",
        0,
        "Writes are refused while less than this is free; 0 = the larger of 64 MiB and 1 %.",
        minimum=0,
    )
    disk_check_interval_ms: int = _setting(
        "disk.check.interval.ms", 1_000, "How often free space is looked at."
    )
    retention_check_interval_ms: int = _setting(
        "log.retention.check.interval.ms", 30_000, "How often old records are looked for."
    )
    producer_snapshot_bytes: int = _setting(
        "producer.snapshot.bytes",
        16 * MIB,
        "Log written between two snapshots of producer state: what a restart reads again.",
    )
    shutdown_timeout_ms: int = _setting(
        "shutdown.timeout.ms",
        5_000,
        "How long SIGTERM waits for leaderships to move away before it stops regardless.",
    )


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """All a broker process needs to start.

    `listen` and `metrics_listen` are `host:port` (`metrics_listen` empty: no metrics endpoint);
    `advertise_*` is what clients and followers connect to.
    """

    broker_id: BrokerId
    data_dir: Path
    listen: str
    advertise_host: str
    advertise_port: int
    controllers: tuple[str, ...]
    rack: str = ""
    metrics_listen: str = ""
    settings: Settings = field(default_factory=Settings)


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Splits `host:port`; raises MisuseError that names the option."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise MisuseError(
            f"{option} is {text!r}; it must be host:port with a port of 0 to 65535",
            ErrorCode.INVALID_CONFIG,
        )
    return host.strip("[]"), int(port)


def parse_settings(pairs: list[str]) -> Settings:
    """Reads `key=value` texts; raises MisuseError for unknown keys and bad numbers."""
    by_key = {known.metadata["key"]: known for known in fields(Settings)}
    values: dict[str, int] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        known = by_key.get(key)
        if not separator or known is None:
            raise MisuseError(
                f"--config {pair!r} is not one of the settings; write key=value with a key of "
                + ", ".join(sorted(by_key)),
                ErrorCode.INVALID_CONFIG,
            )
        values[known.name] = _whole_number(key, text, known.metadata)
    return Settings(**values)


def _whole_number(key: str, text: str, metadata: Mapping[str, Any]) -> int:
    minimum = metadata["minimum"]
    if not text.isdigit() or int(text) < minimum:
        raise MisuseError(
            f"--config {key}={text}: it must be a whole number of at least {minimum}",
            ErrorCode.INVALID_CONFIG,
        )
    return int(text)
