"""A controller and a broker in the test's own process, whose callers say who they are.

    async with identified(path) as cluster:
        await cluster.allow(Resource(Kind.TOPIC, "t"), "cert:ada", Operation.READ)
        await cluster.stub(BrokerServiceStub).Fetch(request, metadata=as_user("cert:ada"))

Only the step from credentials to a name is replaced: it is believed as it stands in the call's
metadata, or in a message stream's token. The rest is as in a cluster with TLS: a call without a
name is a server's, and the controller believes brokers for whom they call.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from support.channels import patient_aio_channel
from support.cluster import BROKER_CONFIG, CONTROLLER_CONFIG
from support.controller_seams import seams_on
from support.waiting import wait_until_async

from penstock.core.authorization import Operation, Resource, Rule, Rulebook
from penstock.core.control import ControlConfig
from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.rpc.access import resource_to_wire, rules_to_wire
from penstock.rpc.errors import error_from_rpc, error_from_wire
from penstock.rpc.transport import GrpcTransport
from penstock_broker.broker.process import BrokerProcess
from penstock_broker.clock import SystemClock
from penstock_broker.config import BrokerConfig, parse_settings
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore, SharedDocuments
from penstock_broker.controller.process import ControllerProcess
from penstock_broker.datadir import DataDirectory
from penstock_broker.serving.callers import Caller, Role, entered
from penstock_broker.serving.edge import Edge
from penstock_broker.serving.forwarding import believing_brokers
from penstock_broker.store.rocks import RocksLogStore

ROOT = "serviceaccount:ops/root"
"""Admin by option."""
_USER = "test-user"
_S = TypeVar("_S")


def as_user(principal: str) -> tuple[tuple[str, str], ...]:
    """Metadata of a user's call."""
    return ((_USER, principal),)


async def _identify(context: Any) -> Caller:
    for key, value in context.invocation_metadata() or ():
        if key == _USER:
            return Caller(Role.USER, value)
    return Caller(Role.BROKER, broker_id=0)


@pytest.fixture(name="believed")
def believing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server of this process believes what a call says."""

    async def let_in(_: Edge, context: Any) -> Caller:
        who = await believing_brokers(_identify)(context)
        entered(who)
        return who

    monkeypatch.setattr(Edge, "_let_in", let_in)


@dataclass(frozen=True)
class Identified:
    """The cluster of a test."""

    controller: ControllerProcess
    broker: BrokerProcess
    channel: grpc.aio.Channel

    def stub(self, kind: Callable[[grpc.aio.Channel], _S]) -> _S:
        """Of a service of the broker."""
        return kind(self.channel)

    async def create(self, *topics: str, config: dict[str, str] | None = None) -> None:
        """Made by the admin; returns once this broker leads them."""
        answer = await self.admin.CreateTopics(
            admin_pb2.CreateTopicsRequest(
                topics=[
                    admin_pb2.NewTopic(topic=name, partitions=1, replication_factor=1)
                    for name in topics
                ]
            ),
            metadata=as_user(ROOT),
        )
        assert not any(result.HasField("error") for result in answer.results), answer

    @property
    def admin(self) -> Any:
        return AdminServiceStub(self.channel)

    async def allow(
        self, resource: Resource, principal: str, *operations: Operation, **fields: Any
    ) -> None:
        """The only rule of the resource, known to the broker; no operations: there is none."""
        rule = Rule(principals=(principal,), operations=operations, **fields)
        await self.put(resource, *([rule] if operations or fields else []))

    async def put(self, resource: Resource, *rules: Rule) -> None:
        """All rules of the resource, known to the broker."""
        answer = await self.admin.AlterAccess(
            admin_pb2.AlterAccessRequest(
                resource=resource_to_wire(resource), rules=rules_to_wire(rules)
            ),
            metadata=as_user(ROOT),
        )
        if answer.HasField("error"):
            raise error_from_wire(answer.error)
        book = self.broker._view.rules

        def arrived() -> bool:
            seen = dict(book.own()).get(resource, ()) if resource.name else book.cluster
            return seen == rules

        await wait_until_async(arrived, what=f"rules of {resource} arrive")


@asynccontextmanager
async def identified(path: Path) -> AsyncIterator[Identified]:
    """Runs both; use it with the fixture `believed`."""
    settings = {**CONTROLLER_CONFIG, "default.replication.factor": "1"}
    with seams_on(MemoryMetadataStore(SharedDocuments(SystemClock().now_ms))) as seams:
        controller = ControllerProcess(
            ControlConfig.parse(settings), seams, "127.0.0.1:0", rulebook=Rulebook([ROOT])
        )
        async with asyncio.TaskGroup() as tasks:
            ruling = tasks.create_task(controller.run())
            await asyncio.wait_for(controller.listening.wait(), 60)
            address = f"127.0.0.1:{controller.server.port}"
            async with _broker(path, address, tasks) as broker:
                port = broker.membership.ports.port
                async with patient_aio_channel(f"127.0.0.1:{port}") as channel:
                    yield Identified(controller, broker, channel)
            controller.stop_requested.set()
            await asyncio.wait_for(ruling, 60)


@asynccontextmanager
async def _broker(
    path: Path, controller: str, tasks: asyncio.TaskGroup
) -> AsyncIterator[BrokerProcess]:
    config = BrokerConfig(
        broker_id=BrokerId(0),
        data_dir=path,
        listen="127.0.0.1:0",
        advertise_host="127.0.0.1",
        advertise_port=0,
        stream_listen="127.0.0.1:0",
        controllers=(controller,),
        admins=(ROOT,),
        settings=parse_settings([f"{key}={value}" for key, value in BROKER_CONFIG.items()]),
    )
    directory = DataDirectory.open(path, cluster_id=None, broker_id=config.broker_id)
    store = RocksLogStore(directory.log_path)
    process = BrokerProcess(config, directory, store, GrpcTransport())
    try:
        running = tasks.create_task(process.run())
        await asyncio.wait_for(process.listening.wait(), 60)
        await wait_until_async(lambda: process._view.rules.complete, what="the rules arrive")
        yield process
        process.stop_requested.set()
        await asyncio.wait_for(running, 60)
    finally:
        store.close()
        directory.close(clean=True)


async def refusal(call: Any) -> ErrorCode:
    """Of a call that fails as a whole; UNSPECIFIED: it did not."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error).code
    except PenstockError as error:
        return error.code
    parts = [answer, *getattr(answer, "results", ())]
    for part in parts:
        if "error" in part.DESCRIPTOR.fields_by_name and part.HasField("error"):
            return error_from_wire(part.error).code
    return ErrorCode.UNSPECIFIED
