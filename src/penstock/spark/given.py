"""The user's `.option(...)` values: looked up by documented name, parsed, refused by name.

In: the strings, keys in lower case (Spark lowers them). A misspelt option that is ignored reads or
writes the wrong records, so every key must be known; the error names the closest one, or where
the option belongs. `options` makes a reader's options of it, `sink_options` a writer's.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.errors import MisuseError
from penstock.spark import values

if TYPE_CHECKING:
    from penstock.client.config import SecurityOptions

T = TypeVar("T")
D = TypeVar("D")

SOURCE_OPTIONS: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxTasks",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "groupIdPrefix",
    "groupId",
    "pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
SINK_OPTIONS: Final = (
    "topic",
    "delivery",
    "txnAppId",
    "txnVersion",
    "transactionTimeout",
    "onReplayMismatch",
)
BOOTSTRAP: Final = "penstock.bootstrap.servers"
_PREFIX: Final = "penstock."
_SECURITY: Final = ("security.", "sasl.", "ssl.")
"""How Kafka's settings about TLS and logins begin."""
COMMON_SETTINGS: Final = (
    BOOTSTRAP,
    "penstock.cluster.id",
    "penstock.connect.timeout.ms",
    "penstock.request.timeout.ms",
    "penstock.ca.file",
    "penstock.token.file",
    "penstock.certificate.file",
    "penstock.key.file",
)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach the cluster and how much to fetch at once. Sizes in bytes, times in ms.

    `…_file`: paths on the driver and every executor (`SecurityConfig`); never a token or a key
    itself, which would show in Spark's UI.
    """

    bootstrap: tuple[str, ...]
    cluster_id: str = ""
    connect_timeout_ms: int = 10_000
    fetch_max_bytes: int = 4 << 20
    fetch_max_wait_ms: int = 500
    request_timeout_ms: int = 30_000
    ca_file: str | None = None
    token_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    @property
    def files(self) -> "SecurityOptions":
        """Keyword arguments of every client."""
        return {
            "ca_file": self.ca_file,
            "token_file": self.token_file,
            "certificate_file": self.certificate_file,
            "key_file": self.key_file,
        }


class Given:
    """Looks options up by their documented name; turns a parser's ValueError into MisuseError.

    A parser's ValueError says what was expected; name and value seen are added here.
    """

    def __init__(self, raw: Mapping[str, str]) -> None:
        self._given = {key.lower(): value for key, value in raw.items()}

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def get(self, name: str, parser: Callable[[str], T], default: D) -> T | D:
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return parser(text)
        except ValueError as problem:
            raise MisuseError(f"option {name} is {text[:200]!r}: expected {problem}") from None

    def count(self, name: str) -> int | None:
        return self.get(name, values.positive, None)

    def check_known(
        self, names: tuple[str, ...], refused: Mapping[str, str], elsewhere: Mapping[str, str]
    ) -> None:
        """Raises MisuseError for the first key that is none of `names`.

        `refused`: keys (lower case) whose work something else does. `elsewhere`: options of the
        other direction, by documented name, and what to say of them.
        """
        if "provider" in self._given:  # Spark's own, of a table that is being created
            raise MisuseError(
                "CREATE TABLE is not supported: Spark does not pass a table's options to Python "
                "sources when it is read; use CREATE TEMPORARY VIEW ... USING penstock OPTIONS "
                "(...)"
            )
        known = {name.lower(): name for name in names}
        others = {name.lower(): (name, what) for name, what in elsewhere.items()}
        for key in sorted(self._given):
            if key in known:
                continue
            setting = _setting(key)
            if setting in refused:
                raise MisuseError(f"option {key} is not supported: {refused[setting]}")
            if key in others:
                raise MisuseError(f"option {others[key][0]} {others[key][1]}")
            raise MisuseError(f"unknown option {key}: {_hint(setting, known)}")


def _setting(key: str) -> str:
    """The key, with the prefix of settings here if it is a setting of Kafka's."""
    for prefix in ("kafka.", "kafkaconsumer."):
        if key.startswith(prefix):
            return _PREFIX + key.removeprefix(prefix)
    return key


def _hint(setting: str, known: Mapping[str, str]) -> str:
    """What may have been meant. Without prefixes, which would make any two settings alike."""
    bare = setting.removeprefix(_PREFIX)
    if bare.startswith(_SECURITY):
        return (
            "a secure cluster takes penstock.ca.file and penstock.token.file, or "
            "penstock.certificate.file and penstock.key.file"
        )
    names = {name.removeprefix(_PREFIX): given for name, given in known.items()}
    close = difflib.get_close_matches(bare, names, n=1, cutoff=0.75)
    return f"did you mean {names[close[0]]}?" if close else "docs/spark.md lists all options"


def client_settings(read: Given) -> ClientSettings:
    """The settings both directions share. Raises MisuseError."""
    servers = read.get(BOOTSTRAP, values.addresses, None)
    if servers is None:
        raise MisuseError(
            f"option {BOOTSTRAP} is missing: set it to host:port, several separated by commas"
        )
    return ClientSettings(
        bootstrap=servers,
        cluster_id=read.get("penstock.cluster.id", values.nonempty, ""),
        connect_timeout_ms=read.get("penstock.connect.timeout.ms", values.timeout_ms, 10_000),
        fetch_max_bytes=read.get("penstock.fetch.max.bytes", values.fetch_bytes, 4 << 20),
        fetch_max_wait_ms=read.get("penstock.fetch.max.wait.ms", values.int32, 500),
        request_timeout_ms=read.get("penstock.request.timeout.ms", values.timeout_ms, 30_000),
        ca_file=read.get("penstock.ca.file", values.nonempty, None),
        token_file=read.get("penstock.token.file", values.nonempty, None),
        certificate_file=read.get("penstock.certificate.file", values.nonempty, None),
        key_file=read.get("penstock.key.file", values.nonempty, None),
    )
