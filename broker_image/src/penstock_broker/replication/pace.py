"""Whether the disk is fast enough for small writes on the event loop's own thread.

Handing a write to a thread and back costs more than a small write into the page cache, and waits
for the interpreter's lock twice. But a slow write on the loop stops heartbeats. So the loop writes
by itself only after a series of quick writes, and a slow write starts the count again: a disk that
is always slow never blocks the loop, one that becomes slow blocks it once.
"""

from typing import Final

SMALL_BYTES: Final = 32 * 1024
"""Of batches in one write; copying more takes longer than handing it to a thread."""
QUICK_MS: Final = 2
_QUICK_IN_A_ROW: Final = 32


class DiskPace:
    """Is told how long every write without an fsync took."""

    def __init__(self) -> None:
        self._quick = 0

    def took(self, ms: int) -> None:
        """`ms` is the time in the store itself, without the wait for its thread."""
        self._quick = self._quick + 1 if ms < QUICK_MS else 0

    @property
    def is_quick(self) -> bool:
        return self._quick >= _QUICK_IN_A_ROW
