"""How much of the backlog one trigger reads.

In: where partitions are, where their logs end, and limits. Out: where this batch ends. Rules:

- Never past the end, never backwards, never more than the limit.
- Progress: with a backlog and a limit, at least one record is admitted.
- Proportional to each partition's backlog, and none starves: a limit that has room for one
  record each gives at least one each; a smaller limit goes round the partitions in turn. The
  turn needs no memory: it starts at the sum of all positions, which grows by what was read.

`Pacer` decides whether to wait for more (`minOffsetsPerTrigger`). Spark's own limits reach this
module only as "all there is" or "as the options say" (`stream`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.types import TopicPartition

Positions = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Limit:
    """At most this much per trigger; None = no limit. Both at least 1."""

    max_rows: int | None = None
    max_bytes: int | None = None


def backlog(begin: Positions, end: Positions) -> dict[TopicPartition, int]:
    """Offsets left to read, of partitions that have any."""
    return {tp: end[tp] - begin[tp] for tp in sorted(end) if tp in begin and end[tp] > begin[tp]}


def admit(
    begin: Positions, end: Positions, limit: Limit, row_bytes: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """Where the batch ends: a position for every partition of `begin`.

    `row_bytes`: mean stored size of a record per partition, for `max_bytes`; missing = unknown,
    counted as 1 KiB. The byte limit is therefore kept on average, not in each batch.
    """
    waiting = backlog(begin, end)
    total = sum(waiting.values())
    rows = min((r for r in (limit.max_rows, _rows_for(waiting, limit, row_bytes)) if r), default=0)
    if not rows or total <= rows:
        admitted = waiting
    elif rows < len(waiting):
        admitted = _in_turn(waiting, rows, sum(begin.values()))
    else:
        admitted = _share(waiting, rows)
    return {tp: position + admitted.get(tp, 0) for tp, position in begin.items()}


def _rows_for(
    waiting: Mapping[TopicPartition, int], limit: Limit, row_bytes: Mapping[TopicPartition, float]
) -> int | None:
    if limit.max_bytes is None or not waiting:
        return None
    total_bytes = sum(rows * max(1.0, row_bytes.get(tp, 1024.0)) for tp, rows in waiting.items())
    return max(1, int(limit.max_bytes * sum(waiting.values()) / total_bytes))


def _in_turn(
    waiting: Mapping[TopicPartition, int], rows: int, turn: int
) -> dict[TopicPartition, int]:
    partitions = list(waiting)
    return {partitions[(turn + i) % len(partitions)]: 1 for i in range(rows)}


def _share(waiting: Mapping[TopicPartition, int], rows: int) -> dict[TopicPartition, int]:
    """One record each, the rest by largest remainder. Integers only: offsets exceed 2**53."""
    total = sum(waiting.values())
    assert len(waiting) <= rows < total
    spare, weight = rows - len(waiting), total - len(waiting)
    shares = {tp: 1 + (left - 1) * spare // weight for tp, left in waiting.items()}
    remainders = {tp: (left - 1) * spare % weight for tp, left in waiting.items()}
    missing = rows - sum(shares.values())
    for tp in sorted(remainders, key=lambda tp: -remainders[tp])[:missing]:
        shares[tp] += 1
    assert sum(shares.values()) == rows
    return shares


@dataclass(slots=True)
class Pacer:
    """Holds a trigger back until there is enough to read, or it has waited long enough.

    `min_rows` None = never holds back. Lives as long as the query's driver process; after a
    restart the first trigger goes at once, as with Spark's Kafka source.
    """

    min_rows: int | None
    max_delay_ms: int
    last_trigger_ms: int | None = None

    def holds_back(self, rows: int, now_ms: int) -> bool:
        """True: skip this trigger. `rows`: the backlog. `now_ms`: a monotonic clock."""
        waited = self.last_trigger_ms is None or now_ms - self.last_trigger_ms >= self.max_delay_ms
        if self.min_rows is not None and rows < self.min_rows and not waited:
            return True
        self.last_trigger_ms = now_ms
        return False
