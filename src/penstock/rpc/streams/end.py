"""The receiving half of a stream, common to all carriers: messages wait, or are delivered.

    carrier ─ arrived ─▶ [ waiting ] ─▶ receive       or, once `deliver` runs: ─▶ its callback
            ─ over ─▶ ends both

A carrier calls `arrived` and `over` from callbacks of its loop, and holds the other side back while
`waiting_bytes` is large.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.errors import UnreachableError
from penstock.rpc.streams.frames import Received

READ_AHEAD_BYTES: Final = 256 * 1024
"""About how much may wait here unread, beyond one message."""
MESSAGE_BYTES: Final = 64
"""What a message that waits takes beside its own bytes: of empty ones, too, not any number may."""


class StreamEnd:
    """See the module."""

    @property
    def peer_host(self) -> str:
        """See `MessageStream`."""
        return ""

    @property
    def peer_uris(self) -> tuple[str, ...]:
        """See `MessageStream`."""
        return ()

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self.is_over = False
        self._why: Exception | None = None
        self._waiting: deque[Received] = deque()
        self._callback: Callable[[Received], None] | None = None
        self._held = False
        self._news: asyncio.Future[None] | None = None

    # ------------------------------------------------------------ what the carrier says

    def arrived(self, message: Received) -> None:
        """A message is here. Ignored once the stream is over."""
        if self.is_over:
            return
        if self._callback is None or self._held or self._waiting:
            self._waiting.append(message)
            self.waiting_bytes += len(message) + MESSAGE_BYTES
            self._wake()
        else:
            self._deliver(self._callback, message)

    def over(self, error: Exception | None) -> None:
        """Nothing more arrives; None: the other side ended the stream. Only the first counts."""
        if not self.is_over:
            self.is_over, self._why = True, error
            self._wake()

    def has_read(self, message: Received) -> None:
        """The user took a message that waited; for carriers."""

    # ------------------------------------------------------------ what the user asks for

    async def receive(self) -> Received | None:
        """See `MessageStream`."""
        while not self._waiting:
            if self.is_over:
                self._raise()
                return None
            await self._wait()
        return self._take()

    async def deliver(self, receive: Callable[[Received], None]) -> None:
        """See `MessageStream`."""
        self._callback = receive
        try:
            while self._waiting and not self._held:
                receive(self._take())
            # Who ends the stream in an orderly way has everything delivered, though later.
            while not self.is_over or (self._waiting and self._why is None):
                await self._wait()
        finally:
            self._callback = None
        self._raise()

    def hold(self) -> None:
        """See `MessageStream`."""
        self._held = True

    def release(self) -> None:
        """See `MessageStream`."""
        if self._held:
            self._held = False
            asyncio.get_running_loop().call_soon(self._deliver_waiting)

    def _deliver_waiting(self) -> None:
        while self._waiting and self._callback is not None and not self._held:
            if self._why is not None:
                break
            self._deliver(self._callback, self._take())
        if self.is_over:
            self._wake()

    def _deliver(self, callback: Callable[[Received], None], message: Received) -> None:
        try:
            callback(message)
        except Exception as error:  # noqa: BLE001 - `deliver` raises it
            self.is_over, self._why = True, error
            self._wake()

    def check_open(self) -> None:
        """Raises if the stream is over, whichever side ended it."""
        if self.is_over:
            self._raise()
            raise UnreachableError("the other side has ended the stream")

    def _take(self) -> Received:
        message = self._waiting.popleft()
        self.waiting_bytes -= len(message) + MESSAGE_BYTES
        self.has_read(message)
        return message

    def _raise(self) -> None:
        if self._why is not None:
            raise self._why

    async def _wait(self) -> None:
        assert self._news is None or self._news.done(), "one task receives"
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
