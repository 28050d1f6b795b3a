"""A cluster's CA: gRPC and Python can use what it signs, and it names the right servers."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from support.certificates import write

from penstock.core.types import BrokerId
from penstock.errors import MisuseError
from penstock.rpc.channel import open_aio_channel
from penstock.rpc.tls import Tls, TlsFiles
from penstock_broker.certificates.authority import (
    Authority,
    Pair,
    Subject,
    generate_csr,
    valid_until,
)
from penstock_broker.certificates.names import ServerName

BROKER = ServerName("c-1", BrokerId(3))
SUBJECT = Subject(common_name="broker-3", uri=BROKER.uri, hosts=["127.0.0.1", "localhost"])


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("spiffe://penstock/c-1/broker/3", BROKER),
        ("spiffe://penstock/c-1/controller", ServerName("c-1", None)),
        ("spiffe://penstock/c-1/broker/2147483647", ServerName("c-1", BrokerId(2**31 - 1))),
        ("spiffe://penstock/c-1/broker/2147483648", None),
        ("spiffe://penstock/c-1/broker/-1", None),
        ("spiffe://penstock/c-1/broker/3/controller", None),
        ("spiffe://penstock/a/b/controller", None),
        ("spiffe://penstock//controller", None),
        ("spiffe://other/c-1/controller", None),
        ("spiffe://penstock/c-1/controller\n", None),
        ("", None),
    ],
)
def test_names_of_servers(uri: str, name: ServerName | None) -> None:
    assert ServerName.parse(uri) == name
    if name is not None:
        assert name.uri == uri


def test_a_csr_gets_the_names_that_the_signer_chose() -> None:
    authority = Authority.load(Authority.new("test").pair)
    csr, key = generate_csr()
    certificate = x509.load_pem_x509_certificate(authority.sign(csr, SUBJECT))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [BROKER.uri]
    assert b"PRIVATE KEY" in key


@pytest.mark.parametrize("csr", [b"", b"x", generate_csr()[0].replace(b"MI", b"MA", 1)])
def test_what_is_no_csr_is_refused(csr: bytes) -> None:
    with pytest.raises(MisuseError, match="CSR"):
        Authority.new("test").sign(csr, SUBJECT)


def test_a_key_of_another_ca_is_refused() -> None:
    one, other = Authority.new("one").pair, Authority.new("other").pair
    with pytest.raises(MisuseError, match="not the ECDSA key"):
        Authority.load(Pair(one.certificate, other.key))
    with pytest.raises(MisuseError, match="not valid PEM"):
        Authority.load(Pair(b"x", one.key))


def test_a_certificate_does_not_outlive_its_ca() -> None:
    now = datetime.now(UTC)
    authority = Authority.new("test", days=10)
    pair = authority.issue(SUBJECT, days=30)
    assert valid_until(pair.certificate) <= now + timedelta(days=10)
    assert valid_until(authority.issue(SUBJECT, days=1).certificate) < now + timedelta(days=1.1)


class TestTls:
    async def ask(self, port: int, tls: Tls) -> list[str]:
        """The URIs in the server's answer, which are those of the caller's certificate."""
        async with open_aio_channel(f"127.0.0.1:{port}", tls) as channel:
            call = channel.unary_unary("/test/Who", bytes, bytes)
            answer = await call(b"", timeout=120)
            assert isinstance(answer, bytes)
        return answer.decode().split()

    async def serve(self, tls: Tls) -> tuple[grpc.aio.Server, int]:
        async def who(_request: bytes, context: grpc.aio.ServicerContext) -> bytes:  # type: ignore[type-arg]
            return b" ".join(context.peer_identities() or ())

        handler = grpc.method_handlers_generic_handler(
            "test", {"Who": grpc.unary_unary_rpc_method_handler(who)}
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handler,))
        port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(ask_clients=True))
        await server.start()
        return server, port

    async def test_files_that_change_are_used_by_the_next_connection(self, tmp_path: Path) -> None:
        old, new = Authority.new("old"), Authority.new("new")
        mine = write(tmp_path / "mine", old, old.issue(SUBJECT))
        server_tls = Tls(mine)
        client_tls = Tls(write(tmp_path / "client", old, old.issue(SUBJECT)))
        server, port = await self.serve(server_tls)
        try:
            assert BROKER.uri in await self.ask(port, client_tls)
            assert mine.certificate is not None
            mine.certificate.write_bytes(b"half of")
            server_tls.look_now()
            assert BROKER.uri in await self.ask(port, client_tls)
            assert "tls.crt" in server_tls.problem
            write(tmp_path / "mine", new, new.issue(SUBJECT))
            server_tls.look_now()
            assert (server_tls.generation, server_tls.problem) == (2, "")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await self.ask(port, client_tls)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            write(tmp_path / "client", new, new.issue(SUBJECT))
            client_tls.look_now()
            assert BROKER.uri in await self.ask(port, client_tls)
        finally:
            await server.stop(None)

    def test_unusable_files_are_refused_by_name(self, tmp_path: Path) -> None:
        authority, other = Authority.new("one"), Authority.new("other")
        files = write(tmp_path, authority, authority.issue(SUBJECT))
        assert files.key is not None
        with pytest.raises(MisuseError, match="go together"):
            TlsFiles(files.ca, files.certificate)
        files.key.write_bytes(other.pair.key)
        with pytest.raises(MisuseError, match=r"tls\.crt cannot be used"):
            Tls(files)
        with pytest.raises(MisuseError, match="nowhere"):
            Tls(TlsFiles(tmp_path / "nowhere"))

    async def test_the_same_files_serve_message_streams(self, tmp_path: Path) -> None:
        authority = Authority.new("test")
        tls = Tls(write(tmp_path, authority, authority.issue(SUBJECT)))
        seen: list[str] = []

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(str(writer.get_extra_info("peercert")))
            writer.close()

        context = tls.server_context(ask_clients=True)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=tls.client_context()
            )
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
        assert BROKER.uri in seen[0]
