"""Every port of a broker: who calls there, and which services it has.

--listen              clients in the same network, of a plaintext cluster all      gRPC
--external-listen     clients outside the network: the services of clients alone   gRPC
--certificate-listen  the same for users who show a certificate instead of a token gRPC
--stream-listen       clients that produce and fetch without gRPC                  messages
--secure-listen       clients over TLS, of a cluster that has TLS, or comes to it  gRPC
--internal-listen     other brokers, controllers: the same                         gRPC
--replication-listen  followers                                                    messages
--health-listen       whoever restarts the process                                 gRPC

With TLS, users are identified by `identify`, servers by their certificates: a gRPC server in Python
either requires certificates or does not ask for them, so users and servers have a port each. A
broker that is migrating serves all ports of a plaintext cluster as they were, and these two with
TLS: callers at the former may do everything, at the latter what they prove to be may do.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import grpc

from penstock.errors import ErrorCode, MisuseError
from penstock.proto.v1 import (
    admin_pb2_grpc,
    broker_pb2_grpc,
    group_pb2_grpc,
    journal_pb2_grpc,
    replication_pb2_grpc,
    transaction_pb2_grpc,
    transaction_peer_pb2_grpc,
)
from penstock.rpc.peers import towards
from penstock.rpc.streams.contract import Clients
from penstock.rpc.transport import Transport
from penstock_broker.broker.replication import Replication
from penstock_broker.config import BrokerConfig
from penstock_broker.metadata.session import Ports
from penstock_broker.observability import EventLog, bound_address
from penstock_broker.services.client_streams import ClientStreams
from penstock_broker.serving.callers import Door, Identify
from penstock_broker.serving.edge import Edge, Failed
from penstock_broker.serving.listener import Listener, came_to, listener_of_clients
from penstock_broker.serving.open_streams import OpenStreams
from penstock_broker.serving.plaintext_clients import PlaintextClients
from penstock_broker.serving.servers import identify_server
from penstock_broker.serving.standard import Health, add_reflection
from penstock_broker.serving.user_certificates import UserCertificates

_GRACE_S: Final = 1.0
PUBLIC_SERVICES: Final = (
    "penstock.proto.v1.BrokerService",
    "penstock.proto.v1.AdminService",
    "penstock.proto.v1.GroupService",
    "penstock.proto.v1.TransactionService",
)
SERVICES: Final = (
    *PUBLIC_SERVICES,
    "penstock.proto.v1.ReplicationService",
    "penstock.proto.v1.JournalService",
    "penstock.proto.v1.TransactionPeerService",
)
_events = EventLog("listeners")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What answers at the ports."""

    broker: broker_pb2_grpc.BrokerServiceServicer
    admin: admin_pb2_grpc.AdminServiceServicer
    group: group_pb2_grpc.GroupServiceServicer
    transaction: transaction_pb2_grpc.TransactionServiceServicer
    transaction_peer: transaction_peer_pb2_grpc.TransactionPeerServiceServicer
    journal: journal_pb2_grpc.JournalServiceServicer
    replication: Replication
    client_streams: ClientStreams


class Listeners:
    """`bind`, then `start`; `stop` while followers are still served, `close` at the end."""

    def __init__(
        self,
        config: BrokerConfig,
        transport: Transport,
        services: Services,
        cluster_id: Callable[[], str],
        observe: Callable[[str, float], None],
        *,
        identify: Identify,
        access: Door,
        plaintext: PlaintextClients | None,
        failed: Failed,
    ) -> None:
        """`identify`: users, at ports with TLS. `plaintext`: counts callers at those without, if
        there are both. All else that is not obvious: see `Edge`."""
        self._access = access
        self._transport = transport
        self._common = towards(transport, secured=False)
        """Of the ports that a plaintext cluster has, too."""
        self._users = identify
        self._identify = identify if self._common.tls is not None else None
        if plaintext is not None:
            self._identify = plaintext.identify
        self._config = config
        self._services = services
        self._cluster_id = cluster_id
        self._observe = observe
        self._failed = failed
        self._streams_of: list[OpenStreams] = []
        self._servers: list[grpc.aio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._bound = self._replication = self._streams = self._internal = self._secure = 0
        self._certificates = 0
        self.health = Health(SERVICES)

    @property
    def open_streams(self) -> int:
        """Streams of gRPC that clients have open here."""
        return sum(streams.open for streams in self._streams_of)

    @property
    def ports(self) -> Ports:
        """As others reach them; 0 until they are bound."""
        both = self._transport.plaintext is not None
        return Ports(
            port=self._config.advertise_port or self._bound,
            replication_port=self._replication,
            stream_port=self._streams,
            internal_port=0 if both else self._internal,
            secure_port=self._secure,
            secure_internal_port=self._internal if both else 0,
            certificate_port=self._certificates,
        )

    async def bind(self) -> None:
        """Takes every port. Raises MisuseError, after which `close` gives up those it has."""
        config, services = self._config, self._services
        if self._common.tls is None:
            await self._bind_plaintext()
        else:
            self._bound = await self._bind_users(
                "--listen", config.listen, listener_of_clients(self._transport)
            )
        if self._transport.tls is not None:
            await self._bind_internal()
        if config.secure_listen:
            self._secure = await self._bind_secure()
        if config.health_listen:
            await _bound(
                self.health.listen(self._transport, config.health_listen),
                "--health-listen",
                config.health_listen,
            )
        if config.external_listen:
            await self._bind_users("--external-listen", config.external_listen, Listener.OUTSIDE)
        if config.certificate_listen:
            await self._bind_certified(config.certificate_listen)
        if config.replication_listen:
            self._replication = await _bound(
                services.replication.listen(config.replication_listen),
                "--replication-listen",
                config.replication_listen,
            )
        if config.stream_listen:
            self._streams = await _bound(
                services.client_streams.listen(config.stream_listen),
                "--stream-listen",
                config.stream_listen,
            )

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Serves; streams in `tasks`."""
        for server in self._servers:
            await server.start()
        streams = (self._services.client_streams.run(), self._services.replication.lead())
        self._tasks = [tasks.create_task(each) for each in streams]
        _events.info("listening", address=bound_address(self._config.listen, self._bound))

    async def stop(self) -> None:
        """Ends all calls and streams. Followers last: a produce that is under way needs them."""
        for server in reversed(self._servers):
            await server.stop(_GRACE_S)
        for task in self._tasks:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Gives up every port. Idempotent."""
        self._services.replication.close()
        self._services.client_streams.close()
        for server in reversed(self._servers):
            await server.stop(None)
        await self.health.close()

    async def _bind_plaintext(self) -> None:
        """Everybody calls there."""
        called = listener_of_clients(self._transport)
        server = await self._server(self._common, self._identify, called)
        self._add_services_of_servers(server)
        self._bound = _bind(
            self._common, server, "--listen", self._config.listen, Clients.CERTIFIED
        )

    async def _bind_internal(self) -> None:
        server = await self._server(
            self._transport, identify_server(self._cluster_id), Listener.ANY
        )
        self._add_services_of_servers(server)
        address = self._config.internal_listen
        self._internal = _bind(
            self._transport, server, "--internal-listen", address, Clients.CERTIFIED
        )

    async def _bind_secure(self) -> int:
        server = await self._server(self._transport, self._users, Listener.SECURE)
        address = self._config.secure_listen
        return _bind(self._transport, server, "--secure-listen", address, Clients.USERS)

    async def _bind_users(self, option: str, address: str, called: Listener) -> int:
        """What a cluster with TLS offers, only those learn whom it knows: no reflection."""
        server = await self._server(self._common, self._identify, called)
        if self._common.tls is None:
            add_reflection(PUBLIC_SERVICES, server)
        return _bind(self._common, server, option, address, Clients.USERS)

    async def _bind_certified(self, address: str) -> None:
        """For users alone, whom TLS has asked for a certificate of a CA of theirs."""
        identify = UserCertificates().identify
        server = await self._server(self._transport, identify, Listener.CERTIFICATE)
        self._certificates = _bind(
            self._transport, server, "--certificate-listen", address, Clients.CERTIFIED_USERS
        )

    async def _server(
        self, transport: Transport, identify: Identify | None, called: Listener
    ) -> grpc.aio.Server:
        """With the services of clients. Callers get addresses that they can reach from there."""
        services, rpcs_max = self._services, self._config.settings.rpcs_max
        streams = OpenStreams(rpcs_max)
        self._streams_of.append(streams)
        edge = Edge(
            self._cluster_id,
            self._observe,
            partial(came_to, called),
            streams=streams,
            identify=identify,
            access=self._access,
            failed=self._failed,
        )
        server = transport.server([edge], rpcs_max=rpcs_max)
        self._servers.append(server)
        broker_pb2_grpc.add_BrokerServiceServicer_to_server(services.broker, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(services.admin, server)
        group_pb2_grpc.add_GroupServiceServicer_to_server(services.group, server)
        transaction_pb2_grpc.add_TransactionServiceServicer_to_server(services.transaction, server)
        await self.health.add_to(server)
        return server

    def _add_services_of_servers(self, server: grpc.aio.Server) -> None:
        services = self._services
        replication_pb2_grpc.add_ReplicationServiceServicer_to_server(
            services.replication.leading, server
        )
        transaction_peer_pb2_grpc.add_TransactionPeerServiceServicer_to_server(
            services.transaction_peer, server
        )
        journal_pb2_grpc.add_JournalServiceServicer_to_server(services.journal, server)
        add_reflection(SERVICES, server)


def _bind(
    transport: Transport, server: grpc.aio.Server, option: str, address: str, clients: Clients
) -> int:
    """Returns the bound port. Raises MisuseError."""
    try:
        return transport.bind(server, address, clients)
    except RuntimeError as error:
        raise _unavailable(address, option) from error


async def _bound(listening: Awaitable[_T], option: str, address: str) -> _T:
    try:
        return await listening
    except (OSError, RuntimeError) as error:
        raise _unavailable(address, option) from error


def _unavailable(address: str, option: str) -> MisuseError:
    return MisuseError(
        f"cannot listen on {address}: the port is in use or the address is not of this "
        f"machine; choose another {option}",
        ErrorCode.INVALID_CONFIG,
    )
