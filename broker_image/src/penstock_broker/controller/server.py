"""The controller's gRPC server: Penstock's services behind the edge, health, reflection.

Health never depends on peers or the API server once the server is up:

    penstock.liveness                       SERVING while the event loop runs
    "" (readiness)                          once it was active or stood by; stays so
    penstock.proto.v1.ControllerService     only while it is active, for people and tests
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc_health.v1 import (
    health,
    health_pb2,
    health_pb2_grpc,
)
from grpc_reflection.v1alpha import (
    reflection,
)

from penstock.core.authorization import Rulebook
from penstock.errors import ErrorCode, MisuseError
from penstock.proto.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from penstock.proto.v1.controller_pb2_grpc import add_ControllerServiceServicer_to_server
from penstock.rpc.channel import USER_METADATA_BYTES_MAX
from penstock.rpc.peers import towards
from penstock.rpc.streams.contract import Clients
from penstock.rpc.transport import Transport
from penstock_broker.controller.admin import ControllerAdminService
from penstock_broker.controller.rules import StoredRules
from penstock_broker.controller.runtime import ControllerRuntime
from penstock_broker.controller.seams import ControllerSeams
from penstock_broker.controller.sessions import ControllerService
from penstock_broker.observability import bound_address
from penstock_broker.serving.edge import Edge
from penstock_broker.serving.forwarding import believing_brokers
from penstock_broker.serving.open_streams import OpenStreams
from penstock_broker.serving.probes import Probes
from penstock_broker.serving.servers import identify_server
from penstock_broker.serving.standard import LIVENESS

CONTROLLER_SERVICE: Final = "penstock.proto.v1.ControllerService"
ADMIN_SERVICE: Final = "penstock.proto.v1.AdminService"
_HEALTH_CHECK_S: Final = 0.1
_RPCS_MAX: Final = 4_000
"""Calls and streams at one time: more sessions than there may be brokers, even from one host."""
_STATUS = health_pb2.HealthCheckResponse.ServingStatus


@dataclass(frozen=True, slots=True)
class ControllerServer:
    """Bound servers; `start` them, then keep `watch_health` running."""

    servers: tuple[grpc.aio.Server, ...]
    address: str
    """The address it listens on, with the actual port if port 0 was requested."""
    port: int
    health: Any
    probes: Probes
    runtime: ControllerRuntime

    async def start(self, transport: Transport, health_listen: str) -> None:
        """Serves, and answers probes on `health_listen` as well, unless it is empty.

        Raises MisuseError if that address is not available.
        """
        await self.health.set("", _STATUS.NOT_SERVING)
        await self.health.set(LIVENESS, _STATUS.SERVING)
        for server in self.servers:
            await server.start()
        try:
            if health_listen:
                await self.probes.listen(transport, health_listen)
        except RuntimeError as error:
            raise MisuseError(
                f"--health-listen {health_listen} cannot be used; give another address",
                ErrorCode.INVALID_CONFIG,
            ) from error

    async def stop(self, grace_s: float) -> None:
        """Ends calls under way after `grace_s`."""
        async with asyncio.TaskGroup() as stopping:
            for server in self.servers:
                stopping.create_task(server.stop(grace_s))
        await self.probes.close()

    async def watch_health(self) -> None:
        """Keeps health up to date, until cancelled."""
        shown: dict[str, bool] = {}
        while True:
            active = self.runtime.active
            wanted = {
                LIVENESS: True,
                "": self.runtime.usable,
                CONTROLLER_SERVICE: active,
                ADMIN_SERVICE: active,
            }
            for name, serving in wanted.items():
                if shown.get(name) is not serving:
                    status = _STATUS.SERVING if serving else _STATUS.NOT_SERVING
                    await self.health.set(name, status)
            shown = wanted
            await asyncio.sleep(_HEALTH_CHECK_S)


def bind(
    runtime: ControllerRuntime,
    listen: str,
    seams: ControllerSeams,
    rulebook: Rulebook | None = None,
    secure_listen: str = "",
) -> ControllerServer:
    """Servers on `host:port` (port 0: any), and on `secure_listen` if it is not empty.

    `rulebook`: with the roles that the process was started with. Raises RuntimeError if a port is
    not available.
    """
    rules = StoredRules(runtime, rulebook)
    health_servicer = health.aio.HealthServicer()
    common = towards(seams.transport, secured=False)
    made = []
    for transport, at in ((common, listen), (seams.transport, secure_listen)):
        if at:
            server = _server(runtime, transport, rules, seams.new_id)
            health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
            made.append((server, transport.bind(server, at, Clients.CERTIFIED)))
    port = made[0][1]
    return ControllerServer(
        tuple(server for server, _ in made),
        bound_address(listen, port),
        port,
        health_servicer,
        Probes(health_servicer),
        runtime,
    )


def _server(
    runtime: ControllerRuntime,
    transport: Transport,
    rules: StoredRules,
    new_id: Callable[[], str],
) -> grpc.aio.Server:
    """With the services of a controller."""
    identify = None
    if transport.tls is not None:
        identify = believing_brokers(identify_server(lambda: runtime.cluster_id))
    edge = Edge(
        lambda: runtime.cluster_id,
        lambda _method, _seconds: None,
        streams=OpenStreams(_RPCS_MAX),
        identify=identify,
        access=rules,
    )
    server = transport.server(
        [edge], rpcs_max=_RPCS_MAX, metadata_bytes_max=USER_METADATA_BYTES_MAX
    )
    add_ControllerServiceServicer_to_server(ControllerService(runtime), server)
    add_AdminServiceServicer_to_server(ControllerAdminService(runtime, rules, new_id), server)
    names = (CONTROLLER_SERVICE, ADMIN_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    return server
