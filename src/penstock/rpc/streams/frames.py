"""Frames: how messages are told apart in a connection's bytes. Pure.

    PREFACE, then any number of:
    ┌────────────┬────────┬──────────┐
    │ length u32 │ kind u8│ body     │   big-endian; the length is the body's
    └────────────┴────────┴──────────┘
    kind 0  MESSAGE   body: the message
    kind 1  END       body: an Error (proto), or nothing: an orderly end. The last frame.

Both sides send the preface, so that another protocol is noticed by its first bytes, and not by a
length that makes no sense. Its last byte is the version of this format.
"""

import struct
from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import errors_pb2
from penstock.rpc.errors import error_from_wire, error_to_wire

PREFACE: Final = b"PENSTCK\x01"
MESSAGE: Final = 0
END: Final = 1
_HEADER: Final = struct.Struct(">IB")
_ERROR_BYTES_MAX: Final = 64 * 1024


def message_frame(message: bytes) -> bytes:
    """The frame of a message."""
    return _HEADER.pack(len(message), MESSAGE) + message


def end_frame(error: PenstockError | None) -> bytes:
    """The last frame; None: an orderly end."""
    body = end_body(error)
    return _HEADER.pack(len(body), END) + body


def end_body(error: PenstockError | None) -> bytes:
    """The body of the last frame; `error_of` reads it back."""
    return b"" if error is None else error_to_wire(error).SerializeToString()


def error_of(body: bytes) -> PenstockError | None:
    """Why the other side ended the stream; None: in an orderly way. `body`: of an END."""
    if not body:
        return None
    try:
        return error_from_wire(errors_pb2.Error.FromString(body))
    except DecodeError:
        return _garbage("an error that cannot be read")


class FrameReader:
    """Splits what arrives into frames."""

    def __init__(self, message_bytes_max: int, first_bytes_max: int) -> None:
        """`first_bytes_max`: limit of the first message."""
        self._later_bytes_max = message_bytes_max
        self._bytes_max = first_bytes_max
        self._buffer = bytearray()
        self._preface_seen = False

    @property
    def has_half_a_frame(self) -> bool:
        """Part of a frame has arrived, and its rest is missing."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are complete now: kind and body.

        Exhaust the iterator, or do not call this again. Raises ClusterError(INVALID_REQUEST): what
        arrives is not this protocol, or a message is too long; the connection is of no more use.
        """
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        start = 0
        if not self._preface_seen:
            start = self._preface(buffer)
        while self._preface_seen and len(buffer) - start >= _HEADER.size:
            size, kind = _HEADER.unpack_from(buffer, start)
            self._check(size, kind)
            end = start + _HEADER.size + size
            if len(buffer) < end:
                break
            yield kind, bytes(memoryview(buffer)[start + _HEADER.size : end])
            self._bytes_max = self._later_bytes_max
            start = end
        if buffer is self._buffer:
            del self._buffer[:start]
        else:
            self._buffer += memoryview(data)[start:]

    def _preface(self, buffer: bytes | bytearray) -> int:
        """How many bytes of it are done with."""
        seen = bytes(buffer[: len(PREFACE)])
        if not PREFACE.startswith(seen):
            if seen.startswith(PREFACE[:-1]):
                raise _garbage(f"version {seen[-1]} of the format, this is version {PREFACE[-1]}")
            raise _garbage(f"the bytes {seen.hex(' ')}")
        self._preface_seen = len(seen) == len(PREFACE)
        return len(PREFACE) if self._preface_seen else 0

    def _check(self, size: int, kind: int) -> None:
        if kind not in (MESSAGE, END):
            raise _garbage(f"a frame of kind {kind}")
        limit = self._bytes_max if kind == MESSAGE else _ERROR_BYTES_MAX
        if size > limit:
            raise ClusterError(
                f"the other side of a stream began a message of {size} bytes; at most {limit} "
                "are accepted here",
                ErrorCode.INVALID_REQUEST,
            )


def _garbage(what: str) -> ClusterError:
    return ClusterError(
        f"the other side of a stream sent {what}: no stream between brokers, so look for a "
        "port that belongs to something else",
        ErrorCode.INVALID_REQUEST,
    )
