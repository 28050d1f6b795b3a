"""A controller's real gRPC server in this process, and brokers that speak its protocol."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from support.apiserver import ApiServer
from support.channels import patient_aio_channel
from support.controller_pods import ACTIVE, Make, Pod
from support.controller_seams import seams_on
from support.journaled_controller import Scene, started
from support.waiting import wait_until, wait_until_async

from penstock.core.control import ControlConfig
from penstock.core.control.documents import FORMATS
from penstock.errors import PenstockError
from penstock.proto.v1 import admin_pb2, broker_pb2, controller_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.controller_pb2_grpc import ControllerServiceStub
from penstock.rpc.errors import error_from_wire
from penstock_broker.controller.metadata_store.interface import BlockingStore, MetadataStore
from penstock_broker.controller.metadata_store.memory import MemoryMetadataStore, SharedDocuments
from penstock_broker.controller.process import ControllerProcess
from penstock_broker.controller.runtime import ControllerRuntime
from penstock_broker.controller.server import ControllerServer
from penstock_broker.controller.store_look import LOOK_S

if TYPE_CHECKING:
    from penstock.proto.v1.admin_pb2_grpc import AdminServiceAsyncStub
    from penstock.proto.v1.controller_pb2_grpc import ControllerServiceAsyncStub

QUICK = ControlConfig(heartbeat_interval_ms=50, session_timeout_ms=3_000, session_grace_ms=100)


class BrokerClient:
    """One broker's session: registers, heartbeats, keeps every message it gets."""

    def __init__(self, address: str, broker_id: int, run: int = 1, **register: Any) -> None:
        self.channel = patient_aio_channel(address)
        self.broker_id = broker_id
        self.register = controller_pb2.Register(
            broker_id=broker_id,
            incarnation=f"run-{broker_id}-{run}",
            host="127.0.0.1",
            port=7000 + broker_id,
            directory_id=f"dir-{broker_id}",
            data_intact=True,
            formats=FORMATS,
        )
        self.register.MergeFrom(controller_pb2.Register(**register))
        self.accepted: controller_pb2.Registered | None = None
        self.images: list[controller_pb2.ClusterImage] = []
        self.error: PenstockError | None = None
        self.may_stop = False
        self.beating = True
        self.wants_stop = False
        self.copies: list[controller_pb2.CopyProgress] = []
        self.ended = asyncio.Event()
        self._call: Any = None

    async def run(self) -> None:
        """One session, until it ends or is broken."""
        self._call = ControllerServiceStub(self.channel).Session(self._requests())
        try:
            async for message in self._call:
                self._take(message)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        finally:
            self.ended.set()
            await self.channel.close()

    def _take(self, message: controller_pb2.SessionResponse) -> None:
        match message.WhichOneof("message"):
            case "registered":
                assert not self.images, "the image came before the registration was answered"
                self.accepted = message.registered
            case "image":
                self.images.append(message.image)
            case "heartbeat_ack":
                self.may_stop = self.may_stop or message.heartbeat_ack.may_stop
            case "error":
                self.error = error_from_wire(message.error)

    async def _requests(self) -> AsyncIterator[controller_pb2.SessionRequest]:
        yield controller_pb2.SessionRequest(register=self.register)
        while not self.ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.03):
                    await self.ended.wait()
            if self.beating:
                beat = controller_pb2.Heartbeat(wants_stop=self.wants_stop, copies=self.copies)
                yield controller_pb2.SessionRequest(heartbeat=beat)

    def break_off(self) -> None:
        """What a killed process does."""
        self._call.cancel()

    @property
    def registered(self) -> controller_pb2.Registered:
        """What its registration was answered with."""
        assert self.accepted is not None
        return self.accepted

    @property
    def refusal(self) -> PenstockError:
        """Why its session ended."""
        assert self.error is not None
        return self.error

    def topic(self, name: str) -> broker_pb2.TopicInfo | None:
        """The newest word on a topic."""
        for image in reversed(self.images):
            for topic in image.topics:
                if topic.topic == name:
                    return topic
        return None

    def known(self, name: str) -> broker_pb2.TopicInfo:
        """A topic that it has heard of."""
        topic = self.topic(name)
        assert topic is not None
        return topic

    def leader(self, name: str = "t", partition: int = 0) -> tuple[int, int] | None:
        """(leader, leader epoch) as this broker has heard last."""
        topic = self.topic(name)
        if topic is None:
            return None
        info = topic.partitions[partition]
        return info.leader, info.leader_epoch

    def has_leader(self, leader: int, epoch: int) -> bool:
        """Of the one partition of topic t."""
        return self.leader() == (leader, epoch)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        async def check() -> object:
            return condition()

        await wait_until_async(check, what=what)


@dataclass
class Running:
    """A controller that serves on loopback."""

    runtime: ControllerRuntime
    server: ControllerServer
    tasks: asyncio.TaskGroup
    clients: list[BrokerClient] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def admin(self) -> "AdminServiceAsyncStub":
        return AdminServiceStub(self._channel())

    @property
    def controller(self) -> "ControllerServiceAsyncStub":
        return ControllerServiceStub(self._channel())

    def _channel(self) -> grpc.aio.Channel:
        channel = patient_aio_channel(self.address)
        self.channels.append(channel)
        return channel

    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def start_broker(self, broker_id: int, run: int = 1, **register: Any) -> BrokerClient:
        """Begins a session; does not wait for the answer."""
        client = BrokerClient(self.address, broker_id, run, **register)
        self.clients.append(client)
        self.tasks.create_task(client.run())
        return client

    async def broker(self, broker_id: int, run: int = 1, **register: Any) -> BrokerClient:
        """A session that was accepted and has its first image."""
        client = self.start_broker(broker_id, run, **register)
        await client.until(lambda: client.images or client.error, f"broker {broker_id} registers")
        assert client.error is None, client.error
        return client

    async def create(self, topic: str = "t", **fields: Any) -> None:
        request = admin_pb2.CreateTopicsRequest(
            topics=[admin_pb2.NewTopic(topic=topic, **{"partitions": 1, **fields})]
        )
        answer = await self.admin.CreateTopics(request)
        assert not answer.results[0].HasField("error"), answer


@asynccontextmanager
async def run_controller(
    store: BlockingStore,
    config: ControlConfig,
    *,
    wait: bool,
    host: str = "127.0.0.1",
    port: int = 0,
    look_every_s: float = LOOK_S,
    journaled: bool = False,
    around: Callable[[MetadataStore], MetadataStore] = lambda store: store,
) -> AsyncIterator[Running]:
    async with asyncio.TaskGroup() as tasks:
        with seams_on(store, around=around) as seams:
            address = f"{host}:{port}"
            process = ControllerProcess(
                config, seams, address, look_every_s=look_every_s, journaled=journaled
            )
            serving = tasks.create_task(process.run())
            await process.listening.wait()
            running = Running(process.runtime, process.server, tasks)
            try:
                if wait:
                    await process.runtime.wait_active(600.0)
                yield running
            finally:
                for client in running.clients:
                    if not client.ended.is_set():
                        client.break_off()
                        await client.ended.wait()
                for channel in running.channels:
                    await channel.close()
                process.stop_requested.set()
                await asyncio.wait([serving])


@pytest.fixture
def documents() -> SharedDocuments:
    """A metadata store that several controllers may share."""
    return SharedDocuments(lambda: 0)


Start = Callable[..., Awaitable[Running]]
Run = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
async def start(documents: SharedDocuments) -> AsyncIterator[Start]:
    """Starts controllers that end with the test."""
    async with AsyncExitStack() as stack:

        async def start_one(
            store: BlockingStore | None = None,
            config: ControlConfig = QUICK,
            *,
            wait: bool = True,
            **options: Any,
        ) -> Running:
            used = store if store is not None else MemoryMetadataStore(documents)
            controller = run_controller(used, config, wait=wait, **options)
            return await stack.enter_async_context(controller)

        yield start_one


@pytest.fixture
def run() -> Run:
    """`run_controller`, for tests that end a controller themselves."""
    return run_controller


@pytest.fixture
def launcher() -> list[str] | None:
    """Of controller processes, other than `local.child`: words after `python`."""
    return None


@pytest.fixture
def make(
    api_server: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: list[str] | None,
) -> Iterator[Make]:
    made: list[Pod] = []
    namespace = api_server.namespace()

    def make_one(name: str) -> Pod:
        pod = Pod(api_server, namespace, tmp_path, name)
        made.append(pod)
        pod.process.launcher = launcher or pod.process.launcher
        monkeypatch.setenv("KUBECONFIG", str(pod.kubeconfig))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        pod.process.start(wait=False)
        return pod

    yield make_one
    for pod in made:
        pod.close()


@pytest.fixture
def pair(make: Make) -> tuple[Pod, Pod]:
    """An active controller and its standby."""
    active, standby = make("one"), None
    wait_until(lambda: active.says(ACTIVE), what="the first is active", timeout_s=40.0)
    standby = make("two")
    wait_until(lambda: standby.says(""), what="the second stands by", timeout_s=40.0)
    return active, standby


@pytest.fixture
async def scene(
    documents: SharedDocuments, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    for name, seconds in (("LEASE_RENEW", 0.05), ("LEASE_RETRY", 0.05), ("HOLD_AFTER", 0.1)):
        monkeypatch.setattr(f"penstock_broker.controller.runtime._{name}_S", seconds)
    async with started(documents) as made:
        await made.all_serve(1)
        yield made
