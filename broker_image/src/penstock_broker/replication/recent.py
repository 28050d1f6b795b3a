"""The newest batches of every partition, shared by followers and consumers at the log's end.

A batch enters when it is appended, before it is written, so that readers at the log's end never
read the disk. Memory is bounded over all partitions: the batch that entered first leaves first
(I23).
Per partition the batches are contiguous, so one bisect finds an offset.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from penstock.core.batch import Batch, BatchHeader
from penstock.core.types import Offset

_OBJECT_BYTES: Final = 512
"""What a batch costs in Python in addition to its payload, about."""
_STALE_MAX: Final = 1_000
"""Entries of forgotten batches that wait in the order; each costs less than 100 bytes."""
_EVICTED: Final = Batch(BatchHeader(0, 0, 0, 0, 0), b"")
_base_offset = attrgetter("base_offset")


class RecentBatches:
    """The newest batches of one partition. Made and bounded by a `RecentCache`."""

    __slots__ = ("_batches", "_cache", "_first", "generation")

    def __init__(self, cache: "RecentCache") -> None:
        self._cache = cache
        self._batches: list[Batch] = []
        self._first = 0
        self.generation = 0

    def extend(self, batches: Sequence[Batch]) -> None:
        """Adds batches after the last one; starts over if they do not continue it."""
        known = self._batches
        if len(known) > self._first and known[-1].next_offset != batches[0].base_offset:
            self.clear()
        self._batches.extend(batches)
        for batch in batches:
            self._cache.count(self, batch)

    def clear(self) -> None:
        """Forgets all (after a truncation, or when the replica is removed)."""
        forgotten = self._batches[self._first :]
        self._batches = []
        self._first = 0
        self.generation += 1
        self._cache.forget(len(forgotten), sum(_cost(batch) for batch in forgotten))

    def forget_before(self, offset: Offset) -> None:
        """Forgets batches that begin before `offset`: compaction has replaced them in the log."""
        first = bisect_left(self._batches, offset, self._first, key=_base_offset)
        if first == self._first:
            return
        kept = self._batches[first:]
        self.clear()
        if kept:
            self.extend(kept)

    @property
    def newest(self) -> BatchHeader | None:
        """Of the last batch; None if there is none in memory."""
        return self._batches[-1].header if len(self._batches) > self._first else None

    def drop_first(self) -> int:
        """Evicts the oldest batch; returns its cost in bytes."""
        batch = self._batches[self._first]
        # List slots are freed many at a time; the batch itself is freed now.
        self._batches[self._first] = _EVICTED
        self._first += 1
        if self._first > 64 and self._first * 2 > len(self._batches):
            del self._batches[: self._first]
            self._first = 0
        return _cost(batch)

    def read(self, offset: Offset, max_bytes: int, end: Offset) -> list[Batch] | None:
        """Batches from the one with `offset` on, below `end`; None if the store must be asked.

        At least one batch if there is one, then as many as fit into `max_bytes`.
        """
        batches = self._batches
        at = len(batches) - 1
        if at < self._first:
            return None
        if batches[at].base_offset > offset:  # most often the last one is asked for
            at = bisect_right(batches, offset, self._first, key=_base_offset) - 1
            if at < self._first:
                return None
        found: list[Batch] = []
        size = 0
        for index in range(at, len(batches)):
            batch = batches[index]
            size += batch.size_bytes
            if batch.next_offset > end or (found and size > max_bytes):
                break
            if batch.next_offset > offset:
                found.append(batch)
        return found


class RecentCache:
    """Bounds the memory of all `RecentBatches` of a broker."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held = 0
        self._order: deque[tuple[RecentBatches, int]] = deque()

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def new(self) -> RecentBatches:
        """An empty list of batches for one partition."""
        return RecentBatches(self)

    def count(self, owner: RecentBatches, batch: Batch) -> None:
        """Accounts for a batch that `owner` added; evicts the oldest ones beyond the limit."""
        self._bytes += _cost(batch)
        self._held += 1
        self._order.append((owner, owner.generation))
        while self._bytes > self._max_bytes and len(self._order) > 1:
            oldest, generation = self._order.popleft()
            if oldest.generation == generation:
                self._held -= 1
                self._bytes -= oldest.drop_first()

    def forget(self, batches: int, size_bytes: int) -> None:
        """Accounts for batches removed in other ways; their entries in `_order` are skipped."""
        self._bytes -= size_bytes
        self._held -= batches
        if len(self._order) > 2 * self._held + _STALE_MAX:
            self._order = deque(entry for entry in self._order if entry[0].generation == entry[1])


def _cost(batch: Batch) -> int:
    return len(batch.payload) + _OBJECT_BYTES
