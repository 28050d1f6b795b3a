"""One direction of one call: frames in order, each with its own delay, held back while blocked.

    send(act, argument) ─▶ [ due, act, argument ] ─▶ at the other end: act(argument)

A frame is a call of a method of the other end, made when it arrives. Frames in flight when the
connection breaks still arrive, up to the moment at which the other end is told of the break.

The window is HTTP/2's: this many bytes may be sent ahead of what the other end has read. A reader
reports what it has read with a frame in the other direction, half a window at a time.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock_sim.network import KEEPALIVE_MS, POLL_MS

if TYPE_CHECKING:
    from penstock_sim.wire.connection import Connection

FRAMING_BYTES: Final = 5
"""gRPC's prefix of a message: even empty ones fill a window."""


class Way:
    """One direction. `target` is the side (CLIENT or SERVER) that frames go to."""

    __slots__ = (
        "_blocked_since_us",
        "_connection",
        "_in_flight",
        "_last_due_us",
        "_net",
        "_pumping",
        "_queue",
        "_read",
        "_target",
        "_window",
        "back",
        "writer",
    )

    def __init__(self, connection: Connection, target: int) -> None:
        self._connection = connection
        self._net = connection.net
        self._target = target
        self._window: int = connection.window_bytes
        self._queue: deque[tuple[int, Callable[[Any], None], Any]] = deque()
        self._last_due_us = 0
        self._blocked_since_us = -1
        self._pumping = False
        self._in_flight = 0
        self._read = 0
        self.back: Way = self
        """The other direction, on which the reader frees the window; set from outside."""
        self.writer: Future[None] | None = None
        """Waits for space; ends with an error if the call does."""

    # ------------------------------------------------------------ frames

    def send(self, act: Callable[[Any], None], argument: object) -> None:
        """Queues a frame; lost if the connection is, or gets, broken."""
        if self._connection.broken:
            return
        scheduler = self._net.scheduler
        now_us = scheduler.now_us
        due_us = now_us + int(self._net.delay_ms() * 1000)
        due_us = max(due_us, self._last_due_us)
        self._last_due_us = due_us
        self._connection.last_due_us = max(self._connection.last_due_us, due_us)
        self._queue.append((due_us, act, argument))
        if not self._pumping:
            self._pumping = True
            scheduler.after((due_us - now_us) / 1000, self._pump)

    def send_last(self, act: Callable[[Any], None], argument: object) -> None:
        """As `send`, after everything in flight on the whole connection."""
        self._last_due_us = self._connection.last_due_us + 2
        self.send(act, argument)

    def _pump(self) -> None:
        """Delivers what is due."""
        self._pumping = False
        queue, connection, net = self._queue, self._connection, self._net
        scheduler = net.scheduler
        source, target = connection.ends(self._target)
        while queue:
            now_us = scheduler.now_us
            # Scheduled times are rounded down to a microsecond.
            if queue[0][0] > now_us + 1:
                self._pumping = True
                scheduler.after((queue[0][0] - now_us) / 1000, self._pump)
                return
            if connection.is_deaf(self._target):
                queue.clear()
                return
            if net.is_blocked(source, target):
                self._hold(now_us)
                return
            self._blocked_since_us = -1
            _, act, argument = queue.popleft()
            act(argument)

    def _hold(self, now_us: int) -> None:
        if self._blocked_since_us < 0:
            self._blocked_since_us = now_us
        if self._connection.broken:
            self._queue.clear()
        elif now_us - self._blocked_since_us >= KEEPALIVE_MS * 1000:
            self._queue.clear()
            self._connection.break_off()
        else:
            self._pumping = True
            self._net.scheduler.after(POLL_MS, self._pump)

    # ------------------------------------------------------------ room

    def has_room(self, size: int) -> bool:
        """Whether a message may be sent; one that is larger than the window is sent alone.

        Up to half a window may have been read without the sender knowing: if no more than that is
        ahead of the reader, any message may be sent.
        """
        ahead = self._in_flight
        return ahead + size <= self._window or ahead <= self._window // 2

    def send_message(self, act: Callable[[bytes], None], message: bytes) -> None:
        """Sends a message that counts in the window."""
        self._in_flight += len(message) + FRAMING_BYTES
        self.send(act, message)

    def has_read(self, message: bytes | bytearray) -> None:
        """The reader, at the other end, took a message."""
        self._read += len(message) + FRAMING_BYTES
        if self._read >= self._window // 2:
            self.back.send(self._give_back, self._read)
            self._read = 0

    def _give_back(self, size: int) -> None:
        self._in_flight -= size
        writer = self.writer
        if writer is not None and not writer.done():
            writer.set_result(None)

    def fail_writer(self, error: Exception) -> bool:
        """Ends a wait for space; False if no writer waits."""
        writer, self.writer = self.writer, None
        if writer is None or writer.done():
            return False
        writer.set_exception(error)
        return True
