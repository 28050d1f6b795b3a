"""A gate at which a process waits until a test lets it go on."""

import os
from contextlib import suppress
from pathlib import Path


class Gate:
    """A FIFO: who reads the file at `path` waits until it is opened; who comes later does not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waited_at = path.with_suffix(".waited-at")
        os.mkfifo(self._waited_at)
        os.link(self._waited_at, path)

    def open(self) -> None:
        """May be called again."""
        passed = self.path.with_suffix(".open")
        passed.touch()
        passed.replace(self.path)
        with suppress(OSError):  # nobody waits
            os.close(os.open(self._waited_at, os.O_WRONLY | os.O_NONBLOCK))
