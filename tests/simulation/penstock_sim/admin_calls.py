"""What an admin asks and is told, over the simulator's network: of controllers, and of brokers.

    move_calls of the client ─▶ PlacementAdmin ═ SimTransport ═▶ AdminService of a controller
                                               ═ SimTransport ═▶ what a broker knows and stores

Messages, their readers and those who answer are the product's. Controllers are asked here, and not
through a broker: any that believes it decides answers, also one that others have succeeded.
"""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Any, Final

import grpc

from penstock.client import BrokerChange, LogDescription, MovesDescription, TopicDescription
from penstock.client.admin import move_calls
from penstock.client.admin.asking import ToldMetadata
from penstock.client.cluster.wire import logs_from_wire, topic_from_wire
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2, broker_pb2
from penstock.proto.v1.admin_pb2_grpc import (
    AdminServiceServicer,
    AdminServiceStub,
    add_AdminServiceServicer_to_server,
)
from penstock.proto.v1.broker_pb2_grpc import (
    BrokerServiceServicer,
    BrokerServiceStub,
    add_BrokerServiceServicer_to_server,
)
from penstock.rpc.errors import error_from_rpc, error_from_wire
from penstock_broker.services.logs import StoredLogs
from penstock_broker.services.metadata import describe
from penstock_sim.client_node import ClientNode
from penstock_sim.node_loop import NodeLoop, SimExecutor
from penstock_sim.nodes import CONTROLLERS, controller_address

if TYPE_CHECKING:
    from penstock_sim.shell import Shell
    from penstock_sim.world import World

_PATIENCE_S: Final = 6.0
_CALL_S: Final = 2.0
_DISK_BYTES: Final = (1 << 30, 1 << 30, 1 << 20)
"""Free, total, reserve: what a history writes is nothing in comparison."""


class AdminNode(ClientNode):
    """The process of a client that asks controllers. `chance`: which one, and when again."""

    def __init__(
        self, world: World, node: int, name: str, chance: Random, loop: NodeLoop | None = None
    ) -> None:
        super().__init__(world, node, name, loop)
        self._chance = chance
        self._stubs: dict[str, Any] = {}

    async def ask(
        self,
        method: Callable[[Any], Any],
        request: Any,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> Any:
        """Whoever decides, as `AsyncAdmin`: asked again until time is up. Raises PenstockError.

        `method`: of an `AdminServiceStub`.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _PATIENCE_S
        while True:
            stub = self._controller(self._chance.choice(CONTROLLERS))
            try:
                return await call(method(stub), request, metadata)
            except PenstockError as error:
                again = error.retriable or error.code is ErrorCode.NOT_CONTROLLER
                if not again or loop.time() > until_s:
                    raise
            await sleep(self._chance.uniform(0.02, 0.3))

    def _controller(self, node: int) -> Any:
        address = controller_address(node)
        if address not in self._stubs:
            self._stubs[address] = AdminServiceStub(self._transport.open(address))
        return self._stubs[address]


async def call(method: Any, request: Any, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
    """One call, once. Raises PenstockError."""
    try:
        answer = await method(request, timeout=_CALL_S, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    if "error" in answer.DESCRIPTOR.fields_by_name and answer.HasField("error"):
        raise error_from_wire(answer.error)
    return answer


class _Connection:
    """As `move_calls` see a broker."""

    def __init__(self, stub: Any) -> None:
        self.admin = stub


class PlacementAdmin:
    """What `AsyncAdmin` does for who moves replicas. Each raises PenstockError."""

    def __init__(self, node: AdminNode, chance: Random) -> None:
        self._node = node
        self._world = node.world
        self._chance = chance
        self.told = ToldMetadata()

    async def cluster_id(self) -> str:
        """See `AsksController`, as the next two."""
        return self._world.cluster_id

    async def read(self, method: Callable[[Any], Any], request: Any) -> Any:
        return await self._node.ask(lambda stub: method(_Connection(stub)), request)

    async def change(self, method: Callable[[Any], Any], request: Any) -> Any:
        return await self.read(method, request)

    async def describe_moves(self) -> MovesDescription:
        """See `AsyncAdmin`, as all below."""
        return await move_calls.describe_moves(self, None)

    async def alter_brokers(self, changes: Iterable[BrokerChange]) -> None:
        await move_calls.alter_brokers(self, changes, validate_only=False)

    async def describe_topics(self) -> dict[str, TopicDescription]:
        """As any broker knows them: maybe older than now, never than what `describe_moves` told."""
        broker_id = self._chance.choice(list(self._world.brokers.values())).id
        request = broker_pb2.MetadataRequest(cluster_id=self._world.cluster_id)
        stub: Any = BrokerServiceStub(self._node.channel(broker_id))
        answer = await call(stub.Metadata, request)
        self.told.check_not_behind(answer.controller_epoch, answer.metadata_version)
        return {one.topic: topic_from_wire(one) for one in answer.topics}

    async def describe_logs(self, *, broker_ids: Iterable[int]) -> list[LogDescription]:
        """One broker after the other."""
        found = []
        for broker_id in broker_ids:
            stub: Any = AdminServiceStub(self._node.channel(BrokerId(broker_id)))
            answer = await call(stub.DescribeLogs, admin_pb2.DescribeLogsRequest())
            found.append(logs_from_wire(answer))
        return found


class _Logs(AdminServiceServicer):
    """The part of a broker's `AdminService` that it answers for itself, for all of its logs."""

    def __init__(self, shell: Shell) -> None:
        chance = shell.broker.world.scheduler.generator(f"logs of {shell.broker.run}")
        self._shell = shell
        self._logs = StoredLogs(
            shell.broker.disk.store,
            SimExecutor(shell.loop, lambda: chance.uniform(0.05, 2)),
            lambda: _DISK_BYTES,
            lambda: None,
            shell.membership.mending,
            lambda _key: "",
        )

    async def DescribeLogs(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.DescribeLogsRequest, context: Any
    ) -> admin_pb2.DescribeLogsResponse:
        replicas = self._shell.replicas
        everything = list(replicas.by_key.values())
        return await self._logs.describe(self._shell.broker.id, everything, replicas.orphans)


class _Metadata(BrokerServiceServicer):
    """The part of a broker's `BrokerService` about the cluster."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def Metadata(  # noqa: N802 - gRPC's name
        self, request: broker_pb2.MetadataRequest, context: Any
    ) -> broker_pb2.MetadataResponse:
        return await describe(self._shell.view, request)


def add_descriptions(shell: Shell, server: grpc.aio.Server) -> None:
    """What `PlacementAdmin` and the clients of groups ask of brokers."""
    # Nobody calls the rest of these services here.
    add_AdminServiceServicer_to_server(_Logs(shell), server)  # type: ignore[abstract]
    add_BrokerServiceServicer_to_server(_Metadata(shell), server)  # type: ignore[abstract]
