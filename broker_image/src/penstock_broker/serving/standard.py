"""The services every gRPC server is expected to have: health and reflection.

Health says NOT_SERVING until the process can do its work, and again once it stops; only
`penstock.liveness` says SERVING as soon as the port is open, because a process that waits for its
peers must not be killed for that. Reflection lets tools such as grpcurl call the API without its
proto files.
"""

from collections.abc import Sequence
from typing import Any, Final

import grpc

# These two packages come without type information.
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from penstock.rpc.transport import Transport
from penstock_broker.serving.probes import Probes

LIVENESS: Final = "penstock.liveness"
"""The health service name for liveness probes: it only says that the process answers."""
_STATUS: Final = health_pb2.HealthCheckResponse


class Health:
    """The standard health service for the whole server ("") and each of its services."""

    def __init__(self, services: Sequence[str]) -> None:
        self._names = ("", *services)
        self._servicer: Any = health.aio.HealthServicer()
        self._probes = Probes(self._servicer)

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Adds the service; it says NOT_SERVING, except for liveness."""
        await self._say(_STATUS.NOT_SERVING)
        await self._servicer.set(LIVENESS, _STATUS.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def listen(self, transport: Transport, address: str) -> None:
        """Answers on an address of its own as well. Raises RuntimeError if it is not available."""
        await self._probes.listen(transport, address)

    async def close(self) -> None:
        """Answers no longer on the address of its own."""
        await self._probes.close()

    async def serving(self) -> None:
        """From now on, answers SERVING."""
        await self._say(_STATUS.SERVING)

    async def stopping(self) -> None:
        """From now on, answers NOT_SERVING."""
        await self._servicer.enter_graceful_shutdown()

    async def _say(self, status: int) -> None:
        for name in self._names:
            await self._servicer.set(name, status)


def add_reflection(services: Sequence[str], server: grpc.aio.Server) -> None:
    """Lets clients ask the server for the definitions of these services."""
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
