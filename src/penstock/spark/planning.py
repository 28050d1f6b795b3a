"""From offset ranges to Spark tasks.

`split` cuts ranges so that there are enough of them and none is too long; `pack` puts ranges
together again into tasks, because a task costs 40 to 90 ms of a core before it reads a record:
as long as reading some 50,000. Both are deterministic; every offset of the input is in exactly
one task, and ranges of one partition stand in offset order within a task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from itertools import pairwise
from typing import Final

from penstock.spark.admission import Positions, backlog

SMALL_TASK_RECORDS: Final = 20_000
"""Below this, a separate task costs more than it saves: ranges are combined up to here."""


@dataclass(frozen=True, slots=True, order=True)
class ReadRange:
    """Records lo <= offset < hi of a partition. `topic_id` "" = unknown."""

    topic: str
    partition: int
    lo: int
    hi: int
    topic_id: str = ""

    @property
    def size(self) -> int:
        """Offsets in the range; with gaps (compaction) fewer records."""
        return self.hi - self.lo

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.lo}, {self.hi})"


@dataclass(frozen=True, slots=True)
class Limits:
    """The options minPartitions, maxRecordsPerPartition, maxTasks; None = not set."""

    min_partitions: int | None = None
    max_records: int | None = None
    max_tasks: int | None = None


def plan(
    begin: Positions, end: Positions, topic_ids: Mapping[str, str], limits: Limits
) -> list[tuple[ReadRange, ...]]:
    """The tasks that read [begin, end): one tuple of ranges each; empty if there is nothing."""
    ranges = [
        ReadRange(tp.topic, tp.partition, begin[tp], end[tp], topic_ids.get(tp.topic, ""))
        for tp in backlog(begin, end)
    ]
    return pack(split(ranges, limits), limits)


def split(ranges: Sequence[ReadRange], limits: Limits) -> list[ReadRange]:
    """Cuts ranges into pieces of equal length (differing by one at most).

    The pieces are at most `max_records` long, and at least `min_partitions` in number if there
    are that many records.
    """
    total = sum(r.size for r in ranges)
    pieces = []
    for r in ranges:
        count = 1
        if limits.max_records is not None:
            count = _ceil_div(r.size, limits.max_records)
        if limits.min_partitions is not None and len(ranges) < limits.min_partitions:
            count = max(count, _ceil_div(r.size * limits.min_partitions, total))
        pieces += _cut(r, min(count, r.size))
    return pieces


def _cut(r: ReadRange, count: int) -> list[ReadRange]:
    edges = [r.lo + r.size * i // count for i in range(count + 1)]
    return [ReadRange(r.topic, r.partition, lo, hi, r.topic_id) for lo, hi in pairwise(edges)]


def pack(ranges: Sequence[ReadRange], limits: Limits) -> list[tuple[ReadRange, ...]]:
    """Puts ranges into tasks, the longest first into the emptiest task (Graham's LPT rule).

    The number of tasks: as many as ranges, but no more than `max_tasks`, nor (without
    `min_partitions`) than leaves each some 20,000 records. `max_records` is also kept for whole
    tasks, unless `max_tasks` is too small for it.
    """
    count = _task_count(ranges, limits)
    tasks: list[list[ReadRange]] = [[] for _ in range(count)]
    emptiest = [(0, at) for at in range(count)]
    for r in sorted(ranges, key=lambda r: (-r.size, r)):
        size, at = emptiest[0]
        full = limits.max_records is not None and size + r.size > limits.max_records
        if full and size and (limits.max_tasks is None or len(tasks) < limits.max_tasks):
            at = len(tasks)
            tasks.append([])
            heappush(emptiest, (r.size, at))
        else:
            heapreplace(emptiest, (size + r.size, at))
        tasks[at].append(r)
    return sorted(tuple(sorted(task)) for task in tasks)


def _task_count(ranges: Sequence[ReadRange], limits: Limits) -> int:
    count = len(ranges)
    if limits.min_partitions is None:
        count = min(count, _ceil_div(sum(r.size for r in ranges), SMALL_TASK_RECORDS))
    if limits.max_tasks is not None:
        count = min(count, limits.max_tasks)
    return count


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
