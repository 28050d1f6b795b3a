"""Conditions of a query that let a batch read less.

Only an optimization: Spark applies every filter again, so a condition may be ignored but a
record that passes must never be left out. `timestamp` narrows from below only: offsets before
the first record with timestamp >= t hold smaller ones, while behind it any may follow.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.core.types import TopicPartition
from penstock.spark.admission import Positions
from penstock.spark.boundary import MAX_INT64, AtTimestamp, Otherwise
from penstock.spark.lookup import OffsetsClient, resolve


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets [lo, hi), timestamps from `from_ms` on, only these partitions (None = all)."""

    lo: int = 0
    hi: int = MAX_INT64
    from_ms: int | None = None
    partitions: frozenset[int] | None = field(default=None)

    def narrow(
        self, begin: Positions, end: Positions, client: OffsetsClient
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The part of [begin, end) within these bounds; empty ranges become [end, end)."""
        kept = {
            tp: hi
            for tp, hi in end.items()
            if self.partitions is None or tp.partition in self.partitions
        }
        starts = dict.fromkeys(kept, self.lo)
        if self.from_ms is not None:
            at_time = AtTimestamp(max(0, self.from_ms), Otherwise.LATEST)
            found = resolve(client, at_time, kept, "timestamp")
            starts = {tp: max(lo, found[tp]) for tp, lo in starts.items()}
        new_end = {tp: max(begin[tp], min(hi, self.hi)) for tp, hi in kept.items()}
        new_begin = {tp: min(new_end[tp], max(begin[tp], starts[tp])) for tp in kept}
        return new_begin, new_end


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """All conditions together; those of other columns or forms are left to Spark."""
    bounds = Bounds()
    for condition in filters:
        match condition:
            case EqualTo(attribute=(column,), value=value):
                bounds = _both(bounds, column, value, value)
            case GreaterThan(attribute=(column,), value=value):
                bounds = _both(bounds, column, _above(value), None)
            case GreaterThanOrEqual(attribute=(column,), value=value):
                bounds = _both(bounds, column, value, None)
            case LessThan(attribute=("offset",), value=int(value)):
                bounds = _both(bounds, "offset", None, value - 1)
            case LessThanOrEqual(attribute=(column,), value=value):
                bounds = _both(bounds, column, None, value)
            case In(attribute=("partition",), value=values):
                bounds = _only(bounds, frozenset(v for v in values if isinstance(v, int)))
            case _:
                pass
    return bounds


def _above(value: Any) -> Any:
    """The next value, where values are whole; a timestamp's own value is low enough."""
    return value + 1 if isinstance(value, int) else value


def _both(bounds: Bounds, column: str, low: Any, high: Any) -> Bounds:
    """Adds low <= column <= high; None = no bound."""
    lo, hi, from_ms = bounds.lo, bounds.hi, bounds.from_ms
    match column, low, high:
        case "offset", int() | None, int() | None:
            lo = max(lo, low or 0)
            hi = hi if high is None else min(hi, high + 1)
        case "timestamp", datetime(tzinfo=tzinfo()), _:
            at_ms = int(low.timestamp() * 1000)
            from_ms = at_ms if from_ms is None else max(from_ms, at_ms)
        case "partition", int(), int() if low == high:
            return _only(bounds, frozenset({low}))
    return Bounds(lo, hi, from_ms, bounds.partitions)


def _only(bounds: Bounds, partitions: frozenset[int]) -> Bounds:
    kept = partitions if bounds.partitions is None else bounds.partitions & partitions
    return Bounds(bounds.lo, bounds.hi, bounds.from_ms, kept)
