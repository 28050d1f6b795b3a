"""Aborted transactions of a partition's log: what a read_committed reader does not see.

    … data (pid 7, epoch 3) … data … ABORT marker of (7, 3) …
        └ first_offset                 └ marker_offset          stable_offset: LSO after the marker

Every replica has one entry per ABORT marker, written with the marker itself, so that any leader can
answer. An entry covers the batches of its (producer id, producer epoch) between first offset and
marker; epochs count transactions, so that pair identifies one transaction for ever (KIP-890).
Readers scan entries from their fetch offset and stop at the first whose stable offset is at or
after the end of the answer: no later one can begin before it (the rule of Kafka's transaction
index).
Kept here: I11, I12. `isolation` applies these entries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Final

from penstock.core.types import Offset, ProducerId


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """One aborted transaction of one partition.

    `stable_offset` is the last stable offset after the marker, according to the log alone: the
    first offset of the oldest transaction still open there, else the marker's offset + 1.
    """

    marker_offset: Offset
    first_offset: Offset
    producer_id: ProducerId
    producer_epoch: int
    stable_offset: Offset


NEWEST_MAX: Final = 1_000
"""Entries in memory per partition, about 200 kB: readers read the disk only if there are more."""
_marker_offset: Final = attrgetter("marker_offset")


def overlapping(
    entries: Iterable[AbortedTransaction], end: Offset
) -> tuple[AbortedTransaction, ...]:
    """Those of `entries` that have batches below `end`; the rest are not examined.

    `entries` are all with markers from some offset on, by marker.
    """
    found = []
    for entry in entries:
        if entry.first_offset < end:
            found.append(entry)
        if entry.stable_offset >= end:
            break
    return tuple(found)


class AbortedIndex:
    """The newest aborted transactions of one log. Not thread-safe; owned by its replica's shell.

    An entry is added when its marker is appended, before the marker is written: no reader uses it
    before the last stable offset has passed the marker.
    """

    __slots__ = ("_complete_from", "_entries", "_first")

    def __init__(self, newest: Sequence[AbortedTransaction] = ()) -> None:
        """`newest`: the newest entries of the log, by marker: all, or the last `NEWEST_MAX`."""
        self._entries = list(newest)
        self._first = 0
        complete = len(newest) < NEWEST_MAX
        self._complete_from = Offset(0) if complete else newest[0].marker_offset

    def __len__(self) -> int:
        return len(self._entries) - self._first

    @property
    def complete_from(self) -> Offset:
        """Every entry with a marker at or after this offset is here."""
        return self._complete_from

    def extend(self, entries: Iterable[AbortedTransaction]) -> None:
        """Adds entries whose markers follow those known; beyond the limit, drops the oldest."""
        self._entries.extend(entries)
        surplus = len(self) - NEWEST_MAX
        if surplus <= 0:
            return
        self._first += surplus
        self._complete_from = Offset(self._entries[self._first - 1].marker_offset + 1)
        if self._first >= NEWEST_MAX:
            del self._entries[: self._first]
            self._first = 0

    def cut(self, to: Offset) -> None:
        """The log now ends at `to`: removes entries with markers at or after it."""
        at = bisect_left(self._entries, to, self._first, key=_marker_offset)
        del self._entries[at:]
        self._complete_from = min(self._complete_from, to)

    def between(self, start: Offset, end: Offset) -> tuple[AbortedTransaction, ...] | None:
        """The answer of `LogStore.aborted`; None if only the store has it."""
        if start < self._complete_from:
            return None
        at = bisect_left(self._entries, start, self._first, key=_marker_offset)
        return overlapping(islice(self._entries, at, None), end)
