"""Health on an address of its own, for whoever restarts the process if there is no answer.

The clients' server refuses calls when it has too many, and a refused probe is a failed one: with
enough idle streams, anyone could have the process restarted. Here nothing but health is served, and
there is nothing to hold on to: a check is answered at once, `Watch` does not exist, a caller that
does not send its request within `REQUEST_S` is dropped, and of more than `CALLS_MAX` such callers
the one that has waited longest makes room. Plaintext: an answer says no more than that the process
lives.
"""

from typing import Any, Final

import grpc

# This package comes without type information.
from grpc_health.v1 import health, health_pb2

from penstock.rpc.streams.contract import Clients
from penstock.rpc.transport import Transport
from penstock_broker.observability import EventLog, bound_address
from penstock_broker.serving.request_wait import RequestWait

CALLS_MAX: Final = 32
REQUEST_S: Final = 2.0
_events = EventLog("probes")


class Probes:
    """Answers for a standard health servicer. `listen`, and `close` at the end."""

    def __init__(self, servicer: Any) -> None:
        self._servicer = servicer
        self._server: grpc.aio.Server | None = None

    async def listen(self, transport: Transport, address: str) -> None:
        """Serves on `host:port`. Raises RuntimeError if the address is not available."""
        server = transport.server([])
        check = RequestWait(CALLS_MAX, REQUEST_S).bounding(
            grpc.unary_unary_rpc_method_handler(
                self._servicer.Check,
                health_pb2.HealthCheckRequest.FromString,
                health_pb2.HealthCheckResponse.SerializeToString,
            )
        )
        handler = grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": check})
        server.add_generic_rpc_handlers((handler,))
        port = transport.bind(server, address, Clients.PROBES)
        await server.start()
        self._server = server
        _events.info("answering probes", address=bound_address(address, port))

    async def close(self) -> None:
        """Idempotent."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
