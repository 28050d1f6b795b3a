"""After damage in a blob file, no garbage is collected for a while.

    a call meets it ──▶ noted in the directory ──▶ nothing is collected for AGAIN_S, also in later
                        runs: meanwhile the scrub reads everything, and what is damaged is mended

Collecting is the one merge that reads blob files, and RocksDB writes nothing more once a merge has
met damage: its broker would end, and again after each start. Tables are merged as ever, and files
in which nothing is needed are deleted as ever.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock_broker.durable_files import DurableFile

AGAIN_S: Final = 14 * 86_400.0
"""Two rounds of the scrub, by default."""
_FILE: Final = "DAMAGED_BLOB"


class DamagedBlobs:
    """What the store in a directory knows of damage in its blob files."""

    def __init__(self, folder: Path, now_s: Callable[[], float] | None = None) -> None:
        """`now_s`: seconds since 1970; None: of the wall clock.

        Raises OSError if the folder cannot be read.
        """
        self._file = DurableFile(folder / _FILE)
        self._now_s = _wall_s if now_s is None else now_s
        self._met_s = _time(self._file.read())

    @property
    def may_collect(self) -> bool:
        """No damage was met lately. A time in the future is none: the clock was wrong."""
        return not 0 <= self._now_s() - self._met_s < AGAIN_S

    def met(self, what: str, stop_collecting: Callable[[], None]) -> None:
        """Notes it, unless that was done lately. A full disk does not hide it from this run."""
        if not self.may_collect:
            return
        self._met_s = self._now_s()
        stop_collecting()
        with suppress(OSError):
            self._file.replace(f"{self._met_s:.0f} {what}\n".encode())


def _wall_s() -> float:
    return time.time_ns() / 1_000_000_000


def _time(noted: bytes | None) -> float:
    """What a note says; long ago if there is none, or none that can be read."""
    try:
        return float((noted or b"").partition(b" ")[0])
    except ValueError:
        return float("-inf")
