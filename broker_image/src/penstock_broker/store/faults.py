"""Failures below the store, as the three errors that a broker handles.

    RocksDB status (text of a bare Exception) ──storage_errors──▶ ClusterError
        "… No space left on device …"   → DISK_FULL         nothing was written; space may be freed
        "Corruption: …"                 → DATA_CORRUPTED    never served (I22); rebuild the replica
        a blob file that is not there,
        a bad sector of it or a table   → DATA_CORRUPTED    as above: others have what was in it
        anything else                   → STORAGE_FAILED    outcome unknown

`CallGate` keeps `close` from closing the database while calls still use it, and says when one of
them met damage.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from types import TracebackType
from typing import Final

import rocksdict

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.store.interface import DamagedLogError, Slot

_NO_SPACE: Final = ("No space left on device", "NoSpace", "Disk quota exceeded")
_CORRUPTION: Final = ("Corruption:", "checksum mismatch")
_UNREADABLE: Final = re.compile(
    r"while (pread|stat a file for size|open a file for random read).*"
    r"(\.(blob|sst): Input/output error|\.blob: No such file or directory)",
    re.IGNORECASE,
)


def translate(error: Exception, doing: str) -> ClusterError:
    """The ClusterError for an exception of rocksdict; `doing` says what, in which slot and
    offset."""
    text = str(error)
    if any(mark in text for mark in _NO_SPACE):
        return ClusterError(
            f"{doing}: disk full ({text}); nothing was written. Free some space, grow the volume "
            "or shorten retention: writes then resume by themselves",
            ErrorCode.DISK_FULL,
        )
    if _is_damage(text):
        return ClusterError(
            f"{doing}: stored bytes are damaged ({text}); they are not served. "
            f"Rebuild this replica from another one",
            ErrorCode.DATA_CORRUPTED,
        )
    return ClusterError(f"{doing}: storage failed ({text})", ErrorCode.STORAGE_FAILED)


def _is_damage(text: str) -> bool:
    corrupt = any(mark in text for mark in _CORRUPTION)
    return corrupt or _UNREADABLE.search(text) is not None


def is_of_a_table(text: str) -> bool:
    """Whether an error of RocksDB's says that a table is damaged, and not a blob file.

    Not all that it says of blob files names one.
    """
    return _is_damage(text) and (".sst" in text or "blob" not in text.lower())


def table_damage(error: ClusterError) -> str:
    """RocksDB's error that a table is damaged; empty if it is anything else."""
    text = str(error.__cause__ or "")
    return text if is_of_a_table(text) else ""


class storage_errors:  # noqa: N801 - used like a function, as contextlib's are
    """`with storage_errors("reading slot 3"):` around rocksdict calls translates what they raise.

    rocksdict raises a bare `Exception` for every RocksDB status. Everything else passes unchanged:
    Penstock's errors, failed asserts, programming errors.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if type(error) is Exception or isinstance(error, rocksdict.DbClosedError | OSError):
            raise translate(error, self._doing) from error


@contextmanager
def damage_of(slot: Slot) -> Iterator[None]:
    """Names the log in whose stored state damage was found, by a DamagedLogError."""
    try:
        yield
    except ClusterError as error:
        if error.code is not ErrorCode.DATA_CORRUPTED:
            raise
        raise DamagedLogError(slot, error) from error


class CallGate:
    """Counts running calls; `shut` waits for them and refuses new ones with STORAGE_FAILED."""

    def __init__(self, met_damage: Callable[[ClusterError], None]) -> None:
        """`met_damage`: called inside the gate with each DATA_CORRUPTED."""
        self._met_damage = met_damage
        self._inside = 0
        self._shut = False
        self._changed = Condition()

    def __enter__(self) -> None:
        with self._changed:
            if self._shut:
                raise ClusterError("the log store is closed", ErrorCode.STORAGE_FAILED)
            self._inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, ClusterError) and error.code is ErrorCode.DATA_CORRUPTED:
            self._met_damage(error)
        with self._changed:
            self._inside -= 1
            if self._shut:
                self._changed.notify_all()

    def shut(self, timeout_s: float) -> bool:
        """True for the call that shut it, once no other call is running; False if it already was
        shut.

        Raises ClusterError(STORAGE_FAILED) if calls are still running after `timeout_s`.
        """
        with self._changed:
            if self._shut:
                return False
            self._shut = True
            if not self._changed.wait_for(lambda: self._inside == 0, timeout_s):
                raise ClusterError(
                    f"{self._inside} store calls still running after {timeout_s} s; not closing",
                    ErrorCode.STORAGE_FAILED,
                )
            return True
