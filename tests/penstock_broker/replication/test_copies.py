"""Copies pass two throttles: the leader's own, and the credit that the follower grants (I32).

The feeding shell is real, the machines' state names the follower as one that the partition moves
to; the test is the controller and the follower.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import pytest
from support.fed_partitions import (
    EPOCH,
    FedPartitions,
    T,
    U,
    fed_partitions,
    feed_from,
    offsets,
    said,
)
from support.waiting import wait_until_async

from penstock.core import throttle
from penstock.core.throttle import BURST_MS, UNLIMITED_CREDIT
from penstock.core.types import BrokerId, Offset
from penstock.proto.v1 import replication_pb2 as pb
from penstock_broker.replication import copies
from penstock_broker.replication.copies import CopyCredits, CopyLink
from penstock_broker.replication.feeding import FollowerStream
from penstock_broker.replication.following import FollowerOutbox

ONE, TWO = BrokerId(1), BrokerId(2)


@pytest.fixture(autouse=True)
def growth_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is."""
    monkeypatch.setattr(throttle, "_GROWTH_MS", 3_600_000)


@asynccontextmanager
async def copying(rate_batches: float | None = None) -> AsyncIterator[FedPartitions]:
    """T moves to the follower; `rate_batches`: of its batches per second."""
    async with fed_partitions() as world:
        world.learn(T, isr=(0,), adding=(1,))
        if rate_batches is not None:
            world.throttle.set_rate(round(rate_batches * world.size))
        yield world


async def idle(stream: FollowerStream) -> bool:
    """It has looked at its bulk partitions, and has nothing to say."""
    await wait_until_async(lambda: not stream._bulk_wake.is_set(), what="it has looked")
    return not stream._is_urgent


async def until(stream: FollowerStream, end: int) -> list[pb.LeaderMessage]:
    """What it says until the batch before `end` was sent."""
    messages: list[pb.LeaderMessage] = []
    while end - 1 not in offsets(messages):
        messages += await said(stream)
    return messages


async def test_no_copy_goes_without_credit_and_what_goes_is_told() -> None:
    async with copying() as world:
        stream = world.stream(window_batches=1_000)
        stream.feed(await world.append(T, 8), feed_from(0))
        assert await idle(stream)
        stream.credited(3 * world.size)
        assert offsets(await until(stream, 4)) == [0, 1, 2, 3], "the last one was begun with credit"
        assert await idle(stream)
        stream.credited(5 * world.size)
        (message,) = await said(stream)
        assert (offsets([message]), message.copy_spent) == ([4, 5], 6 * world.size)
        assert await idle(stream)


async def test_marks_need_no_credit() -> None:
    async with copying() as world:
        stream = world.stream(window_batches=1_000)
        stream.feed(await world.append(T, 2), feed_from(2))
        (message,) = await said(stream)
        assert [one.high_watermark for one in message.appends] == [2]


async def test_catching_up_needs_no_credit_and_waits_for_no_copy() -> None:
    async with copying(rate_batches=0.01) as world:
        world.learn(U, isr=(0,))
        stream = world.stream(window_batches=1_000)
        for key in (T, U):
            stream.feed(await world.append(key, 4), feed_from(0))
        assert offsets(await until(stream, 4), U) == [0, 1, 2, 3]
        assert (stream._copies.spent, await idle(stream)) == (0, True)


async def test_copies_go_at_the_leaders_rate_and_end() -> None:
    async with copying(rate_batches=200) as world:
        stream = world.stream(window_batches=1_000)
        stream.credited(UNLIMITED_CREDIT)
        replica = await world.append(T, 80)
        began = asyncio.get_running_loop().time()
        stream.feed(replica, feed_from(0))
        await until(stream, 80)
        took_s = asyncio.get_running_loop().time() - began
        burst_and_message = 200 * BURST_MS / 1_000 + 2
        assert took_s >= (80 - burst_and_message) / 200


async def test_what_a_partition_grows_by_costs_neither_rate_nor_credit() -> None:
    async with copying(rate_batches=0.01) as world:
        stream = world.stream(window_batches=1_000)
        stream.credited(1)
        stream.feed(await world.append(T, 1), feed_from(1))
        await said(stream)  # the marks
        for end in (4, 7):
            stream.notify(await world.append(T, 3), urgent=True)
            assert offsets(await until(stream, end)) == list(range(end - 3, end))
        assert stream._copies.spent == 0
        stream.feed(world.replicas.by_key[T], feed_from(0))
        assert offsets(await said(stream)) == [0, 1], "backlog: with the credit there is"
        assert stream._copies.spent == 2 * world.size
        assert await idle(stream)


async def test_growth_pays_a_debt_before_anything_goes() -> None:
    async with copying(rate_batches=0.01) as world:
        stream = world.stream(window_batches=1_000)
        stream.credited(UNLIMITED_CREDIT)
        stream.feed(await world.append(T, 9), feed_from(0))
        assert offsets(await until(stream, 2)) == [0, 1], "into debt"
        assert await idle(stream)
        stream.notify(await world.append(T, 1), urgent=True)
        assert await idle(stream)
        stream.notify(await world.append(T, 1), urgent=True)
        assert offsets(await until(stream, 4)) == [2, 3]
        assert await idle(stream)


async def test_growth_pays_for_what_was_used_beyond_the_credit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "_GRANTING_MS", 3_600_000)
    async with copying() as world:
        stream = world.stream(window_batches=1_000)
        stream.credited(1)
        stream.feed(await world.append(T, 9), feed_from(0))
        assert offsets(await until(stream, 2)) == [0, 1]
        assert await idle(stream)
        stream.notify(await world.append(T, 1), urgent=True)
        assert await idle(stream)
        stream.notify(await world.append(T, 1), urgent=True)
        assert offsets(await until(stream, 4)) == [2, 3]
        assert stream._copies.spent == 2 * world.size
        assert await idle(stream)


async def test_growth_waits_for_a_follower_that_grants_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its disk has no room."""
    monkeypatch.setattr(copies, "_GRANTING_MS", 0)
    async with copying() as world:
        stream = world.stream(window_batches=1_000)
        stream.credited(1)
        stream.feed(await world.append(T, 3), feed_from(0))
        assert offsets(await until(stream, 2)) == [0, 1]
        stream.notify(await world.append(T, 5), urgent=True)
        assert await idle(stream)
        stream.credited(2 * world.size + 1)
        assert offsets(await until(stream, 8)) == [2, 3, 4, 5, 6, 7]


async def test_followers_take_turns() -> None:
    async with copying(rate_batches=400) as world:
        replica = await world.append(T, 60)
        streams = [world.stream(window_batches=1_000) for _ in range(3)]
        done: dict[FollowerStream, int] = dict.fromkeys(streams, 0)
        fewest: list[int] = []

        async def follow(stream: FollowerStream) -> None:
            while done[stream] < 60:
                done[stream] += len(offsets(await said(stream)))
            fewest.append(min(done.values()))

        async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
            for stream in streams:
                stream.credited(UNLIMITED_CREDIT)
                stream.feed(replica, feed_from(0))
                tasks.create_task(follow(stream))
        assert fewest[0] >= 40, "when the first is done, nobody is far behind"


async def test_a_new_rate_counts_at_once() -> None:
    async with copying(rate_batches=0.01) as world:
        stream = world.stream(window_batches=1_000)
        stream.credited(UNLIMITED_CREDIT)
        stream.feed(await world.append(T, 6), feed_from(0))
        assert offsets(await until(stream, 2)) == [0, 1]
        assert await idle(stream)
        world.throttle.set_rate(1 << 20)
        assert offsets(await until(stream, 4)) == [2, 3]
        world.throttle.set_rate(None)
        assert offsets(await until(stream, 6)) == [4, 5]


async def test_credit_that_was_used_for_what_is_not_sent_is_told_too() -> None:
    """Else the follower would wait for the leader to use it, and the leader for more."""
    async with copying() as world:
        stream = world.stream(window_batches=1_000)
        stream.credited(1)
        stream.feed(await world.append(T, 4), feed_from(0))
        await wait_until_async(lambda: stream._ahead, what="it was read")
        stream.acked(T, EPOCH, Offset(0))
        stream._feeding[T].next_offset = Offset(4)  # the live lane was faster
        (message,) = await said(stream)
        assert (offsets([message]), message.copy_spent) == ([], 2 * world.size)


# ---------------------------------------------------------------- the receiver


class Link:
    """To a leader that uses `uses` of its credit at once."""

    def __init__(self, uses: Callable[[int], int]) -> None:
        self.uses = uses
        self.used = 0
        self.unused_credit = 0

    def grant(self, size: int) -> None:
        self.unused_credit += size
        using = self.uses(self.unused_credit)
        self.unused_credit -= using
        self.used += using


def credits_for(rate: int | None, links: dict[BrokerId, CopyLink]) -> CopyCredits:
    def up(leaders: Collection[BrokerId]) -> dict[BrokerId, CopyLink]:
        return {leader: link for leader, link in links.items() if leader in leaders}

    return CopyCredits(rate, up)


async def test_leaders_that_copy_get_credit_while_the_disk_has_space() -> None:
    links: dict[BrokerId, CopyLink] = {ONE: Link(int), TWO: Link(int)}
    granting = credits_for(None, links)
    granting.grant()
    granting.copied_from({TWO})
    granting.has_space = lambda: False
    granting.grant()
    assert [link.used for link in links.values() if isinstance(link, Link)] == [0, 0]
    granting.has_space = lambda: True
    granting.grant()
    assert [link.used for link in links.values() if isinstance(link, Link)] == [0, UNLIMITED_CREDIT]


async def test_credit_is_granted_while_something_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_GRANT_EVERY_S", 0.001)
    link = Link(int)
    granting = credits_for(1 << 20, {ONE: link})
    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(granting.run())
        granting.copied_from({ONE})
        await wait_until_async(lambda: link.used > 1 << 18, what="it is granted again and again")
        granting.copied_from(())
        await wait_until_async(lambda: not granting._copying.is_set(), what="it rests")
        granting.set_rate(None)
        granting.copied_from({ONE})
        await wait_until_async(lambda: link.used >= UNLIMITED_CREDIT, what="the rate changes")
        running.cancel()


async def test_credit_goes_to_the_leader_as_a_sum() -> None:
    outbox = FollowerOutbox()
    outbox.grant(5)
    assert (await outbox.take()).copy_credit == 5
    outbox.grant(7)
    assert (await outbox.take()).copy_credit == 12
