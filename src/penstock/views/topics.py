"""Topics, one topic, its partitions, its settings and its readers. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from penstock.core.types import TopicPartition
from penstock.views import cells
from penstock.views.answers import TopicTraffic
from penstock.views.cells import Cell, Column, Fact, Table
from penstock.views.shortfalls import judge, min_isr_of, topic_shortfalls

if TYPE_CHECKING:
    from penstock.client import ConfigEntry, ListedOffset, PartitionDescription, TopicDescription

_WORDS: Final = {
    "offline": Cell("offline", "offline", "bad", "", "without a leader: no writes, no reads"),
    "under_min_isr": Cell(
        "under_min_isr", "below min ISR", "bad", "", "writes with acks=all are refused"
    ),
    "under_replicated": Cell(
        "under_replicated", "under-replicated", "odd", "", "writes and reads continue"
    ),
}
_FINE: Final = Cell("in_sync", "in sync", "good")
TOPICS: Final = (
    Column("topic", "Topic"),
    Column("state", "State"),
    Column("partitions", "Partitions", numeric=True),
    Column("replicas", "Replicas", numeric=True),
    Column("records", "Records", numeric=True),
    Column("records_rate", "In", numeric=True),
    Column("size_bytes", "Size", numeric=True),
)
PARTITIONS: Final = (
    Column("partition", "Partition", numeric=True),
    Column("state", "State"),
    Column("leader", "Leader", numeric=True),
    Column("replicas", "Replicas"),
    Column("isr", "In sync"),
    Column("start", "Start", numeric=True),
    Column("end", "End", numeric=True),
    Column("records", "Records", numeric=True),
    Column("size_bytes", "Size", numeric=True),
)
SETTINGS: Final = (
    Column("name", "Setting"),
    Column("value", "Value"),
    Column("origin", "From"),
    Column("documentation", "Meaning"),
)


def topic_href(topic: str, page: str = "") -> str:
    """Of its page, or one below it."""
    return f"/topics/{quote(topic, safe='')}" + (f"/{page}" if page else "")


def is_internal(name: str, one: "TopicDescription") -> bool:
    """Made by the cluster for itself."""
    return one.internal or name.startswith("__")


def topic_table(
    topics: "Iterable[TopicDescription]", moving: Mapping[str, TopicTraffic], empty: str
) -> Table:
    """A row per topic, in the order given."""
    rows = [_topic(one, moving.get(one.topic)) for one in topics]
    return Table("Topics", TOPICS, tuple(rows), empty)


def _topic(one: "TopicDescription", moving: TopicTraffic | None) -> tuple[Cell, ...]:
    return (
        cells.text(one.topic, topic_href(one.topic)),
        topic_state(one),
        cells.number(len(one.partitions)),
        cells.number(max((len(each.replicas) for each in one.partitions), default=0)),
        *_amounts(moving),
    )


def _amounts(moving: TopicTraffic | None) -> tuple[Cell, Cell, Cell]:
    if moving is None or moving.unseen:
        return cells.unknown(), cells.unknown(), cells.unknown()
    return (
        cells.number(moving.records),
        cells.rate(moving.records_rate),
        cells.size(moving.size_bytes),
    )


def topic_state(one: "TopicDescription") -> Cell:
    """The worst of its partitions."""
    kinds = {short.kind for short in topic_shortfalls(one)}
    return next((word for kind, word in _WORDS.items() if kind in kinds), _FINE)


def topic_facts(one: "TopicDescription", moving: TopicTraffic | None) -> tuple[Fact, ...]:
    records, added, stored = _amounts(moving)
    factor = max((len(each.replicas) for each in one.partitions), default=0)
    return (
        Fact("State", topic_state(one)),
        Fact("Partitions", cells.number(len(one.partitions))),
        Fact("Replicas", cells.number(factor)),
        Fact("Min ISR", cells.number(min_isr_of(one.configs, factor))),
        Fact("Records", records),
        Fact("In", added),
        Fact("Size", stored),
    )


@dataclass(frozen=True, slots=True)
class Offsets:
    """Of some partitions: where they begin and end for readers of committed records."""

    starts: "Mapping[TopicPartition, ListedOffset]"
    ends: "Mapping[TopicPartition, ListedOffset]"


def partition_table(
    topic: "TopicDescription",
    shown: "Sequence[PartitionDescription]",
    offsets: Offsets | None,
    sizes: Mapping[TopicPartition, int],
) -> Table:
    """`shown`: the partitions of this page."""
    rows = []
    for one in shown:
        where = TopicPartition(topic.topic, one.partition)
        kind = judge(
            one.leader,
            len(one.isr),
            len(one.replicas),
            min_isr_of(topic.configs, len(one.replicas)),
        )
        start = offsets.starts[where].offset if offsets and where in offsets.starts else None
        end = offsets.ends[where].offset if offsets and where in offsets.ends else None
        behind = set(one.replicas) - set(one.isr)
        rows.append(
            (
                Cell(
                    one.partition,
                    str(one.partition),
                    href=topic_href(topic.topic, f"records?partition={one.partition}"),
                ),
                _WORDS[kind] if kind else _FINE,
                cells.identifier(one.leader) if one.leader >= 0 else Cell(None, "none", "bad"),
                cells.brokers(one.replicas),
                cells.brokers(one.isr, "odd" if behind else ""),
                cells.identifier(start),
                cells.identifier(end),
                cells.number(None if start is None or end is None else end - start),
                cells.size(sizes.get(where)),
            )
        )
    return Table("Partitions", PARTITIONS, tuple(rows), "This topic has no partitions.")


def settings_table(entries: "Sequence[ConfigEntry]", topic: "TopicDescription") -> Table:
    """What is set comes first."""

    def origin(entry: "ConfigEntry") -> Cell:
        if entry.name in topic.inherited:
            return Cell("cluster", "cluster's default")
        if entry.is_default:
            return Cell("default", "built in", "dim")
        return Cell("topic", "this topic", "good")

    ordered = sorted(entries, key=lambda one: (one.name not in topic.configs, one.name))
    rows = [
        (
            cells.text(one.name),
            cells.text(one.value),
            origin(one),
            cells.text(" ".join(one.documentation.split())),
        )
        for one in ordered
    ]
    return Table("Settings", SETTINGS, tuple(rows), "No settings are known.")
