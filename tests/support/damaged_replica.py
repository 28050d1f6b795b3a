"""A replica whose disk has damaged batches, other brokers that may have them, and its mending."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from support.led_partitions import GatedStore, LedPartitions, running
from support.waiting import wait_until_async

from penstock.core.batch import Batch, BatchHeader, pack_batch
from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract import Checkpoint, EpochStart, RecoveredLog
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2, controller_pb2
from penstock_broker.replication.exact import received
from penstock_broker.replication.mending import Mending
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.store.interface import PartitionWrite, Slot

KEY = ReplicaKey(TopicId("id-t"), 0)
DAMAGE = ClusterError("offset 3 has a wrong CRC", ErrorCode.DATA_CORRUPTED)
BATCHES = [
    build_batch(encode_columns([b"%d" % n], timestamps_ms=1)).stamped(Offset(n), LeaderEpoch(1), 0)
    for n in range(20)
]
CHECKPOINT = Checkpoint(
    LeaderEpoch(1), Offset(20), Offset(0), (EpochStart(LeaderEpoch(1), Offset(0)),)
)
FOLLOWS: dict[str, Any] = {"leader": 1, "replicas": [0, 1, 2], "isr": [1, 2]}
LEADS: dict[str, Any] = {"leader": 0, "replicas": [0, 1, 2], "isr": [0, 1, 2]}


class Disk(GatedStore):
    """Batches at `lost` cannot be read, until they are mended, and with `no_index` nothing can."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[int] = set()
        self.no_index: set[Slot] = set()
        self.synced: list[bool] = []

    def write(self, writes: Any, *, sync: bool) -> None:
        super().write(writes, sync=sync)
        mended = {batch.base_offset for write in writes for batch in write.mended}
        self.lost -= mended | {header.base_offset for write in writes for header in write.lost}
        self.synced += [sync] * len(mended)

    def read(self, slot: Slot, offset: Offset, max_bytes: int, end: Offset) -> list[Batch]:
        self._check(slot)
        found = super().read(slot, offset, max_bytes, end)
        good = next((n for n, batch in enumerate(found) if batch.base_offset in self.lost), None)
        if good == 0:
            raise ClusterError(f"offset {offset} has a wrong CRC", ErrorCode.DATA_CORRUPTED)
        return found[:good]

    def header(self, slot: Slot, offset: Offset) -> BatchHeader | None:
        self._check(slot)
        return super().header(slot, offset)

    def recover(self, slot: Slot) -> RecoveredLog:
        self._check(slot)
        return super().recover(slot)

    def _check(self, slot: Slot) -> None:
        if slot in self.no_index:
            raise ClusterError("the index is damaged", ErrorCode.DATA_CORRUPTED)


class Others:
    """`Donors`: brokers and what they have, by offset."""

    def __init__(self) -> None:
        self.has: dict[int, dict[int, Batch]] = {1: {}, 2: {}}
        self.asked: list[tuple[int, int]] = []
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def exact(self, broker_id: BrokerId, key: ReplicaKey, header: BatchHeader) -> Batch:
        assert key == KEY
        self.asked.append((broker_id, header.base_offset))
        if self.meanwhile is not None:
            await self.meanwhile()
        batch = self.has[broker_id].get(header.base_offset)
        if batch is None:
            raise ClusterError("not here", ErrorCode.DATA_CORRUPTED)
        return received(pack_batch(batch), header)

    async def close(self) -> None:
        self.asked.append((-1, -1))


class World(LedPartitions):
    """Broker 0 has a replica with 20 batches; brokers 1 and 2 are the others."""

    def __init__(self) -> None:
        super().__init__({"t": ("id-t", 1)})
        self.disk = Disk()
        self.store = self.writer._store = self.disk
        slot = self.disk.open_slot(KEY)
        stored = PartitionWrite(slot, batches=BATCHES, checkpoint=CHECKPOINT)
        self.disk.write([stored], sync=True)
        self.others = Others()
        self.reader = LogReader(self.disk, self.executor, self.replicas.unreadable)
        self.mending = Mending(self.replicas, self.reader, self.view, self.others, self._reopen)
        self.replicas.damage.mending = self.mending

    async def _reopen(
        self, replica: Replica, *, empty: bool, may_still: Callable[[], bool]
    ) -> Replica | None:
        async with self.assignment.changing:
            if not may_still():
                return None
            topic = self.view.topics[KEY.topic_id]
            await self.assignment.reopen(replica, topic, empty=empty)
        return self.replicas.by_key[KEY]

    async def image(self, version: int, **partition: Any) -> None:
        info = broker_pb2.TopicInfo(
            topic="t",
            topic_id=KEY.topic_id,
            partitions=[broker_pb2.PartitionInfo(version=version, **partition)],
        )
        brokers = [broker_pb2.BrokerInfo(broker_id=one, alive=True) for one in range(3)]
        changed = self.view.apply(
            controller_pb2.ClusterImage(
                full=True, metadata_version=version, topics=[info], brokers=brokers
            )
        )
        await self.assignment.assign(changed)
        self.mending.changed()

    @property
    def replica(self) -> Replica:
        return self.replicas.by_key[KEY]

    def is_back(self) -> bool:
        """Mended, and its log opened again, which comes a little later."""
        return not self.replicas.damage.found and KEY in self.replicas.by_key

    def found(self) -> None:
        """Somebody reads the damaged batch."""
        self.replicas.unreadable(self.replica, DAMAGE)


@asynccontextmanager
async def mended(**partition: Any) -> AsyncIterator[World]:
    async with running(World()) as world:
        await world.image(2, leader_epoch=2, **partition)
        machine = world.replica.machine
        await until(lambda: machine.marks.is_leader or machine.wants_tick, "it has its role")
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(world.mending.run())
            yield world
            task.cancel()


async def until(condition: Any, what: str) -> None:
    await wait_until_async(condition, what=what)
