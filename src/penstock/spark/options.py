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
    groupId †                          the group to which a stream's progress is committed
    groupIdPrefix                                     accepted; without effect
    pollTimeoutMs †                    120000
    fetchOffset.numRetries, fetchOffset.retryIntervalMs   3, 1000
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
from penstock.spark.given import (
    COMMON_SETTINGS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    ClientSettings,
    Given,
    client_settings,
)
from penstock.spark.values import COLUMNS, HEADERS

CLIENT_SETTINGS: Final = (
    *COMMON_SETTINGS,
    "penstock.fetch.max.bytes",
    "penstock.fetch.max.wait.ms",
)
# Settings that Kafka users know, and what to use here instead.
REFUSED: Final = {
    "penstock.auto.offset.reset": "use startingOffsets, and failOnDataLoss for lost offsets",
    "penstock.group.id": "use groupId, which shows a stream's progress",
    "penstock.enable.auto.commit": "positions are in Spark's checkpoint",
    "penstock.isolation.level": "only committed records are read",
    "penstock.key.deserializer": "keys are binary; cast them in the query",
    "penstock.value.deserializer": "values are binary; cast them in the query",
    "filterpushdown": (
        "in Spark 4.3, other queries of the same DataFrame would miss the records that it leaves "
        "out; narrow the read with assign, or with starting and ending offsets or timestamps"
    ),
    "path": "name topics with subscribe, subscribePattern or assign; load() takes no path",
}
_WRITING: Final = dict.fromkeys(
    SINK_OPTIONS,
    "belongs to writing; a reader takes subscribe, subscribePattern or assign",
)


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
class SourceOptions:
    """Everything a reader needs to know. None = not set, no limit.

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
                "option groupId is for streams, whose progress a group can show; remove it from "
                "a batch query"
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
                "batch queries; to stop a stream, use trigger(availableNow=True)"
            )
        return self.starting or AtEdge(Edge.LATEST)


def parse(raw: Mapping[str, str]) -> SourceOptions:
    """Reads all options of a reader; raises MisuseError for the first that is wrong."""
    read = Given(raw)
    read.check_known((*SOURCE_OPTIONS, *CLIENT_SETTINGS), REFUSED, _WRITING)
    options = SourceOptions(
        client=client_settings(read),
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
        group_id=read.get("groupId", values.group_id, None),
        group_id_prefix=read.get("groupIdPrefix", values.nonempty, None),
        poll_timeout_ms=read.get("pollTimeoutMs", values.timeout_ms, 120_000),
        offset_retries=read.get("fetchOffset.numRetries", values.int32, 3),
        offset_retry_interval_ms=read.get("fetchOffset.retryIntervalMs", values.int32, 1000),
    )
    _check_together(options)
    return options


def _selection(read: Given) -> Selection:
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


def _boundary(read: Given, side: str) -> Boundary | None:
    """The timestamp for all partitions overrides those per partition, which override offsets."""
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


def _columns(read: Given) -> tuple[str, ...]:
    headers = read.get("includeHeaders", values.boolean, False)
    columns = read.get("columns", values.column_names, None)
    if columns is None:
        return (*COLUMNS, HEADERS) if headers else COLUMNS
    if headers and HEADERS not in columns:
        raise MisuseError(
            "option includeHeaders is true, but option columns leaves out headers: add headers "
            "to columns, or remove includeHeaders"
        )
    return columns


def _check_together(options: SourceOptions) -> None:
    low, high = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if low is not None and high is not None and low > high:
        raise MisuseError(
            f"option minOffsetsPerTrigger is {low}, which is more than maxOffsetsPerTrigger "
            f"({high})"
        )
    least, most = options.min_partitions, options.max_tasks
    if least is not None and most is not None and least > most:
        raise MisuseError(f"option minPartitions is {least}, which is more than maxTasks ({most})")


def _has_offset(boundary: Boundary | None, offset: int) -> bool:
    return isinstance(boundary, AtOffsets) and offset in boundary.offsets.values()
