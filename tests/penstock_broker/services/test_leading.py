"""The leader's side of replication, with the test as follower: real connections and RocksDB.

Over streams, and over gRPC as with an older release.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.local_broker import LocalBroker, local_broker, topic_info
from support.wire import make_batch

from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1 import replication_pb2 as pb
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.streams.calls import OpenedCall
from penstock.rpc.streams.contract import MessageStream
from penstock.rpc.streams.frames import Received
from penstock.rpc.transport import GrpcTransport
from penstock_broker.replication.feeding import FollowerStream
from penstock_broker.services import leading

METHOD = "/penstock.proto.v1.ReplicationService/Replicate"
QUIET_S = 0.3
"""Nothing within this time: nothing comes."""


CARRIERS = ("stream", "grpc")


class Follower:
    """Broker 1, by hand."""

    def __init__(self, stream: MessageStream) -> None:
        self.stream = stream
        self._unread: list[pb.LeaderMessage] = []
        self._arrived = asyncio.Event()
        self._ended: PenstockError | None = None

    async def read(self) -> None:
        """Takes what comes, until the stream ends."""
        try:
            await self.stream.deliver(self._take)
        except PenstockError as error:
            self._ended = error
            self._arrived.set()

    def _take(self, message: Received) -> None:
        self._unread.append(pb.LeaderMessage.FromString(bytes(message)))
        self._arrived.set()

    async def write(self, message: pb.FollowerMessage) -> None:
        await self.stream.send(message.SerializeToString())

    async def follow(self, *, epoch: int = 1, from_offset: int = 0) -> pb.EpochAnswer:
        """Asks for divergence, then starts."""
        await self.write(
            pb.FollowerMessage(
                epoch_queries=[pb.EpochQuery(topic_id="id-1", leader_epoch=epoch, last_epoch=-1)]
            )
        )
        answer = (await self.next()).epoch_answers[0]
        await self.write(
            pb.FollowerMessage(
                starts=[
                    pb.FollowStart(topic_id="id-1", leader_epoch=epoch, from_offset=from_offset)
                ]
            )
        )
        return answer

    async def ack(self, end: int, *, epoch: int = 1) -> None:
        ack = pb.FollowerAck(topic_id="id-1", leader_epoch=epoch, written_end=end, synced_end=end)
        await self.write(pb.FollowerMessage(acks=[ack]))

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


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    """What carries the stream."""
    return str(request.param)


async def connected(broker: LocalBroker, carrier: str) -> MessageStream:
    transport = GrpcTransport()
    process = broker.process
    if carrier == "stream":
        return await transport.open_stream(f"127.0.0.1:{process.membership.ports.replication_port}")
    call = OpenedCall(transport.open(f"127.0.0.1:{process.membership.ports.port}"), METHOD)
    await call.connect()
    return call


@asynccontextmanager
async def follower(
    broker: LocalBroker, carrier: str, *, run: str = "x", window_bytes: int = 1_000_000
) -> AsyncIterator[Follower]:
    stream = await connected(broker, carrier)
    peer = Follower(stream)
    await peer.write(
        pb.FollowerMessage(
            hello=pb.FollowerHello(broker_id=1, incarnation=run, window_bytes=window_bytes)
        )
    )
    reading = broker.tasks.create_task(peer.read())
    try:
        yield peer
    finally:
        reading.cancel()
        await asyncio.wait([reading], timeout=120)
        await stream.close()


async def produce(
    broker: LocalBroker, size: int = 10, *, acks: broker_pb2.Acks.ValueType = broker_pb2.ACKS_LEADER
) -> broker_pb2.ProduceResult:
    part = broker_pb2.ProducePartition(topic="t", batch=batch_to_wire(make_batch([b"x" * size])))
    request = broker_pb2.ProduceRequest(acks=acks, partitions=[part], timeout_ms=60_000)
    (result,) = (await broker.data.Produce(request)).results
    assert not result.HasField("error"), result.error
    return result


async def high_watermark(broker: LocalBroker) -> int:
    request = broker_pb2.FetchRequest(partitions=[broker_pb2.FetchPartition(topic="t")])
    return (await broker.data.Fetch(request)).results[0].high_watermark


async def test_batches_are_pushed_and_acks_make_them_visible(tmp_path: Path, carrier: str) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        async with follower(broker, carrier) as peer:
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


async def test_acks_of_another_epoch_count_for_nothing(tmp_path: Path, carrier: str) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        await broker.apply(topic_info(replicas=(0, 1), epoch=3))
        async with follower(broker, carrier) as peer:
            await peer.follow(epoch=3)
            await produce(broker)
            assert await peer.batches(1) == [0]
            await peer.ack(1, epoch=2)
            await peer.ack(0, epoch=3)
            await produce(broker)
            assert await peer.batches(1) == [1]
            assert await high_watermark(broker) == 0


async def test_no_more_than_the_window_is_sent_ahead_of_acks(tmp_path: Path, carrier: str) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        async with follower(broker, carrier, window_bytes=25_000) as peer:
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


async def test_a_new_stream_replaces_the_old_one(tmp_path: Path, carrier: str) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        async with follower(broker, carrier) as old:
            await old.follow()
            await produce(broker)
            assert await old.batches(1) == [0]
            async with follower(broker, carrier) as new:
                await new.follow()
                assert await new.batches(1) == [0]
                with pytest.raises(PenstockError, match="a newer stream of this follower"):
                    await old.next()
                await produce(broker)
                assert await new.batches(1) == [1]


async def test_only_the_run_that_the_image_names_is_fed(tmp_path: Path, carrier: str) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        async with follower(broker, carrier) as old:
            await old.follow()
            async with follower(broker, carrier, run="y") as early:
                await refused_run(early)
            await produce(broker)
            assert await old.batches(1) == [0], "the refused stream has replaced nothing"
            broker.follower_run = "y"
            await broker.apply(topic_info(replicas=(0, 1)))
            with pytest.raises(PenstockError):
                await old.next()
        async with follower(broker, carrier) as late:
            await refused_run(late)
        async with follower(broker, carrier, run="y") as new:
            await new.follow()
            assert await new.batches(1) == [0]


async def test_what_a_replaced_stream_still_delivers_counts_for_nothing(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        async with follower(broker, "stream") as old:
            await old.follow()
            replaced = broker.process._replicas.followers[BrokerId(1)]
            assert isinstance(replaced, FollowerStream)
            broker.follower_run = "y"
            await broker.apply(topic_info(replicas=(0, 1)))
            async with follower(broker, "stream", run="y") as new:
                await new.follow()
                await produce(broker)
                assert await new.batches(1) == [0]
                ack = pb.FollowerAck(topic_id="id-1", leader_epoch=1, written_end=1, synced_end=1)
                late = pb.FollowerMessage(acks=[ack]).SerializeToString()
                broker.process._replication.leading._take(replaced, late)
                assert await high_watermark(broker) == 0, "the run that has this is over"
                await new.ack(1)
                await new.next()
                assert await high_watermark(broker) == 1


async def refused_run(peer: Follower) -> None:
    with pytest.raises(PenstockError) as failed:
        await peer.next()
    error = failed.value
    assert (error.code, error.retriable) == (ErrorCode.STALE_BROKER_SESSION, True)


async def test_a_follower_of_an_unknown_partition_is_refused(tmp_path: Path, carrier: str) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply()
        async with follower(broker, carrier) as peer:
            await peer.write(
                pb.FollowerMessage(epoch_queries=[pb.EpochQuery(topic_id="id-1", leader_epoch=1)])
            )
            (refusal,) = (await peer.next()).errors
            assert ErrorCode(refusal.error.code) is ErrorCode.UNKNOWN_PARTITION


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"", ErrorCode.INVALID_REQUEST),
        (b"\xff\xff", ErrorCode.INVALID_REQUEST),
        (
            pb.FollowerMessage(
                hello=pb.FollowerHello(cluster_id="other", broker_id=1)
            ).SerializeToString(),
            ErrorCode.CLUSTER_ID_MISMATCH,
        ),
    ],
)
async def test_a_stream_starts_with_a_hello_of_this_cluster(
    tmp_path: Path, carrier: str, first: bytes, code: ErrorCode
) -> None:
    async with local_broker(tmp_path) as broker:
        stream = await connected(broker, carrier)
        await stream.send(first)
        with pytest.raises(PenstockError) as failed:
            await stream.receive()
        assert failed.value.code is code
        await stream.close()


async def test_a_follower_that_says_nothing_is_dropped(
    tmp_path: Path, carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "HELLO_TIMEOUT_S", 0.0)
    async with local_broker(tmp_path) as broker:
        stream = await connected(broker, carrier)
        with pytest.raises(PenstockError, match="no hello came") as failed:
            await stream.receive()
        assert failed.value.code is ErrorCode.INVALID_REQUEST
        await stream.close()


async def test_a_follower_that_sends_nonsense_is_dropped_and_told(
    tmp_path: Path,
) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        async with follower(broker, "stream") as peer:
            await peer.follow()
            await peer.stream.send(b"\xff\xff")
            with pytest.raises(PenstockError, match="2 bytes that are no FollowerMessage"):
                await peer.batches(1)
            await produce(broker)
        async with follower(broker, "stream") as again:
            await again.follow()
            assert await again.batches(1) == [0]


async def test_a_stopping_leader_says_so(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        stream = await connected(broker, "stream")
        hello = pb.FollowerHello(broker_id=1, incarnation="x", window_bytes=1_000)
        await stream.send(pb.FollowerMessage(hello=hello).SerializeToString())
    with pytest.raises(PenstockError) as failed:
        await stream.receive()
    assert failed.value.code is ErrorCode.SHUTTING_DOWN
    await stream.close()
