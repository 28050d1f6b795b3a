"""What is known of the first unread records of groups, so that each is looked up only once.

    wanted positions ─▶ begin ─▶ asked: one offset per partition ─▶ (a fetch) ─▶ take ─┐
                                   ▲──────────── something is still unknown ◀─────────┘

A group that makes no progress costs nothing: the first record at or after a position stays the same
while neither the position nor the log start moves, and after a range without records, only new
records are read. Compaction can remove a record that is remembered here: nothing is trusted for
longer than `TRUST_S`. One batch answers for all positions in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.batch import Batch
from penstock.core.groups.catalog import NamedPartition
from penstock.core.lag import Unread, oldest_unread

TRUST_S: Final = 600.0
OPENED_BYTES: Final = 1024 * 1024
"""Decompressed size of batches that are opened, which takes milliseconds of the event loop: one
record may be far inside. Of larger ones, the header's time is near enough."""


@dataclass(slots=True)
class Looked:
    """For one position: the first record there, or that there is none below the offset `below`."""

    below: int
    since_s: float
    unread: Unread | None = None


class UnreadRecords:
    """The first unread records of all groups of a broker. Not thread-safe: one round at a time."""

    def __init__(self) -> None:
        self._known: dict[tuple[NamedPartition, int], Looked] = {}
        self._ends: Mapping[NamedPartition, int] = {}
        self._open: dict[NamedPartition, list[tuple[NamedPartition, int]]] = {}

    def begin(
        self,
        wanted: Mapping[NamedPartition, set[int]],
        ends: Mapping[NamedPartition, int],
        now_s: float,
    ) -> None:
        """Begins a round for these positions, and forgets all others."""
        known: dict[tuple[NamedPartition, int], Looked] = {}
        for where, positions in wanted.items():
            for position in positions:
                seen = self._known.get((where, position))
                if seen is None or now_s - seen.since_s > TRUST_S:
                    seen = Looked(position, now_s)
                known[where, position] = seen
        self._known, self._ends, self._open = known, ends, {}
        for key in known:
            if not self._is_done(key):
                self._open.setdefault(key[0], []).append(key)

    def asked(self, turn: int) -> dict[NamedPartition, int]:
        """Where to fetch next, at most one offset per partition; empty: everything is known.

        `turn` counts up, so that each of several positions in a partition gets its turn.
        """
        return {
            where: self._known[keys[turn % len(keys)]].below for where, keys in self._open.items()
        }

    def take(
        self,
        asked: Mapping[NamedPartition, int],
        found: Mapping[NamedPartition, Sequence[Batch]],
    ) -> None:
        """Takes the fetched batches; partitions without an answer are finished for this round."""
        for where, offset in asked.items():
            batches = found.get(where)
            if batches is None:
                del self._open[where]
            elif batches:
                self._learn(where, offset, batches)

    def _learn(self, where: NamedPartition, offset: int, batches: Sequence[Batch]) -> None:
        begin, end = min(offset, batches[0].base_offset), batches[-1].next_offset
        for key in self._open[where]:
            looked = self._known[key]
            if begin <= looked.below < end:
                looked.unread = oldest_unread(
                    batches, looked.below, max_uncompressed_bytes=OPENED_BYTES
                )
                looked.below = end if looked.unread is None else looked.unread.offset
        self._open[where] = [key for key in self._open[where] if not self._is_done(key)]
        if not self._open[where]:
            del self._open[where]

    def at(self, where: NamedPartition, position: int) -> Looked:
        """What is known of a position of this round."""
        return self._known[where, position]

    def _is_done(self, key: tuple[NamedPartition, int]) -> bool:
        looked = self._known[key]
        return looked.unread is not None or looked.below >= self._ends[key[0]]
