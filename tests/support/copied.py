"""Ends of a copy in memory: a `Source` and `Target` that passes the contract of the real ones."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.core.columns import Header
from penstock.core.types import TopicPartition
from penstock.errors import OffsetOutOfRangeError
from penstock.migration.fitting import misfits_of
from penstock.migration.model import Bounds, Misfit, Progress, Rows, Topic
from penstock.migration.plan import matching

Row = tuple[bytes | None, bytes | None, int, Sequence[Header] | None]
NOON = 1_700_000_000_000


def row(text: str, key: bytes | None = None, headers: Sequence[Header] | None = None) -> Row:
    return (key, text.encode(), NOON, headers)


def rows_of(first: int, *rows: Row) -> Rows:
    """Rows at offsets without gaps from `first` on."""
    keys, values, times, headers = (list(column) for column in zip(*rows, strict=True))
    end = first + len(rows)
    return Rows(end, list(range(first, end)), keys, values, times, headers)


@dataclass
class MemoryLog:
    """`gap` entries are offsets without a visible record."""

    entries: list[Row | None] = field(default_factory=list)
    first: int = 0


class MemoryEnd:
    """Topics in a dictionary. `on_append` is called before each append, `limit` rows per poll."""

    name = "memory"
    cluster_id = "memory"
    brokers = 3

    def __init__(self, limit: int = 3) -> None:
        self.logs: dict[TopicPartition, MemoryLog] = {}
        self.known: dict[str, Topic] = {}
        self._created = 0
        self.stored: dict[TopicPartition, Progress] = {}
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self.on_append: Callable[[TopicPartition, Rows], None] = lambda _w, _r: None
        self.limit = limit
        self.strict = False
        """Refuses to read before a log's first record, as real ends do."""
        self.waits: dict[TopicPartition, int] = {}
        self.shown: int | None = None
        """Records that readers see of each log, as of a leader that is behind. None: all."""

    def topics(self, patterns: Sequence[str]) -> list[Topic]:
        return [self.known[name] for name in matching(patterns, list(self.known), self.name)]

    def find(self, topic: str) -> Topic | None:
        return self.known.get(topic)

    def create(self, topic: Topic) -> None:
        self._created += 1
        self.known[topic.name] = replace(
            topic, topic_id=f"id {self._created}", configs=dict(topic.configs)
        )
        for index in range(topic.partitions):
            self.logs[TopicPartition(topic.name, index)] = MemoryLog()

    def alter(self, topic: str, configs: Mapping[str, str | None]) -> None:
        found = dict(self.known[topic].configs)
        for name, value in configs.items():
            found.pop(name, None)
            if value is not None:
                found[name] = value
        self.known[topic] = replace(self.known[topic], configs=found)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        return {w: Bounds(self.logs[w].first, len(self.logs[w].entries)) for w in partitions}

    def waiting(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {where: self.waits[where] for where in partitions if where in self.waits}

    def misfits(self, rows: Rows, topic: Topic) -> list[Misfit]:
        return misfits_of(rows, topic, lambda key, value, _: len(key or b"") + len(value or b""))

    def append(self, where: TopicPartition, rows: Rows) -> "Appended":
        self.on_append(where, rows)
        entries = self.logs[where].entries
        base = len(entries)
        columns = (rows.keys, rows.values, rows.timestamps_ms, rows.headers)
        entries += list(zip(*columns, strict=True))
        return Appended(base)

    def read(self, starts: Mapping[TopicPartition, int]) -> "_MemoryReader":
        for where, at in starts.items():
            if self.strict and at < self.logs[where].first:
                text = f"{where.topic}/{where.partition} begins at {self.logs[where].first}"
                raise OffsetOutOfRangeError(text)
        return _MemoryReader(self, dict(starts))

    def progress(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Progress | None]:
        return {where: self.stored.get(where) for where in partitions}

    def store(self, progress: Mapping[TopicPartition, Progress]) -> None:
        self.stored.update({where: replace(each) for where, each in progress.items()})

    def group_offsets(self, group: str, topics: Iterable[str]) -> dict[TopicPartition, int]:
        wanted = set(topics)
        return {w: at for w, at in self.groups.get(group, {}).items() if w.topic in wanted}

    def set_group(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.groups.setdefault(group, {}).update(offsets)


class Appended:
    def __init__(self, base: int) -> None:
        self._base = base

    def done(self) -> bool:
        return True

    def base_offset(self) -> int:
        return self._base


class _MemoryReader:
    def __init__(self, end: MemoryEnd, positions: dict[TopicPartition, int]) -> None:
        self._end = end
        self._positions = positions

    def poll(self, timeout_s: float) -> list[tuple[TopicPartition, Rows]]:
        del timeout_s
        found = []
        for where, position in self._positions.items():
            entries = self._end.logs[where].entries[: self._end.shown]
            entries = entries[position : position + self._end.limit]
            if not entries:
                continue
            rows = Rows(position + len(entries))
            for offset, entry in enumerate(entries, start=position):
                if entry is not None:
                    rows.offsets.append(offset)
                    rows.keys.append(entry[0])
                    rows.values.append(entry[1])
                    rows.timestamps_ms.append(entry[2])
                    rows.headers.append(entry[3])
            self._positions[where] = rows.next_offset
            found.append((where, rows))
        return found

    def at_end(self, where: TopicPartition) -> bool:
        return self._positions[where] >= len(self._end.logs[where].entries[: self._end.shown])

    def close(self) -> None:
        pass
