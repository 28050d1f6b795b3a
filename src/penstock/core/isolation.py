"""What a reader sees of a log, by its isolation level; brokers decide it for all clients.

    log           data   B data   A data   B ABORT   A COMMIT   D data (open) …   HW
    committed     data            A data                      │
    uncommitted   data   B data   A data                        D data …         │
                                                              └─ last stable offset

A batch belongs to one transaction, identified by (producer id, epoch), so headers and the index of
aborted transactions decide (`aborted`); no payload is decoded. Markers are not returned to any
reader. Readers skip gaps between two batches, as in a compacted topic; a gap at an answer's end is
covered by one empty batch, otherwise readers would ask for it again for ever. Kept here: I11.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch, BatchFlags
from penstock.core.columns import Columns
from penstock.core.limits import MAX_COVERED_OFFSETS
from penstock.core.records import build_batch
from penstock.core.types import LeaderEpoch, Offset, ProducerId

# Plain numbers: flags of an enum cost a microsecond to combine, and this runs for every batch.
_CONTROL: Final = int(BatchFlags.CONTROL)
_TRANSACTIONAL: Final = int(BatchFlags.TRANSACTIONAL)
_MAY_HIDE: Final = _CONTROL | _TRANSACTIONAL


class Isolation(Enum):
    """A reader's isolation level. Records of open and of aborted transactions are not committed."""

    UNCOMMITTED = 1
    COMMITTED = 2


Aborted = frozenset[tuple[ProducerId, int]]
"""Transactions by the producer's id and epoch: one id has many, and others committed."""
NONE_ABORTED: Final[Aborted] = frozenset()


def named(entries: Iterable[AbortedTransaction]) -> Aborted:
    """The names of aborted transactions."""
    return frozenset((entry.producer_id, entry.producer_epoch) for entry in entries)


def may_hide(batches: Iterable[Batch], isolation: Isolation) -> bool:
    """Whether some of them may be hidden from this reader: then the index is needed."""
    hiding = _MAY_HIDE if isolation is Isolation.COMMITTED else _CONTROL
    for batch in batches:
        flags = batch.header.flags
        # Nearly always there are no flags, and this is the whole cost of a batch.
        if flags and int(flags) & hiding:
            return True
    return False


def is_hidden(batch: Batch, aborted: Aborted) -> bool:
    """Whether a batch below the reader's end is hidden; `aborted` is empty for UNCOMMITTED."""
    header = batch.header
    flags = int(header.flags)
    if not flags & _MAY_HIDE:
        return False
    if flags & _CONTROL:
        return True
    return (header.producer_id, header.producer_epoch) in aborted


def visible(batches: Iterable[Batch], aborted: Aborted) -> list[Batch]:
    """The batches that the reader may see, the same objects in the same order."""
    return [batch for batch in batches if not is_hidden(batch, aborted)]


def covering(start: Offset, end: Offset, epoch: LeaderEpoch) -> Batch:
    """An empty batch for [start, end), or as much of it as one batch can cover."""
    assert start < end, f"nothing lies in [{start}, {end})"
    count = min(end - start, MAX_COVERED_OFFSETS)
    return build_batch(Columns(0, 0, covered_offsets=count)).stamped(start, epoch, 0)


def with_end_covered(shown: Sequence[Batch], start: Offset, last: Batch) -> list[Batch]:
    """`shown`, with an empty batch at the end if `last`, the last batch read, is not in it.

    `start`: where reading began.
    """
    begin = shown[-1].next_offset if shown else start
    if begin >= last.next_offset:
        return list(shown)
    return [*shown, covering(begin, last.next_offset, last.header.leader_epoch)]
