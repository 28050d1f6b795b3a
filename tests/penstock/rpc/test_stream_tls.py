"""What only message streams over TLS meet: files that change, handshakes, age, errors that help."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.secure import CLUSTER_ID, HOSTS, Certificates
from support.waiting import wait_until_async

from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, PenstockError, UnreachableError
from penstock.rpc.streams import accepting
from penstock.rpc.streams.accepting import Secured
from penstock.rpc.streams.contract import Handle, MessageStream
from penstock.rpc.streams.tcp import TcpStream, TcpStreamServer, open_tcp_stream
from penstock.rpc.tls import Tls
from penstock_broker.certificates.authority import Authority, Subject
from penstock_broker.certificates.names import ServerName

HOST = "127.0.0.1"
LIMIT_S = 60


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


async def echo(stream: MessageStream) -> None:
    """Says who the other side is, and then what it says."""
    await stream.send(" ".join(stream.peer_uris).encode())
    while (message := await stream.receive()) is not None:
        await stream.send(bytes(message))


@asynccontextmanager
async def serving(
    tls: Tls, *, ask_clients: bool = True, age_s: float = 3_600.0, handle: Handle = echo
) -> AsyncIterator[str]:
    """The address of a server that runs meanwhile."""
    secured = Secured(tls, ask_clients=ask_clients, age_s=age_s)
    server = TcpStreamServer(handle, 10, secured)
    port = await server.listen(f"{HOST}:0")
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.run())
        yield f"{HOST}:{port}"
        running.cancel()


async def greeting(address: str, tls: Tls | None) -> str:
    """What a new stream hears first. Raises PenstockError."""
    stream = await open_tcp_stream(address, tls)
    try:
        heard = await stream.receive()
        assert heard is not None
        return bytes(heard).decode()
    finally:
        await stream.close()


async def greeted(address: str, tls: Tls) -> TcpStream:
    """A stream that has heard its greeting; on a machine that stalls, some are too old for it."""
    while True:
        stream = await open_tcp_stream(address, tls)
        try:
            await stream.receive()
        except PenstockError as error:
            if error.code is not ErrorCode.SHUTTING_DOWN:
                raise
            await stream.close()
        else:
            return stream


def serial(stream: TcpStream) -> str:
    """Of the certificate that the server has shown."""
    assert stream._transport is not None
    return str(stream._transport.get_extra_info("peercert")["serialNumber"])


async def test_both_sides_see_whose_certificate_it_is(certificates: Certificates) -> None:
    broker, controller = certificates.broker(3), certificates.controller()
    async with serving(controller.tls) as address:
        assert (await greeting(address, broker.tls)).endswith("/broker/3")
        stream = await open_tcp_stream(address, broker.tls)
        assert [uri.rpartition("/")[2] for uri in stream.peer_uris] == ["controller"]
        await stream.close()
    async with serving(controller.tls, ask_clients=False) as address:
        assert await greeting(address, certificates.stranger().tls) == "", "nobody was asked"


async def test_new_connections_use_new_files_and_old_ones_go_on(
    certificates: Certificates,
) -> None:
    """The new certificate, and the new CA for clients: in place of the old one, not beside it."""
    certificates.controller()
    before = certificates.broker(1).tls
    server = certificates.controller().tls
    async with serving(server) as address:
        old = await open_tcp_stream(address, before)
        await old.receive()
        other = Authority.new("the next CA")
        certificates.trust(certificates.authority, other)
        former = certificates.broker(1).tls  # of the former CA, and it trusts both
        certificates.renew(other)
        server.look_now()
        after = certificates.broker(1).tls
        renewed = await open_tcp_stream(address, after)
        assert serial(renewed) != serial(old)
        await renewed.close()
        assert (await greeting(address, after)).endswith("/broker/1")

        certificates.trust(other)
        server.look_now()
        with pytest.raises(UnreachableError, match="not accept this"):
            await greeting(address, former)
        await old.send(b"still here")
        assert await old.receive() == b"still here"
        await old.close()


async def test_a_client_of_a_ca_that_is_trusted_no_longer_is_refused(
    certificates: Certificates, tmp_path: Path
) -> None:
    server, client = certificates.controller().tls, certificates.broker(1).tls
    former = Certificates(tmp_path / "former")
    former.trust(former.authority, certificates.authority)
    guest = former.broker(2).tls
    certificates.trust(certificates.authority, former.authority)
    server.look_now()
    async with serving(server) as address:
        assert (await greeting(address, guest)).endswith("/broker/2")
        certificates.trust(certificates.authority)
        server.look_now()
        with pytest.raises(UnreachableError, match="not accept this"):
            await greeting(address, guest)
        assert (await greeting(address, client)).endswith("/broker/1")


async def test_files_that_cannot_be_used_change_nothing(certificates: Certificates) -> None:
    server, client = certificates.controller(), certificates.broker(1).tls
    tls = server.tls
    async with serving(tls) as address:
        assert server.files.certificate is not None
        server.files.certificate.write_text("half of it")
        tls.look_now()
        assert (await greeting(address, client)).endswith("/broker/1")
        assert "tls.crt cannot be used for TLS" in tls.problem


async def test_a_stream_ends_at_its_age_and_another_can_be_opened(
    certificates: Certificates,
) -> None:
    tls = certificates.broker(1).tls
    async with serving(tls, age_s=0.2) as address:
        stream = await greeted(address, tls)
        with pytest.raises(PenstockError, match="the connection is old; open another") as caught:
            await stream.receive()
        assert caught.value.code is ErrorCode.SHUTTING_DOWN
        assert caught.value.retriable
        await stream.close()
        await (await greeted(address, tls)).close()


async def test_a_stream_of_a_ca_that_is_trusted_no_longer_ends_with_its_age(
    certificates: Certificates,
) -> None:
    """Attack 24: whoever has an old certificate keeps an open stream, but not for ever."""
    server, old = certificates.broker(1).tls, certificates.broker(2).tls
    async with serving(server, age_s=1.0) as address:
        stream = await greeted(address, old)
        certificates.trust(Authority.new("the next CA"), certificates.authority)
        certificates.renew(certificates._trusted[0])
        certificates.trust(certificates.authority)
        server.look_now()
        with pytest.raises(PenstockError) as ended:
            await stream.receive()
        assert ended.value.code is ErrorCode.SHUTTING_DOWN
        await stream.close()
        with pytest.raises(UnreachableError):
            await greeting(address, old)


async def test_a_client_whose_certificate_has_ended_is_refused(certificates: Certificates) -> None:
    server, client = certificates.broker(1).tls, certificates.broker(2)
    uri = ServerName(CLUSTER_ID, BrokerId(2)).uri
    subject = Subject(common_name="broker", uri=uri, hosts=HOSTS)
    before = datetime.now(UTC) - timedelta(days=2)
    pair = certificates.authority.issue(subject, days=1, now=before)
    assert client.files.certificate is not None
    assert client.files.key is not None
    client.files.certificate.write_bytes(pair.certificate)
    client.files.key.write_bytes(pair.key)
    async with serving(server) as address:
        with pytest.raises(UnreachableError, match="not accept this"):
            await greeting(address, client.tls)


async def impatient(stream: MessageStream) -> None:
    await stream.receive()
    raise TimeoutError


async def test_a_handler_that_waits_too_long_is_not_taken_for_age(
    certificates: Certificates,
) -> None:
    tls = certificates.broker(1).tls
    async with serving(tls, handle=impatient) as address:
        for _ in range(2):  # and the server goes on
            stream = await open_tcp_stream(address, tls)
            await stream.send(b"now")
            with pytest.raises(PenstockError) as caught:
                await stream.receive()
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
            await stream.close()


async def test_each_wrong_meeting_says_what_to_look_at(
    certificates: Certificates, tmp_path: Path
) -> None:
    tls = certificates.broker(1).tls
    async with serving(tls) as address:
        with pytest.raises(UnreachableError, match="CA file must be that of the cluster"):
            await greeting(address, Certificates(tmp_path / "other").broker(1).tls)
        with pytest.raises(UnreachableError, match="not accept this"):
            await greeting(address, certificates.stranger().tls)
        with pytest.raises(PenstockError, match=r"ended|no stream"):
            await greeting(address, None)
    plain = TcpStreamServer(echo, 10)
    port = await plain.listen(f"{HOST}:0")
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(plain.run())
        with pytest.raises(UnreachableError, match="does the other side use TLS"):
            await greeting(f"{HOST}:{port}", tls)
        running.cancel()


async def test_the_oldest_handshakes_make_room(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKES_MAX", 5)
    monkeypatch.setattr(accepting, "HANDSHAKE_S", 1_200.0)  # none is cut for its time
    tls = certificates.broker(1).tls
    async with serving(tls) as address:
        port = int(address.rpartition(":")[2])
        silent = [await asyncio.open_connection(HOST, port) for _ in range(20)]
        assert (await greeting(address, tls)).endswith("/broker/1")

        def cut() -> int:
            return sum(reader.at_eof() or bool(reader.exception()) for reader, _ in silent)

        await wait_until_async(lambda: cut() >= 15, what="the oldest are cut")
        assert cut() < 20, "not those that may still finish"
        for _, writer in silent:
            writer.close()


async def test_a_handshake_takes_only_so_long(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_S", 0.1)
    tls = certificates.broker(1).tls
    async with serving(tls) as address:
        reader, writer = await asyncio.open_connection(HOST, int(address.rpartition(":")[2]))
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


def test_tls_1_2_is_the_oldest(certificates: Certificates) -> None:
    tls = certificates.broker(1).tls
    for context in (tls.client_context(), tls.server_context(ask_clients=True)):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("size", [1, 70_000, 5_000_000])
async def test_messages_of_all_sizes_pass_in_both_directions(
    certificates: Certificates, size: int
) -> None:
    """Also those whose room grows while they arrive, and many that arrive at once."""
    tls = certificates.broker(1).tls
    async with serving(tls) as address:
        stream = await open_tcp_stream(address, tls)
        await stream.receive()
        sent = [b"first", *(bytes([number]) * size for number in range(3))]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_all(stream, sent))
            heard = [await stream.receive() for _ in sent]
        assert heard == sent
        await stream.close()


async def send_all(stream: MessageStream, messages: list[bytes]) -> None:
    for message in messages:
        await stream.send(message)
