"""A member's stream as the coordinator's shell sees it: a bounded queue of what it is to be told.

The service puts in what the member says (`services.groups`) and takes out what it hears. A member
that does not read loses its stream before it holds memory (I23).
"""

import asyncio
from collections import deque
from typing import Final

from penstock.core.groups.contract import EndStream, SendAssignment, SendJoined
from penstock.errors import PenstockError

_QUEUE_MAX: Final = 64


class StreamEndedError(Exception):
    """The stream ended in good order."""


class MemberStream:
    """One stream. `stream_id` is never used again."""

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.session_timeout_ms = 0
        self.ended = False
        self._queue: deque[SendJoined | SendAssignment] = deque()
        self._end: EndStream | None = None
        self._news = asyncio.Event()

    def put(self, output: SendJoined | SendAssignment | EndStream) -> bool:
        """Tells the member; False: it has not read for too long, nothing was put."""
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
        """Ends the stream with an error; what was not read yet is dropped: nothing is sure now."""
        if not self.ended:
            self._queue.clear()
            self.put(EndStream(self.stream_id, error))

    async def next(self) -> SendJoined | SendAssignment:
        """What the member is to hear next; waits as long as it takes.

        Raises StreamEndedError, or the PenstockError that the stream ends with.
        """
        while not self._queue:
            if self._end is not None:
                raise StreamEndedError if self._end.error is None else self._end.error
            self._news.clear()
            await self._news.wait()
        return self._queue.popleft()
