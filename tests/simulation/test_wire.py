"""Cases of the simulator's network that gRPC over loopback cannot show: blocked ways, killed nodes,
histories that repeat. The common contract is in test_wire_calls.py and the modules it names.
"""

import asyncio
from asyncio import sleep
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import grpc
import pytest
from support.transport_handlers import echo, failed, for_ever, stream_of, unary_of
from support.transport_scenes import SimScene, serve, stream, unary

from penstock.errors import UnreachableError
from penstock.rpc.errors import error_from_rpc
from penstock_broker.metadata.discovery import ask_all
from penstock_sim.network import KEEPALIVE_MS
from penstock_sim.node_loop import NodeLoop
from penstock_sim.wire.transport import SimTransport

THERE, BACK = (1, 2), (2, 1)
HEARD_S = (KEEPALIVE_MS + 100) / 1000
"""By then all ends have been told of a connection that was blocked for too long."""
SEEDS = range(1, 9)


@pytest.fixture(params=SEEDS)
def scene(request: pytest.FixtureRequest) -> SimScene:
    """A world for one history."""
    return SimScene(request.param, shuffled=request.param % 2 == 0)


class Handler:
    """Echoes a stream, and records whether it was cleaned up."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.cleaned = False
        self.cancelled = False

    async def handle(self, requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            await context.send_initial_metadata(())
            self.began.set()
            async for request in requests:
                await context.write(request)
            await for_ever()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.cleaned = True


async def mixed(scene: SimScene) -> None:
    """Uses every kind of call."""
    handler = Handler()
    await serve(scene, {"/t/echo": unary(echo), "/t/m": stream(handler.handle)})
    async with scene.transport.open(scene.address) as channel:
        for _ in range(3):
            call = stream_of(channel, "/t/m")()
            for number in range(50):
                await call.write(bytes([number]))
            for number in range(50):
                assert await call.read() == bytes([number])
            calls = [unary_of(channel, "/t/echo")(b"", timeout=5) for _ in range(20)]
            for answer in calls:
                await answer
            scene.cut()
            await failed(call.read())


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_seed_is_a_history(shuffled: bool) -> None:
    histories = [SimScene(seed, shuffled=shuffled).play(mixed) for seed in (1, 2, 3)]
    assert [SimScene(seed, shuffled=shuffled).play(mixed) for seed in (1, 2, 3)] == histories
    assert len(set(histories)) == 3


def test_a_blocked_way_holds_messages_until_it_is_open_again(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        handler = Handler()
        await serve(scene, {"/t/m": stream(handler.handle)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            await handler.began.wait()
            for blocked in (THERE, BACK):
                scene.net.blocked.add(blocked)
                since = scene.scheduler.now_ms
                await call.write(b"1")
                await call.write(b"2")
                scene.scheduler.after(KEEPALIVE_MS - 60, scene.net.blocked.clear)
                assert [await call.read(), await call.read()] == [b"1", b"2"]
                assert scene.scheduler.now_ms - since >= KEEPALIVE_MS - 60
            assert not handler.cleaned

    scene.play(body)


@pytest.mark.parametrize("blocked", [THERE, BACK], ids=["requests", "answers"])
def test_a_way_that_stays_blocked_breaks_the_connection(
    scene: SimScene, blocked: tuple[int, int]
) -> None:
    async def body(scene: SimScene) -> None:
        handler = Handler()
        await serve(scene, {"/t/m": stream(handler.handle)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            await handler.began.wait()
            scene.net.blocked.add(blocked)
            await call.write(b"x")
            async with asyncio.timeout(HEARD_S):
                error = await failed(call.read())
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            await sleep(HEARD_S)
            assert handler.cancelled
            assert not scene.net.connections

    scene.play(body)


def test_an_answer_that_is_blocked_leaves_what_was_done_unknown(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        done: list[bytes] = []

        async def note(request: bytes, _context: Any) -> bytes:
            done.append(request)
            return request

        await serve(scene, {"/t/m": unary(note)})
        async with scene.transport.open(scene.address) as channel:
            await unary_of(channel, "/t/m")(b"1")
            scene.net.blocked.add(BACK)
            error = error_from_rpc(await failed(unary_of(channel, "/t/m")(b"2")))
            assert isinstance(error, UnreachableError)
            assert not error.refused
            assert done == [b"1", b"2"]

    scene.play(body)


@pytest.mark.parametrize("blocked", [THERE, BACK], ids=["there", "back"])
def test_a_connection_is_not_refused_but_missing_where_the_way_is_blocked(
    scene: SimScene, blocked: tuple[int, int]
) -> None:
    async def body(scene: SimScene) -> None:
        await serve(scene, {"/t/echo": unary(echo)})
        scene.net.blocked.add(blocked)
        async with scene.transport.open(scene.address) as channel:
            call = unary_of(channel, "/t/echo")
            error = await failed(call(b"", timeout=KEEPALIVE_MS / 2000))
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            error = await failed(call(b""))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "timed out" in str(error.details())
            scene.net.blocked.clear()
            assert await call(b"x", wait_for_ready=True) == b"x"

    scene.play(body)


def test_nothing_of_a_killed_server_runs_and_its_clients_hear_of_it(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        handler = Handler()
        await serve(scene, {"/t/m": stream(handler.handle), "/t/echo": unary(echo)})
        async with scene.transport.open(scene.address) as channel:
            call = stream_of(channel, "/t/m")()
            await handler.began.wait()
            scene.server.kill()
            error = await failed(call.read())
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            refused = error_from_rpc(await failed(unary_of(channel, "/t/echo")(b"")))
            assert isinstance(refused, UnreachableError)
            assert refused.refused
            await sleep(10)
            assert not handler.cleaned
            restart(scene)
            await serve(scene, {"/t/echo": unary(echo)})
            assert await unary_of(channel, "/t/echo")(b"x", wait_for_ready=True) == b"x"
            assert not handler.cleaned

    scene.play(body)


def test_what_is_on_its_way_to_a_killed_node_is_lost(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        done: list[bytes] = []

        async def note(request: bytes, _context: Any) -> bytes:
            done.append(request)
            return request

        await serve(scene, {"/t/m": unary(note)})
        async with scene.transport.open(scene.address) as channel:
            assert await unary_of(channel, "/t/m")(b"1") == b"1"
            tasks = len(asyncio.all_tasks(scene.server))
            calls = [unary_of(channel, "/t/m")(b"2") for _ in range(10)]
            await sleep(0)
            scene.server.kill()
            for call in calls:
                assert (await failed(call)).code() is grpc.StatusCode.UNAVAILABLE
            assert done == [b"1"]
            assert len(asyncio.all_tasks(scene.server)) == tasks

    scene.play(body)


def test_a_channel_that_has_failed_fails_calls_at_once(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        async with scene.transport.open(scene.address) as channel:
            await failed(unary_of(channel, "/t/m")(b""))
            since = scene.scheduler.now_us
            await failed(unary_of(channel, "/t/m")(b""))
            assert scene.scheduler.now_us - since < 30_000, "the next attempt comes after 40 ms"

    scene.play(body)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_waits_in_a_handler_ends_before_the_handler_is_cancelled(seed: int) -> None:
    """As in gRPC: requests end as if half-closed, writes fail, then the task is cancelled."""

    async def body(scene: SimScene) -> None:
        saw: list[str] = []
        ended = [asyncio.Event(), asyncio.Event()]

        async def reader(requests: AsyncIterator[bytes], context: Any) -> None:
            await context.send_initial_metadata(())
            try:
                async for _ in requests:
                    pass
                saw.append("end of requests")
                with pytest.raises(grpc.aio.InternalError):
                    await context.write(b"late")
                saw.append("a late write failed")
                await for_ever()
            except asyncio.CancelledError:
                saw.append("reader cancelled")
                assert [request async for request in requests] == []
                raise
            finally:
                ended[0].set()

        async def writer(_requests: AsyncIterator[bytes], context: Any) -> None:
            await context.send_initial_metadata(())
            try:
                while True:
                    await context.write(bytes(1_000_000))
            except grpc.aio.InternalError:
                saw.append("a write failed")
                raise
            finally:
                ended[1].set()

        await serve(scene, {"/t/r": stream(reader), "/t/w": stream(writer)})
        async with scene.transport.open(scene.address) as channel:
            for number, method in enumerate(("/t/r", "/t/w")):
                call = stream_of(channel, method)()
                await call.initial_metadata()
                await sleep(1)
                call.cancel()
                await ended[number].wait()
        late = "a late write failed"
        assert saw == ["end of requests", late, "reader cancelled", "a write failed"]

    SimScene(seed).play(body)


def restart(scene: SimScene) -> None:
    """Starts the server's next run."""
    scene.server = NodeLoop.of(scene.scheduler, "server again")
    scene.servers = SimTransport(scene.net, 2, scene.server)


def test_a_killed_client_is_gone_for_its_servers_and_says_no_more(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        handler = Handler()
        cleaned: list[str] = []
        await serve(scene, {"/t/m": stream(handler.handle)})
        third = NodeLoop.of(scene.scheduler, "third")
        transport = SimTransport(scene.net, 3, third)

        async def client() -> None:
            try:
                async with transport.open(scene.address) as channel:
                    await stream_of(channel, "/t/m")().read()
            finally:
                cleaned.append("client")

        third.start(client())
        await handler.began.wait()
        assert len(scene.net.connections) == 1
        third.kill()
        await sleep(0.1)
        assert handler.cancelled
        assert not cleaned
        assert not scene.net.connections

    scene.play(body)


def test_a_node_calls_itself_like_any_other(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        handler = Handler()
        await serve(scene, {"/t/m": stream(handler.handle)})

        async def call(transport: Any) -> bytes:
            async with transport.open(scene.address) as channel:
                call = stream_of(channel, "/t/m")()
                await call.write(b"x")
                answer = await call.read()
                assert isinstance(answer, bytes)
                return answer

        assert await scene.there(call) == b"x"

    scene.play(body)


def test_ports_are_given_out_once(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        servers = [scene.transport.server([]) for _ in range(3)]
        ports = {server.add_insecure_port("broker-1:0") for server in servers}
        assert len(ports) == 3
        assert 0 not in ports

    scene.play(body)


def test_controllers_behind_one_name_are_found_as_they_answer(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        await serve(scene, {"/t/echo": unary(echo)})
        scene.net.names["controllers"] = ["broker-2", "nowhere"]
        tried: list[str] = []
        noted: list[str] = []

        async def attempt(address: str) -> bool:
            tried.append(address)
            return False

        def note(where: str, error: Exception) -> None:
            noted.append(f"{where}: {error}")

        controllers = ["controllers:9092", "unknown:9092"]
        scene.net.names["unknown"] = []
        assert not await ask_all(scene.transport, controllers, attempt, note, Random(1))
        assert sorted(tried) == ["broker-2:9092", "nowhere:9092"]
        assert len(noted) == 1
        assert "unknown" in noted[0]

    scene.play(body)
