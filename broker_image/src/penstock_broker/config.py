"""A broker's settings, by subject, validated once when the process starts.

The command line names identity and addresses; everything else has a default that suits a small
cluster and can be set with `--config key=value`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from penstock.core.settings import BROKER_SETTINGS, parse_broker_setting
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, MisuseError

_DEFAULTS: Final = {setting.key: int(setting.default) for setting in BROKER_SETTINGS}


def _setting(key: str) -> Any:
    """A field settable as `--config key=…`; default, range and meaning: BROKER_SETTINGS."""
    return field(default=_DEFAULTS[key], metadata={"key": key})


@dataclass(frozen=True, slots=True)
class Settings:
    """The tunables. Sizes in bytes, times in ms; `penstock.core.settings` describes each."""

    produce_inflight_bytes: int = _setting("produce.inflight.bytes")
    fetch_inflight_bytes: int = _setting("fetch.inflight.bytes")
    fetch_parked_max: int = _setting("fetch.parked.max")
    rpcs_max: int = _setting("rpcs.max")
    stream_inflight_max: int = _setting("produce.stream.inflight.max")
    cache_bytes: int = _setting("cache.bytes")
    replica_window_bytes: int = _setting("replica.window.bytes")
    replica_message_bytes: int = _setting("replica.message.bytes")
    replica_copy_bytes_per_second: int = _setting("replica.copy.bytes.per.second")
    disk_reserve_bytes: int = _setting("disk.reserve.bytes")
    disk_check_interval_ms: int = _setting("disk.check.interval.ms")
    retention_check_interval_ms: int = _setting("log.retention.check.interval.ms")
    cleaner_backoff_ms: int = _setting("log.cleaner.backoff.ms")
    cleaner_dedupe_bytes: int = _setting("log.cleaner.dedupe.buffer.size")
    cleaner_bytes_per_second: int = _setting("log.cleaner.io.max.bytes.per.second")
    scrub_interval_days: int = _setting("scrub.interval.days")
    offsets_retention_minutes: int = _setting("offsets.retention.minutes")
    transaction_max_timeout_ms: int = _setting("transaction.max.timeout.ms")
    transactional_id_expiration_ms: int = _setting("transactional.id.expiration.ms")
    ledger_expiration_ms: int = _setting("ledger.expiration.ms")
    transaction_orphan_grace_ms: int = _setting("transaction.orphan.grace.ms")
    transactions_partitions: int = _setting("transactions.topic.partitions")
    producer_id_expiration_ms: int = _setting("producer.id.expiration.ms")
    producer_snapshot_bytes: int = _setting("producer.snapshot.bytes")
    shutdown_timeout_ms: int = _setting("shutdown.timeout.ms")
    given: frozenset[str] = frozenset()
    """Keys that the command line sets, be it to their defaults."""

    def items(self) -> Iterator[tuple[str, int]]:
        """Every key with its value."""
        return ((key, getattr(self, name)) for key, name in _FIELDS.items())


_FIELDS: Final = {
    str(known.metadata["key"]): known.name for known in fields(Settings) if known.metadata
}
assert _FIELDS.keys() == _DEFAULTS.keys(), "every broker setting has a field"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """All a broker process needs to start.

    `listen` and `metrics_listen` are `host:port` (`metrics_listen` empty: no metrics endpoint);
    clients and followers connect to `advertise_*`; clients outside the network connect to
    `external_*`, through `external_listen` (empty: none). Followers connect to `advertise_host` at
    the port of `replication_listen`, clients that want message streams at that of `stream_listen`;
    empty: they use gRPC. Probes ask `health_listen`; empty: they ask where clients do. With TLS,
    brokers and controllers connect to `advertise_host` at the port of `internal_listen`; without,
    it is empty. `secure_listen`: for clients over TLS, beside `listen`; empty: none. Users who show
    a certificate of a CA in `users_ca` connect to `advertise_host` at the port of
    `certificate_listen`, or, if it is not 0, to `external_host` at `external_certificate_port`;
    empty: nobody gets in by certificate. `token_issuers`: the file that says whose tokens let users
    in; None: no user gets in by token. `admins` and `viewers` have these roles whatever the rules
    say.
    """

    broker_id: BrokerId
    data_dir: Path
    listen: str
    advertise_host: str
    advertise_port: int
    controllers: tuple[str, ...]
    rack: str = ""
    metrics_listen: str = ""
    external_listen: str = ""
    external_host: str = ""
    external_port: int = 0
    replication_listen: str = ""
    stream_listen: str = ""
    health_listen: str = ""
    internal_listen: str = ""
    certificate_listen: str = ""
    external_certificate_port: int = 0
    users_ca: Path | None = None
    secure_listen: str = ""
    token_issuers: Path | None = None
    admins: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Splits `host:port`; raises MisuseError that names the option."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise MisuseError(
            f"{option} is {text!r}; it must be host:port with a port from 0 to 65535",
            ErrorCode.INVALID_CONFIG,
        )
    return host.strip("[]"), int(port)


def parse_settings(pairs: list[str]) -> Settings:
    """Reads `key=value` texts; raises MisuseError for unknown keys and bad numbers."""
    values: dict[str, int] = {}
    given = set()
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or key not in _FIELDS:
            raise MisuseError(
                (
                    f"--config {pair!r} is not a setting; it must be key=value with one of these "
                    "keys: "
                )
                + ", ".join(sorted(_FIELDS)),
                ErrorCode.INVALID_CONFIG,
            )
        values[_FIELDS[key]] = parse_broker_setting(key, text)
        given.add(key)
    return Settings(**values, given=frozenset(given))
