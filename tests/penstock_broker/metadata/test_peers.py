"""Connections between brokers: a run of a broker gets one, and the next run another."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.secure import Certificates

from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2
from penstock.rpc.streams.contract import Clients
from penstock.rpc.tls import Tls
from penstock.rpc.transport import GrpcTransport
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.peers import PeerChannels

ONE = BrokerId(1)
METHOD = "/test/Who"


class _Who(grpc.GenericRpcHandler):
    """Tells the caller on which connection it came, unless it is to refuse."""

    def service(self, _details: Any) -> Any:
        async def who(request: bytes, context: Any) -> bytes:
            if request == b"refuse":
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
            return str(context.peer()).encode()

        return grpc.unary_unary_rpc_method_handler(who)


async def call(channel: grpc.aio.Channel, request: bytes = b"") -> bytes:
    """Which connection the call came on."""
    who: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
    return await who(request, timeout=120)


class Scene:
    """A view in which broker 1 is a real server on loopback."""

    def __init__(self, port: int, tls: Tls | None = None) -> None:
        self._port, self._internal = (port, 0) if tls is None else (1, port)
        self.view = ClusterView()
        self.peers = PeerChannels(self.view, GrpcTransport(tls))

    def registered(self, incarnation: str, *, alive: bool = True) -> None:
        """Broker 1 is known so from now on."""
        self.view.brokers[ONE] = broker_pb2.BrokerInfo(
            broker_id=ONE,
            host="127.0.0.1",
            port=self._port,
            internal_port=self._internal,
            alive=alive,
            incarnation=incarnation,
        )

    async def connection(self, request: bytes = b"") -> bytes:
        """On which one a call comes."""
        async with self.peers.to(ONE) as channel:
            return await call(channel, request)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Who(),))
    made = Scene(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    yield made
    await made.peers.close()
    await server.stop(None)


async def test_a_call_that_fails_raises_an_error_of_ours_and_the_connection_stays(
    scene: Scene,
) -> None:
    scene.registered("first")
    first = await scene.connection()
    with pytest.raises(ClusterError) as told:
        await scene.connection(b"refuse")
    assert isinstance(told.value.__cause__, grpc.aio.AioRpcError)
    assert await scene.connection() == first


async def test_a_run_keeps_its_connection_and_the_next_one_is_looked_up_anew(scene: Scene) -> None:
    scene.registered("first")
    first = await scene.connection()
    assert await scene.connection() == first
    scene.registered("second")
    assert await scene.connection() != first


async def test_other_certificates_need_another_connection_to_the_internal_port(
    tmp_path: Path,
) -> None:
    certificates = Certificates(tmp_path)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Who(),))
    own = certificates.broker(1).tls
    port = GrpcTransport(own).bind(server, "127.0.0.1:0", Clients.CERTIFIED)
    await server.start()
    tls = certificates.broker(0).tls
    scene = Scene(port, tls)
    try:
        scene.registered("first")
        first = await scene.connection()
        tls.look_now()
        assert await scene.connection() == first, "nothing has changed"
        certificates.renew()
        tls.look_now()
        assert await scene.connection() != first
    finally:
        await scene.peers.close()
        await server.stop(None)


async def test_what_is_in_use_is_closed_only_afterwards(scene: Scene) -> None:
    scene.registered("first")
    async with scene.peers.to(ONE) as channel:
        scene.registered("second")
        await scene.connection()
        await call(channel)
    await scene.connection()
    with pytest.raises(grpc.aio.UsageError):
        await call(channel)


async def test_a_dead_broker_is_not_called(scene: Scene) -> None:
    for is_known in (False, True):
        if is_known:
            scene.registered("first", alive=False)
        with pytest.raises(ClusterError, match="broker 1 is not alive") as caught:
            await scene.connection()
        assert caught.value.code is ErrorCode.UNREACHABLE
