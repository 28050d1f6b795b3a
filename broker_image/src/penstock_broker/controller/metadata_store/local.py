"""The metadata store of local mode: one RocksDB in one directory, every write fsynced.

One process at a time: an exclusive lock on the file `LOCK.penstock` replaces the lease, so the
lease is always granted. A write is one atomic batch. A version is the number of the write that made
it, stored before the text:

    key    b"d/" + key          value   version as decimal digits, b"\\n", the text in UTF-8
    key    b"n"                 value   number of the last write, decimal digits
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from penstock_broker.controller.metadata_store.interface import (
    Change,
    Delete,
    Put,
    StoredText,
    StoreUnavailableError,
    WriteConflictError,
)

_DOCUMENT: Final = b"d/"
_LAST_WRITE: Final = b"n"
_LOCK_FILE: Final = "LOCK.penstock"


class LocalMetadataStore:
    """Raises StoreUnavailableError at start if the directory is in use or unusable."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreUnavailableError(
                f"metadata directory {directory} cannot be used: {error.strerror}; "
                "give another with --metadata-dir"
            ) from None
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_fd)
            raise StoreUnavailableError(
                f"metadata directory {directory} is in use by another controller; "
                "stop that one, or give another directory with --metadata-dir"
            ) from None
        try:
            self._db = Rdict(str(directory / "rocksdb"), _options())
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            os.close(self._lock_fd)
            raise StoreUnavailableError(
                f"metadata in {directory} cannot be opened: {error}"
            ) from None
        self._write_options = WriteOptions()
        self._write_options.sync = True
        self._documents = self._read_documents()
        last = self._db.get(_LAST_WRITE)
        self._writes = int(last) if isinstance(last, bytes) else 0

    def read_all(self) -> dict[str, StoredText]:
        return dict(self._documents)

    def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        changes = [change for stage in stages for change in stage]
        for change in changes:
            found = self._documents.get(change.key)
            version = None if found is None else found.version
            if version != change.expected:
                raise WriteConflictError(change.key, change.expected, version)
        number = self._writes + 1
        batch = WriteBatch(raw_mode=True)
        batch.put(_LAST_WRITE, str(number).encode())
        after = dict(self._documents)
        for change in changes:
            key = _DOCUMENT + change.key.encode()
            match change:
                case Put():
                    batch.put(key, f"{number}\n{change.text}".encode())
                    after[change.key] = StoredText(change.text, str(number))
                case Delete():
                    batch.delete(key)
                    del after[change.key]
        try:
            self._db.write(batch, self._write_options)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
            # It is unknown whether the write is in the log: read the disk again.
            self._writes, self._documents = number, self._read_documents()
            raise StoreUnavailableError(
                f"metadata in {self._directory} could not be written: {error}"
            ) from None
        self._writes, self._documents = number, after
        return {change.key: str(number) for change in changes if isinstance(change, Put)}

    def acquire_lease(self, holder: str, duration_ms: int) -> bool:  # noqa: ARG002 - the seam's
        """Always True: the lock on the directory is the lease."""
        return True

    def release_lease(self, holder: str) -> None:
        """Nothing to do: `close` releases the lock."""

    def close(self) -> None:
        self._db.close()
        os.close(self._lock_fd)

    def _read_documents(self) -> dict[str, StoredText]:
        found = {}
        for key, value in self._db.items(from_key=_DOCUMENT):
            assert isinstance(key, bytes)  # raw mode
            assert isinstance(value, bytes)
            if not key.startswith(_DOCUMENT):
                break
            version, _, text = value.partition(b"\n")
            name = key.removeprefix(_DOCUMENT).decode()
            found[name] = StoredText(text.decode(), version.decode())
        return found


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(4 * 1024 * 1024)
    options.set_keep_log_file_num(2)
    options.set_max_open_files(64)
    return options
