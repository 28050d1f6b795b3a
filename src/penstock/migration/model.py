"""What a copy sees of its two ends: topics, rows, progress, and the seams `Source` and `Target`.

Offsets of the source and of the target differ where the source has gaps (compaction, markers of
transactions): the target has none, because one writer appends row after row.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple, Protocol

from penstock.core.columns import Header
from penstock.core.types import TopicPartition

MARKS_MAX: Final = 32
MARK_RECORDS: Final = 1_000
"""Between two marks of a progress at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic of either end.

    Attributes:
        configs: What was set on the topic itself, by name; the names are Kafka's.
        topic_id: Another one if a topic of this name is created again; "": not known.
        inherited: What is in force besides, by name: the broker's or the cluster's settings, and
            built-in defaults. Of a source, a copy has to keep it: the target's may differ.
        max_message_bytes: The limit in force, set or not.
    """

    name: str
    partitions: int
    replicas: int
    configs: Mapping[str, str] = field(default_factory=dict)
    max_message_bytes: int = 0
    topic_id: str = ""
    inherited: Mapping[str, str] = field(default_factory=dict)

    def in_force(self, name: str, default: str) -> str:
        """A setting, `default` if it is not known."""
        return self.configs.get(name, self.inherited.get(name, default))


class Bounds(NamedTuple):
    """Offsets of a partition: of its first record, and the one after its last."""

    first: int
    end: int


@dataclass(slots=True)
class Rows:
    """Records of one partition in order, as parallel lists.

    `next_offset`: where the source continues. It may be beyond the last row, and there may be no
    rows at all: then the source has no visible records up to there.
    """

    next_offset: int
    offsets: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    headers: list[Sequence[Header] | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def bytes(self) -> int:
        return sum(sum(map(len, filter(None, column))) for column in (self.keys, self.values))

    def picked(self, indexes: Iterable[int]) -> "Rows":
        """The rows at these indexes, which must ascend."""
        found = Rows(self.next_offset)
        for index in indexes:
            found.offsets.append(self.offsets[index])
            found.keys.append(self.keys[index])
            found.values.append(self.values[index])
            found.timestamps_ms.append(self.timestamps_ms[index])
            found.headers.append(self.headers[index])
        return found

    def cut(self, first: int, end: int) -> "Rows":
        """The rows at these indexes, end excluded."""
        whole = end >= len(self.offsets)
        return Rows(
            self.next_offset if whole else self.offsets[end],
            self.offsets[first:end],
            self.keys[first:end],
            self.values[first:end],
            self.timestamps_ms[first:end],
            self.headers[first:end],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the copy of a partition is; stored beside the target's data.

    Attributes:
        source_first: Offset in the source at which the copy began.
        source_next: Where the source continues.
        target_first: Offset in the target of the first copied record.
        target_next: The target's end after the last copied record.
        digest: Of all copied records in order (`digest.extended`).
        topic_id: Of the source's topic; "": not known.
        last_offset: Offset in the source of the last copied record; -1: not known.
        last_digest: Of that record alone.
        marks: Places that the copy has passed, ascending, MARKS_MAX at most: an offset of the
            source, and the one in the target of the first record that is not before it.
    """

    source_first: int
    source_next: int
    target_first: int
    target_next: int
    digest: int = 0
    topic_id: str = ""
    last_offset: int = -1
    last_digest: int = 0
    marks: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Progress":
        """Of `serialise`; fields that an older version did not write have their defaults."""
        found = json.loads(text)
        marks = tuple((source, target) for source, target in found.pop("marks", ()))
        return cls(**found, marks=marks)

    def serialise(self) -> str:
        """Below 4,096 bytes, which is what Kafka takes beside an offset."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def marked(self) -> tuple[tuple[int, int], ...]:
        """`marks`, with the place where the copy is if it is far enough from the last one."""
        here = (self.source_next, self.target_next)
        marks = self.marks or ((self.source_first, self.target_first),)
        if here[1] - marks[-1][1] < max(MARK_RECORDS, self.records // MARKS_MAX):
            return marks
        if len(marks) > 1 and _gapless(marks[-2], here):
            return (*marks[:-1], here)
        marks = (*marks, here)
        return marks if len(marks) <= MARKS_MAX else marks[::2]

    @property
    def records(self) -> int:
        return self.target_next - self.target_first


def _gapless(mark: tuple[int, int], after: tuple[int, int]) -> bool:
    return after[0] - mark[0] == after[1] - mark[1]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A record that the target cannot take.

    `index`: among the rows. `why`: what, the limit, what to do. `needs_bytes`: the limit it would
    need; 0: no limit helps.
    """

    index: int
    why: str
    needs_bytes: int = 0


class Reader(Protocol):
    """Reads partitions from given offsets to their ends, and on."""

    def poll(self, timeout_s: float) -> list[tuple[TopicPartition, Rows]]:
        """What has come, in order within each partition; empty after the timeout."""

    def at_end(self, where: TopicPartition) -> bool:
        """Whether everything that was visible when the end was last seen has been returned."""

    def close(self) -> None: ...


class Source(Protocol):
    """Where records come from; only committed ones are seen."""

    @property
    def name(self) -> str:
        """For texts: the system and its address."""

    @property
    def cluster_id(self) -> str: ...

    def topics(self, patterns: Sequence[str]) -> list[Topic]:
        """Those that match; raises MisuseError for a pattern that matches none."""

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]: ...

    def waiting(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """How many offsets are acknowledged, and not visible before an open transaction has ended;
        partitions without any are left out."""

    def read(self, starts: Mapping[TopicPartition, int]) -> Reader: ...

    def group_offsets(self, group: str, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Committed offsets of a group in these topics."""


class Appending(Protocol):
    """An append that is under way."""

    def done(self) -> bool: ...

    def base_offset(self) -> int:
        """Waits. Offset of the first record; the others follow without gaps, or it raises."""


class Target(Protocol):
    """Where records go."""

    @property
    def name(self) -> str: ...

    @property
    def brokers(self) -> int:
        """How many replicas a topic may have."""

    def find(self, topic: str) -> Topic | None: ...

    def create(self, topic: Topic) -> None: ...

    def alter(self, topic: str, configs: Mapping[str, str | None]) -> None:
        """Sets settings of a topic; None: the default."""

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]: ...

    def misfits(self, rows: Rows, topic: Topic) -> list[Misfit]:
        """Those that it would refuse in this topic, as it is or will be."""

    def append(self, where: TopicPartition, rows: Rows) -> Appending: ...

    def read(self, starts: Mapping[TopicPartition, int]) -> Reader: ...

    def progress(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Progress | None]: ...

    def store(self, progress: Mapping[TopicPartition, Progress]) -> None: ...

    def group_offsets(self, group: str, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Committed offsets of a group in these topics."""

    def set_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits offsets for a group that has no members; raises if it has."""
