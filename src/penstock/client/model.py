"""What the client returns to its users: plain frozen data, no connection to anything alive.

Offsets are positions in a partition, times are milliseconds since 1970 UTC, sizes are bytes.
Half-open ranges are written [lo, hi).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.columns import Columns, Headers
from penstock.core.types import Acks, Sync, TopicPartition
from penstock.errors import PenstockError

if TYPE_CHECKING:
    import pyarrow


class OffsetSpec(Enum):
    """A symbolic offset. EARLIEST: of the first record. LATEST: after the last one."""

    EARLIEST = "earliest"
    LATEST = "latest"


EARLIEST: Final = OffsetSpec.EARLIEST
LATEST: Final = OffsetSpec.LATEST


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """Where records were stored, and the acks and sync that were reached.

    `base_offset` is the offset of the first record of this report, the others follow without gaps;
    -1 with Acks.NONE, because it is unknown. `acks` and `sync` are what the cluster reached, at
    least what was requested. `duplicate`: an earlier attempt had already stored the records, at
    these offsets. `append_time_ms` 0 = the topic keeps the producer's timestamps.
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int
    acks: Acks
    sync: Sync
    leader_epoch: int = 0
    append_time_ms: int = 0
    duplicate: bool = False

    @property
    def offset(self) -> int:
        """The record's own offset, for a delivery of one record."""
        return self.base_offset


class Record(NamedTuple):
    """One record as read.

    Attributes:
        topic: Name of the topic.
        partition: Index of the partition, from 0.
        offset: Position in the partition.
        timestamp_ms: Milliseconds since 1970 UTC: the append time if the topic has LogAppendTime,
            otherwise the producer's.
        key: None = null, which is not b"".
        value: Likewise; in a compacted topic, null deletes the key.
        headers: Names and values, as sent; a name may occur more than once.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class ConsumedBatch:
    """Records of one partition, in the columns in which they were sent.

    `columns` holds the whole stored batch; yours are its records [lo, hi), trimmed to the
    consumer's position. The accessors below return only those. Offsets rise by one, but in a
    compacted topic some are missing. `high_watermark` is the one seen when the batch was fetched.
    """

    topic: str
    partition: int
    columns: Columns
    lo: int
    hi: int
    leader_epoch: int = 0
    high_watermark: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """Where the records are from."""
        return TopicPartition(self.topic, self.partition)

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.columns.offset_at(self.lo)

    @property
    def last_offset(self) -> int:
        """Offset of the last record, inclusive."""
        return self.columns.offset_at(self.hi - 1)

    @property
    def next_offset(self) -> int:
        """The offset after this batch, where reading continues."""
        return self.columns.offset_at(self.hi)

    @property
    def record_count(self) -> int:
        """How many records there are, as `len`."""
        return self.hi - self.lo

    def __len__(self) -> int:
        return self.hi - self.lo

    def between(self, first_offset: int, end_offset: int) -> "ConsumedBatch":
        """The part with offsets in [first_offset, end_offset); may be empty. Shares the columns."""
        lo = min(max(self.lo, self.columns.index_of(first_offset)), self.hi)
        hi = max(min(self.hi, self.columns.index_of(end_offset)), lo)
        return replace(self, lo=lo, hi=hi)

    def offsets(self) -> Sequence[int]:
        """An offset per record, rising."""
        return self.columns.offsets()[self.lo : self.hi]

    def keys(self) -> list[bytes | None]:
        """A key per record; None = null."""
        return self.columns.keys()[self.lo : self.hi]

    def values(self) -> list[bytes | None]:
        """A value per record; None = null."""
        return self.columns.values()[self.lo : self.hi]

    def timestamps_ms(self) -> list[int]:
        """The append time if the topic has LogAppendTime, otherwise the producer's times."""
        return self.columns.timestamps()[self.lo : self.hi]

    def headers(self) -> list[Headers]:
        """The headers of each record."""
        return self.columns.headers()[self.lo : self.hi]

    def records(self) -> Iterator[Record]:
        """One object per record, for programs that want them; columns are faster."""
        columns = zip(
            self.offsets(),
            self.timestamps_ms(),
            self.keys(),
            self.values(),
            self.headers(),
            strict=True,
        )
        for offset, timestamp_ms, key, value, headers in columns:
            yield Record(self.topic, self.partition, offset, timestamp_ms, key, value, headers)

    def to_arrow(self, *, include_headers: bool = False) -> "pyarrow.RecordBatch":
        """The records as one Arrow record batch; schema in `penstock.client.arrow`."""
        from penstock.client.arrow import batch_to_arrow  # noqa: PLC0415 - pyarrow only on demand

        return batch_to_arrow(
            self.columns,
            self.topic,
            self.partition,
            self.lo,
            self.hi,
            include_headers=include_headers,
        )


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    broker_id: int
    host: str
    port: int
    rack: str
    alive: bool
    stream_port: int = 0

    @property
    def address(self) -> str:
        """As host:port."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """`leader` -1: none at the moment. `replicas[0]` is the preferred leader."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    version: int = 0


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """`configs` contains what was set, on the topic or (`inherited`) as the cluster's defaults.

    `AsyncAdmin.describe_configs` also knows the built-in defaults.
    """

    topic: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...]
    configs: Mapping[str, str]
    internal: bool = False
    inherited: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str
    controller_epoch: int
    metadata_version: int
    controller_reachable: bool
    brokers: tuple[BrokerDescription, ...]
    topics: int
    partitions: int
    offline_partitions: int
    under_replicated_partitions: int
    under_min_isr_partitions: int
    hibernating: bool = False


@dataclass(frozen=True, slots=True)
class BrokerQuiescence:
    """Whether a broker could stop now and lack nothing.

    Attributes:
        quiet: Everything that it stores is fsynced; what it leads is committed, on all replicas.
        waiting_for: What keeps it from being quiet; the first few.
        log_ends: The sum over all its logs. If it is the same twice, nothing was appended between.
        metadata_version: Of the newest image that it has applied. If all brokers name the same one
            twice, who leads and who is in sync did not change between.
    """

    broker_id: int
    quiet: bool
    waiting_for: tuple[str, ...]
    log_ends: int
    metadata_version: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str
    is_default: bool
    documentation: str


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """`offset` -1: no record at or after the requested timestamp. `timestamp_ms` -1: not known."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Offsets from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """`lost`: damaged batches that no other replica has given so far. `mending`: what is done about
    its damage, for people; empty: it is not known to be damaged. `differs`: how it is not as its
    leader's although both read well; empty: it is not known to differ."""

    topic: str
    topic_id: str
    partition: int
    is_leader: bool
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    lost: tuple[OffsetSpan, ...] = ()
    mending: str = ""
    differs: str = ""


@dataclass(frozen=True, slots=True)
class PlaintextCaller:
    """A host that calls a broker in plaintext; `host` "": further ones, together.

    `open`: its calls and streams now. `idle_ms`: since the last one ended; 0 while one is open.
    """

    host: str
    open: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class PlaintextCallers:
    """Who called a broker in plaintext in the `watched_ms` since it started, the last to call
    first."""

    broker_id: int
    watched_ms: int
    callers: tuple[PlaintextCaller, ...]


@dataclass(frozen=True, slots=True)
class OrphanedLog:
    """A log that belongs to no replica: by the metadata, its broker has none of the partition."""

    topic_id: str
    partition: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OrphanOutcome:
    """The outcome for an orphan that was to be dropped; `error` None: it is, or could be."""

    topic_id: str
    partition: int
    error: PenstockError | None


@dataclass(frozen=True, slots=True)
class LogDescription:
    """The logs of one broker. `orphans`: none if certain topics were asked for.

    `disk_reserve_bytes`: it refuses writes if less is free; 0: an older release, unknown.
    `copy_rate`: bytes per second that it copies of partitions that move, in and out; 0: no limit;
    None: unknown.
    """

    broker_id: int
    logs: tuple[PartitionLog, ...]
    disk_free_bytes: int
    disk_total_bytes: int
    orphans: tuple[OrphanedLog, ...] = ()
    disk_reserve_bytes: int = 0
    copy_rate: int | None = None

    @property
    def disk_is_full(self) -> bool:
        """It refuses writes, and serves reads."""
        return self.disk_free_bytes < self.disk_reserve_bytes
