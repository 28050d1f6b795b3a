"""The parts of a broker under a machine on a log: real replicas over a store that can be held.

The test plays the controller: `lead` gives an image in which this broker, or another, leads all.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from penstock.core.batch import Batch
from penstock.core.types import BrokerId, Offset, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2, controller_pb2
from penstock_broker.clock import SystemClock
from penstock_broker.logged.hosts import Surroundings
from penstock_broker.metadata.image import ClusterView
from penstock_broker.replication.assignment import ReplicaAssignment
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.recent import RecentCache
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.replication.writer import LogWriter
from penstock_broker.store.interface import PartitionWrite, Slot
from penstock_broker.store.memory import MemoryLogStore


class GatedStore(MemoryLogStore):
    """Refuses writes of batches while `full`; writes wait for `flowing`, reads for `readable`.

    Reads fail while `broken_reads`, and find damage while `damaged_reads`.
    """

    full = False

    def __init__(self) -> None:
        super().__init__()
        self.flowing = threading.Event()
        self.flowing.set()
        self.readable = threading.Event()
        self.readable.set()
        self.reads_waiting = 0
        self.broken_reads = False
        self.damaged_reads = False

    def write(self, writes: Sequence[PartitionWrite], *, sync: bool) -> None:
        assert self.flowing.wait(600)
        if self.full and any(write.batches for write in writes):
            raise ClusterError("the disk is full", ErrorCode.DISK_FULL)
        super().write(writes, sync=sync)

    def try_write(self, writes: Sequence[PartitionWrite]) -> bool:
        return self.flowing.is_set() and super().try_write(writes)

    def read(self, slot: Slot, offset: Offset, max_bytes: int, end: Offset) -> list[Batch]:
        self.reads_waiting += 1
        try:
            assert self.readable.wait(600)
            if self.broken_reads:
                raise ClusterError("the disk is gone", ErrorCode.STORAGE_FAILED)
            if self.damaged_reads:
                raise ClusterError("offset 0 has a wrong CRC", ErrorCode.DATA_CORRUPTED)
            return super().read(slot, offset, max_bytes, end)
        finally:
            self.reads_waiting -= 1

    def open_gates(self) -> None:
        self.full = self.broken_reads = False
        self.flowing.set()
        self.readable.set()


class LedPartitions:
    """See the module. `topics`: name to (id, partitions)."""

    def __init__(
        self, topics: Mapping[str, tuple[str, int]], *, cache_bytes: int = 1 << 20
    ) -> None:
        self.topics = dict(topics)
        self.executor = ThreadPoolExecutor(3)
        self.store = GatedStore()
        self.view = ClusterView()
        self.writer = LogWriter(self.store, self.executor, SystemClock(), lambda _: None)
        self.replicas = ReplicaSet(
            BrokerId(0),
            self.writer,
            RecentCache(cache_bytes),
            SystemClock(),
            snapshot_bytes=1 << 20,
        )
        self.assignment = ReplicaAssignment(self.replicas, self.writer)
        reader = LogReader(self.store, self.executor)
        self.around = Surroundings(self.view, self.replicas, reader, SystemClock())
        self.isr: tuple[int, ...] = (0,)
        """Of every partition; others than 0 never answer."""
        self.isr_of: dict[str, tuple[int, ...]] = {}
        """Of single topics, where it is another."""
        self.replica_list: tuple[int, ...] = ()
        """Of every partition; (): as the ISR."""
        self.brokers: tuple[broker_pb2.BrokerInfo, ...] = ()
        self.topics_config = {"min.insync.replicas": "1"}

    async def lead(
        self,
        leader: int,
        epoch: int,
        *,
        without: frozenset[str] = frozenset(),
        new: frozenset[str] = frozenset(),
    ) -> None:
        """An image in which this broker (0), or another, leads; `without`: deleted topics; `new`:
        those in their first epoch."""
        infos = [
            broker_pb2.TopicInfo(
                topic=name,
                topic_id=topic_id,
                configs=self.topics_config,
                partitions=[
                    broker_pb2.PartitionInfo(
                        partition=partition,
                        leader=leader,
                        leader_epoch=1 if name in new else epoch,
                        replicas=self.replica_list or self.isr_of.get(name, self.isr),
                        isr=self.isr_of.get(name, self.isr),
                        version=epoch,
                    )
                    for partition in range(partitions)
                ],
            )
            for name, (topic_id, partitions) in self.topics.items()
            if name not in without
        ]
        gone = [TopicId(self.topics[name][0]) for name in without]
        changed = self.view.apply(
            controller_pb2.ClusterImage(
                full=True,
                metadata_version=epoch,
                brokers=self.brokers,
                topics=infos,
                deleted_topic_ids=gone,
            )
        )
        await self.assignment.assign(changed)
        await self.assignment.drop_topics(gone)
        self.view.announce()


class Runnable(Protocol):
    """A part of a broker that runs until it is cancelled."""

    async def run(self) -> None: ...


W = TypeVar("W", bound=LedPartitions)


@asynccontextmanager
async def running(world: W, *hosts: Callable[[W], Runnable]) -> AsyncIterator[W]:
    """Runs the parts and `hosts`, leading in epoch 1; all gates are open at the end."""
    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        parts = [
            tasks.create_task(part)
            for part in (
                world.writer.run(),
                world.replicas.run_ticks(),
                *(part(world).run() for part in hosts),
            )
        ]
        await world.lead(0, 1)
        try:
            yield world
        finally:
            world.store.open_gates()
            for part in parts:
                part.cancel()
    world.executor.shutdown()
