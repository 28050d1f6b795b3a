"""A server of a node: generated code registers with it, a process starts and stops it.

It listens at its address from `start` on, until `stop` or the end of its node. A stopping server
accepts no connections and tells its channels so, like HTTP/2's GOAWAY; calls continue during the
grace period.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from grpc._cython import cygrpc

from penstock_sim.network import Network
from penstock_sim.node_loop import NodeLoop
from penstock_sim.wire.end import one_turn
from penstock_sim.wire.messages import Metadata

if TYPE_CHECKING:
    from penstock_sim.wire.connection import Connection
    from penstock_sim.wire.server_call import ServerCall


@dataclass(slots=True)
class Place:
    """An address that something has listened on. `server` is None while nothing does."""

    node_id: int
    server: SimServer | None


@dataclass(frozen=True, slots=True)
class _CallDetails(grpc.HandlerCallDetails):
    """The argument of interceptors and generic handlers."""

    method: str
    invocation_metadata: Metadata


class SimServer:
    """Replaces `grpc.aio.Server`."""

    def __init__(
        self,
        net: Network,
        node_id: int,
        loop: NodeLoop,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        rpcs_max: int | None,
    ) -> None:
        self.net = net
        self.node_id = node_id
        self.loop = loop
        self.running = False
        self.stopped = False
        self._stopping = False
        self._interceptors = tuple(interceptors)
        self._rpcs_max = rpcs_max
        self._generic: list[grpc.GenericRpcHandler] = []
        self._registered: dict[str, Any] = {}
        self._addresses: list[str] = []
        self._context = contextvars.Context()
        self._tasks: dict[asyncio.Task[None], ServerCall] = {}
        self._active = 0
        self._idle = asyncio.Event()

    # ------------------------------------------------------------ grpc.aio.Server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        for name, handler in handlers.items():
            self._registered[f"/{service}/{name}"] = handler

    def add_insecure_port(self, address: str) -> int:
        """Clients open exactly this address; port 0 assigns a new port."""
        host, _, asked = address.rpartition(":")
        port = int(asked) or 20_000 + self.net.next_number()
        address = f"{host}:{port}"
        place = self.net.places.get(address)
        if address in self._addresses or (place is not None and place.server is not None):
            raise RuntimeError(f"Failed to bind to address {address}: address already in use")
        self._addresses.append(address)
        return port

    async def start(self) -> None:
        if self.stopped:
            raise cygrpc.UsageError("Server not in ready state")
        self.running = True
        self._context = contextvars.copy_context()
        for address in self._addresses:
            self.net.places[address] = Place(self.node_id, self)
        await one_turn()

    async def stop(self, grace: float | None) -> None:
        """As in gRPC: does not wait for cancelled handlers."""
        if self.running:
            self._leave()
        elif not self._stopping or self.stopped:
            return
        if grace is not None and self._tasks:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._idle.wait()
        for connection in self._connections():
            connection.shut()
        await one_turn()
        self.stopped = True

    # ------------------------------------------------------------ connections and calls

    def vanish(self) -> None:
        """Nothing listens on its addresses any more."""
        for address in self._addresses:
            place = self.net.places.get(address)
            if place is not None and place.server is self:
                place.server = None

    def _leave(self) -> None:
        """Accepts no more connections; existing ones are told to begin no calls."""
        self.running = False
        self._stopping = True
        self.vanish()
        for connection in self._connections():
            connection.begin_shutdown()

    def _connections(self) -> list[Connection]:
        return [one for one in self.net.connections.values() if one.server is self]

    def handle(self, call: ServerCall) -> asyncio.Task[None]:
        """Starts a call, in the context in which the server was started."""
        overloaded = self._rpcs_max is not None and self._active >= self._rpcs_max
        context = self._context.copy()
        task = self.loop.create_task(call.run(overloaded=overloaded), context=context)
        self._tasks[task] = call
        self._idle.clear()
        if not overloaded:
            self._active += 1
        task.add_done_callback(self._refused if overloaded else self._handled)
        return task

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._active -= 1
        self._refused(task)

    def _refused(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task).finished()
        if not self._tasks:
            self._idle.set()

    async def find_handler(self, method: str, metadata: Metadata) -> Any:
        """Through the interceptors, in their order; None for a method that is not registered."""
        return await self._intercepted(0, _CallDetails(method, metadata))

    async def _intercepted(self, index: int, details: grpc.HandlerCallDetails) -> Any:
        if index < len(self._interceptors):

            async def go_on(changed: grpc.HandlerCallDetails) -> Any:
                return await self._intercepted(index + 1, changed)

            return await self._interceptors[index].intercept_service(go_on, details)
        handler = self._registered.get(details.method)
        if handler is not None:
            return handler
        for generic in self._generic:
            handler = generic.service(details)
            if handler is not None:
                return handler
        return None
