"""Handlers and waits that tests of transports share."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest


async def failed(waited: Any) -> grpc.aio.AioRpcError:
    """The error that a call or a read ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await waited
    return caught.value


async def echo(request: bytes, _context: Any) -> bytes:
    """Answers a call with its request."""
    return request


def unary_of(
    channel: grpc.aio.Channel, method: str
) -> "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]":
    """A method of one request, one answer: plain bytes."""
    return channel.unary_unary(method)


def stream_of(
    channel: grpc.aio.Channel, method: str
) -> "grpc.aio.StreamStreamMultiCallable[bytes, bytes]":
    """A method of requests and answers: plain bytes."""
    return channel.stream_stream(method)


async def round_trips(channel: grpc.aio.Channel, count: int) -> None:
    """Lets so many calls of `echo` come and go: what was on its way has arrived then."""
    call = unary_of(channel, "/t/echo")
    for _ in range(count):
        await call(b"")


async def for_ever() -> None:
    """Waits to be cancelled."""
    await asyncio.Event().wait()


async def one_turn() -> None:
    """Lets run what is ready."""
    await asyncio.sleep(0)


async def ticks(interval_s: float) -> AsyncIterator[None]:
    """Comes so often, until cancelled."""
    while True:
        yield
        await asyncio.sleep(interval_s)


class Hanging:
    """A handler that waits to be cancelled; the test waits for both."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled = False

    async def handle(self, _request: Any, _context: Any) -> bytes:
        self.began.set()
        try:
            await for_ever()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.ended.set()
        return b""


class Streaming:
    """A handler that answers nothing. Reads requests if told to; says how it ended."""

    def __init__(self, *, reads: bool) -> None:
        self._reads = reads
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.saw: list[bytes | str] = []

    async def handle(self, requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(())
        self.began.set()
        try:
            if self._reads:
                async for request in requests:
                    self.saw.append(request)
                self.saw.append("end of requests")
            await for_ever()
        except asyncio.CancelledError:
            self.saw.append("cancelled")
            raise
        finally:
            self.ended.set()


async def double(requests: AsyncIterator[bytes], context: Any) -> None:
    """Answers each request of a stream."""
    async for request in requests:
        await context.write(request * 2)
