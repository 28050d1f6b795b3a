"""A broker inside the test's own event loop, told about its cluster by the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.channels import patient_aio_channel
from support.cluster import BROKER_CONFIG

from penstock.core.types import BrokerId
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import controller_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.transport import GrpcTransport
from penstock_broker.broker.process import BrokerProcess
from penstock_broker.config import BrokerConfig, parse_settings
from penstock_broker.datadir import DataDirectory
from penstock_broker.store.rocks import RocksLogStore


class LocalBroker:
    """A `BrokerProcess` with real gRPC and RocksDB, whose controller is the test."""

    def __init__(self, process: BrokerProcess, address: str, tasks: asyncio.TaskGroup) -> None:
        self.process = process
        self.tasks = tasks
        """Owns what a test starts beside itself."""
        self.channel = patient_aio_channel(address)
        self.data = BrokerServiceStub(self.channel)
        self.admin = AdminServiceStub(self.channel)
        self.version = process.membership.metadata_version
        self.follower_run = "x"
        """The incarnation of broker 1, which does not run unless a test plays it."""

    async def apply(
        self,
        *topics: pb.TopicInfo,
        full: bool = True,
        epoch: int = 1,
        version: int | None = None,
        deleted: tuple[str, ...] = (),
    ) -> None:
        """Gives the broker an image, as a controller would."""
        self.version = self.version + 1 if version is None else version
        await self.process.membership.apply(
            controller_pb2.ClusterImage(
                controller_epoch=epoch,
                metadata_version=self.version,
                full=full,
                brokers=[
                    pb.BrokerInfo(
                        broker_id=0,
                        host="127.0.0.1",
                        port=self.process.membership.ports.port,
                        alive=True,
                    ),
                    pb.BrokerInfo(broker_id=1, incarnation=self.follower_run),
                ],
                topics=topics,
                deleted_topic_ids=deleted,
            )
        )


def topic_info(
    name: str = "t",
    *,
    topic_id: str = "id-1",
    leader: int = 0,
    epoch: int = 1,
    version: int = 1,
    replicas: tuple[int, ...] = (0,),
    configs: dict[str, str] | None = None,
) -> pb.TopicInfo:
    """A topic of one partition."""
    part = pb.PartitionInfo(
        leader=leader, leader_epoch=epoch, replicas=replicas, isr=replicas, version=version
    )
    return pb.TopicInfo(topic=name, topic_id=topic_id, partitions=[part], configs=configs or {})


@asynccontextmanager
async def local_broker(path: Path, *settings: str) -> AsyncIterator[LocalBroker]:
    """Runs a broker on `path`; stops it cleanly. It removes old records only if `settings` say so:
    tests choose the times of theirs."""
    kept = [f"{key}={value}" for key, value in BROKER_CONFIG.items()]
    config = BrokerConfig(
        broker_id=BrokerId(0),
        data_dir=path,
        listen="127.0.0.1:0",
        advertise_host="127.0.0.1",
        advertise_port=0,
        replication_listen="127.0.0.1:0",
        stream_listen="127.0.0.1:0",
        controllers=("127.0.0.1:1",),
        settings=parse_settings([*kept, *settings]),
    )
    directory = DataDirectory.open(path, cluster_id=None, broker_id=config.broker_id)
    store = RocksLogStore(directory.log_path)
    process = BrokerProcess(config, directory, store, GrpcTransport())
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(process.run())
            await asyncio.wait_for(process.listening.wait(), 120)
            await process.membership.registered(
                controller_pb2.Registered(
                    cluster_id="cluster", controller_epoch=process.membership.controller_epoch or 1
                )
            )
            broker = LocalBroker(process, f"127.0.0.1:{process.membership.ports.port}", tasks)
            try:
                yield broker
            finally:
                await broker.channel.close()
                process.stop_requested.set()
                await asyncio.wait_for(running, 120)
    finally:
        store.close()
        directory.close(clean=True)
