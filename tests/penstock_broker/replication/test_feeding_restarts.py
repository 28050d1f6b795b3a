"""A feed that restarts while its last read is under way: the old read changes nothing (I23).

Real replicas and reads; the store's gate holds a read while the follower starts over.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.led_partitions import LedPartitions
from support.waiting import wait_until_async

from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.replication.contract_leader import Feed, ProduceRequested
from penstock.core.types import Acks, BrokerId, LeaderEpoch, Offset, ReplicaKey, Sync, TopicId
from penstock.proto.v1 import replication_pb2 as pb
from penstock_broker.replication.feeding import FollowerStream
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica
from penstock_broker.store.interface import Slot

FOLLOWER, EPOCH = BrokerId(1), LeaderEpoch(1)
T, U = ReplicaKey(TopicId("id-t"), 0), ReplicaKey(TopicId("id-u"), 0)
VALUE = b"x" * 100


class World(LedPartitions):
    """Two partitions led here; a follower's stream whose messages take two batches."""

    def __init__(self) -> None:
        super().__init__({"t": ("id-t", 1), "u": ("id-u", 1)}, cache_bytes=1)
        self.size = build_batch(encode_columns([VALUE], timestamps_ms=1)).size_bytes
        self.requests = 0

    def stream(self, window_batches: float = 100) -> FollowerStream:
        hello = pb.FollowerHello(broker_id=FOLLOWER, window_bytes=round(window_batches * self.size))
        reader = LogReader(self.store, self.executor)
        return FollowerStream(hello, 2 * self.size, reader, lambda sent_bytes: None)

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
async def running() -> AsyncIterator[World]:
    world = World()
    world.replica_list = (0, 1)
    async with world.tasks() as start:
        parts = [start(world.writer.run()), start(world.replicas.run_ticks())]
        await world.lead(0, 1)
        try:
            yield world
        finally:
            world.store.open_gates()
            for part in parts:
                part.cancel()
    world.executor.shutdown()


async def said(stream: FollowerStream) -> list[pb.LeaderMessage]:
    return [pb.LeaderMessage.FromString(one) for one in await stream.next_messages()]


def offsets(messages: Iterable[pb.LeaderMessage]) -> list[int]:
    return [
        batch.base_offset
        for message in messages
        for append in message.appends
        for batch in append.batches
    ]


def feed(start: int) -> Feed:
    return Feed(follower=FOLLOWER, leader_epoch=EPOCH, from_offset=Offset(start))


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "succeeds late"])
async def test_a_read_of_a_feed_that_was_restarted_meanwhile_changes_nothing(fails: bool) -> None:
    async with running() as world:
        replica = await world.append(T, 4)
        stream = world.stream()
        stream.feed(replica, feed(0))
        assert offsets(await said(stream)) == [0, 1]
        assert stream._in_flight_bytes == 2 * world.size

        def restart() -> None:
            stream.feed(replica, feed(1))
            world.store.broken_reads = fails

        assert await world.beside(stream, restart) == [], "nothing of the old feed, no refusal"
        assert stream.replicas == [replica], "the new feed stands"
        assert stream._in_flight_bytes == 0
        world.store.broken_reads = False
        assert offsets(await said(stream)) == [1, 2]
        assert offsets(await said(stream)) == [3]
        assert stream._in_flight_bytes == 3 * world.size
        stream.acked(T, EPOCH, Offset(4))
        assert stream._in_flight_bytes == 0


async def test_a_read_that_fails_after_its_feed_was_stopped_gives_nothing_back_twice() -> None:
    async with running() as world:
        replica = await world.append(T, 4)
        stream = world.stream()
        stream.feed(replica, feed(0))
        await said(stream)

        def stop() -> None:
            stream.feed(replica, Feed(follower=FOLLOWER, leader_epoch=EPOCH, from_offset=None))
            world.store.broken_reads = True

        assert await world.beside(stream, stop) == []
        assert (stream.replicas, stream._in_flight_bytes) == ([], 0)


async def test_a_read_that_fails_ends_its_feed_and_makes_room_for_the_others() -> None:
    async with running() as world:
        replica, other = await world.append(T, 2), await world.append(U, 1, VALUE * 4)
        stream = world.stream(window_batches=2.5)
        stream.feed(replica, feed(0))
        assert offsets(await said(stream)) == [0, 1]
        await world.append(T, 1)
        replica.recent.clear()
        other.recent.clear()
        read = world.store.read

        def broken_for_one(slot: Slot, *where: Any) -> Any:
            world.store.broken_reads = slot == replica.slot
            return read(slot, *where)

        world.store.read = broken_for_one  # type: ignore[method-assign, assignment]
        stream.feed(other, feed(0))  # its batch is larger than what is left of the window
        stream.notify(replica, urgent=True)
        assert offsets(await said(stream)) == []
        assert stream._in_flight_bytes == 0
        refusal, fed = await said(stream)
        assert [one.topic_id for one in refusal.errors] == [T.topic_id]
        assert offsets([fed]) == [0]
        assert stream.replicas == [other]
