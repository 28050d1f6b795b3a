"""Whether the target has what was copied: it is read again, counted, and its digest compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode
from penstock.migration.model import Progress, Target
from penstock.migration.plan import is_held
from penstock.migration.reading import digests


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
    compacted = {topic for topic in {w.topic for w in progress} if _is_compacted(target, topic)}
    expired = _expired(target, progress)
    found = None
    while found is None:
        judged = {where: p for where, p in progress.items() if where not in expired and p.records}
        try:
            found = _read_again(target, judged, tick)
        except ClusterError as error:
            # Retention has just removed what was to be read.
            more = _expired(target, progress)
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or more == expired:
                raise
            expired = more
    result = []
    for where, p in sorted(progress.items()):
        records, digest = found.get(where, (0, 0))
        same = where not in expired and (records, digest) == (p.records, p.digest)
        gone = where in expired or (where.topic in compacted and records < p.records)
        result.append(Verdict(where, p.records, records, same, gone))
    return result


def _expired(target: Target, progress: Mapping[TopicPartition, Progress]) -> set[TopicPartition]:
    bounds = target.bounds(progress)
    return {where for where, each in progress.items() if bounds[where].first > each.target_first}


def _read_again(
    target: Target, judged: Mapping[TopicPartition, Progress], tick: Callable[[int], None]
) -> dict[TopicPartition, tuple[int, int]]:
    """(records, digest) of each."""
    if not judged:
        return {}
    reader = target.read({where: each.target_first for where, each in judged.items()})
    return digests(reader, {where: each.target_next for where, each in judged.items()}, tick)


def _is_compacted(target: Target, name: str) -> bool:
    topic = target.find(name)
    return (
        topic is not None
        and "compact" in topic.configs.get("cleanup.policy", "")
        and not is_held(topic)
    )
