"""Messages still to be sent on one session stream: bounded, because all of them coalesce.

    machine ──SessionMessage──▶ ┌──────────────────────────────┐
                                │ accepted · last ack · refusal│──next()──▶ stream
    metadata moved ──notify()──▶│ image wanted since version v │
                                └──────────────────────────────┘

For a slow broker, at most one of each is kept: a newer heartbeat answer replaces the older one, and
an image is built when the stream has space for it, from the version that was sent last.
"""

import asyncio
from collections.abc import Callable

from penstock.core.control import contract as c
from penstock.proto.v1 import controller_pb2 as pb
from penstock_broker.controller.wire import session_message_to_wire


class SessionOutbox:
    """Filled by the runtime, emptied by the task that writes the stream."""

    def __init__(self, image_since: Callable[[int], pb.ClusterImage]) -> None:
        self._image_since = image_since
        self._accepted: c.SessionAccepted | None = None
        self._refused: c.SessionRefused | None = None
        self._answered: c.HeartbeatAnswered | None = None
        self._has_session = False
        self._sent_version = 0
        self._image_wanted = False
        self._ready = asyncio.Event()

    def put(self, message: c.SessionMessage) -> None:
        """Queues a message; a heartbeat answer replaces the previous one."""
        match message:
            case c.SessionAccepted():
                self._accepted, self._has_session, self._image_wanted = message, True, True
            case c.SessionRefused():
                self._refused = message
            case c.HeartbeatAnswered():
                self._answered = message
        self._ready.set()

    def notify(self) -> None:
        """The metadata version changed."""
        if self._has_session:
            self._image_wanted = True
            self._ready.set()

    async def next(self) -> pb.SessionResponse:
        """The next message, in this order: accepted, refusal, image, heartbeat answer.

        Waits until there is one; the caller bounds the wait, and ends it with the stream.
        """
        while True:
            message = self._take()
            if message is not None:
                return message
            self._ready.clear()
            await self._ready.wait()

    def _take(self) -> pb.SessionResponse | None:
        if self._accepted is not None:
            accepted, self._accepted = self._accepted, None
            return session_message_to_wire(accepted)
        if self._refused is not None:
            return session_message_to_wire(self._refused)
        if self._image_wanted:
            self._image_wanted = False
            image = self._image_since(self._sent_version)
            self._sent_version = image.metadata_version
            return pb.SessionResponse(image=image)
        if self._answered is not None:
            answered, self._answered = self._answered, None
            return session_message_to_wire(answered)
        return None
