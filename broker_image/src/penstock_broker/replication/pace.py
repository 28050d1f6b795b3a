"""Whether the disk is quick enough for small writes on the event loop's own thread.

A hand-over to a thread and back costs more than a small write into the page cache takes, and it
waits for the interpreter's lock twice. But a write that takes long there stops heartbeats. So the
loop writes by itself only after a row of quick writes, and one that is not begins the row anew:
a disk that is always slow holds the loop up never, one that turns slow once.
"""

from typing import Final

SMALL_BYTES: Final = 32 * 1024
"""Of batches in one write; what is larger is copied for longer than a hand-over takes."""
QUICK_MS: Final = 2
_QUICK_IN_A_ROW: Final = 32


class DiskPace:
    """Hears how long every write without an fsync took."""

    def __init__(self) -> None:
        self._quick = 0

    def took(self, ms: int) -> None:
        """In the store itself, not with the wait for its thread."""
        self._quick = self._quick + 1 if ms < QUICK_MS else 0

    @property
    def is_quick(self) -> bool:
        return self._quick >= _QUICK_IN_A_ROW
