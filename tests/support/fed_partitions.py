"""A follower's stream over partitions led here: real replicas and reads behind a store with gates.

The test plays the controller, the follower, and the half of the stream that writes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from support.led_partitions import LedPartitions
from support.waiting import wait_until_async

from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract import Assigned, ReplicaConfig
from penstock.core.replication.contract_leader import Feed, ProduceRequested
from penstock.core.types import (
    Acks,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionState,
    ReplicaKey,
    Sync,
    TopicId,
)
from penstock.proto.v1 import replication_pb2 as pb
from penstock_broker.replication.copies import CopyThrottle
from penstock_broker.replication.feeding import FollowerStream
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica

FOLLOWER, EPOCH = BrokerId(1), LeaderEpoch(1)
T, U = ReplicaKey(TopicId("id-t"), 0), ReplicaKey(TopicId("id-u"), 0)
VALUE = b"x" * 100


class FedPartitions(LedPartitions):
    """Two partitions led here; a follower's stream whose messages take two batches."""

    def __init__(self) -> None:
        super().__init__({"t": ("id-t", 1), "u": ("id-u", 1)}, cache_bytes=1)
        self.size = build_batch(encode_columns([VALUE], timestamps_ms=1)).size_bytes
        self.requests = 0
        self.version = 1
        self.reader = LogReader(self.store, self.executor)
        self.throttle = CopyThrottle(None)
        self.start: Callable[[Coroutine[Any, Any, None]], None]
        """Starts a part that runs until the test is over."""

    def stream(
        self, window_batches: float = 100, *, message_bytes: int | None = None
    ) -> FollowerStream:
        """A stream to the follower; its bulk half reads ahead until the test is over."""
        hello = pb.FollowerHello(broker_id=FOLLOWER, window_bytes=round(window_batches * self.size))
        stream = FollowerStream(
            hello,
            message_bytes or 2 * self.size,
            self.reader,
            self.throttle,
            lambda sent_bytes: None,
        )
        self.start(stream.read_ahead())
        return stream

    def learn(
        self, key: ReplicaKey, isr: tuple[int, ...], *, adding: tuple[int, ...] = ()
    ) -> Replica:
        """The controller changes a partition within its leader's epoch."""
        self.version += 1
        replica = self.replicas.by_key[key]
        state = PartitionState(
            leader=BrokerId(0),
            leader_epoch=EPOCH,
            isr=tuple(map(BrokerId, isr)),
            replicas=tuple(BrokerId(one) for one in self.replica_list if one not in adding),
            version=self.version,
            adding=tuple(map(BrokerId, adding)),
        )
        self.replicas.handle(replica, Assigned(state, ReplicaConfig(min_insync_replicas=1)))
        return replica

    async def append(self, key: ReplicaKey, count: int, value: bytes = VALUE) -> Replica:
        replica = self.replicas.by_key[key]
        end = replica.marks.log_end_offset + count
        for _ in range(count):
            self.requests += 1
            self.replicas.handle(
                replica,
                ProduceRequested(
                    request_id=self.requests,
                    batch=build_batch(encode_columns([value], timestamps_ms=1)),
                    acks=Acks.LEADER,
                    sync=Sync.OS,
                    deadline_ms=1 << 40,
                ),
            )
        await wait_until_async(lambda: replica.marks.written_end == end, what="it is written")
        return replica

    async def beside(
        self, stream: FollowerStream, meanwhile: Callable[[], object]
    ) -> list[pb.LeaderMessage]:
        """What `stream` says next; `meanwhile` happens while its read waits at the gate."""
        self.store.readable.clear()
        told: list[pb.LeaderMessage] = []

        async def next_messages() -> None:
            told.extend(await said(stream))

        async with self.tasks() as start:
            start(next_messages())
            await wait_until_async(lambda: self.store.reads_waiting, what="the read is under way")
            meanwhile()
            self.store.readable.set()
        return told

    @staticmethod
    @asynccontextmanager
    async def tasks() -> AsyncIterator[Callable[..., Any]]:
        async with asyncio.timeout(600), asyncio.TaskGroup() as group:
            yield group.create_task


@asynccontextmanager
async def fed_partitions() -> AsyncIterator[FedPartitions]:
    world = FedPartitions()
    world.replica_list = world.isr = (0, 1)
    async with world.tasks() as start:
        parts: list[asyncio.Task[None]] = []
        world.start = lambda part: parts.append(start(part))
        world.start(world.writer.run())
        world.start(world.replicas.run_ticks())
        await world.lead(0, 1)
        try:
            yield world
        finally:
            world.store.open_gates()
            for part in parts:
                part.cancel()
    world.executor.shutdown()


async def said(stream: FollowerStream) -> list[pb.LeaderMessage]:
    """The next messages; none if there was nothing to say after all."""
    return [pb.LeaderMessage.FromString(one) for one in await stream.next_messages()]


def offsets(messages: Iterable[pb.LeaderMessage], key: ReplicaKey | None = None) -> list[int]:
    """Of all batches, or of those of one partition."""
    return [
        batch.base_offset
        for message in messages
        for append in message.appends
        if key is None or append.topic_id == key.topic_id
        for batch in append.batches
    ]


def feed_from(start: int) -> Feed:
    return Feed(follower=FOLLOWER, leader_epoch=EPOCH, from_offset=Offset(start))
