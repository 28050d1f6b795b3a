"""Message streams over TCP, on asyncio's own transports.

    buffer_updated ─▶ FrameReader ─▶ StreamEnd       send ─▶ transport.write ─▶ kernel
    pause_writing, resume_writing ─▶ who sends waits
    close ─▶ END ─▶ the other side closes the connection ─▶ done; or it is cut after LINGER_S

A protocol rather than asyncio's streams: a message costs no switch of tasks, and all that arrives
at once is handled in one turn.

A killed process is noticed at once by its closed socket; a machine that is gone, by the kernel:
within the time in which gRPC's keepalive finds one (`rpc.channel`). A process that is frozen is not
noticed here, because its kernel answers; brokers have heartbeats for that. Who is held (`hold`) and
reads nothing asks the kernel each second whether the other side has gone: it may be held for long.

With TLS the protocol is the same, and `peer_uris` says who the other side is. A certificate that
the server does not accept shows only when the client reads: TLS 1.3 is done with its side by then.
"""

import asyncio
import select
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError
from penstock.rpc.channel import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from penstock.rpc.streams.accepting import Accepting, Secured
from penstock.rpc.streams.contract import FIRST_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, Handle
from penstock.rpc.streams.end import READ_AHEAD_BYTES, StreamEnd
from penstock.rpc.streams.frames import (
    LARGE_BYTES,
    MESSAGE,
    PREFACE,
    FrameReader,
    Received,
    end_frame,
    error_of,
    message_frame,
    message_header,
)
from penstock.rpc.streams.secured import HANDSHAKE_S, TlsConnection
from penstock.rpc.streams.serving import Serving
from penstock.rpc.tls import Tls

LINGER_S: Final = 1.0
"""How long the other side may take to close the connection after an END."""
WRITE_AHEAD_BYTES: Final = 1024 * 1024
"""Unsent bytes above which `send` waits."""
LOOK_S: Final = 1.0
"""How often a connection that is not read is looked at."""
_BACKLOG: Final = 128


class TcpStream(StreamEnd, asyncio.BufferedProtocol):
    """A `MessageStream`, and the protocol of its connection."""

    def __init__(
        self,
        first_bytes_max: int = MESSAGE_BYTES_MAX,
        connected: Callable[["TcpStream"], None] | None = None,
    ) -> None:
        super().__init__()
        self._frames = FrameReader(MESSAGE_BYTES_MAX, first_bytes_max)
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._left = False
        """The other side has ended the stream, or the connection has ended."""
        self._is_reading = True
        self._begins = first_bytes_max < MESSAGE_BYTES_MAX
        """Nobody knows who sends: of what comes behind the first message, nothing is read until
        somebody asks for it."""
        self._has_ended = False
        """The other side writes no more, and what it wrote is in the kernel's buffer."""
        self._looking: asyncio.TimerHandle | None = None
        self._greeting = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.gone = asyncio.Event()
        """The connection is closed."""

    async def greeted(self) -> None:
        """Returns once the other side has shown that it speaks this protocol.

        A port of something else may accept a connection as well. Raises PenstockError.
        """
        await self._greeting.wait()
        if not self._frames.is_greeted:
            self.check_open()

    # ------------------------------------------------------------ MessageStream

    @property
    def peer_host(self) -> str:
        """See `MessageStream`."""
        assert self._transport is not None, "users get connected streams"
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    @property
    def peer_uris(self) -> tuple[str, ...]:
        """See `MessageStream`."""
        assert self._transport is not None, "users get connected streams"
        certificate = self._transport.get_extra_info("peercert") or {}
        names = certificate.get("subjectAltName", ())
        return tuple(name for kind, name in names if kind == "URI")

    async def receive(self) -> Received | None:
        """See `MessageStream`."""
        if not self._waiting and not self._is_reading:
            self._go_on()
        return await super().receive()

    async def deliver(self, receive: Callable[[Received], None]) -> None:
        """See `MessageStream`."""
        self._go_on()
        await super().deliver(receive)

    async def send(self, message: bytes) -> None:
        """See `MessageStream`."""
        self.check_open()
        while not self._may_write.is_set():  # of several that wait, the first may fill it again
            await self._may_write.wait()
            self.check_open()
        if len(message) > MESSAGE_BYTES_MAX:
            raise ClusterError(
                f"a message of {len(message)} bytes is too long for a stream; at most "
                f"{MESSAGE_BYTES_MAX} can be sent",
                ErrorCode.INVALID_REQUEST,
            )
        self._write(message)

    def post(self, message: bytes) -> bool:
        """See `MessageStream`."""
        if self.is_over or not self._may_write.is_set() or len(message) > MESSAGE_BYTES_MAX:
            return False
        self._write(message)
        return True

    def _write(self, message: bytes) -> None:
        assert self._transport is not None, "users get connected streams"
        if len(message) < LARGE_BYTES:
            self._transport.write(message_frame(message))
        else:
            self._transport.write(message_header(message))
            self._transport.write(message)

    async def close(self, error: PenstockError | None = None) -> None:
        """See `MessageStream`."""
        transport = self._transport
        assert transport is not None, "as above"
        if not self._closing:
            self._closing = True
            if not self._left:
                if not self._is_reading:
                    self._read_again()
                transport.write(end_frame(error))
                if transport.can_write_eof():
                    with suppress(OSError):  # the other side has broken the connection already
                        transport.write_eof()
                # What arrives is dropped, up to the other side's end: a socket that is closed with
                # unread bytes makes the kernel drop what is on its way to the other side.
            else:
                transport.close()
            self.over(UnreachableError("the stream was closed here"))
        try:
            async with asyncio.timeout(LINGER_S):
                await self.gone.wait()
        except TimeoutError:
            pass
        finally:
            if not self.gone.is_set():
                transport.abort()

    # ------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BufferedProtocol`."""
        # uvloop's transports are none by their class.
        self._transport = transport = cast("asyncio.Transport", transport)
        _prepare(transport.get_extra_info("socket"))
        transport.set_write_buffer_limits(high=WRITE_AHEAD_BYTES)
        transport.write(PREFACE)
        if self._connected is not None:
            self._connected(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self.is_over:
            return
        assert self._transport is not None, "what arrives has a connection"
        try:
            for kind, body in self._frames.filled(nbytes):
                if kind == MESSAGE:
                    self.arrived(body)
                else:
                    self._left = True
                    self.over(error_of(body))
                    self._transport.close()
                if self.is_over:
                    return
        except ClusterError as error:
            self.over(error)
        if self._frames.is_greeted:
            self._greeting.set()
        is_ahead = self.waiting_bytes > READ_AHEAD_BYTES or (self._begins and self._waiting)
        if is_ahead and self._is_reading and not self._has_ended:
            self._is_reading = False
            self._transport.pause_reading()
            self._look_later()

    def eof_received(self) -> None:
        """See `asyncio.BufferedProtocol`. None: the connection is closed."""
        self._broke(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._broke(exc)
        self._may_write.set()
        self.gone.set()

    def pause_writing(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._may_write.set()

    # ------------------------------------------------------------ inside

    def over(self, error: Exception | None) -> None:
        """See `StreamEnd`."""
        super().over(error)
        self._greeting.set()

    def cut(self) -> None:
        """Ends the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    def has_read(self, _message: Received) -> None:
        """See `StreamEnd`."""
        if not self._is_reading and not self._begins and self.waiting_bytes <= READ_AHEAD_BYTES:
            self._read_again()

    def _go_on(self) -> None:
        """Reads on: whoever asks for more than the first message has let its sender in."""
        self._begins = False
        if not self._is_reading:
            self._read_again()

    def _read_again(self) -> None:
        self._is_reading = True
        assert self._transport is not None, "as above"
        self._transport.resume_reading()

    def _look_later(self) -> None:
        if self._looking is None and sys.platform == "linux":
            self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Reads the rest of a connection that has ended: only the kernel's buffer is left of it."""
        self._looking = None
        if self._is_reading or self.is_over:
            return
        assert self._transport is not None, "as above"
        if _has_ended(self._transport.get_extra_info("socket")):
            self._has_ended = True
            self._read_again()
        else:
            self._look_later()

    def _broke(self, why: Exception | None) -> None:
        self._left = True
        if not self.is_over:
            half = "in the middle of a message" if self._frames.has_half_a_frame else "unexpectedly"
            if not self._frames.is_greeted and self._is_secured:
                half = "before the other side spoke: perhaps it does not accept this certificate"
            self.over(UnreachableError(f"the connection ended: {_explained(why) or half}"))

    @property
    def _is_secured(self) -> bool:
        return self._transport is not None and bool(self._transport.get_extra_info("ssl_object"))


class TcpStreamServer:
    """A `StreamServer`."""

    def __init__(self, handle: Handle, streams_max: int, secured: Secured | None = None) -> None:
        """`secured` None: plaintext, and streams of any age."""
        self._serving = Serving(handle, streams_max, None if secured is None else secured.age_s)
        self._secured = secured
        self._socket: socket.socket | None = None

    async def listen(self, address: str) -> int:
        """See `StreamServer`."""
        host, port = _split(address)
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, endpoint = found[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        self._socket = socket.create_server(
            endpoint, family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
        bound: int = self._socket.getsockname()[1]
        return bound

    async def run(self) -> None:
        """See `StreamServer`."""
        assert self._socket is not None, "listen first"
        serving = self._serving

        def accepting() -> TcpStream:
            return TcpStream(FIRST_MESSAGE_BYTES_MAX, serving.accept)

        if self._secured is not None:
            await self._run_secured(Accepting(self._secured, accepting), self._socket)
            return
        server = await asyncio.get_running_loop().create_server(
            accepting, sock=self._socket, start_serving=False
        )
        try:
            await serving.run(server.start_serving)
        finally:
            server.close()

    async def _run_secured(self, accepting: Accepting, listener: socket.socket) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:

                async def begin() -> None:
                    tasks.create_task(accepting.run(listener))

                await self._serving.run(begin)
        finally:
            listener.close()

    def close(self) -> None:
        """See `StreamServer`."""
        if self._socket is not None:
            self._socket.close()


async def open_tcp_stream(address: str, tls: Tls | None = None) -> TcpStream:
    """Connects to `host:port`; `tls` None: in plaintext.

    Raises UnreachableError; the caller bounds the wait.
    """
    host, port = _split(address)
    loop = asyncio.get_running_loop()
    try:
        if tls is None:
            _, stream = await loop.create_connection(TcpStream, host, port)
        else:
            stream = TcpStream()
            secured = TlsConnection(stream, tls.client_context(), host)
            await loop.create_connection(lambda: secured, host, port)
            await secured.shake_hands(HANDSHAKE_S)
    except (OSError, ValueError) as error:  # an address that cannot be one is a ValueError
        refused = isinstance(error, ConnectionRefusedError)
        raise UnreachableError(f"{address}: {_explained(error)}", refused=refused) from error
    return stream


def _explained(error: Exception | None) -> str:
    """What a failed connection says, with what to look at if TLS ended it; "" for None."""
    match error:
        case None:
            return ""
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not accepted ({error.verify_message}): the CA file must be "
                "that of the cluster, and the address one of its names"
            )
        case ssl.SSLError() if "ALERT" in (error.reason or ""):
            return (
                f"the server does not accept this side's certificate ({error.reason}): it must be "
                "signed by the cluster's CA, and not expired"
            )
        case ssl.SSLError():
            return f"TLS failed ({error.reason or error}): does the other side use TLS?"
        case _:
            return str(error)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _has_ended(connection: Any) -> bool:
    """Whether the other side has closed or broken it, though not all may be read yet. On Linux."""
    kernel = select.poll()
    kernel.register(connection.fileno(), select.POLLRDHUP)  # and POLLHUP, POLLERR, unasked
    return bool(kernel.poll(0))


def _prepare(connection: Any) -> None:
    """No waiting for more to send, and a bound for how long a machine that is gone goes unnoticed.

    asyncio sets TCP_NODELAY only on sockets made with their protocol's number, which accepted ones
    lack: answers then wait 40 ms for the other side's delayed ACK.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    idle_s, probe_s = KEEPALIVE_MS // 1000, KEEPALIVE_TIMEOUT_MS // 1000
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1)
        # Unacknowledged data as well: without it, TCP tries again for a quarter of an hour.
        timeout_ms = KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
