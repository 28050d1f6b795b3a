"""When a log is compacted, up to where, and which null values may go.

    log start        first dirty          end (≤ high watermark)          log end
    ├── compacted before ──┼──── dirty: its keys are read ────┼─── untouched ──▶
    └────────────────── rewritten in one pass ────────────────┘

A pass reads the keys of the dirty part, then rewrites everything below `end`: a record is removed
if a newer record with its key is in the dirty part. So no key has two records below `end`
afterwards (I20). Stored between passes (`Cleaned`): up to where the log was compact, and when. A
null value tells readers that its key is deleted: it stays for `delete.retention.ms` after the pass
that made its part compact. By then no older record of its key is left, so that it can be removed
without the key coming back. Names and meanings of settings are Kafka's (KIP-58, KIP-354).
"""

from dataclasses import dataclass, replace
from typing import Final

from penstock.core.topic import TopicConfig
from penstock.core.types import Offset
from penstock.core.value import value

_POINTS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class CleanPoint:
    """All below `end_offset` was compact at `at_ms` (ms since 1970 UTC, this broker's clock)."""

    end_offset: Offset
    at_ms: int


@value(frozen=True, slots=True)
class Cleaned:
    """State that earlier passes over a log left; stored with it.

    points: ascending in both fields, at most some dozens.
    swept_end: null values below it were examined when they were due.
    tombstones: null values and markers below the last point that the last pass kept.
    markers_end: markers of transactions below it may be missing. Stored before the first of them is
        removed, or before this log copies from one in which they may be missing. Of a pass: those
        that it removes itself; the store adds what it knows (`PartitionWrite.swept_end`).
    """

    points: tuple[CleanPoint, ...] = ()
    swept_end: Offset = Offset(0)
    tombstones: int = 0
    markers_end: Offset = Offset(0)

    @property
    def end_offset(self) -> Offset:
        """Where the dirty part begins, if the log start is not after that."""
        return self.points[-1].end_offset if self.points else Offset(0)

    def cut(self, to: Offset) -> "Cleaned":
        """What remains valid when the log is truncated to `to`."""
        kept = tuple(point for point in self.points if point.end_offset <= to)
        swept_end, markers_end = min(self.swept_end, to), min(self.markers_end, to)
        return replace(self, points=kept, swept_end=swept_end, markers_end=markers_end)

    def before_markers_go(self, plan: "Plan") -> "Cleaned":
        """State to store before a pass removes the first marker: the pass may be interrupted
        later."""
        return self.without_markers(plan.tombstones_end)

    def without_markers(self, end: Offset) -> "Cleaned":
        """Markers below `end` may be missing, too."""
        return self if end <= self.markers_end else replace(self, markers_end=end)

    def tombstones_end(self, delete_retention_ms: int, now_ms: int) -> Offset:
        """Null values below this offset have been kept for long enough."""
        due = [p.end_offset for p in self.points if p.at_ms + delete_retention_ms <= now_ms]
        return max(due, default=Offset(0))

    def after(self, plan: "Plan", tombstones: int, now_ms: int) -> "Cleaned":
        """Adds a finished pass. Points that are close in time are merged into the later one."""
        if plan.first_dirty == plan.end:
            return replace(self, swept_end=plan.tombstones_end, tombstones=tombstones)
        points = [p for p in self.points if p.end_offset < plan.end]
        due = [p for p in points if p.end_offset <= plan.tombstones_end]
        points = points[max(0, len(due) - 1) :]
        apart_ms = plan.delete_retention_ms // _POINTS_MAX
        while len(points) > 1 and now_ms - points[-2].at_ms < apart_ms:
            points.pop()
        points.append(CleanPoint(plan.end, now_ms))
        return Cleaned(
            tuple(points[-2 * _POINTS_MAX :]), plan.tombstones_end, tombstones, self.markers_end
        )


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A log according to its index, up to the requested offset. Sizes in stored bytes.

    start: where its first batch begins. first_dirty: where the first batch begins that no pass has
    processed, `end` if there is none. first_dirty_ms: that batch's largest timestamp.
    """

    cleaned: Cleaned
    start: Offset
    first_dirty: Offset
    end: Offset
    clean_bytes: int = 0
    dirty_bytes: int = 0
    first_dirty_ms: int = 0

    @property
    def dirty_ratio(self) -> float:
        """Share of the log that no pass has processed, 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One pass: read keys in [first_dirty, end), rewrite all below `end`.

    Null values below `tombstones_end` go; `first_dirty` is `end` if only they are due.
    """

    first_dirty: Offset
    end: Offset
    tombstones_end: Offset
    delete_retention_ms: int

    def may_go_on(self, copied_to: Offset | None) -> bool:
        """Whether all null values still may go that it takes. `copied_to`: as of now, see below.

        A move can have begun since it was planned, with a leader whose log is not as compact: the
        copy may have older records of their keys, and go on from here.
        """
        return copied_to is None or self.tombstones_end <= copied_to


def plan_compaction(
    facts: LogFacts, config: TopicConfig, now_ms: int, copied_to: Offset | None = None
) -> Plan | None:
    """The pass that is due, None if there is none.

    Args:
        facts: Of the log up to an end that is neither after the high watermark nor younger than
            `min.compaction.lag.ms`.
        config: The topic's; its cleanup.policy is ignored.
        now_ms: The clock of the records' timestamps, ms since 1970 UTC.
        copied_to: Up to where the slowest broker has it on disk that the partition moves to; None:
            it moves to nobody. Null values from there on stay, however long that takes: the copy
            can have an older record of their key, which was removed here since. What it has only
            written it may lose with the power, and ask for again.
    """
    tombstones_end = facts.cleaned.tombstones_end(config.delete_retention_ms, now_ms)
    if copied_to is not None:
        tombstones_end = min(tombstones_end, copied_to)
    late = now_ms - facts.first_dirty_ms > config.max_compaction_lag_ms
    worth_it = facts.dirty_ratio >= config.min_cleanable_dirty_ratio
    if facts.dirty_bytes and (worth_it or late):
        return Plan(facts.first_dirty, facts.end, tombstones_end, config.delete_retention_ms)
    due = tombstones_end > max(facts.cleaned.swept_end, facts.start)
    if due and facts.cleaned.tombstones:
        end = min(facts.first_dirty, facts.cleaned.end_offset)
        return Plan(end, end, min(tombstones_end, end), config.delete_retention_ms)
    return None
