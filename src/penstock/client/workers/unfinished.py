"""Which records of a partition are still being processed, and therefore what can be committed.
Pure.

      finished   finished  ░ working ░  finished   not begun
    ─────────────────────┬────────────────────────┬─────────▶ offsets
                      commit                     next

Records finish in any order; the commit is the lowest unfinished one, so that a crash repeats some
finished records and skips none.
"""

from collections import deque


class Unfinished:
    """One partition, for as long as it is owned."""

    def __init__(self, position: int) -> None:
        """`position`: where reading starts; -1: not known before the first record."""
        self._begun: deque[int] = deque()
        self._finished: set[int] = set()
        self._next = position

    def begin(self, offset: int, next_offset: int) -> None:
        """Processing of a record starts; `next_offset` is where reading continues after it."""
        assert not self._begun or offset > self._begun[-1], "records begin in order"
        self._begun.append(offset)
        self._next = next_offset

    def finish(self, offset: int) -> None:
        """It is done: handled, or given up for good."""
        self._finished.add(offset)
        while self._begun and self._begun[0] in self._finished:
            self._finished.discard(self._begun.popleft())

    @property
    def commit(self) -> int:
        """The next offset to read after a crash; -1: not known."""
        return self._begun[0] if self._begun else self._next

    def __len__(self) -> int:
        """How many records are between the commit and the next one; not all are unfinished."""
        return len(self._begun)
