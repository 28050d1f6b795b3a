"""What only streams over TCP meet: garbage, half a message, killed processes, options of sockets.

The contract of all carriers is in tests/simulation/test_wire_messages.py.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from support.waiting import wait_until_async

from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.rpc.channel import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from penstock.rpc.streams.contract import (
    FIRST_MESSAGE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MessageStream,
)
from penstock.rpc.streams.frames import END, PREFACE, FrameReader, Received, error_of, message_frame
from penstock.rpc.streams.tcp import TcpStream, TcpStreamServer, open_tcp_stream

HOST = "127.0.0.1"
LIMIT_S = 60


@asynccontextmanager
async def serving(
    handle: Callable[[MessageStream], Awaitable[None]],
) -> AsyncIterator[int]:
    """The port of a server that runs meanwhile."""
    server = TcpStreamServer(handle, 10)
    port = await server.listen(f"{HOST}:0")
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.run())
        yield port
        running.cancel()


async def raw_frames(reader: asyncio.StreamReader) -> list[tuple[int, Received]]:
    """All that a server says, until it ends the connection."""
    return list(FrameReader(1_000_000, 1_000_000).feed(await reader.read()))


class Server:
    """Remembers how the one stream ended."""

    def __init__(self) -> None:
        self.seen: list[Received] = []
        self.began = asyncio.Event()
        self.ended: asyncio.Future[PenstockError | None] = asyncio.Future()

    async def handle(self, stream: MessageStream) -> None:
        try:
            await stream.deliver(self._take)
        except PenstockError as error:
            self.ended.set_result(error)
            raise
        self.ended.set_result(None)

    def _take(self, message: Received) -> None:
        self.seen.append(message)
        self.began.set()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no stream between brokers"),
        (PREFACE + message_frame(bytes(FIRST_MESSAGE_BYTES_MAX + 1))[:5], "at most 65536"),
        (
            PREFACE + message_frame(b"hello") + (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big") + b"\0",
            f"at most {MESSAGE_BYTES_MAX}",
        ),
    ],
    ids=["garbage", "long first message", "long message"],
)
async def test_bad_bytes_end_the_stream_and_their_sender_is_told(sent: bytes, words: str) -> None:
    server = Server()
    async with serving(server.handle) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(sent)
        (kind, body) = (await raw_frames(reader))[-1]
        told = error_of(body)
        assert kind == END
        assert told is not None
        assert words in str(told)
        error = await server.ended
        assert error is not None
        assert (error.code, str(error)) == (ErrorCode.INVALID_REQUEST, str(told))
        writer.close()
        await writer.wait_closed()


async def test_half_a_message_is_never_delivered() -> None:
    server = Server()
    async with serving(server.handle) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(PREFACE + message_frame(b"whole") + message_frame(b"half")[:-1])
        writer.write_eof()
        assert await raw_frames(reader) == [], "who is gone is told nothing"
        writer.close()
        await writer.wait_closed()
        error = await server.ended
        assert error is not None
        assert error.code is ErrorCode.UNREACHABLE
        assert "in the middle of a message" in str(error)
        assert server.seen == [b"whole"]


@pytest.mark.parametrize("delivers", [False, True], ids=["receive", "deliver"])
async def test_behind_the_first_message_nothing_is_read_until_its_sender_is_let_in(
    *, delivers: bool
) -> None:
    large = bytes(8 * 1024 * 1024)
    accepted: asyncio.Future[TcpStream] = asyncio.Future()
    let_in, seen = asyncio.Event(), list[Received]()

    async def handle(stream: MessageStream) -> None:
        assert isinstance(stream, TcpStream)
        assert await stream.receive() == b"hello"
        accepted.set_result(stream)
        await let_in.wait()
        if delivers:
            await stream.deliver(seen.append)
        else:
            while (message := await stream.receive()) is not None:
                seen.append(message)

    async with serving(handle) as port, asyncio.TaskGroup() as tasks:
        stream = await open_tcp_stream(f"{HOST}:{port}")

        async def send() -> None:
            for message in (b"hello", large, b"more"):
                await stream.send(message)

        sending = tasks.create_task(send())
        there = await accepted
        await wait_until_async(lambda: not there._is_reading, what="nothing is read")
        assert not there.waiting_bytes
        assert len(there._frames._body) <= 1024 * 1024
        let_in.set()
        await sending
        await wait_until_async(lambda: len(seen) == 2, what="the rest arrives")
        assert seen == [large, b"more"]
        await stream.close()


async def test_empty_messages_fill_no_memory_while_a_stream_is_held() -> None:
    """As while a producer is above its quota."""
    count = 500_000
    accepted: asyncio.Future[TcpStream] = asyncio.Future()

    async def handle(stream: MessageStream) -> None:
        assert isinstance(stream, TcpStream)
        assert await stream.receive() == b"hello"
        stream.hold()
        accepted.set_result(stream)
        await stream.deliver(lambda _: None)

    async with serving(handle) as port:
        stream = await open_tcp_stream(f"{HOST}:{port}")
        await stream.send(b"hello")
        there = await accepted
        assert stream._transport is not None
        stream._transport.write(message_frame(b"") * count)
        await wait_until_async(
            lambda: not there._is_reading or len(there._waiting) == count,
            what="nothing more is read",
        )
        assert len(there._waiting) < 100_000
        there.cut()
        await stream.close()


async def test_who_is_refused_with_more_to_say_is_told_why() -> None:
    async def refuse(stream: MessageStream) -> None:
        await stream.receive()
        raise ClusterError("a token is needed", ErrorCode.UNAUTHENTICATED)

    async with serving(refuse) as port:
        stream = await open_tcp_stream(f"{HOST}:{port}")
        await stream.send(b"hello")
        await stream.send(bytes(8 * 1024 * 1024))
        with pytest.raises(ClusterError, match="a token is needed"):
            await stream.receive()
        await stream.close()


async def test_a_server_of_something_else_is_recognized() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await reader.read()
        writer.close()

    other = await asyncio.start_server(talk, HOST, 0)
    async with other:
        stream = await open_tcp_stream(f"{HOST}:{other.sockets[0].getsockname()[1]}")
        with pytest.raises(PenstockError, match="no stream between brokers"):
            await stream.receive()
        await stream.close()


CHILD = """
import asyncio
from penstock.rpc.streams.tcp import open_tcp_stream

async def main():
    stream = await open_tcp_stream({address!r})
    await stream.send(b"here")
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_process_is_noticed_at_once() -> None:
    server = Server()
    async with serving(server.handle) as port:
        program = CHILD.format(address=f"{HOST}:{port}")
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        try:
            await server.began.wait()
        finally:
            os.kill(child.pid, signal.SIGKILL)
            await child.wait()
        error = await server.ended
        assert server.seen == [b"here"]
        assert error is not None
        assert error.code is ErrorCode.UNREACHABLE


async def test_an_other_side_that_does_not_close_is_cut_off() -> None:
    accepted: asyncio.Future[TcpStream] = asyncio.Future()

    async def refuse(stream: MessageStream) -> None:
        assert isinstance(stream, TcpStream)
        accepted.set_result(stream)

    async with serving(refuse) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        assert (END, b"") in await raw_frames(reader)
        await (await accepted).gone.wait()
        writer.close()
        await writer.wait_closed()


async def test_both_ends_send_at_once_and_notice_a_machine_that_is_gone() -> None:
    accepted: asyncio.Future[socket.socket] = asyncio.Future()

    async def look(stream: MessageStream) -> None:
        accepted.set_result(stream._transport.get_extra_info("socket"))  # type: ignore[attr-defined]
        await stream.receive()

    async with serving(look) as port:
        stream = await open_tcp_stream(f"{HOST}:{port}")
        assert stream._transport is not None
        for found in (stream._transport.get_extra_info("socket"), await accepted):
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle_s = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            assert idle_s == KEEPALIVE_MS / 1000
            limit_ms = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert limit_ms == KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS
        await stream.close()


async def test_a_message_that_is_too_long_is_refused_where_it_is_sent() -> None:
    server = Server()
    async with serving(server.handle) as port:
        stream = await open_tcp_stream(f"{HOST}:{port}")
        with pytest.raises(PenstockError, match="too long for a stream"):
            await stream.send(bytes(MESSAGE_BYTES_MAX + 1))
        await stream.send(b"fits")
        await stream.close()
        assert await server.ended is None
        assert server.seen == [b"fits"]
