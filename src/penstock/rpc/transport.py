"""How a process connects to others and accepts connections: one seam around channels, servers and
names.

    LeaderLink, ControllerSession, PeerChannels ─ open ──▶ channel ─▶ generated stubs
    finding controllers ──────────────────────── resolve ─▶ addresses
    broker, controller ───────────────────────── server ─▶ generated servicers, a port, start, stop

`GrpcTransport` is gRPC over TCP, which every process uses. The simulator has another, on a network
in virtual time (`tests/simulation/penstock_sim/wire`); one contract suite holds for both.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Protocol

import grpc

from penstock.rpc.channel import SERVER_OPTIONS, open_aio_channel


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


class GrpcTransport:
    """gRPC over TCP, with the settings of `rpc.channel`."""

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
