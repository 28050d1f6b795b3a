"""What a consumer asks of a leader, and when: the broker here answers when the test says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from support.transport_handlers import one_turn
from support.waiting import wait_until_async

from penstock.client import AsyncConsumer, TopicPartition
from penstock.core.records import build_batch, encode_columns
from penstock.core.types import LeaderEpoch, Offset
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1 import broker_pb2_grpc
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.errors import error_to_wire

PARTITIONS = 4
BATCH = build_batch(encode_columns([b"v"] * 10, timestamps_ms=1_000))


class Asking:
    """A fetch that waits for its answer."""

    def __init__(self, request: pb.FetchRequest) -> None:
        self.request = request
        self.partitions = {part.partition for part in request.partitions}
        self._answer: asyncio.Future[pb.FetchResponse] = asyncio.get_running_loop().create_future()

    def answer(self, *, end: int) -> None:
        """One batch of each partition, whose high watermark is `end`."""
        results = [
            pb.FetchResult(
                topic="t",
                topic_id="id",
                partition=part.partition,
                high_watermark=end,
                last_stable_offset=end,
                batches=[batch_to_wire(BATCH.stamped(Offset(part.offset), LeaderEpoch(1), 0))],
            )
            for part in self.request.partitions
        ]
        self._answer.set_result(pb.FetchResponse(results=results))

    @property
    def waits(self) -> bool:
        return not self._answer.done()

    async def answered(self) -> pb.FetchResponse:
        return await self._answer


class Broker(broker_pb2_grpc.BrokerServiceServicer):
    """Leads every partition of topic t."""

    port = 0
    """Known once its server listens."""

    def __init__(self) -> None:
        self.asked: list[Asking] = []
        self.looked_up = 0

    async def Metadata(self, request: Any, context: Any) -> pb.MetadataResponse:  # noqa: N802
        partitions = [
            pb.PartitionInfo(
                partition=index, leader=0, leader_epoch=1, replicas=[0], isr=[0], version=1
            )
            for index in range(PARTITIONS)
        ]
        return pb.MetadataResponse(
            cluster_id="cluster",
            metadata_version=1,
            brokers=[pb.BrokerInfo(broker_id=0, host="127.0.0.1", port=self.port, alive=True)],
            topics=[pb.TopicInfo(topic="t", topic_id="id", partitions=partitions)],
        )

    async def Fetch(self, request: Any, context: Any) -> pb.FetchResponse:  # noqa: N802
        self.asked.append(Asking(request))
        return await self.asked[-1].answered()

    async def ListOffsets(self, request: Any, context: Any) -> pb.ListOffsetsResponse:  # noqa: N802
        """Refuses."""
        self.looked_up += 1
        error = error_to_wire(ClusterError("all replicas are damaged", ErrorCode.DATA_CORRUPTED))
        results = [
            pb.ListOffsetsResult(topic="t", topic_id="id", partition=one.partition, error=error)
            for one in request.partitions
        ]
        return pb.ListOffsetsResponse(results=results)

    async def asked_in_all(self, count: int) -> None:
        await wait_until_async(lambda: len(self.asked) >= count, what=f"{count} fetches")


@asynccontextmanager
async def reading(**options: Any) -> AsyncIterator[tuple[Broker, AsyncConsumer]]:
    """A consumer of all partitions, from offset 0, and the broker it asks."""
    broker = Broker()  # type: ignore[abstract]  # other calls are unimplemented
    server = grpc.aio.server()
    broker_pb2_grpc.add_BrokerServiceServicer_to_server(broker, server)
    broker.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with AsyncConsumer(f"127.0.0.1:{broker.port}", **options) as consumer:
            partitions = [TopicPartition("t", index) for index in range(PARTITIONS)]
            consumer._fetcher.poke = lambda: None  # type: ignore[method-assign]  # all at once
            await consumer.assign(partitions)
            for where in partitions:
                await consumer.seek(where, 0)
            del consumer._fetcher.poke
            consumer._fetcher.poke()
            yield broker, consumer
    finally:
        await server.stop(None)


async def test_partitions_with_more_to_come_are_split_over_three_calls_within_the_byte_bound() -> (
    None
):
    async with reading(fetch_max_bytes=1_000) as (broker, _):
        await broker.asked_in_all(1)
        assert broker.asked[0].partitions == {0, 1, 2, 3}, "nothing is known yet: one call"
        broker.asked[0].answer(end=1_000)
        await broker.asked_in_all(4)
        parts = broker.asked[1:]
        assert sorted(len(part.partitions) for part in parts) == [1, 1, 2]
        assert set().union(*(part.partitions for part in parts)) == {0, 1, 2, 3}
        assert all(part.request.max_bytes > 0 for part in parts)
        assert sum(part.request.max_bytes for part in parts) <= 1_000


async def test_while_one_call_is_opened_the_others_wait_and_its_partitions_are_asked_alone() -> (
    None
):
    async with reading() as (broker, _):
        await broker.asked_in_all(1)
        broker.asked[0].answer(end=1_000)
        await broker.asked_in_all(4)
        broker.asked[1].answer(end=1_000)
        await broker.asked_in_all(5)
        assert broker.asked[4].partitions == broker.asked[1].partitions


async def test_a_partition_that_becomes_free_is_asked_beside_the_busy_calls() -> None:
    async with reading(request_timeout_ms=600_000) as (broker, consumer):
        await broker.asked_in_all(1)
        broker.asked[0].answer(end=1_000)
        await broker.asked_in_all(4)
        await consumer.seek(TopicPartition("t", 2), 7)
        await broker.asked_in_all(5)
        assert broker.asked[4].partitions == {2}
        assert broker.asked[4].request.partitions[0].offset == 7


async def test_partitions_read_to_their_end_come_together_in_one_waiting_call() -> None:
    async with reading() as (broker, consumer):
        await broker.asked_in_all(1)
        broker.asked[0].answer(end=20)
        await broker.asked_in_all(4)
        states = consumer._assignment.states.values()
        broker.asked[1].answer(end=20)
        broker.asked[2].answer(end=20)
        done = broker.asked[1].partitions | broker.asked[2].partitions
        await wait_until_async(
            lambda: all(s.fetch_offset == 20 for s in states if s.where.partition in done),
            what="two answers",
        )
        broker.asked[3].answer(end=20)
        await broker.asked_in_all(5)
        assert broker.asked[4].partitions == {0, 1, 2, 3}


async def test_the_next_call_is_under_way_before_a_poll_opens_what_came() -> None:
    async with reading() as (broker, consumer):
        calls_when_told: list[int] = []
        told = consumer._fetcher.arrived

        def arrived() -> None:
            calls_when_told.append(sum(map(len, consumer._fetcher._under_way.values())))
            told()

        consumer._fetcher.arrived = arrived
        await broker.asked_in_all(1)
        broker.asked[0].answer(end=1_000)
        assert sum(batch.record_count for batch in await consumer.poll(20)) == 40
        assert calls_when_told == [3]


ONE_TOO_MANY = PARTITIONS * BATCH.size_bytes - 1
"""A buffer that is full with a batch of each partition, and has room once one of them is gone."""


async def filled(broker: Broker, consumer: AsyncConsumer) -> int:
    """Answers until the buffer is full and nothing is asked any more. Returns how much was."""
    fetcher = consumer._fetcher
    states = consumer._assignment.states.values()

    def idle() -> bool:
        for asking in broker.asked:
            if asking.waits:
                asking.answer(end=1_000)
        return (
            sum(state.buffered_bytes for state in states) > ONE_TOO_MANY
            and not any(fetcher._under_way.values())
            and not fetcher._changed.is_set()
        )

    await wait_until_async(idle, what="a full buffer and an idle fetcher")
    return len(broker.asked)


async def test_what_a_paused_partition_held_is_filled_by_others_at_once() -> None:
    async with reading(buffer_bytes=ONE_TOO_MANY) as (broker, consumer):
        before = await filled(broker, consumer)
        held = consumer._assignment.states.values()
        await consumer.pause([s.where for s in held if s.where.partition])
        await broker.asked_in_all(before + 1)
        assert broker.asked[before].partitions == {0}


async def test_what_a_loop_left_behind_is_fetched_again_though_the_buffer_was_full() -> None:
    async with reading(buffer_bytes=ONE_TOO_MANY) as (broker, consumer):
        await filled(broker, consumer)
        loop = consumer.one_by_one(await consumer.poll(20))
        left = next(loop).partition
        before = await filled(broker, consumer)
        async with asyncio.TaskGroup() as tasks:
            polling = tasks.create_task(consumer.poll(20))
            await wait_until_async(
                lambda: any(
                    (part.partition, part.offset) == (left, 1)
                    for asking in broker.asked[before:]
                    for part in asking.request.partitions
                ),
                what="the record after the last one that was taken",
            )
            polling.cancel()


async def test_a_look_up_that_is_refused_for_good_is_not_repeated() -> None:
    async with reading() as (broker, consumer):
        await consumer.assign([])
        await consumer.assign([TopicPartition("t", 0)])
        for _ in range(3):
            with pytest.raises(ClusterError, match="t/0: all replicas are damaged"):
                await consumer.poll(60)
            for _ in range(100):
                await one_turn()
        assert broker.looked_up == 1
