"""One run of a client's process, or of one thread of it: an event loop and its channels.

    what ships, on `loop` ─▶ channel ═ SimTransport ═▶ services of brokers and controllers

Killed with the process, nothing of it runs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from penstock.rpc.tls import Tls
from penstock_sim.node_loop import NodeLoop
from penstock_sim.nodes import broker_address
from penstock_sim.scheduler import RATE
from penstock_sim.wire.transport import SimTransport

if TYPE_CHECKING:
    from penstock.core.types import BrokerId
    from penstock_sim.world import World


class ClientNode:
    """One run of a client's process: its loop, and a channel per broker."""

    loop: NodeLoop

    def __init__(self, world: World, node: int, name: str, loop: NodeLoop | None = None) -> None:
        """`loop` None: one as all clients have."""
        self.loop = loop or NodeLoop.of(world.scheduler, name, rate=RATE)
        self.world = world
        self._transport = SimTransport(world.net, node, self.loop)
        self._channels: dict[BrokerId, grpc.aio.Channel] = {}
        world.client_nodes.append(self)

    def channel(self, broker_id: BrokerId) -> grpc.aio.Channel:
        """Opened on first use."""
        if broker_id not in self._channels:
            self._channels[broker_id] = self._transport.open(broker_address(broker_id))
        return self._channels[broker_id]

    def open_channel(
        self, address: str, tls: Tls | None = None, *, known_as: str = ""
    ) -> grpc.aio.Channel:
        """See `OpenChannel`."""
        assert tls is None, "nobody listens in here"
        assert not known_as, "as the address says"
        return self._transport.open(address)

    def start(self, coroutine: Any) -> asyncio.Task[Any]:
        """A task; what it raises ends the history."""

        def ended(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and not self.loop.dead:
                self.world.scheduler.fail(error)

        task = self.loop.start(coroutine)
        task.add_done_callback(ended)
        return task

    def kill(self) -> None:
        """Unless it is dead."""
        if not self.loop.dead:
            self.loop.kill()
