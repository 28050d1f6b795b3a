"""A damaged table of RocksDB is left alone: RocksDB writes nothing more once it has merged one.

    a call meets it ──▶ noted in the directory ──▶ nothing is merged, now and in later runs

Each start would merge it again otherwise, and end the broker after a few seconds. What the table
has of a log is copied from other replicas, as any damage is. The table itself goes with the volume:
until then, no space is freed. Of blob files, see `damaged_blobs`.

A disk that could not be read may be read again: then the table was sound all the time, which each
start finds out.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock_broker.durable_files import DurableFile
from penstock_broker.store.faults import is_of_a_table

_FILE: Final = "DAMAGED_TABLE"
_UNREADABLE: Final = re.compile(r"(\w+\.sst): Input/output error")
_CHUNK_BYTES: Final = 1 << 20


class DamagedTable:
    """What the store in a directory knows of one.

    `what` is RocksDB's error, which names the file; empty: none has been met, in any run.
    """

    def __init__(self, folder: Path) -> None:
        """Raises OSError if the folder cannot be read."""
        self._file = DurableFile(folder / _FILE)
        noted = (self._file.read() or b"").decode("utf-8", "replace").strip()
        # Earlier releases noted damage in a blob file here, too.
        self.what = noted if is_of_a_table(noted) and not _is_over(folder, noted) else ""
        if noted and not self.what:
            self._file.path.unlink()

    def met(self, what: str, stop_merging: Callable[[], None]) -> None:
        """Notes it, the first time. A full disk does not hide it: then the next run meets it."""
        if self.what:
            return
        self.what = what
        stop_merging()
        with suppress(OSError):
            self._file.replace(what.encode() + b"\n")


def _is_over(folder: Path, noted: str) -> bool:
    """Whether the disk reads the table again that it could not read."""
    named = _UNREADABLE.search(noted)
    if named is None:
        return False
    try:
        with (folder / named[1]).open("rb") as table:
            while table.read(_CHUNK_BYTES):
                pass
    except OSError:
        return False
    return True
