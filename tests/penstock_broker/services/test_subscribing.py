"""A Subscribe stream while the world changes: what is read is scripted, and held at a gate."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from support.waiting import wait_until_async

from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import broker_pb2 as pb
from penstock_broker.services.fetching import Slice
from penstock_broker.services.limits import ByteBudget
from penstock_broker.services.subscribing import Subscription
from penstock_broker.serving.quotas import Quotas


class Replica:
    """Who waits for it."""

    def __init__(self) -> None:
        self.waiters: set[Any] = set()
        self.stable_waiters: set[Any] = set()


class Fetching:
    """Reads nothing, once `going` is set."""

    def __init__(self) -> None:
        self.quotas = Quotas()
        self.budget = ByteBudget(1 << 30, "fetch")
        self.replica = Replica()
        self.going = asyncio.Event()
        self.read_of: list[int] = []

    def locate(self, _part: pb.FetchPartition) -> Replica:
        return self.replica

    async def read(self, part: pb.FetchPartition, _limit: int, _isolation: Any) -> Slice:
        self.read_of.append(part.partition)
        await self.going.wait()
        return Slice(part.topic, part.partition)


async def run(fetching: Fetching, requests: AsyncIterator[pb.SubscribeRequest]) -> None:
    async with asyncio.timeout(600):
        await Subscription(cast("Any", fetching)).run(requests, cast("Any", None))


async def test_a_partition_that_is_given_up_while_another_is_read_is_not_read() -> None:
    fetching = Fetching()

    async def requests() -> AsyncIterator[pb.SubscribeRequest]:
        both = [pb.FetchPartition(topic="t", partition=number) for number in (0, 1)]
        yield pb.SubscribeRequest(credit_bytes=1_000, subscribe=both)
        await wait_until_async(lambda: fetching.read_of, what="the first is being read")
        yield pb.SubscribeRequest(unsubscribe=[pb.PartitionName(topic="t", partition=1)])
        fetching.going.set()
        again = pb.FetchPartition(topic="t", partition=0)
        yield pb.SubscribeRequest(subscribe=[again])
        await wait_until_async(lambda: len(fetching.read_of) == 2, what="the stream goes on")

    await run(fetching, requests())
    assert fetching.read_of == [0, 0]


async def test_a_replica_that_took_the_place_of_another_wakes_the_stream() -> None:
    """As when a partition moved away and back before anything of it was read."""
    fetching = Fetching()
    fetching.going.set()

    async def requests() -> AsyncIterator[pb.SubscribeRequest]:
        yield pb.SubscribeRequest(subscribe=[pb.FetchPartition(topic="t", partition=0)])
        before, fetching.replica = fetching.replica, Replica()
        await wait_until_async(lambda: before.stable_waiters, what="the former is watched")
        yield pb.SubscribeRequest(credit_bytes=1_000)
        await wait_until_async(lambda: fetching.replica.stable_waiters, what="the next one is")
        assert not before.stable_waiters

    await run(fetching, requests())


async def test_partitions_with_names_that_no_topic_has_end_the_stream() -> None:
    """Without credit nothing is read, so they would be kept as long as the stream."""
    fetching = Fetching()

    async def requests() -> AsyncIterator[pb.SubscribeRequest]:
        part = pb.FetchPartition(topic="t" * 1_000_000)
        yield pb.SubscribeRequest(subscribe=[part])

    with pytest.raises(ExceptionGroup) as caught:
        await run(fetching, requests())
    (error,) = caught.value.exceptions
    assert isinstance(error, ClusterError)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert len(error.message) < 300
