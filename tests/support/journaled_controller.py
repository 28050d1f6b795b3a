"""A controller with three brokers, whose store may not answer: then brokers keep its changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from support.channels import patient_aio_channel
from support.controller_seams import Leaving, seams_on
from support.journal_servers import promise
from support.sessions import Broker, running
from support.waiting import wait_until_async

from penstock.core.control import ControlConfig
from penstock.core.control.journal.documents import registered
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock_broker.controller.metadata_store.memory import SharedDocuments
from penstock_broker.controller.process import ControllerProcess

CONFIG = ControlConfig(heartbeat_interval_ms=50, session_timeout_ms=60_000)


@dataclass
class Scene:
    """A controller of epoch 1, and three brokers that follow it."""

    process: ControllerProcess
    store: Leaving
    documents: SharedDocuments
    brokers: list[Broker]

    async def promise(self, *numbers: int, epoch: int) -> None:
        """What another controller does at the beginning of its take-over."""
        holders = registered(self.documents.documents)
        assert holders is not None
        asked = tuple(one for one in holders.brokers if one.broker_id in numbers)
        assert not (await promise(replace(holders, brokers=asked), epoch)).refused
        await wait_until_async(
            lambda: all(self.brokers[number].journal.promised == epoch for number in numbers),
            what="the promises are given",
        )

    async def create(self, topic: str) -> None:
        new = admin_pb2.NewTopic(topic=topic, partitions=1, replication_factor=3)
        async with patient_aio_channel(f"127.0.0.1:{self.process.server.port}") as channel:
            answer = await AdminServiceStub(channel).CreateTopics(
                admin_pb2.CreateTopicsRequest(topics=[new]), timeout=120
            )
        assert not answer.results[0].HasField("error"), answer

    async def all_serve(self, epoch: int) -> None:
        await wait_until_async(
            lambda: all(broker.serves(epoch) for broker in self.brokers),
            what=f"all brokers follow the controller of epoch {epoch}",
        )


@asynccontextmanager
async def started(documents: SharedDocuments) -> AsyncIterator[Scene]:
    store = Leaving(documents)
    async with asyncio.TaskGroup() as tasks:
        with seams_on(store) as seams:
            process = ControllerProcess(CONFIG, seams, "127.0.0.1:0", journaled=True)
            serving = tasks.create_task(process.run())
            await process.listening.wait()
            address = f"127.0.0.1:{process.server.port}"
            brokers = [Broker(number, [address]) for number in range(3)]
            async with running(*brokers):
                yield Scene(process, store, documents, brokers)
            process.stop_requested.set()
            await serving
