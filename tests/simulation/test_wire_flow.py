"""The contract of a transport: how far streams run ahead, how they break.

See test_wire_calls.py.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.transport_handlers import (
    Streaming,
    double,
    echo,
    failed,
    one_turn,
    round_trips,
    stream_of,
)
from support.transport_scenes import TRANSPORTS, Play, Scene, serve, stream, unary

from penstock.errors import ErrorCode
from penstock.rpc.channel import WINDOW_BYTES
from penstock.rpc.errors import error_from_rpc

CHUNK = bytes(65_536)


@pytest.fixture(params=list(TRANSPORTS))
def play(request: pytest.FixtureRequest) -> Play:
    """Plays a test's body on one transport."""
    return TRANSPORTS[request.param]


async def stalled(channel: grpc.aio.Channel, written: Any) -> int:
    """The amount written when writing has stalled."""
    seen = -1
    while seen != written():
        seen = written()
        await round_trips(channel, 100)
    return int(seen)


class Writing:
    """A handler that writes all it can."""

    def __init__(self) -> None:
        self.written = 0
        self.failure: BaseException | None = None
        self.ended = asyncio.Event()

    async def handle(self, _requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(())
        try:
            while True:
                await context.write(CHUNK)
                self.written += 1
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.ended.set()


class Filling:
    """A client that writes all it can."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.written = 0
        self.failure: grpc.StatusCode | None = None

    async def run(self) -> None:
        try:
            while True:
                await self._call.write(CHUNK)
                self.written += 1
        except grpc.aio.AioRpcError as error:
            self.failure = error.code()
        except asyncio.InvalidStateError:
            self.failure = grpc.StatusCode.UNAVAILABLE


def test_reading_and_writing_lets_others_run(play: Play) -> None:
    """Even if nothing has to wait: shells rely on it, and bugs hide in it."""

    async def body(scene: Scene) -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await one_turn()

        await serve(scene, {"/t/m": stream(double), "/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel, asyncio.TaskGroup() as tasks:
            call = stream_of(channel, "/t/m")()
            await call.wait_for_connection()
            running = tasks.create_task(others())
            for _ in range(50):
                await call.write(b"x")
            assert turns >= 40
            await round_trips(channel, 50)
            turns = 0
            for _ in range(50):
                await call.read()
            assert turns >= 40
            running.cancel()
            call.cancel()

    play(body)


def test_a_handler_writes_no_further_than_a_window_ahead_of_its_reader(play: Play) -> None:
    async def body(scene: Scene) -> None:
        writing = Writing()
        await serve(scene, {"/t/m": stream(writing.handle), "/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            first = await stalled(channel, lambda: writing.written)
            assert WINDOW_BYTES / 2 <= first * len(CHUNK) <= 4 * WINDOW_BYTES
            for _ in range(2 * first):
                assert await call.read() == CHUNK
            assert await stalled(channel, lambda: writing.written) > 2 * first
            call.cancel()
            await writing.ended.wait()

    play(body)


def test_a_client_writes_no_further_than_a_window_ahead_of_the_handler(play: Play) -> None:
    async def body(scene: Scene) -> None:
        go_on = asyncio.Event()

        async def late(requests: AsyncIterator[bytes], context: Any) -> None:
            await context.send_initial_metadata(())
            await go_on.wait()
            async for _ in requests:
                pass

        await serve(scene, {"/t/m": stream(late), "/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            filling = Filling(call)
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(filling.run())
                first = await stalled(channel, lambda: filling.written)
                assert WINDOW_BYTES / 2 <= first * len(CHUNK) <= 4 * WINDOW_BYTES
                go_on.set()
                while filling.written <= 2 * first:
                    await round_trips(channel, 1)
                running.cancel()

    play(body)


def test_a_message_larger_than_the_window_gets_through(play: Play) -> None:
    async def body(scene: Scene) -> None:
        await serve(scene, {"/t/m": stream(double)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            large = bytes(WINDOW_BYTES + 1)
            for message in (b"x", large, large):
                await call.write(message)
                assert await call.read() == message * 2
            call.cancel()

    play(body)


def test_when_the_connection_breaks_reader_and_handler_hear_of_it(play: Play) -> None:
    async def body(scene: Scene) -> None:
        handler = Streaming(reads=True)
        await serve(scene, {"/t/m": stream(handler.handle)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            await call.write(b"x")
            await handler.began.wait()
            scene.cut()
            error = await failed(call.read())
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert error_from_rpc(error).code is ErrorCode.UNREACHABLE
            await handler.ended.wait()
            assert handler.saw[-2:] in (["end of requests", "cancelled"], [b"x", "cancelled"])

    play(body)


def test_a_stopped_server_ends_its_streams(play: Play) -> None:
    async def body(scene: Scene) -> None:
        handler = Streaming(reads=False)
        server = await serve(scene, {"/t/m": stream(handler.handle)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            await handler.began.wait()
            await scene.there(lambda _: server.stop(None))
            assert (await failed(call.read())).code() is grpc.StatusCode.UNAVAILABLE
            await handler.ended.wait()
            assert handler.saw == ["cancelled"]

    play(body)


def test_a_connection_that_breaks_fails_writes_that_wait(play: Play) -> None:
    async def body(scene: Scene) -> None:
        handler, writing = Streaming(reads=False), Writing()
        await serve(
            scene,
            {
                "/t/in": stream(handler.handle),
                "/t/out": stream(writing.handle),
                "/t/echo": unary(echo),
            },
        )
        async with scene.transport.open(scene.address) as channel:
            into = stream_of(channel, "/t/in")()
            out = stream_of(channel, "/t/out")()
            async with asyncio.TaskGroup() as tasks:
                filling = Filling(into)
                tasks.create_task(filling.run())
                await stalled(channel, lambda: filling.written + writing.written)
                scene.cut()
            assert filling.failure in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
            assert (await failed(into.read())).code() in {
                grpc.StatusCode.INTERNAL,
                grpc.StatusCode.UNAVAILABLE,
            }
            assert (await failed(out.read())).code() is grpc.StatusCode.UNAVAILABLE
            await writing.ended.wait()
            assert isinstance(writing.failure, grpc.aio.InternalError | asyncio.CancelledError)

    play(body)
