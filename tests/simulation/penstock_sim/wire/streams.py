"""Message streams on the simulator's network: what `penstock.rpc.streams.tcp` is in the product.

    dialer ─ knock ─▶ place ─▶ Connection ─▶ its server ─▶ a task per stream
    send ─▶ Way ─▶ [ arrived ] ─▶ a turn of the other node's loop ─▶ StreamEnd

A stream has a connection of its own, with everything that happens to connections. What arrives
between two turns of a node is delivered in one, in order, as asyncio does with bytes.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, UnreachableError
from penstock.rpc.streams.contract import Handle
from penstock.rpc.streams.end import StreamEnd
from penstock.rpc.streams.frames import Received, end_body, error_of
from penstock.rpc.streams.serving import Serving
from penstock.rpc.streams.tcp import LINGER_S
from penstock_sim.network import KEEPALIVE_MS, POLL_MS, Network
from penstock_sim.node_loop import NodeLoop
from penstock_sim.wire.connection import Connection
from penstock_sim.wire.server import Place
from penstock_sim.wire.way import FRAMING_BYTES, Way

if TYPE_CHECKING:
    from penstock_sim.wire.transport import SimTransport


class SimStream(StreamEnd):
    """One end."""

    other: SimStream
    _out: Way
    _in: Way

    def __init__(self, connection: Connection, loop: NodeLoop) -> None:
        super().__init__()
        self._connection = connection
        self._loop = loop
        self._arrived: deque[tuple[Callable[..., None], Any]] = deque()
        self._planned = self._closing = self._left = False
        self._gone = asyncio.Event()

    @classmethod
    def pair(cls, connection: Connection) -> tuple[SimStream, SimStream]:
        """Both ends: the client's, the server's."""
        here = cls(connection, connection.channel.loop)
        there = cls(connection, connection.server.loop)
        here.other, there.other = there, here
        here._planned = True  # nothing is delivered before the handshake's answer
        here._out, there._out = there._in, here._in = connection.ways()
        return here, there

    # ------------------------------------------------------------ MessageStream

    async def send(self, message: bytes) -> None:
        """See `MessageStream`."""
        self.check_open()
        way = self._out
        while not way.has_room(len(message) + FRAMING_BYTES):
            way.writer = self._loop.create_future()
            await way.writer
            self.check_open()
        way.send_message(self.other.take_message, message)

    def post(self, message: bytes) -> bool:
        """See `MessageStream`."""
        if self.is_over or not self._out.has_room(len(message) + FRAMING_BYTES):
            return False
        self._out.send_message(self.other.take_message, message)
        return True

    async def close(self, error: PenstockError | None = None) -> None:
        """See `MessageStream`."""
        if not self._closing:
            self._closing = True
            if not self._left:
                self._out.send(self.other.take_end, end_body(error))
            else:
                self._finish()
            self.over(UnreachableError("the stream was closed here"))
        try:
            async with asyncio.timeout(LINGER_S):
                await self._gone.wait()
        except TimeoutError:
            pass
        finally:
            if not self._gone.is_set():
                self.cut()

    def cut(self) -> None:
        """Ends the connection without a word."""
        self._connection.break_off()

    def connected(self) -> None:
        """To the client: what has arrived is delivered from now on."""
        self._loop.call_soon(self._turn)

    # ------------------------------------------------------------ frames

    def take_message(self, message: bytes) -> None:
        self._queue(self._message, message)

    def take_end(self, body: bytes) -> None:
        self._queue(self._ended, body)

    def take_close(self, _: None) -> None:
        self._queue(self._closed, None)

    def connection_lost(self, details: str) -> None:
        """To the client: called by `Connection`."""
        self._queue(self._broke, details)

    def client_gone(self, _: None) -> None:
        """To the server: the same."""
        self._queue(self._broke, "the other side is gone")

    def _queue(self, act: Callable[..., None], argument: object) -> None:
        self._arrived.append((act, argument))
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._planned = False
        while self._arrived:
            act, argument = self._arrived.popleft()
            act(argument)

    def _message(self, message: bytes) -> None:
        before = self.waiting_bytes
        self.arrived(message)
        if self.waiting_bytes == before:
            self._in.has_read(message)

    def has_read(self, message: Received) -> None:
        """See `StreamEnd`."""
        self._in.has_read(message)

    def _ended(self, body: bytes) -> None:
        self._left = True
        self.over(error_of(body))
        self._finish()

    def _finish(self) -> None:
        """Closes the connection, after what is on its way."""
        if not self._gone.is_set():
            self._out.send(self.other.take_close, None)
            self._gone.set()

    def _closed(self, _: None) -> None:
        """The other side has closed it."""
        self._broke("the other side closed it")
        self._connection.client_calls.clear()
        self._connection.server_calls.clear()
        self._connection.leave()

    def _broke(self, why: str) -> None:
        self._left = True
        self.over(UnreachableError(f"the connection ended: {why}"))
        self._gone.set()

    def over(self, error: Exception | None) -> None:
        """See `StreamEnd`. Who waits to send is woken too."""
        super().over(error)
        writer = self._out.writer
        if writer is not None and not writer.done():
            writer.set_result(None)


class Dialer:
    """Connects once. For its connection it is what a channel is to others."""

    def __init__(self, transport: SimTransport, address: str) -> None:
        self.net: Network = transport.net
        self.loop: NodeLoop = transport.loop
        self.node_id = transport.node_id
        self.host = transport.host
        self.window_bytes = transport.window_bytes
        self._address = address
        self._since_ms = self.net.scheduler.now_us / 1000
        self._found: asyncio.Future[SimStream] = self.loop.create_future()

    async def connect(self) -> SimStream:
        """The client's end; raises UnreachableError."""
        self.net.scheduler.after(self.net.delay_ms(), self._knock)
        return await self._found

    def lost(self, _: Connection) -> None:
        """Its stream is told by itself."""

    def _knock(self) -> None:
        if self._is_over():
            return
        place = self.net.places.get(self._address)
        if place is not None and self.net.is_blocked(self.node_id, place.node_id):
            self._again(self._knock)
        elif place is None or not isinstance(place.server, SimStreamServer):
            self.net.scheduler.after(self.net.delay_ms(), self._give_up, "Connection refused")
        else:
            connection = Connection(self.net, self, place.server)
            here, there = SimStream.pair(connection)
            connection.client_calls[0] = here
            connection.server_calls[0] = there
            place.server.loop.call_soon(place.server.accept, there)
            self.net.scheduler.after(self.net.delay_ms(), self._greeted, connection, here)

    def _greeted(self, connection: Connection, stream: SimStream) -> None:
        if self._is_over():
            connection.break_off()
        elif connection.broken:
            self._give_up("Connection reset by peer")
        elif self.net.is_blocked(connection.acceptor, connection.opener):
            if not self._again(self._greeted, connection, stream):
                connection.break_off()
        else:
            self.loop.call_soon(self._succeed, stream)

    def _succeed(self, stream: SimStream) -> None:
        if self._is_over():
            stream.cut()
        else:
            self._found.set_result(stream)
            stream.connected()

    def _again(self, act: Callable[..., None], *args: object) -> bool:
        """The network delays it; False if it has for too long."""
        scheduler = self.net.scheduler
        if scheduler.now_us / 1000 - self._since_ms < KEEPALIVE_MS:
            scheduler.after(POLL_MS, act, *args)
            return True
        self._give_up("Connection timed out")
        return False

    def _give_up(self, reason: str) -> None:
        if not self._is_over():
            refused = reason == "Connection refused"
            error = UnreachableError(f"{self._address}: {reason}", refused=refused)
            self.loop.call_soon(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self._is_over():
            self._found.set_exception(error)

    def _is_over(self) -> bool:
        return self.loop.dead or self._found.done()


class SimStreamServer:
    """A `StreamServer` of a node. Clients open exactly the address it is bound to."""

    def __init__(
        self, net: Network, node_id: int, loop: NodeLoop, handle: Handle, streams_max: int
    ) -> None:
        self.net = net
        self.node_id = node_id
        self.loop = loop
        self._serving = Serving(handle, streams_max)
        self._backlog: list[SimStream] | None = []
        """Those that connected before it ran; None once it does."""
        self._address = ""

    async def listen(self, address: str) -> int:
        """See `StreamServer`."""
        host, _, asked = address.rpartition(":")
        port = int(asked) or 20_000 + self.net.next_number()
        place = self.net.places.get(f"{host}:{port}")
        if place is not None and place.server is not None:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._address = f"{host}:{port}"
        self.net.places[self._address] = Place(self.node_id, self)  # type: ignore[arg-type]
        return port

    async def run(self) -> None:
        """See `StreamServer`."""
        try:
            await self._serving.run(self._begin)
        finally:
            self.close()

    async def _begin(self) -> None:
        waiting, self._backlog = self._backlog or [], None
        for stream in waiting:
            self._serving.accept(stream)

    def close(self) -> None:
        """See `StreamServer`."""
        self.vanish()

    def accept(self, stream: SimStream) -> None:
        """A client has connected."""
        if self._backlog is not None:
            self._backlog.append(stream)
        else:
            self._serving.accept(stream)

    def vanish(self) -> None:
        """Nothing listens on its address any more."""
        place = self.net.places.get(self._address)
        if place is not None and place.server is self:  # type: ignore[comparison-overlap]
            place.server = None
