"""Messages still to be sent on one session stream: bounded, because all of them coalesce.

    machine ──SessionMessage──▶ ┌──────────────────────────────┐
                                │ accepted · last ack · refusal│──next()──▶ stream
    metadata moved ──notify()──▶│ image wanted since version v │
                                └──────────────────────────────┘

For a slow broker, at most one of each is kept: a newer heartbeat answer replaces the older one, and
an image is built when the stream has space for it, from the version that was sent last. Streams
that have reached the same version share one image.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.core.control import ControllerMachine
from penstock.core.control import contract as c
from penstock.core.control.registration import BROKERS_MAX
from penstock.errors import OverloadedError, PenstockError
from penstock.proto.v1 import controller_pb2 as pb
from penstock_broker.controller.wire import image_to_wire, session_message_to_wire

_STREAMS_MAX: Final = 2 * BROKERS_MAX
"""A broker that comes back opens one before the former is known to be broken."""


class SessionOutbox:
    """Filled by the runtime, emptied by the task that writes the stream."""

    def __init__(
        self, image_since: Callable[[int], pb.ClusterImage], wall_ms: Callable[[], int]
    ) -> None:
        """`wall_ms`: the controller's time since 1970, which brokers compare with their own."""
        self._image_since = image_since
        self._wall_ms = wall_ms
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
            return session_message_to_wire(accepted, self._wall_ms())
        if self._refused is not None:
            return session_message_to_wire(self._refused, self._wall_ms())
        if self._image_wanted:
            self._image_wanted = False
            image = self._image_since(self._sent_version)
            self._sent_version = image.metadata_version
            return pb.SessionResponse(image=image)
        if self._answered is not None:
            answered, self._answered = self._answered, None
            return session_message_to_wire(answered, self._wall_ms())
        return None


class SessionOutboxes:
    """Those of all streams that are open, by the stream's id."""

    def __init__(
        self, machine: Callable[[], ControllerMachine], wall_ms: Callable[[], int]
    ) -> None:
        """`machine`: whose images are sent; raises ClusterError if there is none."""
        self._machine = machine
        self._wall_ms = wall_ms
        self._open: dict[int, SessionOutbox] = {}
        self._image: tuple[int, int, pb.ClusterImage] | None = None

    def open(self, stream_id: int) -> SessionOutbox:
        """A stream began. Raises OverloadedError if there are too many."""
        if len(self._open) >= _STREAMS_MAX:
            raise OverloadedError(
                f"{len(self._open)} session streams are open here, the limit is "
                f"{_STREAMS_MAX}; try again later"
            )
        outbox = self._open[stream_id] = SessionOutbox(self._image_since, self._wall_ms)
        return outbox

    def close(self, stream_id: int) -> bool:
        """A stream ended; whether it was open."""
        return self._open.pop(stream_id, None) is not None

    def put(self, message: c.SessionMessage) -> None:
        """For its stream, if that is still open."""
        outbox = self._open.get(message.stream_id)
        if outbox is not None:
            outbox.put(message)

    def notify(self) -> None:
        """The metadata version changed."""
        for outbox in self._open.values():
            outbox.notify()

    def refuse(self, reason: PenstockError) -> None:
        """Ends all streams: the machine is given up, and its images count no longer."""
        self._image = None
        for stream_id, outbox in self._open.items():
            outbox.put(c.SessionRefused(stream_id, reason))

    def _image_since(self, since: int) -> pb.ClusterImage:
        machine = self._machine()
        version = machine.stored.metadata_version
        if self._image is None or self._image[:2] != (since, version):
            self._image = (since, version, image_to_wire(machine.image(since)))
        return self._image[2]
