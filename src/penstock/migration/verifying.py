"""Whether the target has what was copied: it is read again, counted, and its digest compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.core.types import TopicPartition
from penstock.migration.copying import digests
from penstock.migration.model import Progress, Target


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a partition: what was copied, and what the target has of it.

    `expired`: retention or compaction has removed records since; then it cannot be judged.
    """

    where: TopicPartition
    copied: int
    found: int
    same: bool
    expired: bool = False

    @property
    def good(self) -> bool:
        return self.same or self.expired


def verdicts(
    target: Target, progress: Mapping[TopicPartition, Progress], tick: Callable[[int], None]
) -> list[Verdict]:
    """One per partition, in order."""
    bounds = target.bounds(progress)
    expired = {where for where, p in progress.items() if bounds[where].first > p.target_first}
    judged = {where: p for where, p in progress.items() if where not in expired and p.records}
    found = {}
    if judged:
        reader = target.read({where: p.target_first for where, p in judged.items()})
        found = digests(reader, {where: p.target_next for where, p in judged.items()}, tick)
    result = []
    for where, p in sorted(progress.items()):
        records, digest = found.get(where, (0, 0))
        gone = where in expired
        same = not gone and (records, digest) == (p.records, p.digest)
        result.append(Verdict(where, p.records, records, same, gone))
    return result
