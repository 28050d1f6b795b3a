"""The contract of a transport: message streams (`penstock.rpc.streams`), on TCP and on the
simulator's network. What only TCP has, such as garbage, is in tests/penstock/rpc.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.transport_scenes import TRANSPORTS, Play, Scene, streams

from penstock.errors import (
    ClusterError,
    ErrorCode,
    NotLeaderError,
    OverloadedError,
    PenstockError,
    UnreachableError,
)
from penstock.rpc.streams.contract import MessageStream
from penstock.rpc.streams.frames import Received

MANY = 40
LARGE = 200_000
"""Bytes; a hundred of these are more than any carrier takes unread."""


@pytest.fixture(params=list(TRANSPORTS))
def play(request: pytest.FixtureRequest) -> Play:
    """Plays a test's body on one transport."""
    return TRANSPORTS[request.param]


async def error_of(waited: Awaitable[object]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await waited
    return caught.value


async def double(stream: MessageStream) -> None:
    """Answers each message."""
    while (message := await stream.receive()) is not None:
        await stream.send(bytes(message * 2))


def test_messages_arrive_in_order_in_both_directions(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async with streams(scene, double):
            stream = await scene.transport.open_stream(scene.address)
            for number in range(300):
                await stream.send(bytes([number % 251]))
            for number in range(300):
                assert await stream.receive() == bytes([number % 251]) * 2
            await stream.send(b"")
            assert await stream.receive() == b""
            await stream.close()

    play(body)


def test_delivered_messages_come_in_order_those_that_waited_first(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def count(stream: MessageStream) -> None:
            for number in range(MANY):
                await stream.send(bytes([number]))
            assert await stream.receive() == b"go on"
            for number in range(MANY, 2 * MANY):
                await stream.send(bytes([number]))

        async with streams(scene, count):
            stream = await scene.transport.open_stream(scene.address)
            seen: list[Received | None] = [await stream.receive()]
            await stream.send(b"go on")
            await stream.deliver(seen.append)
            assert seen == [bytes([number]) for number in range(2 * MANY)]
            assert await stream.receive() is None, "the other side ended it in an orderly way"
            assert (await error_of(stream.send(b"late"))).code is ErrorCode.UNREACHABLE
            await stream.close()

    play(body)


def test_an_error_that_ends_a_stream_reaches_the_other_side(play: Play) -> None:
    async def body(scene: Scene) -> None:
        refusal = NotLeaderError("broker 7 leads", ErrorCode.NOT_LEADER)

        async def refuse(stream: MessageStream) -> None:
            assert await stream.receive() == b"hello"
            await stream.send(b"last words")
            raise refusal

        async with streams(scene, refuse):
            stream = await scene.transport.open_stream(scene.address)
            await stream.send(b"hello")
            assert await stream.receive() == b"last words"
            for _ in range(2):
                error = await error_of(stream.receive())
                assert (type(error), str(error)) == (NotLeaderError, str(refusal))
            assert await error_of(stream.deliver(lambda _: None)) is error
            assert await error_of(stream.send(b"late")) is error
            await stream.close()

    play(body)


def test_what_a_delivery_raises_ends_the_stream_on_both_sides(play: Play) -> None:
    async def body(scene: Scene) -> None:
        ended: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()

        async def push(stream: MessageStream) -> None:
            for _ in range(3):
                await stream.send(b"batch")
            ended.set_result(await error_of(stream.receive()))

        async with streams(scene, push):
            stream = await scene.transport.open_stream(scene.address)
            wrong = ClusterError("the CRC is wrong", ErrorCode.DATA_CORRUPTED)
            seen: list[Received] = []

            def take(message: Received) -> None:
                seen.append(message)
                raise wrong

            assert await error_of(stream.deliver(take)) is wrong
            await stream.close(wrong)
            assert seen == [b"batch"], "nothing is delivered after it"
            error = await ended
            assert (error.code, str(error)) == (ErrorCode.DATA_CORRUPTED, str(wrong))

    play(body)


def test_who_sends_waits_for_a_slow_reader(play: Play) -> None:
    async def body(scene: Scene) -> None:
        sent = 0

        async def flood(stream: MessageStream) -> None:
            nonlocal sent
            if await stream.receive() == b"echo":
                await double(stream)
                return
            for number in range(100):
                await stream.send(bytes([number]) * LARGE)
                sent += 1

        async with streams(scene, flood):
            stream = await scene.transport.open_stream(scene.address)
            await stream.send(b"flood")
            other = await scene.transport.open_stream(scene.address)
            await other.send(b"echo")
            for _ in range(300):  # by then it has sent what it can
                await other.send(b"x")
                assert await other.receive() == b"xx"
            await other.close()
            assert 0 < sent < 90, "20 MB were taken that nobody has read"
            for number in range(100):
                assert await stream.receive() == bytes([number]) * LARGE
            assert await stream.receive() is None
            await stream.close()

    play(body)


def test_a_sender_that_waits_hears_that_the_stream_is_over(play: Play) -> None:
    async def body(scene: Scene) -> None:
        ended: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()

        async def flood(stream: MessageStream) -> None:
            async def all_of_it() -> None:
                for _ in range(200):
                    await stream.send(bytes(LARGE))

            ended.set_result(await error_of(all_of_it()))

        async with streams(scene, flood):
            stream = await scene.transport.open_stream(scene.address)
            assert len(await stream.receive() or b"") == LARGE
            await stream.close(ClusterError("enough", ErrorCode.SHUTTING_DOWN))
            error = await ended
            assert error.code in (ErrorCode.SHUTTING_DOWN, ErrorCode.UNREACHABLE)

    play(body)


@pytest.mark.parametrize("delivered", [False, True])
def test_a_cut_connection_ends_both_ends(play: Play, delivered: bool) -> None:
    async def body(scene: Scene) -> None:
        ended: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()

        async def wait(stream: MessageStream) -> None:
            await stream.send(b"here")
            ended.set_result(await error_of(stream.receive()))

        async with streams(scene, wait):
            stream = await scene.transport.open_stream(scene.address)
            assert await stream.receive() == b"here"
            scene.cut()
            waiting = stream.deliver(lambda _: None) if delivered else stream.receive()
            for error in (await error_of(waiting), await ended):
                assert error.code is ErrorCode.UNREACHABLE
            await stream.close()

    play(body)


def test_where_nothing_listens_the_caller_hears_it(play: Play) -> None:
    async def body(scene: Scene) -> None:
        error = await error_of(scene.transport.open_stream(scene.address))
        assert isinstance(error, UnreachableError)
        assert error.refused
        assert scene.address in str(error)

    play(body)


def test_a_server_that_stops_says_so_and_gives_its_address_up(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async with streams(scene, double):
            stream = await scene.transport.open_stream(scene.address)
            await stream.send(b"x")
            assert await stream.receive() == b"xx"
        assert (await error_of(stream.receive())).code is ErrorCode.SHUTTING_DOWN
        await stream.close()
        assert isinstance(
            await error_of(scene.transport.open_stream(scene.address)), UnreachableError
        )
        async with streams(scene, double):
            again = await scene.transport.open_stream(scene.address)
            await again.send(b"y")
            assert await again.receive() == b"yy"
            await again.close()

    play(body)


def test_streams_above_the_limit_are_refused_until_one_ends(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async with streams(scene, double, streams_max=2):
            held = [await scene.transport.open_stream(scene.address) for _ in range(2)]
            for stream in held:
                await stream.send(b"x")
                assert await stream.receive() == b"xx"
            over = await scene.transport.open_stream(scene.address)
            assert (await error_of(over.receive())).code is ErrorCode.OVERLOADED
            await over.close()
            await held[0].close()
            await served_again(scene)
            await held[1].close()

    play(body)


async def served_again(scene: Scene) -> None:
    """The server hears of an end in its own time: ask until it has."""
    for _ in range(100):
        stream = await scene.transport.open_stream(scene.address)
        try:
            await stream.send(b"y")
            assert await stream.receive() == b"yy"
        except OverloadedError:
            continue
        else:
            return
        finally:
            await stream.close()
    raise AssertionError("a place that is free is not given")


def test_an_address_is_listened_on_once(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async with streams(scene, double):

            async def again() -> None:
                with pytest.raises(OSError, match="in use"):
                    await scene.there(
                        lambda transport: transport.stream_server(double, streams_max=1).listen(
                            scene.address
                        )
                    )

            await again()

    play(body)


def test_a_task_that_is_cancelled_while_it_waits_leaves_the_stream_usable(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async with streams(scene, double):
            stream = await scene.transport.open_stream(scene.address)

            async def give_up(wait: Callable[[], Awaitable[object]]) -> None:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await wait()

            await give_up(stream.receive)
            await give_up(lambda: stream.deliver(lambda _: None))
            await stream.send(b"x")
            assert await stream.receive() == b"xx"
            await stream.close()

    play(body)
