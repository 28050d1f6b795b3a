"""Sets of integers kept as sorted, disjoint, half-open ranges.

A stream of records that all arrived is one range, however long it is: this bounds the checker's
memory (`check.py`).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class IntervalSet:
    """Half-open ranges [lo, hi); adding in ascending order costs O(1)."""

    __slots__ = ("_highs", "_lows")

    def __init__(self) -> None:
        self._lows = array("q")
        self._highs = array("q")

    def add(self, lo: int, hi: int) -> None:
        """Adds [lo, hi), merging what touches it."""
        if self._highs and self._highs[-1] == lo:
            self._highs[-1] = hi
            return
        first = bisect_left(self._highs, lo)
        last = bisect_right(self._lows, hi)
        if first < last:
            lo = min(lo, self._lows[first])
            hi = max(hi, self._highs[last - 1])
        self._lows[first:last] = array("q", (lo,))
        self._highs[first:last] = array("q", (hi,))

    def overlap(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The parts of [lo, hi) that are in the set."""
        found = []
        index = bisect_right(self._highs, lo)
        while index < len(self._lows) and self._lows[index] < hi:
            found.append((max(lo, self._lows[index]), min(hi, self._highs[index])))
            index += 1
        return found

    def minus(self, other: "IntervalSet") -> Iterator[tuple[int, int]]:
        """Ranges of this set that are not in the other."""
        for lo, hi in self:
            position = lo
            for other_lo, other_hi in other.overlap(lo, hi):
                if position < other_lo:
                    yield position, other_lo
                position = other_hi
            if position < hi:
                yield position, hi

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._lows, self._highs, strict=True)

    def count(self) -> int:
        """How many integers are in the set."""
        return sum(self._highs) - sum(self._lows)
