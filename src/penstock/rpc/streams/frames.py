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
import threading
from collections.abc import Iterator
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import errors_pb2
from penstock.rpc.errors import error_from_wire, error_to_wire

PREFACE: Final = b"PENSTCK\x01"
MESSAGE: Final = 0
END: Final = 1
_HEADER: Final = struct.Struct(">IB")
_ERROR_BYTES_MAX: Final = 64 * 1024
LARGE_BYTES: Final = 64 * 1024
"""From this size on, a message is not copied only to have it in one piece."""
_SHARED_BYTES: Final = 256 * 1024
_BELIEVED_BYTES: Final = 1024 * 1024
"""Room for a message whose header alone has arrived; more than can arrive with it."""
_NOTHING: Final = bytearray()
_buffers: Final = threading.local()

Received: TypeAlias = bytes | bytearray
"""A message or another body; whoever gets it owns it."""


def shared_room() -> memoryview:
    """What all readers of a thread receive into, one after the other."""
    view: memoryview | None = getattr(_buffers, "view", None)
    if view is None:
        view = _buffers.view = memoryview(bytearray(_SHARED_BYTES))
    return view


def message_frame(message: bytes) -> bytes:
    """The frame of a message."""
    return message_header(message) + message


def message_header(message: bytes) -> bytes:
    """What comes before the message in its frame."""
    return _HEADER.pack(len(message), MESSAGE)


def end_frame(error: PenstockError | None) -> bytes:
    """The last frame; None: an orderly end."""
    body = end_body(error)
    return _HEADER.pack(len(body), END) + body


def end_body(error: PenstockError | None) -> bytes:
    """The body of the last frame; `error_of` reads it back."""
    return b"" if error is None else error_to_wire(error).SerializeToString()


def error_of(body: Received) -> PenstockError | None:
    """Why the other side ended the stream; None: in an orderly way. `body`: of an END."""
    if not body:
        return None
    try:
        return error_from_wire(errors_pb2.Error.FromString(bytes(body)))
    except DecodeError:
        return _garbage("an error that cannot be read")


class FrameReader:
    """Splits what arrives into frames.

        room ─▶ filled by the kernel ─▶ filled ─▶ frames
        feed: the same, for bytes that are somewhere else already

    A large message is received where it stays: `room` is then the rest of it. All others share one
    buffer per thread, so that an idle stream has none; its bytes are gone with the next `room`.
    """

    def __init__(self, message_bytes_max: int, first_bytes_max: int) -> None:
        """`first_bytes_max`: limit of the first message."""
        self._later_bytes_max = message_bytes_max
        self._bytes_max = first_bytes_max
        self._rest = b""
        """The beginning of a frame whose end has not arrived."""
        self._body = _NOTHING
        """A large message that is arriving, as far as there is room; empty: none."""
        self._body_at = self._body_size = self._body_kind = 0
        self._preface_seen = False

    @property
    def is_greeted(self) -> bool:
        """The other side's preface has arrived."""
        return self._preface_seen

    @property
    def has_half_a_frame(self) -> bool:
        """Part of a frame has arrived, and its rest is missing."""
        return bool(self._rest or self._body)

    def room(self) -> memoryview:
        """Where the next bytes are to be written; call `filled` before anything else.

        The room before must not be referred to any more.
        """
        if not self._body:
            return shared_room()
        if self._body_at == len(self._body):
            self._body.extend(bytes(min(self._body_at, self._body_size - self._body_at)))
        return memoryview(self._body)[self._body_at :]

    def filled(self, count: int) -> Iterator[tuple[int, Received]]:
        """The frames that are complete with the `count` bytes written: kind and body.

        Exhaust the iterator. Raises ClusterError(INVALID_REQUEST): what arrives is not this
        protocol, or a message is too long; the connection is of no more use.
        """
        if not self._body:
            yield from self._split(shared_room()[:count])
            return
        self._body_at += count
        if self._body_at == self._body_size:
            body, self._body = self._body, _NOTHING
            yield self._body_kind, body

    def feed(self, data: bytes) -> Iterator[tuple[int, Received]]:
        """As `filled`, for these bytes."""
        view = memoryview(data)
        while view:
            room = self.room()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            del room
            yield from self.filled(count)

    def _split(self, data: memoryview) -> Iterator[tuple[int, Received]]:
        if self._rest:
            data = memoryview(self._rest + data)
        start = 0 if self._preface_seen else self._preface(data)
        self._rest = b""
        while self._preface_seen and len(data) - start >= _HEADER.size:
            size, kind = _HEADER.unpack_from(data, start)
            self._check(size, kind)
            body, end = start + _HEADER.size, start + _HEADER.size + size
            if len(data) < end:
                if size >= LARGE_BYTES:
                    self._begin(kind, size, data[body:])
                    return
                break
            self._bytes_max = self._later_bytes_max
            yield kind, bytes(data[body:end])
            start = end
        self._rest = bytes(data[start:])

    def _begin(self, kind: int, size: int, arrived: memoryview) -> None:
        """A large message. Its header is believed up to a limit; from there on, room is doubled
        as it is filled."""
        self._bytes_max = self._later_bytes_max
        self._body_size, self._body_kind, self._body_at = size, kind, len(arrived)
        self._body = bytearray(min(size, _BELIEVED_BYTES))
        self._body[: len(arrived)] = arrived

    def _preface(self, buffer: memoryview) -> int:
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
