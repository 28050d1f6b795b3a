"""Live batches go before bulk, bulk never starves, and each class counts what it sent (I32).

Real replicas and reads. In T the follower is outside the ISR, in U it is a member.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.fed_partitions import (
    EPOCH,
    FOLLOWER,
    FedPartitions,
    T,
    U,
    fed_partitions,
    feed_from,
    offsets,
    said,
)
from support.waiting import wait_until_async

from penstock.core.replication.contract_leader import (
    EpochQueried,
    FollowerAcked,
    FollowStarted,
)
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey
from penstock_broker.replication import feeding
from penstock_broker.replication.feeding import FollowerStream

BULK_WINDOW = 1 / feeding.BULK_WINDOW_PART


@asynccontextmanager
async def bulk_and_live(
    monkeypatch: pytest.MonkeyPatch, *, bulk_every_s: float = 3_600.0
) -> AsyncIterator[FedPartitions]:
    """`bulk_every_s`: after how long bulk goes before what is live."""
    monkeypatch.setattr(feeding, "_BULK_EVERY_S", bulk_every_s)
    async with fed_partitions() as world:
        world.learn(T, isr=(0,))
        yield world


async def start(world: FedPartitions, stream: FollowerStream, key: ReplicaKey, count: int) -> None:
    """Feeds a partition of so many batches, and sends its first message."""
    stream.feed(await world.append(key, count), feed_from(0))
    sent = offsets(await said(stream), key)
    assert sent[0] == 0


async def read_ahead(stream: FollowerStream) -> None:
    await wait_until_async(lambda: stream._ahead, what="the next bulk message is ready")


async def test_bulk_waits_while_a_live_partition_has_news(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bulk_and_live(monkeypatch) as world:
        stream = world.stream()
        await start(world, stream, T, 6)
        stream.feed(await world.append(U, 5), feed_from(0))
        await read_ahead(stream)
        live = [await said(stream) for _ in range(3)]
        assert [offsets(one) for one in live] == [[0, 1], [2, 3], [4]]
        assert not any(offsets(one, T) for one in live)
        bulk = [await said(stream), await said(stream)]
        assert [offsets(one, T) for one in bulk] == [[2, 3], [4, 5]]


async def test_bulk_goes_once_in_a_while_whatever_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bulk_and_live(monkeypatch) as world:
        stream = world.stream()
        await start(world, stream, T, 6)
        stream.feed(await world.append(U, 5), feed_from(0))
        await read_ahead(stream)
        stream._bulk_due_s = 0.0
        assert offsets(await said(stream), T) == [2, 3], "it has waited long enough"
        await read_ahead(stream)
        assert offsets(await said(stream), U) == [0, 1], "it went a moment ago"
        assert offsets(await said(stream), U) == [2, 3]


async def test_bulk_goes_even_if_the_live_window_never_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bulk_and_live(monkeypatch) as world:
        stream = world.stream(window_batches=8)
        await start(world, stream, T, 2)
        stream.feed(await world.append(U, 10), feed_from(0))
        for _ in range(4):
            assert offsets(await said(stream), U)
        stream.acked(T, EPOCH, Offset(2))
        stream.notify(await world.append(T, 2), urgent=True)
        await read_ahead(stream)
        stream._bulk_due_s = asyncio.get_running_loop().time() + 0.05
        assert offsets(await said(stream), T) == [2, 3]
        assert U in stream._live.dirty


async def test_bulk_has_a_quarter_of_the_window_and_live_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bulk_and_live(monkeypatch, bulk_every_s=0.0) as world:
        stream = world.stream(window_batches=8)
        await start(world, stream, T, 10)
        await read_ahead(stream)
        stream.feed(await world.append(U, 10), feed_from(0))
        live: list[int] = []
        for _ in range(4):
            live += offsets(await said(stream), U)
        assert live == list(range(8)), "bulk takes no room from it, and has none left itself"
        assert stream._bulk.in_flight_bytes == 8 * world.size * BULK_WINDOW
        assert not stream._is_urgent
        stream.acked(T, EPOCH, Offset(1))
        assert not stream._is_urgent, "two batches do not fit into the room of one"
        stream.acked(T, EPOCH, Offset(2))
        assert offsets(await said(stream), T) == [2, 3]


async def test_a_bulk_message_is_small_whatever_a_live_one_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bulk_and_live(monkeypatch, bulk_every_s=0.0) as world:
        size = feeding.BULK_MESSAGE_BYTES * 2 // 5
        stream = world.stream(window_batches=1 << 20, message_bytes=4 * size)
        for key in (T, U):
            stream.feed(await world.append(key, 5, b"x" * size), feed_from(0))
        sent = [await said(stream) for _ in range(4)]
        assert [offsets(one, T) for one in sent if offsets(one, T)] == [[0, 1], [2, 3]]
        assert [offsets(one, U) for one in sent if offsets(one, U)] == [[0, 1, 2], [3, 4]]


async def test_partitions_take_turns_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bulk_and_live(monkeypatch) as world:
        world.learn(U, isr=(0,))
        stream = world.stream()
        for key in (T, U):
            stream.feed(await world.append(key, 4), feed_from(0))
        sent = [await said(stream) for _ in range(4)]
        assert [offsets(one, T) for one in sent] == [[0, 1], [], [2, 3], []]
        assert [offsets(one, U) for one in sent] == [[], [0, 1], [], [2, 3]]


async def test_a_follower_outside_the_isr_hears_of_marks_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bulk_and_live(monkeypatch) as world:
        replica = await world.append(T, 2)
        stream = world.stream()
        stream.feed(replica, feed_from(2))
        (message,) = await said(stream)
        assert [(one.high_watermark, len(one.batches)) for one in message.appends] == [(2, 0)]


async def test_a_slow_disk_under_bulk_does_not_delay_what_is_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bulk_and_live(monkeypatch) as world:
        stream = world.stream()
        world.store.readable.clear()
        stream.feed(await world.append(T, 4), feed_from(0))
        await wait_until_async(lambda: world.store.reads_waiting, what="bulk waits for the disk")
        stream.feed(await world.append(U, 1), feed_from(0))
        assert offsets(await said(stream), U) == [0]
        world.store.readable.set()
        assert offsets(await said(stream), T) == [0, 1]


async def test_all_bulk_reads_of_a_broker_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bulk_and_live(monkeypatch) as world:
        world.store.readable.clear()
        replica = await world.append(T, 4)
        streams = [world.stream(), world.stream()]
        for stream in streams:
            stream.feed(replica, feed_from(0))
        await wait_until_async(
            lambda: not any(stream._bulk.dirty for stream in streams), what="both want to read"
        )
        async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
            tasks.create_task(world.reader.read(replica, Offset(0), 1, Offset(4)))
            await wait_until_async(
                lambda: world.store.reads_waiting == 2, what="another read is not held up"
            )
            async with asyncio.timeout(60):  # the third of three threads is free
                await asyncio.get_running_loop().run_in_executor(world.executor, lambda: None)
            world.store.readable.set()
        for stream in streams:
            assert offsets(await said(stream)) == [0, 1]


# ---------------------------------------------------------------- a change of class


async def test_what_is_in_flight_when_a_follower_joins_is_given_back_to_bulk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bulk_and_live(monkeypatch) as world:
        stream = world.stream()
        await start(world, stream, T, 5)
        stream.notify(world.learn(T, isr=(0, 1)), urgent=True)
        assert offsets(await said(stream), T) == [2, 3]
        lanes = stream._bulk, stream._live
        assert [lane.in_flight_bytes for lane in lanes] == [2 * world.size] * 2
        stream.acked(T, EPOCH, Offset(2))
        assert [lane.in_flight_bytes for lane in lanes] == [0, 2 * world.size]
        stream.acked(T, EPOCH, Offset(4))
        assert [lane.in_flight_bytes for lane in lanes] == [0, 0]


async def test_what_is_in_flight_when_a_follower_leaves_is_given_back_to_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bulk_and_live(monkeypatch) as world:
        stream = world.stream()
        await start(world, stream, U, 4)
        stream.notify(world.learn(U, isr=(0,)), urgent=True)
        assert offsets(await said(stream), U) == [2, 3]
        lanes = stream._live, stream._bulk
        assert [lane.in_flight_bytes for lane in lanes] == [2 * world.size] * 2
        stream.acked(U, EPOCH, Offset(3))
        assert [lane.in_flight_bytes for lane in lanes] == [0, 2 * world.size], "it ends at 4"
        stream.feed(world.replicas.by_key[U], feed_from(0))
        assert [lane.in_flight_bytes for lane in lanes] == [0, 0], "a new feed starts at nothing"


@pytest.mark.parametrize("first", ["live", "bulk"])
async def test_a_follower_that_joins_during_a_bulk_read_gets_each_batch_once(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both lanes have read the same batches: those that are sent first count."""
    async with bulk_and_live(monkeypatch, bulk_every_s=0.0) as world:
        stream = world.stream()
        world.store.readable.clear()
        replica = await world.append(T, 4)
        stream.feed(replica, feed_from(0))
        await wait_until_async(lambda: world.store.reads_waiting, what="bulk waits for the disk")
        if first == "bulk":
            world.store.readable.set()
            await read_ahead(stream)
        stream.notify(world.learn(T, isr=(0, 1)), urgent=True)
        world.store.readable.set()
        if first == "live":
            stream._bulk_due_s = asyncio.get_running_loop().time() + 3_600
        sent: list[int] = []
        while len(sent) < 4:
            sent += offsets(await said(stream))
        await wait_until_async(lambda: not stream._bulk_wake.is_set(), what="it has looked again")
        if stream._is_urgent:
            sent += offsets(await said(stream))
        assert sent == [0, 1, 2, 3]
        assert stream._live.in_flight_bytes + stream._bulk.in_flight_bytes == 4 * world.size
        stream.acked(T, EPOCH, Offset(4))
        assert (stream._live.in_flight_bytes, stream._bulk.in_flight_bytes) == (0, 0)


async def test_a_follower_that_leaves_during_a_live_read_gets_each_batch_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bulk_and_live(monkeypatch) as world:
        stream = world.stream()
        stream.feed(await world.append(U, 4), feed_from(0))

        def leave() -> None:
            stream.notify(world.learn(U, isr=(0,)), urgent=True)

        sent = offsets(await world.beside(stream, leave))
        while len(sent) < 4:
            sent += offsets(await said(stream))
        assert sent == [0, 1, 2, 3]
        stream.acked(U, EPOCH, Offset(4))
        assert (stream._live.in_flight_bytes, stream._bulk.in_flight_bytes) == (0, 0)


async def test_what_a_proposed_follower_still_lacks_is_live_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sequence: broker 2 holds the high watermark at 2; 1 has reached that and is proposed. From
    here on the high watermark waits for 1 as well, and its batches wait behind no live ones."""
    async with bulk_and_live(monkeypatch) as world:
        world.replica_list = (0, 1, 2)
        replica = world.learn(T, isr=(0, 2))
        world.replicas.isr = SimpleNamespace(propose=lambda *_: None)
        stream = world.stream()
        world.replicas.followers[FOLLOWER] = stream
        await world.append(T, 4)

        def follows(broker: int, written_end: int) -> None:
            who, end = BrokerId(broker), Offset(written_end)
            world.replicas.handle(replica, EpochQueried(who, EPOCH, LeaderEpoch(-1)))
            world.replicas.handle(replica, FollowStarted(who, EPOCH, Offset(0)))
            world.replicas.handle(replica, FollowerAcked(who, EPOCH, end, end))

        follows(2, 2)
        assert replica.marks.high_watermark == 2
        follows(1, 0)
        while not offsets(await said(stream), T):
            pass  # the answer to its look-up comes first
        await read_ahead(stream)
        stream.feed(await world.append(U, 5), feed_from(0))
        world.replicas.handle(replica, FollowerAcked(FOLLOWER, EPOCH, Offset(2), Offset(2)))
        sent: list[list[int]] = []
        while not (sent and sent[-1]):
            sent.append(offsets(await said(stream), T))
        assert sent[-1] == [2, 3]
        assert U in stream._live.dirty, "it waited for no other live partition's end"


async def test_unfed_partitions_and_old_lanes_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bulk_and_live(monkeypatch) as world:
        stream = world.stream()
        stopped: Any = SimpleNamespace(key=T)
        stream.notify(stopped, urgent=True)
        assert await said(stream) == []
        await start(world, stream, T, 2)
        stream.notify(world.learn(T, isr=(0, 1)), urgent=True)
        assert (T in stream._live.dirty, T in stream._bulk.dirty) == (True, False)
        stream.notify(world.learn(T, isr=(0,)), urgent=True)
        assert (T in stream._live.dirty, T in stream._bulk.dirty) == (False, True)
