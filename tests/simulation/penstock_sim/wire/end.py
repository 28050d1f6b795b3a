"""The common part of both ends of a call: messages in and out, one reader, one writer.

Every read and write yields to the loop at least once, as gRPC's do: everything else that is ready
runs in between. Nevertheless, a message leaves at the moment of the call.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from grpc._cython import cygrpc

from penstock_sim.wire.way import FRAMING_BYTES, Way

if TYPE_CHECKING:
    from penstock_sim.node_loop import NodeLoop


@types.coroutine
def one_turn() -> Generator[None, None, None]:
    """Lets everything else that is ready run. Like a sleep of 0, but cheaper."""
    yield


class CallEnd:
    """One end of a call. Subclasses wake and end what waits here."""

    def __init__(self, loop: NodeLoop) -> None:
        self._loop = loop
        self._inbox: deque[bytes] = deque()
        self._no_more = False
        """Nothing more arrives; only the inbox is left."""
        self._broken = False
        """Writes fail, as if the other end had gone."""
        self._writing = False
        self._reader: asyncio.Future[Any] | None = None
        self._out: Way | None = None
        self._in: Way | None = None

    def take_message(self, message: bytes) -> None:
        """Handles a frame with one message."""
        if not self._no_more:
            self._inbox.append(message)
            self._wake_reader()

    def _wake_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    async def _receive(self) -> bytes | None:
        """The next message; None after the last one."""
        if self._inbox or self._no_more:
            await one_turn()
        else:
            assert self._reader is None or self._reader.done(), "one reads at a time"
            self._reader = self._loop.create_future()
            await self._reader
        if not self._inbox:
            return None
        message = self._inbox.popleft()
        assert self._in is not None, "messages come on a connection"
        self._in.has_read(message)
        return message

    async def _transmit(self, message: bytes, other: CallEnd) -> None:
        """Sends a message once there is space for it; raises ExecuteBatchError if it cannot."""
        way = self._out
        assert way is not None, "a writer is connected"
        assert not self._writing, "one writes at a time"
        self._writing = True
        try:
            while not self._broken and not way.has_room(len(message) + FRAMING_BYTES):
                way.writer = self._loop.create_future()
                await way.writer
            if self._broken:
                raise cygrpc.ExecuteBatchError("the call is over")
            way.send_message(other.take_message, message)
            await one_turn()
        finally:
            self._writing = False
