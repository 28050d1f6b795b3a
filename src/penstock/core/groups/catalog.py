"""The topics that groups may read, and the names of their partitions.

Topic ids count; requests and subscriptions use names. The shell passes in a new `Catalog` whenever
names, ids or partition counts change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.core.types import TopicId

Part = tuple[TopicId, int]
"""A partition of a topic. A plain tuple, because sets of hundreds are built often."""
Parts = frozenset[Part]
NO_PARTS: Parts = frozenset()


@dataclass(frozen=True, slots=True)
class CatalogTopic:
    """A topic of users. `racks[i]`: racks with a replica of partition i; () = none known."""

    name: str
    topic_id: TopicId
    partitions: int
    racks: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class Catalog:
    """All topics that groups may read. `names` finds a topic's id; `deleted`: ids of former ones.

    An id that is in none of them may belong to a topic that was created a moment ago.
    """

    topics: Mapping[TopicId, CatalogTopic] = field(default_factory=dict)
    names: Mapping[str, TopicId] = field(default_factory=dict)
    deleted: Collection[TopicId] = frozenset()

    @staticmethod
    def of(*topics: CatalogTopic, deleted: Collection[TopicId] = frozenset()) -> Catalog:
        """A catalog of these topics."""
        return Catalog(
            {topic.topic_id: topic for topic in topics},
            {topic.name: topic.topic_id for topic in topics},
            deleted,
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topic names, and a pattern whose matches are added ("": none)."""

    topics: tuple[str, ...] = ()
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class NamedPartition:
    """A partition in a request; `topic_id` "" = the current one of the name."""

    topic: str
    topic_id: TopicId
    partition: int
