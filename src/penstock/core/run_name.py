"""Names of runs: one execution of a batch, and where a Spark sink's run comes from and goes to.

    4c2f…                                  an execution; nothing else is known
    spark/4c2f…/paid/9b1d…/a0c1b2d3        execution, target, query run, place

When a committed batch comes again, the coordinator takes the names apart to tell a replay from
another output. Brokers of an older release store and compare them as text.
"""

from dataclasses import dataclass
from typing import Final, Self
from zlib import crc32

_PREFIX: Final = "spark"
_TARGET_MAX_CHARS: Final = 100
"""The whole name may have 249 characters, and so may a topic alone."""
COLUMN: Final = "*"
"""The target of rows that each name their own topic."""


@dataclass(frozen=True, slots=True)
class RunName:
    """`execution`: a UUID. The others are empty if they are unknown.

    target: the topic. query_run: a UUID per start of a query. place: of the query's checkpoint.
    """

    execution: str
    target: str = ""
    query_run: str = ""
    place: str = ""

    @classmethod
    def of_sink(
        cls, execution: str, topic: str | None, query_run: str = "", checkpoint: str = ""
    ) -> Self:
        """`topic` None: that of a column. `checkpoint`: its location."""
        place = checkpoint and f"{crc32(_plain(checkpoint).encode()):08x}"
        return cls(execution, COLUMN if topic is None else _short(topic), query_run, place)

    @classmethod
    def parse(cls, name: str) -> Self:
        """Of any name."""
        prefix, *parts = name.split("/")
        return cls(*parts) if prefix == _PREFIX and len(parts) == 4 else cls(name)

    def __str__(self) -> str:
        return f"{_PREFIX}/{self.execution}/{self.target}/{self.query_run}/{self.place}"


def _plain(location: str) -> str:
    """The same for a directory, however it is written."""
    path = location.removeprefix("file:")
    return f"/{path.strip('/')}" if path.startswith("/") else path.rstrip("/")


def _short(topic: str) -> str:
    if len(topic) <= _TARGET_MAX_CHARS:
        return topic
    return f"{topic[:_TARGET_MAX_CHARS]}~{crc32(topic.encode()):08x}"
