"""Settings of a transformer: what it reads, when it commits, how often it retries."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Final

from penstock.client.config import ClientConfig, ClientOptions
from penstock.client.setting_checks import check_group_id, check_group_name
from penstock.core.limits import SESSION_TIMEOUT_MAX_MS, SESSION_TIMEOUT_MIN_MS
from penstock.errors import MisuseError

RECORDS_PER_COMMIT: Final = 10_000
_GROUP_BYTES_MAX: Final = 200
_LIMITS: Final = (
    ("commit_interval_ms", 1, 600_000),
    ("max_records", 1, RECORDS_PER_COMMIT),
    ("retries", 0, 1_000_000),
    ("backoff_ms", 0, 600_000),
    ("backoff_max_ms", 0, 600_000),
    ("transaction_timeout_ms", 1_000, 2**31 - 1),
    ("session_timeout_ms", SESSION_TIMEOUT_MIN_MS, SESSION_TIMEOUT_MAX_MS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformConfig(ClientConfig):
    """How a consume-transform-produce loop reads, commits and fails.

    Attributes:
        group_id: The consumer group whose members share the source, and whose offsets are part of
            the transactions. In partitions without a committed offset, it starts at the beginning.
        source: The topic to read, or several.
        commit_interval_ms: How often a transaction is committed, or after 10,000 records. 100:
            readers of the output wait for it. 1 to 600,000, and less than
            `transaction_timeout_ms`.
        max_records: Maximum number of records that one pass returns, 1 to 10,000.
        retries: How often a handler that raised is called again for a record, 0 = never.
        backoff_ms: Pause before the first retry, 100; doubles up to `backoff_max_ms`.
        backoff_max_ms: The longest pause, 10,000; at least `backoff_ms`.
        dead_letter_topic: Where records go that failed `retries` + 1 times, in the transaction
            that commits their offsets; it must exist. "" = the loop stops instead.
        transaction_timeout_ms: A transaction that is open for longer is aborted by the cluster and
            done again with half as many records: it must be longer than one record takes. 10,000,
            as in Kafka Streams: if the program is frozen, readers wait for this long. 1,000 to the
            cluster's limit.
        session_timeout_ms: Others take over the partitions if the program is frozen for this long,
            45,000 as for every consumer; 1,000 to 1,800,000. The end of a program is noticed at
            once.
        client_id: A name for people, shown by `penstock group describe` and `penstock txn list`.
    """

    group_id: str = ""
    source: str | Sequence[str] = ()
    commit_interval_ms: int = 100
    max_records: int = 1_000
    retries: int = 3
    backoff_ms: int = 100
    backoff_max_ms: int = 10_000
    dead_letter_topic: str = ""
    transaction_timeout_ms: int = 10_000
    session_timeout_ms: int = 45_000
    client_id: str = "penstock-transformer"

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        check_group_id(self.group_id)
        check_group_name("client_id", self.client_id)
        self._check_topics()
        for name, low, high in _LIMITS:
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise MisuseError(
                    f"{name} is {value!r}; it must be a whole number, {low:,} to {high:,}"
                )
        if self.commit_interval_ms >= self.transaction_timeout_ms:
            raise MisuseError(
                f"commit_interval_ms is {self.commit_interval_ms:,}; it must be less than "
                f"transaction_timeout_ms ({self.transaction_timeout_ms:,}), after which the "
                "cluster aborts the transaction"
            )
        if self.backoff_max_ms < self.backoff_ms:
            raise MisuseError(
                f"backoff_max_ms is {self.backoff_max_ms:,}; it must be at least backoff_ms "
                f"({self.backoff_ms:,})"
            )

    @property
    def topics(self) -> tuple[str, ...]:
        """The source as a tuple."""
        return (self.source,) if isinstance(self.source, str) else tuple(self.source)

    def _check_topics(self) -> None:
        if not self.topics or not all(isinstance(one, str) and one for one in self.topics):
            raise MisuseError(f"source is {self.source!r}; name one or more topics to read")
        if not isinstance(self.dead_letter_topic, str):
            raise MisuseError(f"dead_letter_topic is {self.dead_letter_topic!r}; give a name")
        if self.dead_letter_topic in self.topics:
            raise MisuseError(
                f"dead_letter_topic is {self.dead_letter_topic!r}, which is also a source: a "
                "record that fails there would fail for ever; use another topic"
            )


class TransformOptions(ClientOptions, total=False):
    """Keyword arguments of transformers; see TransformConfig."""

    group_id: str
    source: str | Sequence[str]
    commit_interval_ms: int
    max_records: int
    retries: int
    backoff_ms: int
    backoff_max_ms: int
    dead_letter_topic: str
    transaction_timeout_ms: int
    session_timeout_ms: int
    client_id: str


def transactional_id(group_id: str) -> str:
    """A separate id for each transformer of a group, with as much of the group's name as fits."""
    shown = group_id.encode()[:_GROUP_BYTES_MAX].decode(errors="ignore")
    return f"{shown}/{uuid.uuid4()}"


def check_handle(handle: object, *, is_async: bool) -> None:
    """Raises MisuseError unless it can be called as `handle(record, out)` in this way."""
    if not callable(handle):
        raise MisuseError(f"handle is {handle!r}; give a function of (record, out)")
    called = getattr(handle, "__call__", None)  # noqa: B004 - of an object that is called
    found = iscoroutinefunction(handle) or iscoroutinefunction(called)
    name = getattr(handle, "__name__", repr(handle))
    if found and not is_async:
        raise MisuseError(f"handle {name} is an async function; use async_transform for it")
    if is_async and not found:
        raise MisuseError(f"handle {name} is a plain function; use transform for it")
