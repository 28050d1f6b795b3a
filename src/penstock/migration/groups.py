"""A group's offsets in the source, as offsets in the target.

The progress has marks: offsets of the source, and what they are in the target. Between two marks
without a gap the difference tells. With gaps, what the source has there is counted, and must be
as many records as the target has:

    source   m ── · ─ · · ── o ── · ─ n        m, n: marks; o: the offset; · records
    target   m ·  ·   ·      ?    ·   n

If the source has lost some since (compaction, retention), what it has behind `o` is looked for at
the target before `n`. The offset is the lowest that it can be then: records may come twice to the
group, and none is left out. An offset beyond the copy waits.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.types import TopicPartition
from penstock.migration.digest import extended
from penstock.migration.model import Progress, Source, Target
from penstock.migration.reading import digests, up_to


@dataclass(frozen=True, slots=True)
class Translation:
    """`target`: -1 while the copy has not come so far. `here`: where the group is at the target
    already, if that is not before `target`: it stays there. Else -1."""

    where: TopicPartition
    source: int
    target: int
    here: int = -1


def translated(
    source: Source,
    target: Target,
    committed: Mapping[TopicPartition, int],
    progress: Mapping[TopicPartition, Progress],
) -> list[Translation]:
    """One per partition that was copied, in order."""
    found = []
    for where, offset in sorted(committed.items()):
        if where in progress:
            at = _target_of(source, target, where, offset, progress[where])
            if at >= 0:  # retention here may have passed it
                at = max(at, target.bounds([where])[where].first)
            found.append(Translation(where, offset, at))
    return found


def _target_of(
    source: Source, target: Target, where: TopicPartition, offset: int, progress: Progress
) -> int:
    if offset > progress.source_next:
        return -1
    if offset == progress.source_next or offset > progress.last_offset >= 0:
        return progress.target_next
    if offset <= progress.source_first:
        return progress.target_first
    begun = ((progress.source_first, progress.target_first),)
    marks = (*(progress.marks or begun), (progress.source_next, progress.target_next))
    above = bisect_right([mark[0] for mark in marks], offset)
    (low, target_low), (high, target_high) = marks[above - 1], marks[above]
    least = max(target_low, target_high - (high - offset))
    if least == min(target_high, target_low + offset - low):
        return least
    begins = source.bounds([where])[where].first
    if begins >= high:
        return least
    before = behind = digest = 0
    follows = high
    for _, rows in up_to(source.read({where: max(low, begins)}), {where: high}):
        at = bisect_left(rows.offsets, offset)
        before, behind = before + at, behind + len(rows) - at
        follows = min([follows, *rows.offsets[at : at + 1]])
        digest = extended(digest, rows.cut(at, len(rows)))
    if before + behind == target_high - target_low:
        return target_low + before
    at = target_high - behind
    if begins <= offset and behind and target.bounds([where])[where].first <= at:
        found = digests(target.read({where: at}), {where: target_high}, lambda _: None)
        if found[where] == (behind, digest):  # what was between `offset` and these may be lost
            least = max(least, at - (follows - offset))
    return max(least, target_low + before)
