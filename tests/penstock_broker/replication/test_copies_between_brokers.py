"""A copy from a real broker to real replicas over TCP: credit, rate, disk, both ends (I32).

The receiver is a replica and also one that the partition moves to. No controller stores that; it
makes both machines copy, and the traffic that of a move.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.local_broker import LocalBroker, local_broker
from support.waiting import wait_until_async
from support.wire import make_batch

from penstock.core import throttle
from penstock.core.types import BrokerId, ReplicaKey, TopicId
from penstock.proto.v1 import broker_pb2, controller_pb2
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.peers import PeerAddress
from penstock.rpc.transport import GrpcTransport
from penstock_broker.clock import SystemClock
from penstock_broker.metadata.image import ClusterView, LeaderAddress
from penstock_broker.replication.assignment import ReplicaAssignment
from penstock_broker.replication.copies import CopyCredits, CopyLink
from penstock_broker.replication.feeding import FollowerStream
from penstock_broker.replication.following import LinkConfig, Links
from penstock_broker.replication.recent import RecentCache
from penstock_broker.replication.replica import Replica
from penstock_broker.replication.replicas import ReplicaSet
from penstock_broker.replication.writer import LogWriter
from penstock_broker.store.rocks import RocksLogStore

LEADER, ME = BrokerId(0), BrokerId(1)
BATCH_BYTES = 20_000
BATCHES = 100
RATE = 100 * BATCH_BYTES


def topic(*, isr: Iterable[int] = (0,), version: int = 1) -> broker_pb2.TopicInfo:
    part = broker_pb2.PartitionInfo(
        leader=0, leader_epoch=1, replicas=(0, 1), isr=isr, version=version, adding=(1,)
    )
    return broker_pb2.TopicInfo(
        topic="t", topic_id="id-1", partitions=[part], configs={"min.insync.replicas": "1"}
    )


class Receiver:
    """Broker 1: its replicas, links and credits; the test is its controller."""

    def __init__(self, replicas: ReplicaSet, tasks: asyncio.TaskGroup) -> None:
        self.replicas = replicas
        self.links = Links(
            lambda: LinkConfig("cluster", ME, "x", 1 << 20),
            replicas,
            lambda received_bytes: None,
            GrpcTransport(),
        )
        self.credits = CopyCredits(RATE, self.links.up)
        self._tasks = tasks

    @property
    def replica(self) -> Replica:
        return self.replicas.by_key[ReplicaKey(TopicId("id-1"), 0)]

    async def copy_from(self, broker: LocalBroker) -> None:
        image = controller_pb2.ClusterImage(full=True, metadata_version=1, topics=[topic()])
        await ReplicaAssignment(self.replicas, self.replicas._writer).assign(
            ClusterView().apply(image)
        )
        ports = broker.process.membership.ports
        address = LeaderAddress(
            PeerAddress(f"127.0.0.1:{ports.port}", secured=False),
            f"127.0.0.1:{ports.replication_port}",
        )
        self.links.arrange([(LEADER, address)], self._tasks)
        self.credits.copied_from(self.replicas.copied_from())

    async def has(self, end: int) -> None:
        await wait_until_async(
            lambda: self.replica.marks.written_end >= end, what=f"{end} batches are copied"
        )


@asynccontextmanager
async def receiver(path: Path) -> AsyncIterator[Receiver]:
    store = RocksLogStore(path)
    with ThreadPoolExecutor(1) as executor:
        writer = LogWriter(store, executor, SystemClock(), lambda _: None)
        replicas = ReplicaSet(
            ME, writer, RecentCache(1 << 20), SystemClock(), snapshot_bytes=1 << 20
        )
        async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
            made = Receiver(replicas, tasks)
            running = [
                tasks.create_task(part)
                for part in (writer.run(), replicas.run_ticks(), made.credits.run())
            ]
            try:
                yield made
            finally:
                made.links.stop()
                for task in running:
                    task.cancel()
    store.close()


async def produce(broker: LocalBroker, batches: int) -> None:
    for _ in range(batches):
        part = broker_pb2.ProducePartition(
            topic="t", batch=batch_to_wire(make_batch([b"x" * BATCH_BYTES]))
        )
        request = broker_pb2.ProduceRequest(
            acks=broker_pb2.ACKS_LEADER, partitions=[part], timeout_ms=60_000
        )
        (result,) = (await broker.data.Produce(request)).results
        assert not result.HasField("error"), result.error


async def test_a_copy_goes_at_the_rate_of_the_slower_end(tmp_path: Path) -> None:
    async with local_broker(tmp_path / "leader") as broker, receiver(tmp_path / "me") as me:
        await broker.apply(topic())
        await produce(broker, BATCHES)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await me.copy_from(broker)
        assert me.replicas.copied_from() == {LEADER}
        await me.has(BATCHES)
        burst_s = 0.1 + 512 * 1_024 / RATE  # its credit, and the message that overdraws it
        assert loop.time() - began >= BATCHES * BATCH_BYTES / RATE - burst_s
        link = me.links.up({LEADER})[LEADER]
        await wait_until_async(lambda: link.unused_credit > 0, what="it is granted more")
        assert me.links.up({BrokerId(7)}) == {}


async def test_what_is_written_meanwhile_needs_no_credit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "_GROWTH_MS", 3_600_000)  # however slow this machine is
    async with local_broker(tmp_path / "leader") as broker, receiver(tmp_path / "me") as me:
        await broker.apply(topic())
        await me.copy_from(broker)
        link = await up(me)
        await wait_until_async(lambda: link.unused_credit > 0, what="it is granted some")
        await produce(broker, 20)
        await me.has(20)
        stream = broker.process._replication.replicas.followers[ME]
        assert isinstance(stream, FollowerStream)
        assert stream._copies.spent == 0


async def test_nothing_is_copied_to_a_disk_without_space(tmp_path: Path) -> None:
    async with local_broker(tmp_path / "leader") as broker, receiver(tmp_path / "me") as me:
        await broker.apply(topic())
        await produce(broker, 3)
        me.credits.has_space = lambda: False
        await me.copy_from(broker)
        link = await up(me)
        stream = broker.process._replication.replicas.followers
        await wait_until_async(lambda: ME in stream, what="the leader knows it")
        await wait_until_async(
            lambda: ME in broker.process._replication.replicas.by_key[me.replica.key].feeders,
            what="it would be fed",
        )
        assert (me.replica.marks.written_end, link.unused_credit) == (0, 0)
        me.credits.has_space = lambda: True
        await me.has(3)


async def test_the_rate_changes_at_run_time_and_a_new_stream_begins_without_credit(
    tmp_path: Path,
) -> None:
    async with local_broker(tmp_path / "leader") as broker, receiver(tmp_path / "me") as me:
        replication = broker.process._replication
        await broker.apply(topic())
        await produce(broker, BATCHES)
        replication.set_copy_rate(1)
        me.credits.set_rate(None)
        await me.copy_from(broker)
        await me.has(1)
        assert me.replica.marks.written_end < BATCHES, "the leader's own throttle holds"
        replication.set_copy_rate(None)
        await me.has(BATCHES)
        link = await up(me)
        granted = link.unused_credit
        assert granted > 0
        me.credits.has_space = lambda: False
        broker.follower_run = "y"
        await broker.apply(topic(version=2))
        await wait_until_async(lambda: link.unused_credit == 0, what="the old stream is over")


async def up(me: Receiver) -> CopyLink:
    await wait_until_async(lambda: me.links.up({LEADER}), what="the stream is up")
    return me.links.up({LEADER})[LEADER]
