"""Every port of a broker: who calls there, and which services it has.

--listen              clients in the same network, other brokers, controllers      gRPC
--external-listen     clients outside the network: the services of clients alone   gRPC
--stream-listen       clients that produce and fetch without gRPC                  messages
--replication-listen  followers                                                    messages
--health-listen       whoever restarts the process                                 gRPC
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
from penstock.rpc.transport import Transport
from penstock_broker.broker.replication import Replication
from penstock_broker.config import BrokerConfig
from penstock_broker.observability import EventLog, bound_address
from penstock_broker.services.client_streams import ClientStreams
from penstock_broker.serving.edge import Edge
from penstock_broker.serving.listener import came_from_outside
from penstock_broker.serving.open_streams import OpenStreams
from penstock_broker.serving.standard import Health, add_reflection

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
    ) -> None:
        """`cluster_id` and `observe`: see `Edge`."""
        self._config = config
        self._transport = transport
        self._services = services
        self._cluster_id = cluster_id
        self._observe = observe
        self._servers: list[grpc.aio.Server] = []
        self._bound = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.health = Health(SERVICES)
        self.replication_port = self.stream_port = 0
        """0: not bound, or there is none."""

    @property
    def port(self) -> int:
        """At which others reach the broker; 0 until it is bound."""
        return self._config.advertise_port or self._bound

    async def bind(self) -> None:
        """Takes every port. Raises MisuseError, after which `close` gives up those it has."""
        config, services = self._config, self._services
        await self._bind_listen()
        if config.health_listen:
            await _bound(
                self.health.listen(self._transport, config.health_listen),
                "--health-listen",
                config.health_listen,
            )
        if config.external_listen:
            await self._bind_external()
        if config.replication_listen:
            self.replication_port = await _bound(
                services.replication.listen(config.replication_listen),
                "--replication-listen",
                config.replication_listen,
            )
        if config.stream_listen:
            self.stream_port = await _bound(
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

    async def _bind_listen(self) -> None:
        services = self._services
        server = await self._server(lambda: None)
        replication_pb2_grpc.add_ReplicationServiceServicer_to_server(
            services.replication.leading, server
        )
        transaction_peer_pb2_grpc.add_TransactionPeerServiceServicer_to_server(
            services.transaction_peer, server
        )
        journal_pb2_grpc.add_JournalServiceServicer_to_server(services.journal, server)
        add_reflection(SERVICES, server)
        self._bound = _bind(server, "--listen", self._config.listen)

    async def _bind_external(self) -> None:
        """Callers there get addresses that they can reach."""
        server = await self._server(came_from_outside)
        add_reflection(PUBLIC_SERVICES, server)
        _bind(server, "--external-listen", self._config.external_listen)

    async def _server(self, entered: Callable[[], None]) -> grpc.aio.Server:
        services, rpcs_max = self._services, self._config.settings.rpcs_max
        streams = OpenStreams(rpcs_max)
        edge = Edge(self._cluster_id, self._observe, entered, streams=streams)
        server = self._transport.server([edge], rpcs_max=rpcs_max)
        self._servers.append(server)
        broker_pb2_grpc.add_BrokerServiceServicer_to_server(services.broker, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(services.admin, server)
        group_pb2_grpc.add_GroupServiceServicer_to_server(services.group, server)
        transaction_pb2_grpc.add_TransactionServiceServicer_to_server(services.transaction, server)
        await self.health.add_to(server)
        return server


def _bind(server: grpc.aio.Server, option: str, address: str) -> int:
    """Returns the bound port. Raises MisuseError."""
    try:
        return server.add_insecure_port(address)
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
