"""Whether the source still has the topics that a copy began with, and no more than those.

A topic that is deleted and created again, a partition that is added, and a topic that comes to
match are not in the copy; it must not be called complete.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.migration.model import Source, Target, Topic
from penstock.migration.plan import created_again
from penstock.migration.reading import CopyError


@dataclass(frozen=True, slots=True)
class Watch:
    """`patterns`: what was asked for. `copied`: the topics as the copy took them, by name."""

    source: Source
    target: Target
    patterns: Sequence[str]
    copied: Mapping[str, Topic]

    def __call__(self) -> None:
        """Raises CopyError if they are others now, MisuseError if a pattern matches none any more,
        and ClusterError if the source does not answer."""
        found = {topic.name: topic for topic in self.source.topics(self.patterns)}
        for name, topic in self.copied.items():
            seen = found.get(name)
            if seen is None:
                raise CopyError(
                    f"copy not complete: {self.source.name} has no topic {name!r} any more"
                )
            reason = created_again(seen, topic.topic_id)
            if reason:
                raise CopyError(f"copy not complete: {self.source.name}, topic {name!r}: {reason}")
            if seen.partitions != topic.partitions:
                raise CopyError(
                    f"copy not complete: {name} has {seen.partitions} partitions at "
                    f"{self.source.name}, {topic.partitions} were copied; give it as many at "
                    f"{self.target.name} (`penstock topic alter {name} --partitions "
                    f"{seen.partitions}` if that is here), then the same command"
                )
        new = ", ".join(sorted(found.keys() - self.copied.keys()))
        if new:
            raise CopyError(
                f"copy not complete: {self.source.name} has more topics that match by now: {new}; "
                "the same command copies them"
            )
