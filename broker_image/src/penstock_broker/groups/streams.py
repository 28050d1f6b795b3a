"""A member's stream in the coordinator's shell: a bounded queue of messages to the member.

The service passes the member's messages on (`services.groups`) and sends what is in the queue. A
member that does not read loses its stream before it uses much memory (I23).
"""

import asyncio
from collections import deque
from typing import Final

from penstock.core.groups.contract import EndStream, SendAssignment, SendJoined
from penstock.errors import PenstockError

_QUEUE_MAX: Final = 64


class StreamEndedError(Exception):
    """The stream ended without an error."""


class MemberStream:
    """One stream. `stream_id` is never reused."""

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.session_timeout_ms = 0
        self.ended = False
        self._queue: deque[SendJoined | SendAssignment] = deque()
        self._end: EndStream | None = None
        self._news = asyncio.Event()

    def put(self, output: SendJoined | SendAssignment | EndStream) -> bool:
        """Queues a message; False: the member has not read for too long, nothing was queued."""
        if isinstance(output, EndStream):
            self._end = output
            self.ended = True
        elif len(self._queue) >= _QUEUE_MAX:
            return False
        else:
            if isinstance(output, SendJoined):
                self.session_timeout_ms = output.session_timeout_ms
            self._queue.append(output)
        self._news.set()
        return True

    def fail(self, error: PenstockError) -> None:
        """Ends the stream with an error; drops unread messages, which may no longer be true."""
        if not self.ended:
            self._queue.clear()
            self.put(EndStream(self.stream_id, error))

    async def next(self) -> SendJoined | SendAssignment:
        """The next message for the member; waits for it without a limit.

        Raises StreamEndedError, or the PenstockError that the stream ends with.
        """
        while not self._queue:
            if self._end is not None:
                raise StreamEndedError if self._end.error is None else self._end.error
            self._news.clear()
            await self._news.wait()
        return self._queue.popleft()
