"""Digests of logs: do two replicas, each of which reads well, have the same batches (I3)?

    offset 0         16,384          32,768          49,152
    ├── range ─────────┼── range ──────┼── range ──────┼── …     the same cuts in every log
           ├───────────────── a log ────────────┤
        log start                        high watermark

A range is a multiple of `RANGE_OFFSETS`: offsets are the one thing that all replicas agree on, no
matter what retention has removed, or where a copy began. Bytes are counted from where a log begins.
A batch belongs to the range of its base offset. Whoever compares cuts the first range at its log
start and the last one at its high watermark, and names both ends to the other.

Followers append the batches of their leader as they are, a truncation and a copy keep whole ones,
and what is mended has the same header. So equal logs have equal headers, and a digest needs
nothing else: it covers the 24 bytes that the leader has stamped, with the CRC of all the rest.
Only compaction makes other batches, each replica for itself, and leaves a flag.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import google_crc32c

from penstock.core.batch import BatchFlags, BatchHeader, pack_stamp
from penstock.core.types import Offset

RANGE_OFFSETS: Final = 16_384
"""16 MiB of records of 1 KiB. Also the most headers that a digest covers."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Batches with base offsets in [start, end)."""

    start: Offset
    end: Offset

    @property
    def number(self) -> int:
        """Of the range that this is, or a part of."""
        return self.start // RANGE_OFFSETS

    def __str__(self) -> str:
        return f"{self.start}-{self.end - 1}"


@dataclass(frozen=True, slots=True)
class LogDigest:
    """Of the batches of a range. Equal ones have, but for one case in 2**32, the same batches."""

    batches: int = 0
    crc: int = 0

    def __str__(self) -> str:
        return f"{self.crc:08x} of {self.batches} batches"


class Digesting:
    """The digest of one range, from the headers in it, in the order of the log."""

    def __init__(self, within: OffsetRange) -> None:
        self._within = within
        self._digest = LogDigest()
        self._compacted = False

    def take(self, headers: Iterable[BatchHeader]) -> None:
        """The next ones. One that only reaches into the range belongs to the range before."""
        batches, crc = self._digest.batches, self._digest.crc
        for header in headers:
            if header.flags & BatchFlags.COMPACTED:
                self._compacted = True
            if self._within.start <= header.base_offset < self._within.end:
                batches, crc = batches + 1, int(google_crc32c.extend(crc, pack_stamp(header)))
        self._digest = LogDigest(batches, crc)

    @property
    def result(self) -> LogDigest | None:
        """None: it cannot be compared. Each replica compacts for itself, and has other batches."""
        return None if self._compacted else self._digest


def completed(before: Offset, after: Offset, end: Offset) -> Iterator[OffsetRange]:
    """The ranges that are read to their ends by reading from `before` to `after`.

    The last one ends at `end`, where the reading will.
    """
    start = before - before % RANGE_OFFSETS
    while start < after:
        found = OffsetRange(Offset(start), min(Offset(start + RANGE_OFFSETS), end))
        if before < found.end <= after:
            yield found
        start += RANGE_OFFSETS


def cut(found: OffsetRange, log_start: Offset, high_watermark: Offset) -> OffsetRange | None:
    """What of a range a log has and will keep; None: nothing."""
    start, end = max(found.start, log_start), min(found.end, high_watermark)
    return OffsetRange(start, end) if start < end else None
