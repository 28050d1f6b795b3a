"""How many connections a port has, and for how long one that says nothing is waited for."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.channels import patient_aio_channel
from support.secure import Certificates
from support.waiting import wait_until_async

from penstock.rpc.channel import SERVER_OPTIONS
from penstock.rpc.streams.contract import Clients
from penstock.rpc.tls import Tls
from penstock.rpc.transport import GrpcTransport

MOST = 20
METHOD = "/tests/name"


async def answer(_request: bytes, _context: Any) -> bytes:
    return b"answer"


@pytest.fixture(params=["plaintext", "TLS"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> Tls | None:
    return None if request.param == "plaintext" else Certificates(tmp_path).broker(0).tls


@asynccontextmanager
async def serving(tls: Tls | None, most: int | None) -> AsyncIterator[list[str]]:
    """The addresses of two ports of one server."""
    transport = GrpcTransport(tls, connections_max=most)
    server = transport.server(())
    handlers: dict[str, Any] = {"name": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests", handlers),))
    ports = [transport.bind(server, "127.0.0.1:0", Clients.USERS) for _ in range(2)]
    await server.start()
    try:
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        await server.stop(None)


@contextmanager
def silent(address: str, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that say nothing."""
    host, _, port = address.rpartition(":")
    with ExitStack() as connections:
        made = [socket.create_connection((host, int(port)), 20) for _ in range(count)]
        for one in made:
            connections.callback(one.close)
            one.setblocking(False)
        yield made


def still_open(connections: list[socket.socket]) -> int:
    return sum(map(_is_open, connections))


def _is_open(connection: socket.socket) -> bool:
    """A server without TLS speaks first."""
    with suppress(ConnectionResetError):
        try:
            while connection.recv(4_096):
                pass
        except BlockingIOError:
            return True
    return False


async def ask(address: str, tls: Tls | None) -> bytes:
    async with patient_aio_channel(address, tls) as channel:
        call: Any = channel.unary_unary(METHOD)
        got: bytes = await call(b"", timeout=60, wait_for_ready=True)
        return got


async def test_connections_beyond_the_limit_are_cut_and_another_port_is_served(
    tls: Tls | None,
) -> None:
    async with serving(tls, MOST) as (full, other):
        with silent(full, 3 * MOST) as connections:
            await wait_until_async(
                lambda: still_open(connections) <= MOST, what="the others are cut"
            )
            assert still_open(connections) == MOST
            assert await ask(other, tls) == b"answer"


async def test_who_says_nothing_makes_room(
    tls: Tls | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = {**dict(SERVER_OPTIONS), "grpc.server_handshake_timeout_ms": 300}
    monkeypatch.setattr("penstock.rpc.transport.SERVER_OPTIONS", list(soon.items()))
    async with serving(tls, MOST) as (full, _):
        with silent(full, MOST):
            async with asyncio.timeout(60):
                assert await ask(full, tls) == b"answer"


def test_a_server_does_not_wait_for_two_minutes() -> None:
    assert dict(SERVER_OPTIONS)["grpc.server_handshake_timeout_ms"] == 10_000
