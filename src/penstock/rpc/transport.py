"""How a process connects to others and accepts connections: one seam around channels, servers and
names.

    LeaderLink, ControllerSession, PeerChannels ─ open ──▶ channel ─▶ generated stubs
    finding controllers ──────────────────────── resolve ─▶ addresses
    broker, controller ───────────────────────── server ─▶ generated servicers, a port, start, stop
    LeaderLink ── open_stream, stream_server ─▶ Leading        messages without gRPC (`rpc.streams`)

`GrpcTransport` is what every process uses: gRPC, and message streams, over TCP. The simulator has
another, on a network in virtual time (`tests/simulation/penstock_sim/wire`); one contract suite
holds for both.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Protocol

import grpc

from penstock.rpc.channel import SERVER_OPTIONS, open_aio_channel
from penstock.rpc.streams.contract import Handle, MessageStream, StreamServer
from penstock.rpc.streams.tcp import TcpStreamServer, open_tcp_stream


class Transport(Protocol):
    """Creates channels and servers; of one event loop."""

    def open(self, address: str) -> grpc.aio.Channel:
        """A channel to `host:port`; connects lazily, owned by the caller."""
        ...

    async def resolve(self, host: str, port: int) -> list[str]:
        """Every address of a name as `ip:port`, for `open`; in any order, perhaps repeated.

        Raises OSError or UnicodeError for a name that cannot be resolved.
        """
        ...

    def server(
        self, interceptors: Sequence[grpc.aio.ServerInterceptor], *, rpcs_max: int | None = None
    ) -> grpc.aio.Server:
        """A server, neither bound nor started. Calls above `rpcs_max` are refused; None: no limit.

        Its `add_insecure_port` raises RuntimeError for an address that is not available.
        """
        ...

    async def open_stream(self, address: str) -> MessageStream:
        """A connected stream to a stream server at `host:port`; the caller closes it.

        Raises UnreachableError; the caller bounds the wait.
        """
        ...

    def stream_server(self, handle: Handle, *, streams_max: int) -> StreamServer:
        """A server that has `handle` serve each stream. Streams above `streams_max` are refused."""
        ...


class GrpcTransport:
    """gRPC over TCP, with the settings of `rpc.channel`; streams over TCP."""

    def open(self, address: str) -> grpc.aio.Channel:
        """See `Transport`."""
        return open_aio_channel(address)

    async def resolve(self, host: str, port: int) -> list[str]:
        """See `Transport`."""
        loop = asyncio.get_running_loop()
        found = []
        for family, _, _, _, endpoint in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            ip = str(endpoint[0])
            found.append(f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}")
        return found

    def server(
        self, interceptors: Sequence[grpc.aio.ServerInterceptor], *, rpcs_max: int | None = None
    ) -> grpc.aio.Server:
        """See `Transport`."""
        return grpc.aio.server(
            interceptors=interceptors, options=SERVER_OPTIONS, maximum_concurrent_rpcs=rpcs_max
        )

    async def open_stream(self, address: str) -> MessageStream:
        """See `Transport`."""
        return await open_tcp_stream(address)

    def stream_server(self, handle: Handle, *, streams_max: int) -> StreamServer:
        """See `Transport`."""
        return TcpStreamServer(handle, streams_max)
