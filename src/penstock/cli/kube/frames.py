"""Frames of a port-forward's websocket, as the API server sends them (RFC 6455). Pure.

     0               1               2 … 9
    ┌─┬───┬────────┬─┬─────────────┬───────────────┬──────────────────────────────┐
    │F│000│ opcode │0│ length 7 bit│ 16 or 64 more │ channel byte │ data          │
    └─┴───┴────────┴─┴─────────────┴───────────────┴──────────────────────────────┘

Channel 0 carries the port's data, channel 1 its errors. The first frame of each channel is the
port number, two bytes, and no data. Only reading is here: the client's frames are masked, which
the websocket package does.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CONTINUATION: Final = 0
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
DATA_CHANNEL: Final = b"\0"
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024


class FrameError(Exception):
    """A violation of the protocol; the connection is closed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`data` of the data channel without the channel byte, or of a ping. `error`: what the
    error channel said."""

    opcode: int
    data: bytes
    error: bool = False


class FrameReader:
    """Takes bytes as they arrive; returns whole frames, without the port announcements."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._announced: set[int] = set()
        self._channel = -1

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer += data
        while (whole := self._next()) is not None:
            opcode, content = whole
            if opcode >= CLOSE:
                yield Frame(opcode, content)
                continue
            if opcode != CONTINUATION:
                if not content:
                    continue
                self._channel, content = content[0], content[1:]
            # Parts of a message are passed on as they arrive: only their order matters.
            yield from self._message(content)

    def _message(self, content: bytes) -> Iterator[Frame]:
        if self._channel not in (0, 1):
            raise FrameError(f"unexpected channel {self._channel} for a single port")
        if self._channel not in self._announced:
            if len(content) != 2:
                raise FrameError(f"the port's announcement has {len(content)} bytes, not 2")
            self._announced.add(self._channel)
        elif content:
            yield Frame(BINARY, content, error=self._channel == 1)

    def _next(self) -> tuple[int, bytes] | None:
        """(opcode, content) of the first frame, cut off the buffer; None: not there yet."""
        if len(self._buffer) < 2:
            return None
        head, length = self._buffer[0], self._buffer[1]
        if head & 0x70 or length & 0x80:
            raise FrameError(f"frame begins with {head:#04x} {length:#04x}")
        start = 2
        for code, form in ((126, ">H"), (127, ">Q")):
            if length == code:
                size = struct.calcsize(form)
                if len(self._buffer) < start + size:
                    return None
                (length,) = struct.unpack_from(form, self._buffer, start)
                start += size
                break
        if length > FRAME_BYTES_MAX:
            raise FrameError(f"a frame of {length} bytes")
        end = start + length
        if len(self._buffer) < end:
            return None
        content = bytes(self._buffer[start:end])
        del self._buffer[:end]
        return head & 0x0F, content
