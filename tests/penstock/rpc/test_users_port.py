"""The port for users' certificates beside the one between servers: gRPC over TLS, no processes."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.channels import patient_aio_channel
from support.secure import Certificates
from support.user_certificates import Leaf, UserCertificates

from penstock.client.cluster.diagnosis import diagnose
from penstock.rpc.streams.contract import Clients
from penstock.rpc.tls import Tls
from penstock.rpc.transport import GrpcTransport
from penstock_broker.certificates.authority import Authority

METHOD = "/tests/name"


async def name(_request: bytes, context: Any) -> bytes:
    """Of the caller, by the certificate."""
    return b",".join(context.auth_context().get("x509_common_name", ()))


@dataclass
class Scene:
    """A server whose ports are for users with certificates, for servers, for everybody."""

    certificates: Certificates
    users: UserCertificates
    authorities: bytes
    ports: dict[Clients, str]

    async def caller(self, clients: Clients, tls: Tls) -> str | None:
        """Who it is there; None: there is no connection."""
        async with patient_aio_channel(self.ports[clients], tls) as channel:
            try:
                call: Any = channel.unary_unary(METHOD)
                answer: bytes = await call(b"", timeout=120)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    return None
                raise
            return answer.decode()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    certificates = Certificates(tmp_path / "servers")
    users = UserCertificates(tmp_path / "users", certificates.authority)
    made = Scene(certificates, users, users.authority.certificate, {})
    transport = GrpcTransport(
        certificates.broker(0).tls, users_authorities=lambda: made.authorities
    )
    servers = []
    for clients in (Clients.CERTIFIED_USERS, Clients.CERTIFIED, Clients.USERS):
        server = transport.server(())
        handlers: dict[str, Any] = {"name": grpc.unary_unary_rpc_method_handler(name)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests", handlers),))
        port = transport.bind(server, "127.0.0.1:0", clients)
        made.ports[clients] = f"127.0.0.1:{port}"
        await server.start()
        servers.append(server)
    yield made
    for server in servers:
        await server.stop(None)


async def test_each_port_takes_certificates_of_its_own_ca(scene: Scene) -> None:
    ada = Tls(scene.users.files("ada"))
    broker, nobody = scene.certificates.broker(1).tls, scene.certificates.stranger().tls
    assert await scene.caller(Clients.CERTIFIED_USERS, ada) == "ada"
    assert await scene.caller(Clients.CERTIFIED, broker) == "secure-cluster-broker-1"
    assert await scene.caller(Clients.CERTIFIED, ada) is None
    assert await scene.caller(Clients.CERTIFIED_USERS, broker) is None
    for clients in (Clients.CERTIFIED, Clients.CERTIFIED_USERS):
        assert await scene.caller(clients, nobody) is None
    for tls in (ada, broker, nobody):
        assert await scene.caller(Clients.USERS, tls) == "", "nobody is asked for a certificate"


async def test_new_connections_are_held_to_the_newest_authorities(scene: Scene) -> None:
    ada = Tls(scene.users.files("ada"))
    assert await scene.caller(Clients.CERTIFIED_USERS, ada) == "ada"
    scene.authorities = Authority.new("next").certificate
    assert await scene.caller(Clients.CERTIFIED_USERS, ada) is None
    scene.authorities += scene.users.authority.certificate
    assert await scene.caller(Clients.CERTIFIED_USERS, ada) == "ada"


async def test_a_certificate_that_has_ended_is_none(scene: Scene) -> None:
    late = Tls(scene.users.files("late", Leaf(["late"], left_s=-1)))
    assert await scene.caller(Clients.CERTIFIED_USERS, late) is None


async def test_a_client_learns_what_the_closed_connection_means(
    scene: Scene, tmp_path: Path
) -> None:
    """gRPC's servers end the connection without a word, and its clients say "Socket closed"."""
    port = scene.ports[Clients.CERTIFIED_USERS]
    stranger = UserCertificates(tmp_path / "strangers", scene.certificates.authority)
    for tls in (scene.certificates.stranger().tls, Tls(stranger.files("ada"))):
        found = await diagnose(port, tls)
        assert found is not None
        assert "asks for a certificate and does not accept what it got" in found.message
        assert "--cert and --key" in found.message
    assert await diagnose(port, Tls(scene.users.files("ada"))) is None
    assert await diagnose(scene.ports[Clients.USERS], scene.certificates.stranger().tls) is None
