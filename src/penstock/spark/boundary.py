"""Where a read starts or ends, before the cluster is asked.

A boundary is what a user wrote: `earliest`, offsets per partition, a timestamp. It becomes offsets
in two steps. `queries` (pure) says what to ask for each partition; the cluster shell asks and
passes on the answers. A boundary is resolved only once; from then on, only concrete offsets are
stored (see `offsets`).

JSON forms, with keys `topic/partition`:

    {"edge": "earliest"}
    {"offsets": {"orders/0": 12, "orders/1": -2}}           -1 latest, -2 earliest
    {"timestamps": {"orders/0": 1700000000000}, "otherwise": "error"}
    {"timestamp": 1700000000000, "otherwise": "latest"}

`otherwise` is what happens in a partition that has no record at or after the timestamp.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, assert_never

from penstock.core.types import TopicPartition
from penstock.errors import MisuseError

LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
MAX_INT64: Final = 2**63 - 1


class Edge(StrEnum):
    """An end of the log: the log start, or the last stable offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Otherwise(StrEnum):
    """What to do in a partition without a record at or after the timestamp asked for."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtEdge:
    """The same end of every partition."""

    edge: Edge


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets per partition; -1 = latest, -2 = earliest. Must name every partition read."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """Milliseconds since 1970 UTC per partition. Must name every partition read."""

    timestamps_ms: Mapping[TopicPartition, int]
    otherwise: Otherwise


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """One time, in milliseconds since 1970 UTC, for every partition."""

    timestamp_ms: int
    otherwise: Otherwise


Boundary = AtEdge | AtOffsets | AtTimestamps | AtTimestamp


@dataclass(frozen=True, slots=True)
class ByTime:
    """Ask for the first record at or after `timestamp_ms`."""

    timestamp_ms: int
    otherwise: Otherwise


Query = Edge | ByTime | int
"""What to ask for one partition; an int is an offset that needs no asking."""


def queries(
    boundary: Boundary, partitions: Iterable[TopicPartition], option: str
) -> dict[TopicPartition, Query]:
    """What to ask the cluster so that `boundary` becomes one offset per partition.

    Raises MisuseError, naming `option`, if the boundary lists other partitions than those read.
    """
    wanted = sorted(partitions)
    match boundary:
        case AtEdge(edge):
            return dict.fromkeys(wanted, edge)
        case AtTimestamp(timestamp_ms, otherwise):
            return dict.fromkeys(wanted, ByTime(timestamp_ms, otherwise))
        case AtTimestamps(timestamps_ms, otherwise):
            _check_same_partitions(timestamps_ms, wanted, option)
            return {tp: ByTime(timestamps_ms[tp], otherwise) for tp in wanted}
        case AtOffsets(offsets):
            _check_same_partitions(offsets, wanted, option)
            return {tp: _offset_query(offsets[tp]) for tp in wanted}
    assert_never(boundary)


def _offset_query(offset: int) -> Query:
    match offset:
        case -1:
            return Edge.LATEST
        case -2:
            return Edge.EARLIEST
    return offset


def _check_same_partitions(
    named: Iterable[TopicPartition], wanted: list[TopicPartition], option: str
) -> None:
    missing = sorted(set(wanted) - set(named))
    extra = sorted(set(named) - set(wanted))
    if missing:
        raise MisuseError(
            f"option {option} leaves out {_some(missing)}: it must name every partition that is "
            f"read (-1 = latest, -2 = earliest in offsets)"
        )
    if extra:
        raise MisuseError(
            f"option {option} names {_some(extra)}, which is not read: take it out, or "
            f"change subscribe, subscribePattern or assign"
        )


def _some(partitions: list[TopicPartition], limit: int = 5) -> str:
    shown = ", ".join(str(tp) for tp in partitions[:limit])
    rest = len(partitions) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


def to_json(boundary: Boundary) -> dict[str, Any]:
    """The JSON form shown above; `from_json` reads it."""
    match boundary:
        case AtEdge(edge):
            return {"edge": edge.value}
        case AtOffsets(offsets):
            return {"offsets": positions_to_json(offsets)}
        case AtTimestamps(timestamps_ms, otherwise):
            return {"otherwise": otherwise.value, "timestamps": positions_to_json(timestamps_ms)}
        case AtTimestamp(timestamp_ms, otherwise):
            return {"otherwise": otherwise.value, "timestamp": timestamp_ms}
    assert_never(boundary)


def from_json(value: object) -> Boundary:
    """Reads what `to_json` wrote; raises MisuseError for anything else."""
    match value:
        case {"edge": str(edge), **rest} if not rest and edge in set(Edge):
            return AtEdge(Edge(edge))
        case {"offsets": offsets, **rest} if not rest:
            return AtOffsets(positions_from_json(offsets))
        case {"timestamps": timestamps, "otherwise": str(other), **rest} if (
            not rest and other in set(Otherwise)
        ):
            return AtTimestamps(positions_from_json(timestamps), Otherwise(other))
        case {"timestamp": int(timestamp_ms), "otherwise": str(other), **rest} if (
            not rest and other in set(Otherwise)
        ):
            return AtTimestamp(timestamp_ms, Otherwise(other))
    raise MisuseError(f"not a starting point that this version can read: {str(value)[:200]}")


def positions_to_json(positions: Mapping[TopicPartition, int]) -> dict[str, int]:
    """`{"topic/partition": offset}`. The order of keys is `offsets.encode`'s business."""
    return {str(tp): offset for tp, offset in positions.items()}


def positions_from_json(value: object) -> dict[TopicPartition, int]:
    """Reads what `positions_to_json` wrote; raises MisuseError for anything else."""
    if not isinstance(value, dict):
        raise MisuseError(f"expected an object of topic/partition: offset, got {str(value)[:200]}")
    return {_partition_of(key): _int64(offset, key) for key, offset in value.items()}


def _partition_of(key: object) -> TopicPartition:
    topic, _, partition = str(key).rpartition("/")
    if not topic or not partition.isdecimal() or not partition.isascii():
        raise MisuseError(f"expected a key topic/partition, such as orders/0, got {key!r}")
    return TopicPartition(topic, int(partition))


def _int64(value: object, key: object) -> int:
    # bool is an int to Python, and JSON floats would silently lose offsets above 2**53.
    if type(value) is not int or not EARLIEST_OFFSET <= value <= MAX_INT64:
        raise MisuseError(f"expected an integer from -2 to 2**63 - 1 for {key}, got {value!r}")
    return value
