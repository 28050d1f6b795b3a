"""Message streams over gRPC: to and from brokers of releases that have no streams of their own.

One bidirectional call is one stream. How it ended is the call's status, as for any call, so `close`
has nothing to tell: a handler that raises an error ends the call with it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.errors import PenstockError, UnreachableError
from penstock.rpc.cancelling import heeding_cancellation
from penstock.rpc.errors import error_from_rpc
from penstock.rpc.streams.frames import Received


class _Call:
    """What both ends of a call have in common."""

    @property
    def peer_host(self) -> str:
        """See `MessageStream`."""
        return ""

    @property
    def peer_uris(self) -> tuple[str, ...]:
        """See `MessageStream`. None here: who calls over gRPC, its context says."""
        return ()

    def __init__(self) -> None:
        self._free = asyncio.Event()
        self._free.set()

    async def receive(self) -> bytes | None:
        """See `MessageStream`."""
        raise NotImplementedError

    async def deliver(self, receive: Callable[[Received], None]) -> None:
        """See `MessageStream`."""
        while (message := await self.receive()) is not None:
            if not self._free.is_set():
                await self._free.wait()
            receive(message)

    def hold(self) -> None:
        """See `MessageStream`."""
        self._free.clear()

    def release(self) -> None:
        """See `MessageStream`."""
        self._free.set()

    def post(self, _message: bytes) -> bool:
        """See `MessageStream`. Who writes to a call always waits."""
        return False


class ServedCall(_Call):
    """A `MessageStream`: the server's end of a call."""

    def __init__(self, requests: AsyncIterator[Message], context: Any) -> None:
        super().__init__()
        self._requests = requests
        self._context = context

    async def send(self, message: bytes) -> None:
        """See `MessageStream`."""
        await self._context.write(message)

    async def receive(self) -> bytes | None:
        """See `MessageStream`."""
        request = await anext(self._requests, None)
        return None if request is None else request.SerializeToString()

    async def close(self, _error: PenstockError | None = None) -> None:
        """The call ends with its handler."""


class OpenedCall(_Call):
    """A `MessageStream`: the client's end. It owns the channel."""

    def __init__(self, channel: grpc.aio.Channel, method: str) -> None:
        super().__init__()
        self._channel = channel
        self._call: Any = channel.stream_stream(method)()

    async def connect(self) -> None:
        """Waits for the connection. Raises PenstockError; the caller bounds the wait."""
        await _translated(self._call.wait_for_connection())

    async def send(self, message: bytes) -> None:
        """See `MessageStream`."""
        try:
            await _translated(self._call.write(message))
        except asyncio.InvalidStateError as error:
            raise UnreachableError("the call is over") from error

    async def receive(self) -> bytes | None:
        """See `MessageStream`."""
        message = await _translated(self._call.read())
        return None if message is grpc.aio.EOF else message

    async def close(self, _error: PenstockError | None = None) -> None:
        """See `MessageStream`; gRPC's clients cannot say why."""
        with suppress(asyncio.InvalidStateError):
            self._call.cancel()
        await self._channel.close()


async def _translated(awaited: Awaitable[Any]) -> Any:
    """What a call gives; raises PenstockError for its failure, CancelledError only if cancelled."""
    try:
        with heeding_cancellation():
            return await awaited
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
