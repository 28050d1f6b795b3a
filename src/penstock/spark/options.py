"""The options of a reader: every one named, parsed, checked and explained here.

In: the strings a user gave `.option(...)`, keys in lower case (Spark lowers them). Out: one
frozen `SourceOptions`, or one MisuseError that names the option as documented, the value seen
and what to write instead. An unknown option is an error: a misspelt `startingOffset` that is
ignored reads the wrong records.

Names and meanings are those of Spark's Kafka source where it has one; options it has not are
marked † in the table below. `penstock.*` are settings of the client (`CLIENT_SETTINGS`).

    option                             default        where
    subscribe | subscribePattern | assign             exactly one
    startingTimestamp > startingOffsetsByTimestamp > startingOffsets
                                       latest; in batch earliest
    startingOffsetsByTimestampStrategy error          or latest
    endingTimestamp > endingOffsetsByTimestamp > endingOffsets   latest; batch only
    maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay (15m), maxBytesPerTrigger †
                                                      streaming; ignored in batch
    minPartitions, maxRecordsPerPartition, maxTasks †
    failOnDataLoss                     true
    includeHeaders, columns †          false, all     change the schema
    filterPushdown †                   false          batch
    groupId †                          the group that hears of a stream's progress
    groupIdPrefix                                     accepted; without effect
    pollTimeoutMs †                    120000
    fetchOffset.numRetries, fetchOffset.retryIntervalMs   3, 1000
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock.core.types import TopicPartition
from penstock.errors import MisuseError
from penstock.spark import values
from penstock.spark.boundary import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtEdge,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Boundary,
    Edge,
    Otherwise,
)
from penstock.spark.values import COLUMNS, HEADERS

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
    "filterPushdown",
    "groupIdPrefix",
    "groupId",
    "pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
SINK_OPTIONS: Final = ("topic", "partitioner", "delivery", "txnAppId", "txnVersion")
BOOTSTRAP: Final = "penstock.bootstrap.servers"
CLIENT_SETTINGS: Final = (
    BOOTSTRAP,
    "penstock.cluster.id",
    "penstock.connect.timeout.ms",
    "penstock.fetch.max.bytes",
    "penstock.fetch.max.wait.ms",
    "penstock.request.timeout.ms",
)
# Settings a Kafka user may bring along, and what does their work here.
REFUSED: Final = {
    "penstock.auto.offset.reset": "use startingOffsets, and failOnDataLoss for lost offsets",
    "penstock.group.id": "use groupId or groupIdPrefix",
    "penstock.enable.auto.commit": "positions are in Spark's checkpoint",
    "penstock.key.deserializer": "keys are binary; cast them in the query",
    "penstock.value.deserializer": "values are binary; cast them in the query",
    "path": "name topics by subscribe, subscribePattern or assign; load() takes no path",
}


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics, as they come to be."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of all topics whose whole name matches, looked up for each batch."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Exactly these partitions."""

    partitions: tuple[TopicPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach the cluster and how much to fetch at once. Sizes in bytes, times in ms."""

    bootstrap: tuple[str, ...]
    cluster_id: str = ""
    connect_timeout_ms: int = 10_000
    fetch_max_bytes: int = 4 << 20
    fetch_max_wait_ms: int = 500
    request_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All a reader needs to know. None = not set, no limit.

    `starting` None = the default of the mode (batch: earliest, stream: latest). Times in ms,
    `max_bytes_per_trigger` in bytes as stored (compressed).
    """

    client: ClientSettings
    selection: Selection
    starting: Boundary | None = None
    ending: Boundary | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60 * 1000
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_tasks: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS
    filter_pushdown: bool = False
    group_id: str | None = None
    group_id_prefix: str | None = None
    poll_timeout_ms: int = 120_000
    offset_retries: int = 3
    offset_retry_interval_ms: int = 1000

    @property
    def batch_starting(self) -> Boundary:
        """Where a batch read starts. `latest` would always read nothing: refused."""
        if self.group_id is not None:
            raise MisuseError(
                "option groupId is for streams, whose progress a group can follow; a batch query "
                "has none: drop it"
            )
        if self.starting == AtEdge(Edge.LATEST) or _has_offset(self.starting, LATEST_OFFSET):
            raise MisuseError(
                "option startingOffsets is latest (-1), which reads nothing in a batch query: "
                "use earliest, offsets or a timestamp"
            )
        return self.starting or AtEdge(Edge.EARLIEST)

    @property
    def batch_ending(self) -> Boundary:
        """Where a batch read ends (exclusive)."""
        if self.ending == AtEdge(Edge.EARLIEST) or _has_offset(self.ending, EARLIEST_OFFSET):
            raise MisuseError(
                "option endingOffsets is earliest (-2), which reads nothing: "
                "use latest, offsets or a timestamp"
            )
        return self.ending or AtEdge(Edge.LATEST)

    @property
    def stream_starting(self) -> Boundary:
        """Where a stream starts that has no checkpoint yet."""
        if self.ending is not None:
            raise MisuseError(
                "options endingOffsets, endingOffsetsByTimestamp and endingTimestamp are for "
                "batch queries; a stream that shall stop takes trigger(availableNow=True)"
            )
        return self.starting or AtEdge(Edge.LATEST)


def parse(raw: Mapping[str, str]) -> SourceOptions:
    """Reads all options of a reader; raises MisuseError for the first that is wrong."""
    given = {key.lower(): value for key, value in raw.items()}
    _check_known(given)
    read = _Reader(given)
    options = SourceOptions(
        client=_client_settings(read),
        selection=_selection(read),
        starting=_boundary(read, "starting"),
        ending=_boundary(read, "ending"),
        max_offsets_per_trigger=read.count("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=read.count("minOffsetsPerTrigger"),
        max_trigger_delay_ms=read.get("maxTriggerDelay", values.duration_ms, 15 * 60 * 1000),
        max_bytes_per_trigger=read.get("maxBytesPerTrigger", values.size_bytes, None),
        min_partitions=read.count("minPartitions"),
        max_records_per_partition=read.count("maxRecordsPerPartition"),
        max_tasks=read.count("maxTasks"),
        fail_on_data_loss=read.get("failOnDataLoss", values.boolean, True),
        columns=_columns(read),
        filter_pushdown=read.get("filterPushdown", values.boolean, False),
        group_id=read.get("groupId", values.group_id, None),
        group_id_prefix=read.get("groupIdPrefix", values.nonempty, None),
        poll_timeout_ms=read.get("pollTimeoutMs", values.positive, 120_000),
        offset_retries=read.get("fetchOffset.numRetries", values.not_negative, 3),
        offset_retry_interval_ms=read.get("fetchOffset.retryIntervalMs", values.not_negative, 1000),
    )
    _check_together(options)
    return options


class _Reader:
    """Looks options up by their documented name; turns a parser's ValueError into MisuseError.

    A parser's ValueError says what was expected; name and value seen are added here.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

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


def _check_known(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in (*SOURCE_OPTIONS, *CLIENT_SETTINGS)}
    sink = {name.lower(): name for name in SINK_OPTIONS}
    if "provider" in given:  # Spark's own, of a table that is being created
        raise MisuseError(
            "CREATE TABLE is not supported: Spark does not hand a table's options to Python "
            "sources when it is read; use CREATE TEMPORARY VIEW ... USING penstock OPTIONS (...)"
        )
    for key in sorted(given):
        if key in known:
            continue
        if key in REFUSED:
            raise MisuseError(f"option {key} is not supported: {REFUSED[key]}")
        if key in sink:
            raise MisuseError(
                f"option {sink[key]} belongs to writing; a reader takes subscribe, "
                "subscribePattern or assign"
            )
        guess = "penstock." + key.removeprefix("kafka.") if key.startswith("kafka.") else key
        close = difflib.get_close_matches(guess, known, n=1, cutoff=0.6)
        hint = f"did you mean {known[close[0]]}?" if close else "docs/spark.md lists all options"
        raise MisuseError(f"unknown option {key}: {hint}")


def _client_settings(read: _Reader) -> ClientSettings:
    servers = read.get(BOOTSTRAP, values.addresses, None)
    if servers is None:
        raise MisuseError(
            f"option {BOOTSTRAP} is missing: give host:port, more separated by commas"
        )
    return ClientSettings(
        bootstrap=servers,
        cluster_id=read.get("penstock.cluster.id", values.nonempty, ""),
        connect_timeout_ms=read.get("penstock.connect.timeout.ms", values.positive, 10_000),
        fetch_max_bytes=read.get("penstock.fetch.max.bytes", values.fetch_bytes, 4 << 20),
        fetch_max_wait_ms=read.get("penstock.fetch.max.wait.ms", values.not_negative, 500),
        request_timeout_ms=read.get("penstock.request.timeout.ms", values.positive, 30_000),
    )


def _selection(read: _Reader) -> Selection:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if read.has(name)]
    if len(given) != 1:
        seen = f"{' and '.join(given)} are set" if given else "none is set"
        raise MisuseError(f"exactly one of subscribe, subscribePattern, assign is needed: {seen}")
    match given[0]:
        case "subscribe":
            return Subscribe(read.get("subscribe", values.topic_names, ()))
        case "subscribePattern":
            return SubscribePattern(read.get("subscribePattern", values.topic_pattern, ""))
    return Assign(read.get("assign", values.assignment, ()))


def _boundary(read: _Reader, side: str) -> Boundary | None:
    """The timestamp for all partitions wins over timestamps per partition, these over offsets."""
    otherwise = Otherwise.LATEST
    if side == "starting":
        strategy = "startingOffsetsByTimestampStrategy"
        otherwise = read.get(strategy, values.otherwise, Otherwise.ERROR)
    timestamp_ms = read.get(f"{side}Timestamp", values.not_negative, None)
    timestamps_ms = read.get(f"{side}OffsetsByTimestamp", values.timestamps_ms, None)
    offsets = read.get(f"{side}Offsets", values.edge_or_offsets, None)
    if timestamp_ms is not None:
        return AtTimestamp(timestamp_ms, otherwise)
    if timestamps_ms is not None:
        return AtTimestamps(timestamps_ms, otherwise)
    return offsets


def _columns(read: _Reader) -> tuple[str, ...]:
    headers = read.get("includeHeaders", values.boolean, False)
    columns = read.get("columns", values.column_names, None)
    if columns is None:
        return (*COLUMNS, HEADERS) if headers else COLUMNS
    if headers and HEADERS not in columns:
        raise MisuseError(
            "option includeHeaders is true but option columns leaves headers out: "
            "add headers to columns, or drop includeHeaders"
        )
    return columns


def _check_together(options: SourceOptions) -> None:
    low, high = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if low is not None and high is not None and low > high:
        raise MisuseError(
            f"option minOffsetsPerTrigger is {low}, above maxOffsetsPerTrigger ({high})"
        )
    least, most = options.min_partitions, options.max_tasks
    if least is not None and most is not None and least > most:
        raise MisuseError(f"option minPartitions is {least}, above maxTasks ({most})")


def _has_offset(boundary: Boundary | None, offset: int) -> bool:
    return isinstance(boundary, AtOffsets) and offset in boundary.offsets.values()
