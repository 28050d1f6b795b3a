"""How an async producer ends: cancelled from outside, or closed by several at once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support.cluster import Cluster

from penstock.client import AsyncConsumer, AsyncProducer, DeliveryError, TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError


async def test_after_a_program_cancelled_all_tasks_nothing_waits_for_ever(
    shared_broker: Cluster,
) -> None:
    shared_broker.create_topic("all.cancelled")
    producer = AsyncProducer(shared_broker.bootstrap, linger_ms=3_600_000)
    delivery = await producer.send("all.cancelled", b"v")
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others)
    with pytest.raises(DeliveryError, match="cancelled before it was closed"):
        await asyncio.wait_for(delivery, 60)
    with pytest.raises(ClusterError, match="create one in each event loop") as refused:
        await producer.send("all.cancelled", b"v")
    assert refused.value.code is ErrorCode.INTERNAL
    assert await asyncio.wait_for(producer.close(), 60) == 1


async def test_a_second_close_waits_for_the_first_one(shared_broker: Cluster) -> None:
    shared_broker.create_topic("closed.twice")
    producer = AsyncProducer(shared_broker.bootstrap)
    delivery = await producer.send("closed.twice", b"v")
    flushing, go_on = asyncio.Event(), asyncio.Event()
    flush = producer.flush

    async def gated(timeout_s: float | None = None) -> None:
        flushing.set()
        await go_on.wait()
        await flush(timeout_s)

    producer.flush = gated  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        group.create_task(producer.close())
        await flushing.wait()
        second = group.create_task(producer.close())
        await asyncio.wait([second], timeout=0)
        assert not second.done()
        go_on.set()
        assert await second == 0
        assert delivery.done()


def test_a_producer_says_that_its_event_loop_has_ended(shared_broker: Cluster) -> None:
    shared_broker.create_topic("loop.ended")
    producer = AsyncProducer(shared_broker.bootstrap)

    async def job() -> int:
        return (await (await producer.send("loop.ended", b"v"))).offset

    assert asyncio.run(job()) == 0
    with pytest.raises(ClusterError, match="create one in each event loop"):
        asyncio.run(job())
    assert asyncio.run(producer.close()) == 0


async def test_a_first_call_that_is_cancelled_does_not_spoil_the_client(
    shared_broker: Cluster,
) -> None:
    shared_broker.create_topic("cancelled.first")
    producer = AsyncProducer(shared_broker.bootstrap)
    consumer = AsyncConsumer(shared_broker.bootstrap)
    where = [TopicPartition("cancelled.first", 0)]
    for call in (lambda: producer.send("cancelled.first", b"v"), lambda: consumer.assign(where)):
        async with asyncio.TaskGroup() as group:
            first = group.create_task(call())
            await asyncio.wait([first], timeout=0)  # it has begun
            first.cancel()
        assert first.cancelled()
    assert (await (await producer.send("cancelled.first", b"v"))).offset == 0
    await consumer.assign(where)
    (batch,) = await consumer.poll(60)
    assert batch.values() == [b"v"]
    await consumer.close()
    assert await producer.close() == 0


async def test_a_first_call_ends_though_the_client_is_closed_in_the_same_moment() -> None:
    """Nothing has to listen."""
    producer, consumer = AsyncProducer("127.0.0.1:1"), AsyncConsumer("127.0.0.1:1")
    where = [TopicPartition("t", 0)]

    async def refused(call: Coroutine[Any, Any, object]) -> None:
        with pytest.raises(ClusterError) as found:
            await call
        assert found.value.code is ErrorCode.CLOSED

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(refused(producer.send("t", b"v")))
        group.create_task(refused(consumer.assign(where)))
        group.create_task(producer.close())
        group.create_task(consumer.close())


async def test_another_event_loop_is_told_to_make_its_own_client(shared_broker: Cluster) -> None:
    shared_broker.create_topic("two.loops")
    where = TopicPartition("two.loops", 0)

    def refused(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
        with pytest.raises(MisuseError, match=r"first used in another event loop.* create one"):
            asyncio.run(call())

    async def fills() -> None:
        while True:
            await producer.send("two.loops", b"v" * 1_000)

    async with (
        AsyncProducer(shared_broker.bootstrap, buffer_bytes=5_000, linger_ms=3_600_000) as producer,
        AsyncConsumer(shared_broker.bootstrap) as consumer,
    ):
        await producer.prepare("two.loops")
        await consumer.assign([where])
        for call in (
            lambda: producer.send("another.topic", b"v"),
            fills,
            lambda: consumer.poll(60),
            lambda: consumer.assign([]),
            consumer.close,
        ):
            await asyncio.to_thread(refused, call)
        assert consumer.assignment() == {where}
