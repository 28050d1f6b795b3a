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
from penstock.rpc.streams.contract import Clients, Handle, MessageStream
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
    """The server notices an end in its own time: ask until it has."""
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
                        lambda transport: transport.stream_server(
                            double, streams_max=1, clients=Clients.USERS
                        ).listen(scene.address)
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


# ---------------------------------------------------------------- post, hold, release


async def a_while(scene: Scene) -> None:
    """Messages go to and fro on a stream of their own: others have arrived by then."""
    stream = await scene.transport.open_stream(scene.address)
    await stream.send(b"echo")
    for _ in range(300):
        await stream.send(b"x")
        assert await stream.receive() == b"xx"
    await stream.close()


def or_echo(handle: Callable[[MessageStream], Awaitable[None]]) -> Handle:
    """Serves `a_while` too; other streams begin with any other message."""

    async def either(stream: MessageStream) -> None:
        await (double if await stream.receive() == b"echo" else handle)(stream)

    return either


def test_while_a_stream_is_held_its_sender_waits_and_later_the_order_is_the_same(
    play: Play,
) -> None:
    async def body(scene: Scene) -> None:
        sent = 0

        async def flood(stream: MessageStream) -> None:
            nonlocal sent
            for number in range(100):
                await stream.send(bytes([number]) * LARGE)
                sent += 1

        async with streams(scene, or_echo(flood)), asyncio.TaskGroup() as tasks:
            stream = await scene.transport.open_stream(scene.address)
            seen: list[Received] = []
            stream.hold()
            delivering = tasks.create_task(stream.deliver(seen.append))
            await stream.send(b"flood")
            await a_while(scene)
            assert seen == []
            assert 0 < sent < 90, "20 MB were taken that nobody has read"
            stream.release()
            await delivering
            assert seen == [bytes([number]) * LARGE for number in range(100)]
            await stream.close()

    play(body)


def test_a_delivery_can_hold_the_stream_and_gets_nothing_more_until_the_release(
    play: Play,
) -> None:
    async def body(scene: Scene) -> None:
        async def count(stream: MessageStream) -> None:
            for number in range(MANY):
                await stream.send(bytes([number]))

        async with streams(scene, or_echo(count)), asyncio.TaskGroup() as tasks:
            stream = await scene.transport.open_stream(scene.address)
            seen: list[Received] = []
            held = asyncio.Event()

            def take(message: Received) -> None:
                seen.append(message)
                if len(seen) % 8 == 0:
                    stream.hold()
                    held.set()

            delivering = tasks.create_task(stream.deliver(take))
            await stream.send(b"count")
            for number in range(8, MANY + 1, 8):
                await held.wait()
                held.clear()
                await a_while(scene)
                assert len(seen) == number
                stream.release()
                stream.release()
                assert len(seen) == number, "it is delivered in a later turn"
            await delivering
            assert seen == [bytes([number]) for number in range(MANY)]
            await stream.close()

    play(body)


def test_who_ends_a_held_stream_has_everything_delivered_after_the_release(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async def count(stream: MessageStream) -> None:
            for number in range(MANY):
                await stream.send(bytes([number]))

        async with streams(scene, or_echo(count)), asyncio.TaskGroup() as tasks:
            stream = await scene.transport.open_stream(scene.address)
            seen: list[Received] = []
            stream.hold()
            delivering = tasks.create_task(stream.deliver(seen.append))
            await stream.send(b"count")
            await a_while(scene)
            assert not stream.post(b"late"), "the end has arrived"
            assert (seen, delivering.done()) == ([], False)
            stream.release()
            await delivering
            assert seen == [bytes([number]) for number in range(MANY)]
            await stream.close()

    play(body)


@pytest.mark.parametrize("cut", [False, True], ids=["refused", "cut"])
def test_an_error_is_raised_though_the_stream_is_held(play: Play, cut: bool) -> None:
    async def body(scene: Scene) -> None:
        async def refuse(stream: MessageStream) -> None:
            await stream.send(b"last words")
            if cut:
                await stream.receive()
            raise NotLeaderError("broker 7 leads", ErrorCode.NOT_LEADER)

        async with streams(scene, or_echo(refuse)), asyncio.TaskGroup() as tasks:
            stream = await scene.transport.open_stream(scene.address)
            seen: list[Received] = []
            stream.hold()
            await stream.send(b"refuse")
            await a_while(scene)
            delivering = tasks.create_task(error_of(stream.deliver(seen.append)))
            if cut:
                scene.cut()
            expected = ErrorCode.UNREACHABLE if cut else ErrorCode.NOT_LEADER
            assert (await delivering).code is expected
            stream.release()
            assert not stream.post(b"late")
            assert seen == []
            await stream.close()

    play(body)


def test_posting_is_refused_while_much_is_unsent_and_when_the_stream_is_over(play: Play) -> None:
    async def body(scene: Scene) -> None:
        go_on = asyncio.Event()

        async def slow(stream: MessageStream) -> None:
            if await stream.receive() == b"go on":
                go_on.set()
                return
            await go_on.wait()
            while (message := await stream.receive()) is not None:
                await stream.send(bytes(message[:1]))

        async with streams(scene, slow):
            stream = await scene.transport.open_stream(scene.address)
            await stream.send(b"be slow")
            count = 0
            while stream.post(bytes([count]) * LARGE):
                count += 1
                assert count < 100, "20 MB are unsent"
            assert count > 0
            other = await scene.transport.open_stream(scene.address)
            await other.send(b"go on")
            for number in range(count):
                assert await stream.receive() == bytes([number]), "what was refused is not sent"
            assert stream.post(b"!")
            assert await stream.receive() == b"!"
            await other.receive()
            assert not other.post(b"the other side has ended it")
            await stream.close()
            assert not stream.post(b"closed here")
            await other.close()

    play(body)
