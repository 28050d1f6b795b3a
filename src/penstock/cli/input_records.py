"""What `penstock produce` reads: a file or standard input, cut into records."""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from penstock.errors import ErrorCode, MisuseError

_CHUNK_BYTES: Final = 256 * 1024
_RECORD_BYTES_MAX: Final = 32 * 1024 * 1024
"""The upper limit of the topic setting max.message.bytes."""


def open_input(file: Path | None) -> BinaryIO:
    """The file, or standard input, which `-` means too. Raises MisuseError."""
    if file is not None and file != Path("-"):
        try:
            return file.open("rb")
        except OSError as error:
            raise MisuseError(
                f"--file {file} cannot be read: {error.strerror}", ErrorCode.INVALID_REQUEST
            ) from None
    if sys.stdin is None:
        raise MisuseError("standard input is closed; pipe the records to it, one per line")
    return sys.stdin.buffer


def split(source: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """Records without what ends them, each as soon as it has arrived; the last one may have no end.

    Raises MisuseError if one is larger than any batch may be.
    """
    if delimiter == b"\n":
        for line in iter(partial(source.readline, _RECORD_BYTES_MAX + 2), b""):
            record = line.removesuffix(delimiter)
            _check_size(record, delimiter)
            yield record
        return
    rest = b""
    while chunk := os.read(source.fileno(), _CHUNK_BYTES):
        *whole, rest = (rest + chunk).split(delimiter)
        yield from whole
        _check_size(rest, delimiter)
    if rest:
        yield rest


def _check_size(record: bytes, delimiter: bytes) -> None:
    if len(record) > _RECORD_BYTES_MAX:
        raise MisuseError(
            f"{len(record)} bytes came without the delimiter {delimiter!r}; a record has at most "
            f"{_RECORD_BYTES_MAX}",
            ErrorCode.RECORD_TOO_LARGE,
        )
