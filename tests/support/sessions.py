"""Brokers that are nothing but session and journal: what controllers see of a broker."""

import asyncio
import shutil
import tempfile
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import grpc
from support.processes import ReservedPort

from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import controller_pb2 as pb
from penstock.proto.v1.journal_pb2_grpc import add_JournalServiceServicer_to_server
from penstock.rpc.transport import GrpcTransport
from penstock_broker.clock import Clock, SystemClock
from penstock_broker.config import BrokerConfig
from penstock_broker.durable_files import DurableFile
from penstock_broker.metadata.condition import Condition
from penstock_broker.metadata.session import BrokerIdentity, ControllerSession, Ports
from penstock_broker.services.journal import JournalService
from penstock_broker.serving.edge import Edge


class Broker:
    """The session of a broker, and all it is told. An `ImageSink`.

    Its server keeps journals in a folder that lives as long as the object, as does its port.
    """

    controller_epoch = 0
    metadata_version = 0
    condition = Condition()

    def __init__(self, broker_id: int, controllers: list[str], clock: Clock | None = None) -> None:
        config = BrokerConfig(
            broker_id=BrokerId(broker_id),
            data_dir=Path("unused"),
            listen="unused",
            advertise_host="127.0.0.1",
            advertise_port=0,
            controllers=tuple(controllers),
        )
        self.identity = BrokerIdentity("", f"run-{broker_id}", f"dir-{broker_id}", True)
        self.alive_seen: list[dict[int, bool]] = []
        self.leaders: dict[tuple[str, int], tuple[int, int]] = {}
        self.session = ControllerSession(
            config, self._identity, self, GrpcTransport(), Random(), (clock or SystemClock()).wall
        )
        reserved = ReservedPort()
        weakref.finalize(self, reserved.close)
        self.port = reserved.port
        self.ports = Ports(port=reserved.port)
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        thread = ThreadPoolExecutor(1)
        weakref.finalize(self, thread.shutdown)
        file = DurableFile(Path(folder) / "journal.json")
        self.journal = JournalService(file, thread, self.session.leave_older_than)

    def _identity(self) -> BrokerIdentity:
        return replace(self.identity, promised_controller_epoch=self.journal.promised)

    async def run(self) -> None:
        """Until cancelled; may run again, on the same port."""
        server = grpc.aio.server(interceptors=[Edge(lambda: "", lambda _method, _s: None)])
        add_JournalServiceServicer_to_server(self.journal, server)
        server.add_insecure_port(f"127.0.0.1:{self.port}")
        await server.start()
        try:
            await self.session.run()
        finally:
            await server.stop(None)

    async def registered(self, answer: pb.Registered) -> None:
        self.journal.check_follows(answer.controller_epoch)
        if answer.controller_epoch < self.controller_epoch:
            raise ClusterError("an older controller", ErrorCode.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = answer.controller_epoch

    async def apply(self, image: pb.ClusterImage) -> None:
        self.metadata_version = image.metadata_version
        self.alive_seen.append({info.broker_id: info.alive for info in image.brokers})
        for topic in image.topics:
            for partition in topic.partitions:
                self.leaders[topic.topic, partition.partition] = (
                    partition.leader,
                    partition.leader_epoch,
                )
        if self.session.opening:
            self.session.opened()  # it has no logs that could be damaged

    def serves(self, epoch: int) -> bool:
        """Has a session with the controller of this epoch."""
        return self.session.connected and self.controller_epoch == epoch


@asynccontextmanager
async def running(*brokers: Broker) -> AsyncIterator[None]:
    """Their sessions live as long as the context."""
    async with asyncio.TaskGroup() as tasks:
        owned = [tasks.create_task(broker.run()) for broker in brokers]
        try:
            yield
        finally:
            for task in owned:
                task.cancel()
