"""Message streams on the simulator's network when ways are blocked and nodes are killed. The common
contract is in test_wire_messages.py.
"""

import asyncio
from asyncio import sleep

import pytest
from support.transport_scenes import SimScene, streams

from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError
from penstock.rpc.streams.contract import Clients, MessageStream
from penstock.rpc.transport import Transport
from penstock_sim.network import KEEPALIVE_MS
from penstock_sim.node_loop import NodeLoop
from penstock_sim.wire.transport import SimTransport

THERE, BACK = (1, 2), (2, 1)
HEARD_S = (KEEPALIVE_MS + 100) / 1000


@pytest.fixture(params=range(1, 9))
def scene(request: pytest.FixtureRequest) -> SimScene:
    """A world for one history."""
    return SimScene(request.param, shuffled=request.param % 2 == 0)


class Server:
    """Echoes, and remembers how a stream ended."""

    def __init__(self) -> None:
        self.cleaned = False
        self.error: PenstockError | None = None

    async def echo(self, stream: MessageStream) -> None:
        try:
            while (message := await stream.receive()) is not None:
                await stream.send(bytes(message))
        except PenstockError as error:
            self.error = error
            raise
        finally:
            self.cleaned = True


async def opened(scene: SimScene) -> MessageStream:
    stream = await scene.transport.open_stream(scene.address)
    await stream.send(b"x")
    assert await stream.receive() == b"x"
    return stream


async def mixed(scene: SimScene) -> None:
    """Uses all of it."""
    async with streams(scene, Server().echo):
        for _ in range(3):
            stream = await opened(scene)
            for number in range(50):
                await stream.send(bytes([number]))
            seen = [await stream.receive() for _ in range(50)]
            assert seen == [bytes([number]) for number in range(50)]
            await stream.close(ClusterError("enough", ErrorCode.INTERNAL))


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_seed_is_a_history(shuffled: bool) -> None:
    histories = [SimScene(seed, shuffled=shuffled).play(mixed) for seed in (1, 2, 3)]
    assert [SimScene(seed, shuffled=shuffled).play(mixed) for seed in (1, 2, 3)] == histories
    assert len(set(histories)) == 3


def test_a_blocked_way_holds_messages_until_it_is_open_again(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        async with streams(scene, Server().echo):
            stream = await opened(scene)
            for blocked in (THERE, BACK):
                scene.net.blocked.add(blocked)
                since = scene.scheduler.now_ms
                await stream.send(b"1")
                await stream.send(b"2")
                scene.scheduler.after(KEEPALIVE_MS - 60, scene.net.blocked.clear)
                assert [await stream.receive(), await stream.receive()] == [b"1", b"2"]
                assert scene.scheduler.now_ms - since >= KEEPALIVE_MS - 60
            await stream.close()

    scene.play(body)


@pytest.mark.parametrize("blocked", [THERE, BACK], ids=["there", "back"])
def test_a_way_that_stays_blocked_breaks_the_stream_at_both_ends(
    scene: SimScene, blocked: tuple[int, int]
) -> None:
    async def body(scene: SimScene) -> None:
        server = Server()
        async with streams(scene, server.echo):
            stream = await opened(scene)
            scene.net.blocked.add(blocked)
            await stream.send(b"y")
            with pytest.raises(UnreachableError):
                async with asyncio.timeout(HEARD_S):
                    await stream.receive()
            await sleep(HEARD_S)
            assert isinstance(server.error, UnreachableError)
            assert not scene.net.connections
            await stream.close()

    scene.play(body)


@pytest.mark.parametrize("blocked", [THERE, BACK], ids=["there", "back"])
def test_no_stream_opens_where_the_way_is_blocked(
    scene: SimScene, blocked: tuple[int, int]
) -> None:
    async def body(scene: SimScene) -> None:
        async with streams(scene, Server().echo):
            scene.net.blocked.add(blocked)
            with pytest.raises(UnreachableError, match="timed out") as failed:
                await scene.transport.open_stream(scene.address)
            assert not failed.value.refused
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(KEEPALIVE_MS / 2000):
                    await scene.transport.open_stream(scene.address)
            scene.net.blocked.clear()
            await (await opened(scene)).close()

    scene.play(body)


def test_nothing_of_a_killed_server_runs_and_its_followers_are_told(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        server = Server()
        killed = scene.server

        async def start(transport: Transport) -> None:
            served = transport.stream_server(server.echo, streams_max=10, clients=Clients.USERS)
            await served.listen(scene.address)
            killed.start(served.run())

        await scene.there(start)
        stream = await opened(scene)
        scene.server.kill()
        with pytest.raises(UnreachableError):
            await stream.receive()
        with pytest.raises(UnreachableError) as failed:
            await scene.transport.open_stream(scene.address)
        assert failed.value.refused
        await sleep(1)
        assert not server.cleaned
        scene.server = NodeLoop.of(scene.scheduler, "server again")
        scene.servers = SimTransport(scene.net, 2, scene.server)
        async with streams(scene, Server().echo):
            await (await opened(scene)).close()
        await stream.close()
        buried.append(killed)

    buried: list[NodeLoop] = []
    scene.play(body)
    buried[0].bury()


def test_a_killed_client_is_gone_for_its_server(scene: SimScene) -> None:
    async def body(scene: SimScene) -> None:
        server = Server()
        async with streams(scene, server.echo):
            third = NodeLoop.of(scene.scheduler, "third")
            transport = SimTransport(scene.net, 3, third)

            async def client() -> None:
                await (await transport.open_stream(scene.address)).send(b"x")

            third.start(client())
            await sleep(0.2)
            third.kill()
            await sleep(0.1)
            assert isinstance(server.error, UnreachableError)
            assert not scene.net.connections

    scene.play(body)
