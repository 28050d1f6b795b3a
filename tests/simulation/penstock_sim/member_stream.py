"""A member's Join stream: the service that ships is called over the simulator's network.

    SimMember ─ say ─▶ [ outbox ] ─▶ Join call ═ SimTransport ═▶ `services.groups` of a broker
        ▲ heard, ended ◀──────────── read

As `client.group.link`, on a loop of the member's process: killed with it, nothing of it runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from penstock.client.group.wire import heard_from_wire
from penstock.errors import PenstockError
from penstock.proto.v1 import group_pb2 as pb
from penstock.proto.v1.group_pb2_grpc import GroupServiceStub
from penstock.rpc.errors import error_from_rpc
from penstock_sim.node_loop import NodeLoop
from penstock_sim.nodes import broker_address
from penstock_sim.scheduler import RATE
from penstock_sim.wire.transport import SimTransport

if TYPE_CHECKING:
    from penstock.core.types import BrokerId
    from penstock_sim.world import World

Heard = Callable[["JoinStream", Any], None]
Ended = Callable[["JoinStream", "PenstockError | None"], None]


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


class JoinStream:
    """One stream from its hello to its end, of which `ended` hears, unless it was closed."""

    def __init__(
        self,
        node: ClientNode,
        broker_id: BrokerId,
        hello: pb.JoinRequest,
        heard: Heard,
        ended: Ended,
    ) -> None:
        self._node = node
        self._heard = heard
        self._ended = ended
        self._outbox = deque([hello])
        self._mail = asyncio.Event()
        self._task = node.start(self._talk(node.channel(broker_id)))

    def say(self, message: pb.JoinRequest) -> None:
        """Sends it, after all before it."""
        self._outbox.append(message)
        self._node.loop.run(self._mail.set)

    def close(self) -> None:
        """Ends it; nobody is told any more."""
        if not self._node.loop.dead:
            self._node.loop.run(self._task.cancel)

    async def _talk(self, channel: grpc.aio.Channel) -> None:
        call: Any = GroupServiceStub(channel).Join()
        writing = self._node.start(self._write(call))
        error: PenstockError | None = None
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                self._heard(self, heard_from_wire(answer))
        except grpc.RpcError as failure:
            error = error_from_rpc(failure)
        finally:
            writing.cancel()
            call.cancel()
        self._ended(self, error)

    async def _write(self, call: Any) -> None:
        try:
            while True:
                while self._outbox:
                    await call.write(self._outbox.popleft())
                self._mail.clear()
                await self._mail.wait()
        except (asyncio.InvalidStateError, grpc.RpcError, grpc.aio.UsageError):
            return  # the stream has ended: the reader knows why
