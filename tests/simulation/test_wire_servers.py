"""The contract of a transport: servers and connections. See test_wire_calls.py."""

import asyncio
from typing import Any

import grpc
import pytest
from support.transport_handlers import Hanging, echo, failed, unary_of
from support.transport_scenes import TRANSPORTS, Play, Scene, serve, unary

from penstock.errors import UnreachableError
from penstock.rpc.errors import error_from_rpc

State = grpc.ChannelConnectivity


@pytest.fixture(params=list(TRANSPORTS))
def play(request: pytest.FixtureRequest) -> Play:
    """Plays a test's body on one transport."""
    return TRANSPORTS[request.param]


async def serves_again(channel: grpc.aio.Channel) -> None:
    """A call that still uses the old connection fails like others."""
    code = grpc.StatusCode.UNAVAILABLE
    while code is grpc.StatusCode.UNAVAILABLE:
        code = await unary_of(channel, "/t/echo")(b"x", wait_for_ready=True).code()
    assert code is grpc.StatusCode.OK


def test_where_nothing_listens_calls_are_refused_until_something_does(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async with scene.transport.open(scene.address) as channel:
            for _ in range(2):
                refused = error_from_rpc(await failed(unary_of(channel, "/t/echo")(b"")))
                assert isinstance(refused, UnreachableError)
                assert refused.refused
                assert channel.get_state() is State.TRANSIENT_FAILURE
            await serve(scene, {"/t/echo": unary(echo)})
            await channel.wait_for_state_change(State.TRANSIENT_FAILURE)
            assert await unary_of(channel, "/t/echo")(b"x", wait_for_ready=True) == b"x"

    play(body)


def test_a_channel_connects_when_it_is_asked_to(play: Play) -> None:
    async def body(scene: Scene) -> None:
        await serve(scene, {})
        async with scene.transport.open(scene.address) as channel:
            assert channel.get_state() is State.IDLE
            states = []
            while (state := channel.get_state(try_to_connect=True)) is not State.READY:
                states.append(state)
                await channel.wait_for_state_change(state)
            assert states
            assert State.TRANSIENT_FAILURE not in states
            await channel.channel_ready()

    play(body)


def test_a_call_that_waits_for_ready_outlasts_refusals(play: Play) -> None:
    async def body(scene: Scene) -> None:
        async with scene.transport.open(scene.address) as channel:
            patient = unary_of(channel, "/t/echo")(b"x", wait_for_ready=True)
            await failed(unary_of(channel, "/t/echo")(b""))
            await serve(scene, {"/t/echo": unary(echo)})
            assert await patient == b"x"

    play(body)


def test_a_server_that_stops_ends_its_calls_and_is_gone(play: Play) -> None:
    async def body(scene: Scene) -> None:
        hanging = Hanging()
        server = await serve(scene, {"/t/m": unary(hanging.handle), "/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel:
            call = unary_of(channel, "/t/m")(b"")
            await hanging.began.wait()
            await scene.there(lambda _: server.stop(None))
            assert (await failed(call)).code() is grpc.StatusCode.UNAVAILABLE
            await hanging.ended.wait()
            assert hanging.cancelled
            error = await failed(unary_of(channel, "/t/echo")(b""))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            await scene.there(lambda _: server.stop(None))
            await serve(scene, {"/t/echo": unary(echo)})
            await serves_again(channel)

    play(body)


def test_calls_that_run_may_end_within_the_grace_and_no_more_begin(play: Play) -> None:
    async def body(scene: Scene) -> None:
        began, go_on = asyncio.Event(), asyncio.Event()

        async def slow(request: bytes, _context: Any) -> bytes:
            began.set()
            await go_on.wait()
            return request

        server = await serve(scene, {"/t/slow": unary(slow), "/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel:
            call = unary_of(channel, "/t/slow")(b"x")
            await began.wait()
            loop = asyncio.get_running_loop()
            since = loop.time()
            async with asyncio.TaskGroup() as tasks:
                stopping = tasks.create_task(scene.there(lambda _: server.stop(30)))
                await channel.wait_for_state_change(State.READY)
                error = await failed(unary_of(channel, "/t/echo")(b""))
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                assert not stopping.done()
                go_on.set()
                assert await call == b"x"
            assert loop.time() - since < 30

    play(body)


def test_calls_that_outlast_the_grace_are_ended(play: Play) -> None:
    async def body(scene: Scene) -> None:
        hanging = Hanging()
        server = await serve(scene, {"/t/m": unary(hanging.handle)})
        async with scene.transport.open(scene.address) as channel:
            call = unary_of(channel, "/t/m")(b"")
            await hanging.began.wait()
            await scene.there(lambda _: server.stop(0.2))
            assert (await failed(call)).code() is grpc.StatusCode.UNAVAILABLE
            await hanging.ended.wait()
            assert hanging.cancelled

    play(body)


def test_an_address_is_bound_once(play: Play) -> None:
    async def body(scene: Scene) -> None:
        await serve(scene, {})
        with pytest.raises(RuntimeError):
            await serve(scene, {})

    play(body)


def test_when_the_connection_breaks_the_outcome_of_a_call_is_unknown(play: Play) -> None:
    async def body(scene: Scene) -> None:
        hanging = Hanging()
        await serve(scene, {"/t/m": unary(hanging.handle), "/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel:
            call = unary_of(channel, "/t/m")(b"")
            await hanging.began.wait()
            scene.cut()
            error = await failed(call)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            seen = error_from_rpc(error)
            assert isinstance(seen, UnreachableError)
            assert not seen.refused
            await hanging.ended.wait()
            assert hanging.cancelled
            await serves_again(channel)

    play(body)


def test_a_name_is_resolved_to_addresses_that_can_be_opened(play: Play) -> None:
    async def body(scene: Scene) -> None:
        await serve(scene, {"/t/echo": unary(echo)})
        host, _, port = scene.address.rpartition(":")
        (address,) = set(await scene.transport.resolve(host, int(port)))
        async with scene.transport.open(address) as channel:
            assert await unary_of(channel, "/t/echo")(b"x") == b"x"

    play(body)
