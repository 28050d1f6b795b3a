"""TLS between the socket of a stream and its protocol.

    socket ─▶ buffer_updated ─▶ SSLObject ─▶ the protocol's get_buffer, buffer_updated
    socket ◀─ transport.write ◀─ SSLObject ◀─ the protocol's transport, which is this

asyncio's own layer does the same for any protocol, and costs more than the cryptography for small
messages (docs/decisions/0055-tls-layer-of-streams.md). All cryptography is OpenSSL's, by `ssl`.

A connection that ends without TLS's close_notify looks to the protocol like one that ends with it:
frames have an END of their own, and a stream without one was cut.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Any, Final, cast

from penstock.rpc.streams.frames import shared_room

HANDSHAKE_S: Final = 5.0


class TlsConnection(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of a TCP connection, and the transport of `protocol` above it.

    `protocol` gets its connection once the handshake is done, and is not called if that fails.
    """

    def __init__(
        self,
        protocol: asyncio.BufferedProtocol,
        context: ssl.SSLContext,
        server_hostname: str | None = None,
    ) -> None:
        """`server_hostname`: whose certificate a client expects; None: this is the server."""
        super().__init__()
        self._protocol = protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self._socket: asyncio.Transport | None = None
        self._shaken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_secured = False
        self._closing = self._left = False
        self._why: Exception | None = None

    async def shake_hands(self, seconds: float) -> None:
        """Returns once the protocol has its connection; for who has connected the socket.

        Raises OSError, of which ssl.SSLError is one; the connection is closed then.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._shaken
        except TimeoutError:
            self.abort()
            raise ConnectionAbortedError(
                f"the other side did not finish the TLS handshake within {seconds:g} s"
            ) from None
        except BaseException:
            if self._socket is not None and not self._closing:
                self.abort()
            raise

    # ------------------------------------------------------------ of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BufferedProtocol`."""
        # uvloop's transports are none by their class.
        self._socket = cast("asyncio.Transport", transport)
        self._shake()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return shared_room()

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._incoming.write(shared_room()[:nbytes])
        if self._is_secured or self._shake():
            self._read()

    def eof_received(self) -> None:
        """See `asyncio.BufferedProtocol`. None: the connection is closed."""
        if self._is_secured:
            self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._closing = True
        if self._is_secured:
            self._protocol.connection_lost(self._why or exc)
        elif not self._shaken.done():
            self._shaken.set_exception(
                exc or ConnectionResetError("the other side ended the connection in its handshake")
            )

    def pause_writing(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._is_secured:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._is_secured:
            self._protocol.resume_writing()

    # ------------------------------------------------------------ for the protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`; besides what the socket has, "ssl_object", "peercert"."""
        if name == "ssl_object":
            return self._ssl
        if name == "peercert":
            return self._ssl.getpeercert()
        assert self._socket is not None, "there is a connection"
        return self._socket.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio.WriteTransport`."""
        if self._closing:
            return
        try:
            sent = self._ssl.write(data)
            while sent < len(data):  # a record at a time
                sent += self._ssl.write(memoryview(data)[sent:])
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def can_write_eof(self) -> bool:
        """See `asyncio.WriteTransport`. TLS has no half-closed connections."""
        return False

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`. What has arrived is still delivered."""
        assert self._socket is not None, "as above"
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        assert self._socket is not None, "as above"
        self._socket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`; of encrypted bytes."""
        assert self._socket is not None, "as above"
        self._socket.set_write_buffer_limits(high, low)

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._closing

    def close(self) -> None:
        """See `asyncio.BaseTransport`."""
        if self._closing:
            return
        with suppress(ssl.SSLError):
            self._ssl.unwrap()  # sends close_notify, and does not wait for the other side's
        self._flush()
        self._end()

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""
        self._closing = True
        if self._socket is not None:
            self._socket.abort()

    # ------------------------------------------------------------ inside

    def _shake(self) -> bool:
        """Goes on with the handshake; whether it is done."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            if not self._shaken.done():
                self._shaken.set_exception(error)
            self._fail(error)
            return False
        if self._shaken.done():  # too late: nobody waits for it any more
            self.abort()
            return False
        self._is_secured = True
        self._shaken.set_result(None)
        self._protocol.connection_made(self)
        self._flush()
        return not self._closing

    def _read(self) -> None:
        """Delivers what has arrived. That there is nothing more is asked first: to be told so by
        OpenSSL costs as much as a message."""
        incoming, unread, more = self._incoming, self._ssl.pending, True
        while more and not self._closing and (incoming.pending or unread()):
            room = cast("memoryview", self._protocol.get_buffer(-1))
            count, more = 0, False
            try:
                while count < len(room) and (incoming.pending or unread()):
                    # Given a buffer, it answers with a count; 0: the other side's close_notify.
                    got = cast("int", self._ssl.read(len(room) - count, room[count:]))
                    if not got:
                        self._left = True
                        break
                    count += got
                else:
                    more = True
            except ssl.SSLWantReadError:
                pass  # the rest of a record has not arrived
            except ssl.SSLError as error:
                self._fail(error)
                return
            del room  # the protocol may need to move what it is a part of
            if count:
                self._protocol.buffer_updated(count)
        if self._left and not self._closing:
            self._protocol.eof_received()
            self.close()
        if self._outgoing.pending and not self._closing:
            self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    def _fail(self, error: Exception) -> None:
        """Ends the connection; the other side hears why, if OpenSSL has something to say."""
        self._why = error
        self._flush()
        self._end()

    def _end(self) -> None:
        self._closing = True
        assert self._socket is not None, "as above"
        self._socket.close()
