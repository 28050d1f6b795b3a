"""Small files of a broker that are replaced as a whole, atomically and durably.

replace ─▶ NAME.new, fsync ─▶ rename ─▶ fsync of the folder
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class SmallFile(Protocol):
    """A file that is replaced as a whole. Calls block."""

    @property
    def path(self) -> Path:
        """For messages."""
        ...

    def read(self) -> bytes | None:
        """None: the file does not exist yet."""
        ...

    def replace(self, content: bytes) -> None:
        """Atomic, and durable when it returns. After an OSError, the old content is still there."""
        ...


@dataclass(frozen=True, slots=True)
class DurableFile:
    """A `SmallFile` in an existing folder: new file, fsync, rename, fsync of the folder."""

    path: Path

    def read(self) -> bytes | None:
        """See the seam. Raises OSError."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, content: bytes) -> None:
        """See the seam. One caller at a time."""
        temporary = self.path.with_name(f"{self.path.name}.new")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        fsync_folder(self.path.parent)


def fsync_folder(path: Path) -> None:
    """What was made, renamed or removed in it is durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
