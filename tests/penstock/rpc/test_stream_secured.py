"""The TLS of message streams, when bytes come in pieces, are changed on the way, or end early."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from support.secure import Certificates

from penstock.errors import UnreachableError
from penstock.rpc.streams.accepting import Secured
from penstock.rpc.streams.contract import MessageStream
from penstock.rpc.streams.secured import TlsConnection
from penstock.rpc.streams.tcp import TcpStream, TcpStreamServer, open_tcp_stream
from penstock.rpc.tls import Tls

HOST = "127.0.0.1"
LIMIT_S = 60
PIECE = 7


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Certificates(tmp_path).broker(1).tls


async def echo(stream: MessageStream) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(bytes(message))


class Relay:
    """Passes bytes on in both directions, until it is told to do something else with them."""

    def __init__(self, port: int, piece: int) -> None:
        self._port, self._piece = port, piece
        self.spoils = False
        """The last byte of what passes to the client is changed."""
        self._writers: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, self._port)
        self._writers += [writer, far_writer]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pass(reader, far_writer, bytes))
            tasks.create_task(self._pass(far_reader, writer, self._to_client))

    def _to_client(self, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if self.spoils else data

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        change: Callable[[bytes], bytes],
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(self._piece):
                writer.write(change(data))
                await writer.drain()
            writer.close()

    def cut(self) -> None:
        """Ends both connections without a word of TLS."""
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def relayed(tls: Tls, piece: int = 65_536) -> AsyncIterator[tuple[Relay, str]]:
    """A relay in front of a server of streams, and its address."""
    server = TcpStreamServer(echo, 10, Secured(tls, ask_clients=True, age_s=3_600.0))
    port = await server.listen(f"{HOST}:0")
    relay = Relay(port, piece)
    listener = await asyncio.start_server(relay.accept, HOST, 0)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.run())
        async with listener:
            yield relay, f"{HOST}:{listener.sockets[0].getsockname()[1]}"
            relay.cut()
        running.cancel()


@pytest.mark.parametrize("piece", [1, PIECE, 16_390])
async def test_records_of_tls_arrive_in_pieces(tls: Tls, piece: int) -> None:
    async with relayed(tls, piece) as (_, address):
        stream = await open_tcp_stream(address, tls)
        for message in (b"a", b"b" * 20_000, b"c"):
            await stream.send(message)
            assert await stream.receive() == message
        await stream.close()


async def test_a_changed_byte_ends_the_stream(tls: Tls) -> None:
    async with relayed(tls) as (relay, address):
        stream = await open_tcp_stream(address, tls)
        await stream.send(b"as it is")
        assert await stream.receive() == b"as it is"
        relay.spoils = True
        await stream.send(b"changed")
        with pytest.raises(UnreachableError, match="TLS failed"):
            await stream.receive()
        await stream.close()


async def test_a_connection_that_is_cut_does_not_look_like_an_end(tls: Tls) -> None:
    async with relayed(tls) as (relay, address):
        stream = await open_tcp_stream(address, tls)
        await stream.greeted()
        relay.cut()
        with pytest.raises(UnreachableError, match="unexpectedly"):
            await stream.receive()
        await stream.close()


async def test_what_was_sent_before_the_end_arrives(tls: Tls) -> None:
    """Messages, END and close_notify may all be read at once."""
    ended = asyncio.Event()

    async def talk(stream: MessageStream) -> None:
        for number in range(100):
            await stream.send(b"%d" % number)
        ended.set()

    server = TcpStreamServer(talk, 10, Secured(tls, ask_clients=True, age_s=3_600.0))
    port = await server.listen(f"{HOST}:0")
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.run())
        stream = await open_tcp_stream(f"{HOST}:{port}", tls)
        await ended.wait()
        heard = [await stream.receive() for _ in range(101)]
        assert heard == [*(b"%d" % number for number in range(100)), None]
        await stream.close()
        running.cancel()


async def test_a_handshake_that_nobody_waits_for_any_more_closes_the_connection(tls: Tls) -> None:
    """Its caller has given up, and only then the other side answers."""
    asked, closed = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while await reader.read(65_536):
                asked.set()
        closed.set()
        writer.close()

    listener = await asyncio.start_server(silent, HOST, 0)
    port = listener.sockets[0].getsockname()[1]
    async with asyncio.timeout(LIMIT_S), listener, asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(open_tcp_stream(f"{HOST}:{port}", tls))
        await asked.wait()
        opening.cancel()
        await closed.wait()


async def test_a_protocol_hears_nothing_of_a_handshake_that_failed(
    tls: Tls, tmp_path: Path
) -> None:
    heard: list[TcpStream] = []
    other = Certificates(tmp_path / "other").broker(2).tls
    async with relayed(tls) as (_, address):
        host, _, port = address.rpartition(":")
        above = TcpStream(connected=heard.append)
        layer = TlsConnection(above, other.client_context(), host)
        await asyncio.get_running_loop().create_connection(lambda: layer, host, int(port))
        with pytest.raises(OSError, match="certificate verify failed"):
            await layer.shake_hands(LIMIT_S)
    assert not heard
    assert not above.gone.is_set()
