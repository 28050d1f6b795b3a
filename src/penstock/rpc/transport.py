"""How a process connects to others and accepts connections: one seam around channels, servers and
names.

    LeaderLink, ControllerSession, PeerChannels ─ open ──▶ channel ─▶ generated stubs
    finding controllers ──────────────────────── resolve ─▶ addresses
    broker, controller ─────────────────── server, bind ─▶ generated servicers, a port, start, stop
    LeaderLink ── open_stream, stream_server ─▶ Leading        messages without gRPC (`rpc.streams`)

`GrpcTransport` is what every process uses: gRPC, and message streams, over TCP, with TLS if it is
given some. The simulator has another, on a network in virtual time
(`tests/simulation/penstock_sim/wire`); one contract suite holds for all.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

from penstock.rpc.channel import (
    CONNECTION_AGE_S,
    SERVER_OPTIONS,
    aging_options,
    connection_options,
    metadata_options,
    open_aio_channel,
)
from penstock.rpc.streams.accepting import Secured
from penstock.rpc.streams.contract import Clients, Handle, MessageStream, StreamServer
from penstock.rpc.streams.tcp import TcpStreamServer, open_tcp_stream
from penstock.rpc.tls import Tls


class Transport(Protocol):
    """Creates channels and servers; of one event loop."""

    @property
    def tls(self) -> Tls | None:
        """What secures all connections; None: they are plaintext. When its `generation` moves,
        channels are opened again."""
        ...

    @property
    def plaintext(self) -> "Transport | None":
        """The same without TLS, of a process that serves both; None: it has all in one way.

        `rpc.peers` says who is called by it.
        """
        ...

    def open(self, address: str) -> grpc.aio.Channel:
        """A channel to `host:port`; connects lazily, owned by the caller.

        With TLS the server must prove that it is `host`, or, at an address that `resolve` found,
        the name that was resolved.
        """
        ...

    async def resolve(self, host: str, port: int) -> list[str]:
        """Every address of a name as `ip:port`, for `open`; in any order, perhaps repeated.

        Raises OSError or UnicodeError for a name that cannot be resolved.
        """
        ...

    def server(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        *,
        rpcs_max: int | None = None,
        metadata_bytes_max: int | None = None,
    ) -> grpc.aio.Server:
        """A server, neither bound nor started. Calls above `rpcs_max` are refused; None: no
        limit. `metadata_bytes_max`: of one call; None: gRPC's 8 KiB, beyond which some are
        refused, and all beyond 16 KiB."""
        ...

    def bind(self, server: grpc.aio.Server, address: str, clients: Clients) -> int:
        """Has `server` listen at `host:port` as well, and returns the port; 0 stands for any.

        Raises RuntimeError for an address that is not available.
        """
        ...

    async def open_stream(self, address: str) -> MessageStream:
        """A connected stream to a stream server at `host:port`; the caller closes it.

        Raises UnreachableError; the caller bounds the wait.
        """
        ...

    def stream_server(self, handle: Handle, *, streams_max: int, clients: Clients) -> StreamServer:
        """A server that has `handle` serve each stream. Streams above `streams_max` are refused."""
        ...


class GrpcTransport:
    """gRPC over TCP, with the settings of `rpc.channel`; streams over TCP."""

    def __init__(
        self,
        tls: Tls | None = None,
        connection_age_s: float = CONNECTION_AGE_S,
        users_authorities: Callable[[], bytes] | None = None,
        *,
        migrating: bool = False,
        connections_max: int | None = None,
    ) -> None:
        """`tls` None: plaintext. `connection_age_s`: about how old a connection over TLS gets.
        `users_authorities`: the CAs (PEM) of `Clients.CERTIFIED_USERS`; called from any thread.
        None: there is no port for them. `migrating`: plaintext beside TLS. `connections_max`: of
        each port at one time; further ones are cut. None: no limit."""
        self._tls = tls
        self._plaintext = GrpcTransport(connections_max=connections_max) if migrating else None
        self._connections_max = connections_max
        self._age_s = connection_age_s
        self._users_authorities = users_authorities
        self._names: dict[str, str] = {}
        """The name that stood for an address when it was last resolved."""

    @property
    def tls(self) -> Tls | None:
        """See `Transport`."""
        return self._tls

    @property
    def plaintext(self) -> Transport | None:
        """See `Transport`."""
        return self._plaintext

    def open(self, address: str) -> grpc.aio.Channel:
        """See `Transport`."""
        return open_aio_channel(address, self._tls, known_as=self._names.get(address, ""))

    async def resolve(self, host: str, port: int) -> list[str]:
        """See `Transport`."""
        loop = asyncio.get_running_loop()
        found = []
        for family, _, _, _, endpoint in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            ip = str(endpoint[0])
            found.append(f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}")
        self._remember(host, port, found)
        return found

    def _remember(self, host: str, port: int, found: list[str]) -> None:
        for address in [known for known, name in self._names.items() if name == host]:
            if address.rpartition(":")[2] == str(port):
                del self._names[address]
        self._names.update((a, host) for a in found if a.rpartition(":")[0].strip("[]") != host)

    def server(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        *,
        rpcs_max: int | None = None,
        metadata_bytes_max: int | None = None,
    ) -> grpc.aio.Server:
        """See `Transport`."""
        aging = [] if self._tls is None else aging_options(self._age_s)
        return grpc.aio.server(
            interceptors=interceptors,
            options=[
                *SERVER_OPTIONS,
                *connection_options(self._connections_max),
                *metadata_options(metadata_bytes_max),
                *aging,
            ],
            maximum_concurrent_rpcs=rpcs_max,
        )

    def bind(self, server: grpc.aio.Server, address: str, clients: Clients) -> int:
        """See `Transport`."""
        if clients is Clients.CERTIFIED_USERS:
            assert self._tls is not None, "without TLS nobody shows a certificate"
            assert self._users_authorities is not None, "somebody says whose certificates count"
            credentials = self._tls.server_credentials(
                ask_clients=True, authorities=self._users_authorities
            )
            return server.add_secure_port(address, credentials)
        if self._tls is None or clients is Clients.PROBES:
            return server.add_insecure_port(address)
        certified = clients is Clients.CERTIFIED
        return server.add_secure_port(address, self._tls.server_credentials(ask_clients=certified))

    async def open_stream(self, address: str) -> MessageStream:
        """See `Transport`."""
        return await open_tcp_stream(address, self._tls)

    def stream_server(self, handle: Handle, *, streams_max: int, clients: Clients) -> StreamServer:
        """See `Transport`."""
        if self._connections_max is not None:
            # It has as many again while it refuses them.
            streams_max = min(streams_max, max(1, self._connections_max // 2))
        if self._tls is None:
            return TcpStreamServer(handle, streams_max)
        secured = Secured(self._tls, ask_clients=clients is Clients.CERTIFIED, age_s=self._age_s)
        return TcpStreamServer(handle, streams_max, secured)
