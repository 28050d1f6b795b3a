"""A client and a server of one transport: gRPC on loopback, with or without TLS, or the simulator's
network.

A test of the contract is a coroutine that takes a `Scene`. It runs on the client's loop and gives
its handlers to the server. On the simulator these are two nodes with a loop each, so that what
test and handler tell each other by events must be awaited by one of them only.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
from support.certificates import write

from penstock.rpc.streams.contract import Clients, Handle
from penstock.rpc.tls import Tls
from penstock.rpc.transport import GrpcTransport, Transport
from penstock_broker.certificates.authority import Authority, Subject
from penstock_broker.local.ports import ReservedPort
from penstock_sim.network import Network
from penstock_sim.node_loop import NodeLoop
from penstock_sim.scheduler import Scheduler
from penstock_sim.wire.transport import SimTransport

_A = TypeVar("_A")
_LIMIT_S = 60.0


class Scene(Protocol):
    """What a test has. Servers end with it."""

    transport: Transport
    """The client's."""
    address: str
    """Where a server can listen, and clients connect to."""

    async def there(self, act: Callable[[Transport], Awaitable[_A]]) -> _A:
        """Awaits what `act` gives, on the server's side, with the server's transport."""
        ...

    def cut(self) -> None:
        """All connections break, as if the other side's process were killed."""
        ...


Body: TypeAlias = Callable[[Scene], Coroutine[Any, Any, None]]
Play: TypeAlias = Callable[[Body], None]


class Methods(grpc.GenericRpcHandler):
    """Handlers by method, for messages that are bytes."""

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)


def unary(behavior: Any) -> Any:
    """A handler of one request, one answer."""
    return grpc.unary_unary_rpc_method_handler(behavior)


def stream(behavior: Any) -> Any:
    """A handler of requests and answers."""
    return grpc.stream_stream_rpc_method_handler(behavior)


async def serve(
    scene: Scene,
    register: Callable[[grpc.aio.Server], object] | Mapping[str, Any],
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    *,
    rpcs_max: int | None = None,
) -> grpc.aio.Server:
    """Starts a server at the scene's address: with what `register` adds, or with these handlers."""

    async def start(transport: Transport) -> grpc.aio.Server:
        server = transport.server(interceptors, rpcs_max=rpcs_max)
        if callable(register):
            register(server)
        else:
            server.add_generic_rpc_handlers((Methods(register),))
        transport.bind(server, scene.address, Clients.CERTIFIED)
        await server.start()
        return server

    return await scene.there(start)


@asynccontextmanager
async def streams(scene: Scene, handle: Handle, *, streams_max: int = 100) -> AsyncIterator[None]:
    """A stream server at the scene's address runs during the block."""
    running: list[asyncio.Task[None]] = []

    async def start(transport: Transport) -> None:
        server = transport.stream_server(handle, streams_max=streams_max, clients=Clients.CERTIFIED)
        await server.listen(scene.address)
        running.append(asyncio.get_running_loop().create_task(server.run()))

    async def stop(_transport: Transport) -> None:
        running[0].cancel()
        await asyncio.wait(running)

    await scene.there(start)
    try:
        yield
    finally:
        await scene.there(stop)


# ------------------------------------------------------------ gRPC on loopback


class _GrpcScene:
    """Both sides on one loop."""

    def __init__(self, port: int, tls: Tls | None) -> None:
        self.transport: Transport = GrpcTransport(tls)
        self.address = f"127.0.0.1:{port}"
        self._port = port

    async def there(self, act: Callable[[Transport], Awaitable[_A]]) -> _A:
        return await act(self.transport)

    def cut(self) -> None:
        """Shuts the sockets down below gRPC: both ends find them closed."""
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if entry.is_socket():
                    self._shut(os.dup(int(entry.name)))

    def _shut(self, descriptor: int) -> None:
        with socket.socket(fileno=descriptor) as found:
            if found.family != socket.AF_UNIX:
                ports = {found.getsockname()[1], found.getpeername()[1]}
                if self._port in ports:
                    found.shutdown(socket.SHUT_RDWR)


class _Recorded:
    """A transport whose servers are known, so that a scene can end them."""

    def __init__(self, inner: Transport) -> None:
        self.tls, self.plaintext = inner.tls, inner.plaintext
        self.open = inner.open
        self.bind = inner.bind
        self.resolve = inner.resolve
        self.open_stream = inner.open_stream
        self.stream_server = inner.stream_server
        self._inner = inner
        self.servers: list[grpc.aio.Server] = []

    def server(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        *,
        rpcs_max: int | None = None,
        metadata_bytes_max: int | None = None,
    ) -> grpc.aio.Server:
        server = self._inner.server(
            interceptors, rpcs_max=rpcs_max, metadata_bytes_max=metadata_bytes_max
        )
        self.servers.append(server)
        return self.servers[-1]


def on_grpc(body: Body, tls: Tls | None = None) -> None:
    """Plays it over loopback."""

    async def main() -> None:
        scene = _GrpcScene(reserved.port, tls)
        recorded = _Recorded(scene.transport)
        scene.transport = recorded
        try:
            async with asyncio.timeout(_LIMIT_S):
                await body(scene)
        finally:
            for server in recorded.servers:
                await server.stop(None)

    with closing(ReservedPort()) as reserved:
        asyncio.run(main())


def on_tls(body: Body) -> None:
    """Plays it over loopback with TLS; both sides have one certificate."""
    with TemporaryDirectory() as path:
        authority = Authority.new("CA of the scene")
        pair = authority.issue(Subject(common_name="scene", uri="uri:scene", hosts=["127.0.0.1"]))
        on_grpc(body, Tls(write(Path(path), authority, pair)))


# ------------------------------------------------------------ the simulator


class SimScene:
    """Client and server are nodes 1 and 2 of a world with nothing else in it."""

    address = "broker-2:9092"

    def __init__(self, seed: int, *, shuffled: bool = False) -> None:
        self.scheduler = Scheduler(seed)
        self.net = Network(self.scheduler)
        self.client = NodeLoop.of(self.scheduler, "client", shuffled=shuffled)
        self.server = NodeLoop.of(self.scheduler, "server", shuffled=shuffled)
        self.transport: Transport = SimTransport(self.net, 1, self.client)
        self.servers: Transport = SimTransport(self.net, 2, self.server)

    async def there(self, act: Callable[[Transport], Awaitable[_A]]) -> _A:
        async def run() -> _A:
            return await act(self.servers)

        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task: asyncio.Task[_A] = self.server.start(run())
        task.add_done_callback(lambda _: ended.set_result(None))
        await ended
        return task.result()

    def cut(self) -> None:
        for connection in list(self.net.connections.values()):
            connection.break_off()

    def play(self, body: Callable[["SimScene"], Coroutine[Any, Any, None]]) -> int:
        """Runs the body to its end; the fingerprint of the history."""
        task = self.client.start(body(self))
        try:
            self.scheduler.run_until(_LIMIT_S * 1000)
        finally:
            for loop in (self.client, self.server):
                loop.kill()
        assert task.done(), "the body waits for ever"
        task.result()
        return self.scheduler.fingerprint


def on_wire(seed: int, *, shuffled: bool = False) -> Play:
    """Plays it on the simulated network, as one history."""

    def play(body: Body) -> None:
        SimScene(seed, shuffled=shuffled).play(body)

    return play


TRANSPORTS: dict[str, Play] = {
    "grpc": on_grpc,
    "tls": on_tls,
    **{f"wire-{seed}": on_wire(seed) for seed in range(1, 7)},
    **{f"wire-shuffled-{seed}": on_wire(seed, shuffled=True) for seed in range(7, 13)},
}
