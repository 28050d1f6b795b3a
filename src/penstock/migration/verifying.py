"""Whether the target has what was copied: it is read again, counted, and its digest compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.core.types import TopicPartition
from penstock.migration.copying import digests
from penstock.migration.model import Progress, Target
from penstock.migration.plan import is_held


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a partition: what was copied, and what the target has of it.

    `expired`: retention has removed records since; then it cannot be judged. Likewise if fewer are
    found in a topic that may be compacted: one that existed before, and is not held (`plan`).
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
    compacted = {topic for topic in {w.topic for w in progress} if _is_compacted(target, topic)}
    expired = {where for where, p in progress.items() if bounds[where].first > p.target_first}
    judged = {where: p for where, p in progress.items() if where not in expired and p.records}
    found = {}
    if judged:
        reader = target.read({where: p.target_first for where, p in judged.items()})
        found = digests(reader, {where: p.target_next for where, p in judged.items()}, tick)
    result = []
    for where, p in sorted(progress.items()):
        records, digest = found.get(where, (0, 0))
        same = where not in expired and (records, digest) == (p.records, p.digest)
        gone = where in expired or (where.topic in compacted and records < p.records)
        result.append(Verdict(where, p.records, records, same, gone))
    return result


def _is_compacted(target: Target, name: str) -> bool:
    topic = target.find(name)
    return (
        topic is not None
        and "compact" in topic.configs.get("cleanup.policy", "")
        and not is_held(topic)
    )
