"""A node's connection to the others: the product's `Transport`, on the simulator's network.

    SimTransport of node 1 ─ open ─▶ channel ═ Connection ═▶ server ◀─ server ─ that of node 2

One per run of a node: it belongs to the node's loop. When the node is killed, all its connections
break, silently on its side, and nothing listens on its addresses any more.
"""

from __future__ import annotations

import socket
from asyncio import sleep
from collections.abc import Sequence
from typing import cast

import grpc

from penstock.rpc.channel import WINDOW_BYTES
from penstock.rpc.streams.contract import Clients, Handle, MessageStream, StreamServer
from penstock_sim.network import Network
from penstock_sim.node_loop import NodeLoop
from penstock_sim.wire.channel import SimChannel
from penstock_sim.wire.server import SimServer
from penstock_sim.wire.streams import Dialer, SimStreamServer


class SimTransport:
    """A `penstock.rpc.transport.Transport`.

    `host` is the address that servers see for clients of this node. `window_bytes` is how far each
    end of a call may be ahead of the other's reading.
    """

    def __init__(
        self,
        net: Network,
        node_id: int,
        loop: NodeLoop,
        *,
        host: str = "",
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.net = net
        self.node_id = node_id
        self.loop = loop
        self.host = host or f"10.0.0.{node_id}"
        self.window_bytes = window_bytes
        self._servers: list[SimServer | SimStreamServer] = []
        loop.at_kill(self._killed)

    @property
    def tls(self) -> None:
        """See `Transport`: nobody listens in here."""

    @property
    def plaintext(self) -> None:
        """See `Transport`."""

    def open(self, address: str) -> grpc.aio.Channel:
        """See `Transport`."""
        return cast("grpc.aio.Channel", SimChannel(self, address))

    async def resolve(self, host: str, port: int) -> list[str]:
        """See `Transport`. A host that is not among the network's names is an address."""
        await sleep(self.net.delay_ms() / 1000)
        addresses = self.net.names.get(host, [host])
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [f"{address}:{port}" for address in addresses]

    def server(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        *,
        rpcs_max: int | None = None,
        metadata_bytes_max: int | None = None,
    ) -> grpc.aio.Server:
        """See `Transport`."""
        server = SimServer(self.net, self.node_id, self.loop, interceptors, rpcs_max)
        self._servers.append(server)
        return cast("grpc.aio.Server", server)

    def bind(
        self,
        server: grpc.aio.Server,
        address: str,
        clients: Clients,
    ) -> int:
        """See `Transport`. Clients open exactly this address."""
        return server.add_insecure_port(address)

    async def open_stream(self, address: str) -> MessageStream:
        """See `Transport`."""
        return await Dialer(self, address).connect()

    def stream_server(
        self,
        handle: Handle,
        *,
        streams_max: int,
        clients: Clients,
    ) -> StreamServer:
        """See `Transport`. Clients open exactly the address it is bound to."""
        server = SimStreamServer(self.net, self.node_id, self.loop, handle, streams_max)
        self._servers.append(server)
        return server

    def _killed(self) -> None:
        for server in self._servers:
            server.vanish()
        for connection in list(self.net.connections.values()):
            if self.loop in (connection.channel.loop, connection.server.loop):
                connection.break_off()
