"""A feed that restarts while its last read is under way: the old read changes nothing (I23).

Real replicas and reads; the store's gate holds a read while the follower starts over.
"""

import asyncio
from functools import partial
from typing import Any

import pytest
from support.fed_partitions import (
    EPOCH,
    FOLLOWER,
    VALUE,
    T,
    U,
    fed_partitions,
    feed_from,
    offsets,
    said,
)
from support.waiting import wait_until_async

from penstock.core.replication.contract_leader import Feed, LogStartMoved
from penstock.core.types import Offset
from penstock.errors import ErrorCode
from penstock.proto.v1.replication_pb2 import LeaderMessage
from penstock_broker.store.interface import Slot


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "succeeds late"])
async def test_a_read_of_a_feed_that_was_restarted_meanwhile_changes_nothing(fails: bool) -> None:
    async with fed_partitions() as world:
        replica = await world.append(T, 4)
        stream = world.stream()
        stream.feed(replica, feed_from(0))
        assert offsets(await said(stream)) == [0, 1]
        assert stream._live.in_flight_bytes == 2 * world.size

        def restart() -> None:
            stream.feed(replica, feed_from(1))
            world.store.broken_reads = fails

        assert await world.beside(stream, restart) == [], "nothing of the old feed, no refusal"
        assert stream.replicas == [replica], "the new feed stands"
        assert stream._live.in_flight_bytes == 0
        world.store.broken_reads = False
        assert offsets(await said(stream)) == [1, 2]
        assert offsets(await said(stream)) == [3]
        assert stream._live.in_flight_bytes == 3 * world.size
        stream.acked(T, EPOCH, Offset(4))
        assert stream._live.in_flight_bytes == 0


async def test_a_read_that_fails_after_its_feed_was_stopped_gives_nothing_back_twice() -> None:
    async with fed_partitions() as world:
        replica = await world.append(T, 4)
        stream = world.stream()
        stream.feed(replica, feed_from(0))
        await said(stream)

        def stop() -> None:
            stream.feed(replica, Feed(follower=FOLLOWER, leader_epoch=EPOCH, from_offset=None))
            world.store.broken_reads = True

        assert await world.beside(stream, stop) == []
        assert (stream.replicas, stream._live.in_flight_bytes) == ([], 0)


async def test_a_read_that_fails_ends_its_feed_and_makes_room_for_the_others() -> None:
    async with fed_partitions() as world:
        replica, other = await world.append(T, 2), await world.append(U, 1, VALUE * 4)
        stream = world.stream(window_batches=2.5)
        stream.feed(replica, feed_from(0))
        assert offsets(await said(stream)) == [0, 1]
        await world.append(T, 1)
        replica.recent.clear()
        other.recent.clear()
        read = world.store.read

        def broken_for_one(slot: Slot, *where: Any) -> Any:
            world.store.broken_reads = slot == replica.slot
            return read(slot, *where)

        world.store.read = broken_for_one  # type: ignore[method-assign, assignment]
        stream.feed(other, feed_from(0))  # its batch is larger than what is left of the window
        stream.notify(replica, urgent=True)
        assert offsets(await said(stream)) == []
        assert stream._live.in_flight_bytes == 0
        refusal, fed = await said(stream)
        assert [one.topic_id for one in refusal.errors] == [T.topic_id]
        assert offsets([fed]) == [0]
        assert stream.replicas == [other]


async def test_whoever_lacks_what_retention_has_removed_is_sent_back() -> None:
    """Nothing is appended any more: no batch would ever show it that it is behind."""
    async with fed_partitions() as world:
        await world.append(T, 6)
        replica = world.learn(T, (0,))
        stream = world.stream()
        stream.feed(replica, feed_from(0))
        assert offsets(await said(stream)) == [0, 1]
        world.replicas.handle(replica, LogStartMoved(Offset(6)))
        read = partial(world.store.read, replica.slot, Offset(0), 1, Offset(6))
        await wait_until_async(lambda: not read(), what="all is removed")
        told: list[LeaderMessage] = []
        async with asyncio.timeout(60):
            while not any(one.errors for one in told):
                told += await said(stream)
        assert offsets(told) in ([], [2, 3])
        [error] = [error for one in told for error in one.errors]
        assert ErrorCode(error.error.code) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert stream.replicas == []
