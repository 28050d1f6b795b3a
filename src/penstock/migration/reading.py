"""Reads from either end of a copy, up to somewhere; a source that sends nothing is an error."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Final

from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, PenstockError
from penstock.migration.digest import extended
from penstock.migration.model import Reader, Rows

POLL_S: Final = 0.5
QUIET_S: Final = 60.0
"""A partition that should have records, and from which none come for this long, is an error."""


class CopyError(PenstockError):
    """The copy cannot go on; what is stored is right, and another run continues."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.MISUSE)


def quiet(what: str) -> CopyError:
    return CopyError(
        f"no records came for {QUIET_S:.0f} s from {what}; see whether it runs, then the same "
        "command continues"
    )


def polled(
    reader: Reader, is_over: Callable[[], bool], what: Callable[[], str]
) -> Iterator[tuple[TopicPartition, Rows]]:
    """What a reader gives until `is_over`; then it is closed. Raises CopyError if nothing comes of
    `what` for QUIET_S."""
    heard_at = monotonic()
    try:
        while not is_over():
            found = reader.poll(POLL_S)
            yield from found
            if found:
                heard_at = monotonic()
            elif monotonic() - heard_at > QUIET_S:
                raise quiet(what())
    finally:
        reader.close()


def read_exactly(reader: Reader, where: TopicPartition, count: int) -> Rows:
    """The next `count` records, fewer if there are no more. Closes the reader."""
    found = Rows(0)

    def is_over() -> bool:
        return len(found) >= count or reader.at_end(where)

    for _, rows in polled(reader, is_over, lambda: str(where)):
        extend(found, rows.cut(0, min(len(rows), count - len(found))))
    return found


def extend(found: Rows, rows: Rows) -> None:
    found.next_offset = rows.next_offset
    found.offsets += rows.offsets
    found.keys += rows.keys
    found.values += rows.values
    found.timestamps_ms += rows.timestamps_ms
    found.headers += rows.headers


def up_to(
    reader: Reader, ends: Mapping[TopicPartition, int]
) -> Iterator[tuple[TopicPartition, Rows]]:
    """What a reader gives before these offsets, or before the ends of the logs; then it is
    closed."""
    positions = dict.fromkeys(ends, 0)

    def unread() -> list[TopicPartition]:
        return [w for w, end in ends.items() if positions[w] < end and not reader.at_end(w)]

    for where, rows in polled(reader, lambda: not unread(), lambda: ", ".join(map(str, unread()))):
        positions[where] = rows.next_offset
        if rows.next_offset > ends[where]:
            yield where, rows.cut(0, bisect_left(rows.offsets, ends[where]))
        else:
            yield where, rows


def digests(
    reader: Reader, ends: Mapping[TopicPartition, int], tick: Callable[[int], None]
) -> dict[TopicPartition, tuple[int, int]]:
    """(records, digest) of each partition from where the reader begins to these offsets."""
    found = dict.fromkeys(ends, (0, 0))
    for where, rows in up_to(reader, ends):
        records, digest = found[where]
        found[where] = (records + len(rows), extended(digest, rows))
        tick(len(rows))
    return found
