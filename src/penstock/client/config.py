"""Settings of the clients: frozen, validated once, each with unit, default and reason.

Every client takes its settings as keyword arguments (`Producer("host:9092", linger_ms=20)`) or
as one config object. The names and defaults are Kafka's where both have the setting; where a
default differs, the field says why. The `…Options` dictionaries only tell type checkers which
keyword arguments exist; a test compares them with the dataclasses.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypedDict

from penstock.client.serializers import Serializer
from penstock.client.setting_checks import (
    become_member,
    between,
    check_group_name,
    check_transactional_id,
    not_negative,
    one_of,
    positive,
)
from penstock.core.batch import Codec
from penstock.core.limits import (
    ASSIGNORS,
    INT32_MAX,
    INT64_MAX,
    REBALANCE_TIMEOUT_MAX_MS,
    REBALANCE_TIMEOUT_MIN_MS,
    SESSION_TIMEOUT_MAX_MS,
    SESSION_TIMEOUT_MIN_MS,
)
from penstock.core.types import Acks, Sync
from penstock.errors import MisuseError

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, serialized key, partition count) -> partition, 0 <= partition < partition count."""

AddressResolver = Callable[[str], str]
"""(host:port as a broker advertises it) -> host:port to connect to. Called in the client's event
loop and in the thread of heartbeats, any number of times per address: it must return at once, and
always the same result."""

OutOfRangePolicy = Literal["error", "earliest", "latest"]
AutoOffsetReset = Literal["latest", "earliest", "error"]
AssignmentStrategy = Literal["uniform", "range"]
IsolationLevel = Literal["read_committed", "read_uncommitted"]
AcksChoice = Acks | Literal["all", "leader", "none", "-1", "1", "0", -1, 1, 0]
SyncChoice = Sync | Literal["os", "disk"]
CodecChoice = Codec | Literal["none", "zstd", "lz4"]

_ACKS: Final[Mapping[object, Acks]] = {
    "all": Acks.ALL,
    "leader": Acks.LEADER,
    "none": Acks.NONE,
    "-1": Acks.ALL,
    "1": Acks.LEADER,
    "0": Acks.NONE,
    -1: Acks.ALL,
    1: Acks.LEADER,
    0: Acks.NONE,
}
"""By name, or by Kafka's number, which is not the member's value."""
_SYNCS: Final[Mapping[object, Sync]] = {"os": Sync.OS, "disk": Sync.DISK}
_CODECS: Final[Mapping[object, Codec]] = {codec.name.lower(): codec for codec in Codec}


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536


def parse_bootstrap(bootstrap: str | Sequence[str]) -> tuple[str, ...]:
    """Splits "host:port,host:port" (or a sequence of such) into addresses.

    Raises MisuseError naming the entry that is not host:port.
    """
    given = [bootstrap] if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [part.strip() for entry in given for part in entry.split(",") if part.strip()]
    if not addresses:
        raise MisuseError("bootstrap contains no address; give at least one as host:port")
    for address in addresses:
        host, _, port = address.rpartition(":")
        # Of a URL, the resolver would ask for a host of that name, until its time is up.
        if not re.fullmatch(r"[^\s/]+", host) or not _is_port(port):
            raise MisuseError(
                f"bootstrap address {address!r} is not host:port with a port from 1 to 65535"
            )
    return tuple(dict.fromkeys(addresses))


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Whom a client trusts, and what it shows. Files are read again when they change.

    None = the environment variable, else, for `ca_file` and `token_file`, the file in
    /var/run/secrets/penstock.dev/ if there is one. "" = none, whatever the environment says.

    Attributes:
        ca_file: Certificates (PEM) of the CAs that may have signed brokers' certificates; with it,
            all connections use TLS. PENSTOCK_CA_FILE, or ca.crt. None found: plaintext.
        token_file: A file with a token that says who the client is, and nothing else.
            PENSTOCK_TOKEN_FILE, or the file `token`. Sent over TLS only.
        certificate_file: A certificate (PEM) that the client shows. PENSTOCK_CERTIFICATE_FILE.
        key_file: The certificate's key (PEM). PENSTOCK_KEY_FILE.
    """

    ca_file: str | Path | None = None
    token_file: str | Path | None = None
    certificate_file: str | Path | None = None
    key_file: str | Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(SecurityConfig):
    """Settings of every client; those of `SecurityConfig` too.

    Attributes:
        connect_timeout_ms: How long to look for any broker that answers before UnreachableError.
            10,000: longer than a cluster needs to elect, short enough for a person to wait.
            Addresses at which nothing listens are given up sooner, unless they have answered
            before; an admin client may look for as long as `request_timeout_ms`.
        request_timeout_ms: Timeout of one remote call, and of an admin operation including its
            retries. 30,000 (Kafka's request.timeout.ms).
        retry_backoff_ms: First pause before a retry; doubles up to `retry_backoff_max_ms`.
        retry_backoff_max_ms: 1,000: elections take one to two seconds, so longer pauses between
            attempts would only add to the gap.
        metadata_max_age_ms: Metadata is refreshed at least this often while in use, so that new
            partitions are seen. 300,000 (Kafka's).
        unknown_topic_timeout_ms: How long to look for a topic that no broker knows before
            UNKNOWN_TOPIC: a new topic may not have reached every broker. 3,000. A producer gives
            up records of a topic that it knew after five times as long, or its delivery timeout.
            Admin clients do not wait: they ask every broker once.
        resolve_address: Maps an advertised (or bootstrap) address to the one to connect to, for
            clients that reach brokers through tunnels. None = the address itself.
    """

    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    unknown_topic_timeout_ms: int = 3_000
    resolve_address: AddressResolver | None = None

    def __post_init__(self) -> None:
        positive(
            self,
            "connect_timeout_ms",
            "request_timeout_ms",
            "retry_backoff_ms",
            "retry_backoff_max_ms",
            "metadata_max_age_ms",
            "unknown_topic_timeout_ms",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """How records are batched, sent and retried.

    Attributes:
        acks: Which replicas must have stored a record before its delivery succeeds: an `Acks`
            member, its name in lower case ("all", "leader", "none"), or Kafka's -1, 1, 0 as number
            or text.
        sync: What "stored" means: page cache or fsync; a `Sync` member, "os" or "disk".
        linger_ms: How long a batch waits for more records, 0 = not at all. 5 (Kafka 4).
        batch_bytes: A batch is sent when it has this many bytes uncompressed. 262,144, not Kafka's
            16,384: a broker call costs the same for both, and throughput grows with size. Never
            more than the topic's max.message.bytes, whatever the setting.
        buffer_bytes: Upper bound of all records waiting or in flight, 32 MiB.
        max_block_ms: How long `send` waits for buffer space or a topic's metadata, 60,000.
        codec: Compression of batches: a `Codec` member, "none", "zstd" or "lz4".
        delivery_timeout_ms: From `send` to success or a final error, 120,000.
        idempotent: Retries never duplicate or reorder. Without it, a partition has one batch in
            flight, which keeps order, but a retry may duplicate.
        max_in_flight: Batches of one partition sent and not yet answered, 1 to 5: brokers
            remember the last five per producer.
        partitioner: Your own choice of partition; None = hash of the key, sticky without key.
        key_serializer: Converts keys to bytes; None = keys must be bytes.
        value_serializer: Likewise for values.
        transactional_id: Makes a transactional producer, which sends only inside `transaction()`.
            One live producer per id, which must be the same after a restart: a new producer fences
            the previous one (`pod_id`). 1 to 249 bytes; None = none.
        transaction_timeout_ms: The cluster aborts a transaction that is open for longer, 60,000
            (Kafka's); the limit is the cluster's transaction.max.timeout.ms.
        client_id: A name for people, shown to a producer that was fenced by this one.
    """

    acks: Acks = Acks.ALL
    sync: Sync = Sync.OS
    linger_ms: int = 5
    batch_bytes: int = 256 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    max_block_ms: int = 60_000
    codec: Codec = Codec.NONE
    delivery_timeout_ms: int = 120_000
    idempotent: bool = True
    max_in_flight: int = 5
    partitioner: Partitioner | None = None
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    client_id: str = "penstock"

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        positive(self, "delivery_timeout_ms", "max_in_flight")
        positive(self, "batch_bytes", "buffer_bytes", most=INT64_MAX)
        not_negative(self, "linger_ms", "max_block_ms")
        become_member(self, "acks", Acks, _ACKS)
        become_member(self, "sync", Sync, _SYNCS)
        become_member(self, "codec", Codec, _CODECS)
        if self.max_in_flight > 5:
            raise MisuseError(
                f"max_in_flight is {self.max_in_flight}; it must be at most 5, because brokers "
                "can detect duplicates of only 5 batches per partition"
            )
        check_group_name("client_id", self.client_id)
        between(self, "transaction_timeout_ms", 1, INT32_MAX)
        if self.transactional_id is not None:
            self._check_transactional()

    def _check_transactional(self) -> None:
        given = self.transactional_id
        check_transactional_id(given)
        if self.acks is not Acks.ALL or not self.idempotent:
            raise MisuseError(
                f"transactional_id {given!r} needs acks='all' and idempotent=True, not "
                f"acks={self.acks.name.lower()!r} and idempotent={self.idempotent}: a "
                "transaction can commit only if every record is stored durably and once"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Where reading starts, how much is prefetched, what happens if an offset is not in the log.

    Attributes:
        isolation_level: "read_committed" reads records of committed transactions, up to the first
            one that is still open; "read_uncommitted" reads all records, even if they are aborted
            later. Kafka's default is the second.
        on_offset_out_of_range: What to do if the position was deleted by retention or is past the
            end: "error" raises OffsetOutOfRangeError from poll, the others move the position and
            log a warning with both offsets.
        fetch_max_wait_ms: How long a broker waits for records before it sends an empty answer, 500
            (Kafka's).
        fetch_min_bytes: How much a broker waits for within that time, 1 (Kafka's).
        fetch_max_bytes: Limit of all answers of one broker in flight, 16 MiB; a single one gets at
            most half of it. An answer always has at least one batch, however large.
        max_partition_fetch_bytes: Limit per partition in one answer, 2 MiB.
        buffer_bytes: Limit of prefetched data that is not polled yet, 64 MiB; answers in flight may
            exceed it by `fetch_max_bytes` per broker.
        group_id: The consumer group, for `subscribe` and `commit`; "" = none.
        group_instance_id: Makes a static member: its partitions wait for it while it restarts, for
            a session timeout. One live consumer per id; "" = none.
        session_timeout_ms: A member without heartbeats for this long is removed from the group,
            45,000 (Kafka's), 1,000 to 1,800,000. Heartbeats need no polls, and have a thread of
            their own.
        max_poll_interval_ms: A consumer that is not polled for this long leaves its group by
            itself, and joins again with its next poll, 300,000 (Kafka's), 1,000 to 86,400,000.
        enable_auto_commit: Automatically commit what an earlier poll returned. True (Kafka's).
        auto_commit_interval_ms: How often, 5,000 (Kafka's).
        auto_offset_reset: Where a partition starts, assigned by a group or by `assign`, if there is
            no committed offset of `group_id` and no seek: "earliest", "latest", or "error", with
            which polls raise OFFSET_OUT_OF_RANGE. None = "latest" with a group_id, as in Kafka,
            which skips what was written before the group noticed a new partition; "earliest"
            without one: you notice reading too much, but not reading too little.
        partition_assignment_strategy: "uniform", even and with few moves, or "range", the same
            partition numbers of all topics together. The strategy that most members ask for is
            used.
        transactional_id: Of the producer whose transactions commit this consumer's offsets: its
            open transaction is aborted as soon as this member is removed from its group, not only
            after `transaction_timeout_ms`. "" = none.
        client_rack: Rack of this consumer; nearby partitions are preferred. "" = unknown.
        client_id: A name for people, shown by `penstock group describe`.
    """

    isolation_level: IsolationLevel = "read_committed"
    on_offset_out_of_range: OutOfRangePolicy = "error"
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 16 * 1024 * 1024
    max_partition_fetch_bytes: int = 2 * 1024 * 1024
    buffer_bytes: int = 64 * 1024 * 1024
    group_id: str = ""
    group_instance_id: str = ""
    session_timeout_ms: int = 45_000
    max_poll_interval_ms: int = 300_000
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    auto_offset_reset: AutoOffsetReset | None = None
    partition_assignment_strategy: AssignmentStrategy = "uniform"
    transactional_id: str = ""
    client_rack: str = ""
    client_id: str = "penstock"

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        positive(
            self,
            "fetch_max_wait_ms",
            "fetch_min_bytes",
            "fetch_max_bytes",
            "max_partition_fetch_bytes",
            "auto_commit_interval_ms",
        )
        positive(self, "buffer_bytes", most=INT64_MAX)
        one_of(self, "isolation_level", "read_committed", "read_uncommitted")
        one_of(self, "on_offset_out_of_range", "error", "earliest", "latest")
        if self.auto_offset_reset is not None:
            one_of(self, "auto_offset_reset", "latest", "earliest", "error")
        one_of(self, "partition_assignment_strategy", *ASSIGNORS)
        for name in ("group_id", "group_instance_id", "client_rack", "client_id"):
            check_group_name(name, getattr(self, name))
        between(self, "session_timeout_ms", SESSION_TIMEOUT_MIN_MS, SESSION_TIMEOUT_MAX_MS)
        between(self, "max_poll_interval_ms", REBALANCE_TIMEOUT_MIN_MS, REBALANCE_TIMEOUT_MAX_MS)
        if self.group_instance_id and not self.group_id:
            raise MisuseError(
                "group_instance_id needs a group_id: it identifies a static member of that group"
            )
        if self.transactional_id:
            check_transactional_id(self.transactional_id)

    @property
    def offset_reset(self) -> AutoOffsetReset:
        """`auto_offset_reset` as it counts: with the default filled in."""
        return self.auto_offset_reset or ("latest" if self.group_id else "earliest")


class SecurityOptions(TypedDict, total=False):
    """Keyword arguments of every client; see SecurityConfig."""

    ca_file: str | Path | None
    token_file: str | Path | None
    certificate_file: str | Path | None
    key_file: str | Path | None


class ClientOptions(SecurityOptions, total=False):
    """Keyword arguments of every client; see ClientConfig."""

    connect_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    unknown_topic_timeout_ms: int
    resolve_address: AddressResolver | None


class ProducerOptions(ClientOptions, total=False):
    """Keyword arguments of producers; see ProducerConfig."""

    acks: AcksChoice
    sync: SyncChoice
    linger_ms: int
    batch_bytes: int
    buffer_bytes: int
    max_block_ms: int
    codec: CodecChoice
    delivery_timeout_ms: int
    idempotent: bool
    max_in_flight: int
    partitioner: Partitioner | None
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    transactional_id: str | None
    transaction_timeout_ms: int
    client_id: str


class ConsumerOptions(ClientOptions, total=False):
    """Keyword arguments of consumers; see ConsumerConfig."""

    isolation_level: IsolationLevel
    on_offset_out_of_range: OutOfRangePolicy
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    buffer_bytes: int
    group_id: str
    group_instance_id: str
    session_timeout_ms: int
    max_poll_interval_ms: int
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    auto_offset_reset: AutoOffsetReset | None
    partition_assignment_strategy: AssignmentStrategy
    transactional_id: str
    client_rack: str
    client_id: str
