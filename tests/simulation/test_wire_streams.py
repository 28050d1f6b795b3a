"""The contract of a transport: streams. See test_wire_calls.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from support.transport_handlers import (
    Streaming,
    double,
    echo,
    failed,
    for_ever,
    one_turn,
    round_trips,
    stream_of,
    ticks,
)
from support.transport_scenes import TRANSPORTS, Play, Scene, serve, stream, unary

from penstock.errors import ClusterError, CurrentLeader, ErrorCode, NotLeaderError
from penstock.proto.v1 import controller_pb2 as pb
from penstock.proto.v1.controller_pb2_grpc import (
    ControllerServiceServicer,
    ControllerServiceStub,
    add_ControllerServiceServicer_to_server,
)
from penstock.rpc.errors import error_from_rpc
from penstock_broker.serving.edge import Edge


@pytest.fixture(params=list(TRANSPORTS))
def play(request: pytest.FixtureRequest) -> Play:
    """Plays a test's body on one transport."""
    return TRANSPORTS[request.param]


def test_messages_arrive_in_the_order_in_which_they_were_sent(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def requests() -> AsyncIterator[bytes]:
            for number in range(300):
                yield bytes([number % 251])

        await serve(scene, {"/t/m": stream(double)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")(requests())
            answers = [answer async for answer in call]
            assert answers == [bytes([number % 251]) * 2 for number in range(300)]
            assert await call.code() is grpc.StatusCode.OK

    play(body)


def test_answers_come_one_by_one_to_what_is_written_one_by_one(play: Play) -> None:
    async def body(scene: Scene) -> None:
        await serve(scene, {"/t/m": stream(double)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            for number in range(20):
                await call.write(bytes([number]))
                assert await call.read() == bytes([number]) * 2
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.read() is grpc.aio.EOF
            assert call.done()
            with pytest.raises(asyncio.InvalidStateError):
                await call.write(b"late")

    play(body)


def test_after_half_closing_a_client_still_reads(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def collect(requests: AsyncIterator[bytes], context: Any) -> None:
            seen = [request async for request in requests]
            for request in seen:
                await context.write(request)

        await serve(scene, {"/t/m": stream(collect)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            for message in (b"a", b"b"):
                await call.write(message)
            await call.done_writing()
            with pytest.raises(asyncio.InvalidStateError):
                await call.write(b"c")
            assert [await call.read(), await call.read()] == [b"a", b"b"]
            assert await call.read() is grpc.aio.EOF

    play(body)


def test_a_stream_is_connected_before_its_handler_has_answered(play: Play) -> None:
    async def body(scene: Scene) -> None:
        go_on = asyncio.Event()

        async def late(_requests: AsyncIterator[bytes], context: Any) -> None:
            await go_on.wait()
            await context.send_initial_metadata((("key", "value"),))
            await context.write(b"x")

        await serve(scene, {"/t/m": stream(late)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            await call.wait_for_connection()
            assert not call.done()
            go_on.set()
            assert ("key", "value") in [tuple(pair) for pair in await call.initial_metadata()]
            assert await call.read() == b"x"

    play(body)


def test_a_stream_to_where_nothing_listens_fails(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def requests() -> AsyncIterator[bytes]:
            yield b"x"

        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")(requests())
            error = await failed(call.wait_for_connection())
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.aio.AioRpcError):
                [answer async for answer in call]
            assert (await failed(stream_of(channel, "/t/m")().write(b"x"))).code() is error.code()

    play(body)


def test_a_client_that_cancels_ends_the_requests_and_then_the_handler(play: Play) -> None:
    async def body(scene: Scene) -> None:
        handler = Streaming(reads=True)
        await serve(scene, {"/t/m": stream(handler.handle)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            await call.write(b"x")
            await handler.began.wait()
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(call.read())
                await one_turn()
                call.cancel()
            assert reading.cancelled(), "as if the reader itself had been cancelled"
            await handler.ended.wait()
            assert handler.saw[-1] == "cancelled"
            assert handler.saw[:-1] in ([], [b"x"], ["end of requests"], [b"x", "end of requests"])

    play(body)


def test_a_reader_that_is_cancelled_cancels_its_stream(play: Play) -> None:
    async def body(scene: Scene) -> None:
        handler = Streaming(reads=False)
        await serve(scene, {"/t/m": stream(handler.handle)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            await handler.began.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await call.read()
            assert call.cancelled()
            await handler.ended.wait()
            assert handler.saw == ["cancelled"]

    play(body)


def test_an_iterator_of_requests_that_fails_cancels_its_stream(play: Play) -> None:
    async def body(scene: Scene) -> None:
        handler = Streaming(reads=False)

        async def requests() -> AsyncIterator[bytes]:
            yield b"x"
            await handler.began.wait()
            raise ValueError("no more")

        await serve(scene, {"/t/m": stream(handler.handle)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")(requests())
            with pytest.raises(asyncio.CancelledError):
                await call.read()
            await handler.ended.wait()

    play(body)


def test_a_closed_channel_cancels_its_streams(play: Play) -> None:
    async def body(scene: Scene) -> None:
        handler = Streaming(reads=False)
        await serve(scene, {"/t/m": stream(handler.handle)})
        channel = scene.transport.open(scene.address)
        call = stream_of(channel, "/t/m")()
        await handler.began.wait()
        await channel.close()
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        await handler.ended.wait()

    play(body)


class Sessions(ControllerServiceServicer):
    """Acknowledges this many heartbeats, then refuses."""

    async def Session(  # type: ignore[override]  # noqa: N802 - written with context.write
        self, request_iterator: AsyncIterator[pb.SessionRequest], context: Any
    ) -> None:
        left = 3
        async for _ in request_iterator:
            if not left:
                leader = CurrentLeader(7, 3, "controller-1", 9093)
                raise NotLeaderError("another is active", ErrorCode.NOT_LEADER, leader)
            left -= 1
            await context.write(pb.SessionResponse(heartbeat_ack=pb.HeartbeatAck()))


def test_an_error_of_a_handler_comes_typed_and_behind_what_it_has_written(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def requests() -> AsyncIterator[pb.SessionRequest]:
            for _ in range(4):
                yield pb.SessionRequest(heartbeat=pb.Heartbeat())
            await for_ever()

        sessions = Sessions()  # type: ignore[abstract]  # other calls are unimplemented
        await serve(
            scene,
            lambda server: add_ControllerServiceServicer_to_server(sessions, server),
            [Edge(lambda: "c", lambda _method, _s: None)],
        )
        async with scene.transport.open(scene.address) as channel:
            stub: Any = ControllerServiceStub(channel)
            call = stub.Session(requests())
            for _ in range(3):
                answer = await call.read()
                assert answer.WhichOneof("message") == "heartbeat_ack"
            error = error_from_rpc(await failed(call.read()))
            assert isinstance(error, NotLeaderError)
            assert error.leader == CurrentLeader(7, 3, "controller-1", 9093)
            assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
            call.cancel()

    play(body)


def test_the_end_of_a_stream_counts_once_what_came_before_is_read(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def two(_requests: AsyncIterator[bytes], context: Any) -> None:
            await context.write(b"1")
            await context.write(b"2")
            context.set_trailing_metadata((("key", "value"),))

        await serve(scene, {"/t/m": stream(two), "/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            await round_trips(channel, 50)
            assert not call.done()
            assert await call.read() == b"1"
            await round_trips(channel, 10)
            assert not call.done()
            assert await call.read() == b"2"
            assert await call.code() is grpc.StatusCode.OK
            assert ("key", "value") in [tuple(pair) for pair in await call.trailing_metadata()]

    play(body)


def test_writing_to_a_stream_that_has_ended_fails_without_saying_why(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def refuse(_requests: AsyncIterator[bytes], context: Any) -> None:
            await context.write(b"1")
            await context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")

        await serve(scene, {"/t/m": stream(refuse), "/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            await round_trips(channel, 50)
            error = await failed(call.write(b"x"))
            assert error.code() is grpc.StatusCode.INTERNAL

    play(body)


def test_what_a_generator_yields_is_streamed_to_a_single_request(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def count(request: bytes, _context: Any) -> AsyncIterator[bytes]:
            for number in range(int(request)):
                yield str(number).encode()

        await serve(scene, {"/t/m": grpc.unary_stream_rpc_method_handler(count)})
        async with scene.transport.open(scene.address) as channel:
            method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/t/m")
            call = method(b"3")
            assert [answer async for answer in call] == [b"0", b"1", b"2"]

    play(body)


def test_at_its_deadline_a_stream_ends_on_both_sides(play: Play) -> None:
    async def body(scene: Scene) -> None:
        handler = Streaming(reads=True)
        await serve(scene, {"/t/m": stream(handler.handle)})
        async with scene.transport.open(scene.address) as channel:
            while not handler.began.is_set():  # on a busy machine it may not get that far
                call = stream_of(channel, "/t/m")(timeout=0.3)
                error = await failed(call.read())
                assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await handler.ended.wait()

    play(body)


def test_what_comes_at_a_deadline_or_later_is_not_read(play: Play) -> None:
    async def body(scene: Scene) -> None:
        ended = asyncio.Event()

        async def tick(_requests: AsyncIterator[bytes], context: Any) -> None:
            try:
                async for _ in ticks(0.001):
                    await context.write(b"x")
            finally:
                ended.set()

        await serve(scene, {"/t/m": stream(tick), "/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel:
            for timeout in (0.3, 3, 30):  # on a busy machine nothing may arrive in time
                call = stream_of(channel, "/t/m")(timeout=timeout)
                answers = aiter(call)
                with suppress(grpc.aio.AioRpcError):
                    assert await anext(answers) == b"x"
                    break
            while not call.done():
                await round_trips(channel, 1)
            await ended.wait()
            await round_trips(channel, 20)
            error = await failed(anext(answers))
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    play(body)


def test_a_refusal_by_the_edge_ends_a_stream_that_has_not_written(play: Play) -> None:
    async def body(scene: Scene) -> None:
        sessions = Sessions()  # type: ignore[abstract]  # other calls are unimplemented
        await serve(
            scene,
            lambda server: add_ControllerServiceServicer_to_server(sessions, server),
            [Edge(lambda: "c", lambda _method, _s: None)],
        )
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/penstock.proto.v1.ControllerService/Session")()
            await call.write(b"\xff")
            error = error_from_rpc(await failed(call.read()))
            assert isinstance(error, ClusterError)
            assert error.code is ErrorCode.INVALID_REQUEST

    play(body)
