"""Brokers' servers on loopback that keep journals, and whoever asks them."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from support.channels import patient_aio_channel

from penstock.core.control.documents import BrokerRegistration, TopicDocument, encode_topic
from penstock.core.control.journal.contract import (
    AskKeep,
    AskPromises,
    Holders,
    Journal,
    Kept,
    Promises,
)
from penstock.core.types import BrokerId, ControllerEpoch, TopicId
from penstock.proto.v1 import journal_pb2 as pb
from penstock.proto.v1.journal_pb2_grpc import (
    JournalServiceServicer,
    add_JournalServiceServicer_to_server,
)
from penstock.rpc.transport import GrpcTransport
from penstock_broker.controller.metadata_store.journal_holders import GrpcJournalHolders
from penstock_broker.durable_files import DurableFile, SmallFile
from penstock_broker.services.journal import JournalService
from penstock_broker.serving.edge import Edge

FILE = "journal.json"
TEXT = encode_topic(
    TopicDocument(
        name="t",
        topic_id=TopicId("id-ä"),
        controller_epoch=ControllerEpoch(2),
        metadata_version=8,
        configs={},
        partitions=(),
    )
)
JOURNAL = Journal(ControllerEpoch(2), 3, {"topic/t": TEXT}, {"topic/gone": 7})


class Hanging(JournalServiceServicer):
    """A broker whose disk takes its time: it answers once `answers` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.asked = 0
        self.answered = 0
        self.cancelled = 0

    async def KeepJournal(self, _request: Any, _context: Any) -> pb.KeepJournalResponse:  # noqa: N802 - gRPC's name
        self.asked += 1
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.answered += 1
        return pb.KeepJournalResponse()


class Failing(JournalServiceServicer):
    """A broker that is not to be reached, until `answers` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.asked = 0
        self.promised: list[int] = []

    async def PromiseJournal(  # noqa: N802 - gRPC's name
        self, request: pb.PromiseJournalRequest, context: Any
    ) -> pb.PromiseJournalResponse:
        self.asked += 1
        if not self.answers.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "as if the connection had broken")
        self.promised.append(request.controller_epoch)
        return pb.PromiseJournalResponse()


class Servers:
    """The brokers of a cluster `c`."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.told: list[int] = []
        self.peers: set[str] = set()
        """Connections that calls came on."""
        self.cancelled = 0
        """Calls whose caller was gone before the answer."""
        self.ports: list[int] = []

    async def add(self) -> JournalService:
        """One more broker."""
        folder = self._folder / f"b{len(self.ports)}"
        folder.mkdir(exist_ok=True)
        service = self.service(DurableFile(folder / FILE))
        await self.add_server(service)
        return service

    def service(self, file: SmallFile) -> JournalService:
        """What a broker keeps in `file`, without a server."""
        thread = self._stack.enter_context(ThreadPoolExecutor(1))
        return JournalService(file, thread, self.told.append)

    async def add_hanging(self) -> Hanging:
        """One more broker, that answers when it is told to."""
        service = Hanging()  # type: ignore[abstract]  # other calls are unimplemented
        await self.add_server(service)
        return service

    async def add_failing(self) -> Failing:
        """One more broker, that fails until it is told to answer."""
        service = Failing()  # type: ignore[abstract]  # other calls are unimplemented
        await self.add_server(service)
        return service

    async def add_server(self, service: JournalServiceServicer | None) -> None:
        """One more; None: it does not know the service."""
        edge = Edge(lambda: "c", lambda _method, _s: None)
        server = grpc.aio.server(interceptors=[edge, _Calls(self)])
        if service is not None:
            add_JournalServiceServicer_to_server(service, server)
        self.ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        self._stack.push_async_callback(server.stop, None)

    def holders(self, cluster_id: str = "c", away: int = 0) -> Holders:
        """All of them, and `away` more at which nobody listens."""
        ports = [*self.ports, *([1] * away)]
        return Holders(
            cluster_id,
            tuple(
                BrokerRegistration(
                    broker_id=BrokerId(n),
                    host="127.0.0.1",
                    port=port,
                    rack="",
                    directory_id="",
                    incarnation="",
                    alive=True,
                )
                for n, port in enumerate(ports)
            ),
        )


class _Calls(grpc.aio.ServerInterceptor):
    """Notes who calls, and who is gone."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)

        async def noted(request: Any, context: Any) -> Any:
            self._servers.peers.add(context.peer())
            try:
                return await handler.unary_unary(request, context)
            except asyncio.CancelledError:
                self._servers.cancelled += 1
                raise

        return handler and handler._replace(unary_unary=noted)


class PatientTransport(GrpcTransport):
    """An attempt to connect may take as long as the machine does."""

    def open(self, address: str) -> grpc.aio.Channel:
        return patient_aio_channel(address)


@asynccontextmanager
async def asking(timeout_s: float = 600.0) -> AsyncIterator[GrpcJournalHolders]:
    """A controller's connections to brokers, which end with the context."""
    async with asyncio.TaskGroup() as tasks:
        calls = GrpcJournalHolders(PatientTransport(), tasks, timeout_s)
        try:
            yield calls
        finally:
            await calls.close()


async def keep(holders: Holders, journal: Journal) -> Kept:
    async with asking() as calls:
        return await calls.keep(AskKeep(holders, journal))


async def promise(holders: Holders, epoch: int) -> Promises:
    async with asking() as calls:
        return await calls.promise(AskPromises(holders, ControllerEpoch(epoch)))
