"""A group's offsets in the source, as offsets in the target.

The target's end stands for `source_next`. An offset before that is as many *records* before the
end as the source still has between the two: without gaps that is the difference, else they are
counted. An offset beyond `source_next` waits until the copy has passed it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.types import TopicPartition
from penstock.migration.copying import digests
from penstock.migration.model import Progress, Source


@dataclass(frozen=True, slots=True)
class Translation:
    """`target`: -1 while the copy has not come so far."""

    where: TopicPartition
    source: int
    target: int


def translated(
    source: Source,
    committed: Mapping[TopicPartition, int],
    progress: Mapping[TopicPartition, Progress],
) -> list[Translation]:
    """One per partition that was copied, in order."""
    found = []
    for where, offset in sorted(committed.items()):
        if where in progress:
            found.append(
                Translation(where, offset, _target_of(source, where, offset, progress[where]))
            )
    return found


def _target_of(source: Source, where: TopicPartition, offset: int, progress: Progress) -> int:
    if offset > progress.source_next:
        return -1
    if offset <= progress.source_first:
        return progress.target_first
    if progress.gapless:
        return progress.target_next - (progress.source_next - offset)
    if offset == progress.source_next:
        return progress.target_next
    reader = source.read({where: offset})
    behind, _ = digests(reader, {where: progress.source_next}, lambda _: None)[where]
    return progress.target_next - behind
