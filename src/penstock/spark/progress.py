"""How far a query is behind, from Spark's own progress reports.

Spark's Python sources cannot publish metrics of their own, but a `StreamingQueryProgress`
carries, per source, the offset read to and the newest offset seen. A listener calls
`offsets_behind_latest(progress.sources[0].endOffset, progress.sources[0].latestOffset)` and gets
what Spark's Kafka source reports as minOffsetsBehindLatest, avg… and max….
"""

import json
from dataclasses import dataclass
from typing import Any

from penstock.spark.offsets import Concrete, decode


@dataclass(frozen=True, slots=True)
class OffsetsBehind:
    """Records between what was read and the end of the log, over all partitions."""

    minimum: int
    average: float
    maximum: int
    total: int


def offsets_behind_latest(
    end_offset: str | dict[str, Any] | None, latest_offset: str | dict[str, Any] | None
) -> OffsetsBehind | None:
    """None if either is missing, not resolved yet, or has no partitions.

    Raises MisuseError for offsets of another source.
    """
    end, latest = _concrete(end_offset), _concrete(latest_offset)
    if end is None or latest is None:
        return None
    behind = [max(0, latest.positions[tp] - end.positions.get(tp, 0)) for tp in latest.positions]
    if not behind:
        return None
    return OffsetsBehind(min(behind), sum(behind) / len(behind), max(behind), sum(behind))


def _concrete(offset: str | dict[str, Any] | None) -> Concrete | None:
    if offset is None or offset == "null":
        return None
    decoded = decode(json.loads(offset) if isinstance(offset, str) else offset)
    return decoded if isinstance(decoded, Concrete) else None
