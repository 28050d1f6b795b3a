"""The leader's side of replication, with the test as follower: real gRPC and RocksDB."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from support.local_broker import LocalBroker, local_broker, topic_info
from support.wire import make_batch

from penstock.errors import ErrorCode
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1 import replication_pb2 as pb
from penstock.proto.v1.replication_pb2_grpc import ReplicationServiceStub
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.errors import error_from_rpc

QUIET_S = 0.3
"""Nothing within this time: nothing comes."""


class Follower:
    """Broker 1, by hand."""

    def __init__(
        self, call: "grpc.aio.StreamStreamCall[pb.FollowerMessage, pb.LeaderMessage]"
    ) -> None:
        self.call = call
        self._unread: list[pb.LeaderMessage] = []
        self._arrived = asyncio.Event()
        self._ended: BaseException | None = None

    async def read(self) -> None:
        """Takes what comes, until the stream ends."""
        try:
            async for message in self.call:
                self._unread.append(message)
                self._arrived.set()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            self._ended = error
            self._arrived.set()

    async def follow(self, *, epoch: int = 1, from_offset: int = 0) -> pb.EpochAnswer:
        """Asks for divergence, then starts."""
        await self.call.write(
            pb.FollowerMessage(
                epoch_queries=[pb.EpochQuery(topic_id="id-1", leader_epoch=epoch, last_epoch=-1)]
            )
        )
        answer = (await self.next()).epoch_answers[0]
        await self.call.write(
            pb.FollowerMessage(
                starts=[
                    pb.FollowStart(topic_id="id-1", leader_epoch=epoch, from_offset=from_offset)
                ]
            )
        )
        return answer

    async def ack(self, end: int, *, epoch: int = 1) -> None:
        ack = pb.FollowerAck(topic_id="id-1", leader_epoch=epoch, written_end=end, synced_end=end)
        await self.call.write(pb.FollowerMessage(acks=[ack]))

    async def next(self) -> pb.LeaderMessage:
        while not self._unread:
            if self._ended is not None:
                raise self._ended
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), 120)
        return self._unread.pop(0)

    async def gets_no_batches(self) -> bool:
        """None within a moment."""
        self._arrived.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), QUIET_S)
        return not any(append.batches for message in self._unread for append in message.appends)

    async def batches(self, count: int) -> list[int]:
        """Base offsets of the next `count` batches."""
        offsets: list[int] = []
        while len(offsets) < count:
            for append in (await self.next()).appends:
                offsets += [batch.base_offset for batch in append.batches]
        return offsets


@asynccontextmanager
async def follower(
    broker: LocalBroker, *, run: str = "x", window_bytes: int = 1_000_000
) -> AsyncIterator[Follower]:
    call = ReplicationServiceStub(broker.channel).Replicate()
    await call.write(
        pb.FollowerMessage(
            hello=pb.FollowerHello(broker_id=1, incarnation=run, window_bytes=window_bytes)
        )
    )
    peer = Follower(call)
    reading = broker.tasks.create_task(peer.read())
    try:
        yield peer
    finally:
        call.cancel()
        await asyncio.wait([reading], timeout=120)


async def produce(
    broker: LocalBroker, size: int = 10, *, acks: broker_pb2.Acks.ValueType = broker_pb2.ACKS_LEADER
) -> broker_pb2.ProduceResult:
    part = broker_pb2.ProducePartition(topic="t", batch=batch_to_wire(make_batch([b"x" * size])))
    request = broker_pb2.ProduceRequest(acks=acks, partitions=[part], timeout_ms=5_000)
    (result,) = (await broker.data.Produce(request)).results
    assert not result.HasField("error"), result.error
    return result


async def high_watermark(broker: LocalBroker) -> int:
    request = broker_pb2.FetchRequest(partitions=[broker_pb2.FetchPartition(topic="t")])
    return (await broker.data.Fetch(request)).results[0].high_watermark


async def test_batches_are_pushed_and_acks_make_them_visible(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        async with follower(broker) as peer:
            assert (await peer.follow()).epoch == -1
            waiting = broker.tasks.create_task(produce(broker, acks=broker_pb2.ACKS_ALL))
            assert await peer.batches(1) == [0]
            assert await high_watermark(broker) == 0
            assert not waiting.done(), "not acknowledged before the follower has it"
            fetched = await broker.data.Fetch(
                broker_pb2.FetchRequest(partitions=[broker_pb2.FetchPartition(topic="t")])
            )
            assert not fetched.results[0].batches, "nothing past the high watermark is shown"
            await peer.ack(1)
            assert (await asyncio.wait_for(waiting, 120)).base_offset == 0
            assert await high_watermark(broker) == 1
            (append,) = (await peer.next()).appends
            assert (append.high_watermark, len(append.batches)) == (1, 0)


async def test_acks_of_another_epoch_count_for_nothing(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1), epoch=3))
        async with follower(broker) as peer:
            await peer.follow(epoch=3)
            await produce(broker)
            assert await peer.batches(1) == [0]
            await peer.ack(1, epoch=2)
            await peer.ack(0, epoch=3)
            await produce(broker)
            assert await peer.batches(1) == [1]
            assert await high_watermark(broker) == 0


async def test_no_more_than_the_window_is_sent_ahead_of_acks(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        async with follower(broker, window_bytes=25_000) as peer:
            await peer.follow()
            for _ in range(8):
                await produce(broker, 10_000)
            seen = await peer.batches(2)
            assert await peer.gets_no_batches(), "two batches are in the window, a third is not"
            await peer.ack(2)
            seen += await peer.batches(2)
            assert await peer.gets_no_batches()
            await peer.ack(4)
            seen += await peer.batches(2)
            assert seen == list(range(6))


async def test_a_new_stream_replaces_the_old_one(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        async with follower(broker) as old:
            await old.follow()
            await produce(broker)
            assert await old.batches(1) == [0]
            async with follower(broker) as new:
                await new.follow()
                assert await new.batches(1) == [0]
                with pytest.raises(grpc.aio.AioRpcError):
                    await old.next()
                await produce(broker)
                assert await new.batches(1) == [1]


async def test_only_the_run_that_the_image_names_is_fed(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        async with follower(broker) as old:
            await old.follow()
            async with follower(broker, run="y") as early:
                await refused_run(early)
            await produce(broker)
            assert await old.batches(1) == [0], "the refused stream has replaced nothing"
            broker.follower_run = "y"
            await broker.apply(topic_info(replicas=(0, 1)))
            with pytest.raises(grpc.aio.AioRpcError):
                await old.next()
        async with follower(broker) as late:
            await refused_run(late)
        async with follower(broker, run="y") as new:
            await new.follow()
            assert await new.batches(1) == [0]


async def refused_run(peer: Follower) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await peer.next()
    error = error_from_rpc(failed.value)
    assert (error.code, error.retriable) == (ErrorCode.STALE_BROKER_SESSION, True)


async def test_a_follower_of_an_unknown_partition_is_refused(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply()
        async with follower(broker) as peer:
            await peer.call.write(
                pb.FollowerMessage(epoch_queries=[pb.EpochQuery(topic_id="id-1", leader_epoch=1)])
            )
            (refusal,) = (await peer.next()).errors
            assert ErrorCode(refusal.error.code) is ErrorCode.UNKNOWN_PARTITION


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (pb.FollowerMessage(), ErrorCode.INVALID_REQUEST),
        (
            pb.FollowerMessage(hello=pb.FollowerHello(cluster_id="other", broker_id=1)),
            ErrorCode.CLUSTER_ID_MISMATCH,
        ),
    ],
)
async def test_a_stream_starts_with_a_hello_of_this_cluster(
    tmp_path: Path, first: pb.FollowerMessage, code: ErrorCode
) -> None:
    async with local_broker(tmp_path) as broker:
        call = ReplicationServiceStub(broker.channel).Replicate(iter([first]))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert error_from_rpc(failed.value).code is code
