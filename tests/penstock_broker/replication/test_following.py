"""What a follower takes from its leader."""

import asyncio
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.wire import make_batch

from penstock.core.batch import Batch
from penstock.core.replication.contract_follower import (
    SendAck,
    SendEpochQuery,
    SendFollowStart,
    SendFollowStop,
)
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError
from penstock.rpc.batches import batch_to_wire
from penstock.rpc.streams.contract import MessageStream
from penstock.rpc.streams.frames import Received
from penstock_broker.replication import following
from penstock_broker.replication.following import (
    FollowerOutbox,
    LeaderLink,
    LinkConfig,
    checked_batch,
)

KEY = ReplicaKey(TopicId("id"), 3)
LEADER, EPOCH = BrokerId(1), LeaderEpoch(2)


def test_a_batch_whose_crc_does_not_fit_never_reaches_a_machine() -> None:
    batch = make_batch([b"abc"])
    assert checked_batch("t/0", batch_to_wire(batch)) == batch
    damaged = Batch(batch.header, batch.payload[:-1] + b"\xee")
    relabelled = Batch(dataclasses.replace(batch.header, record_count=7), batch.payload)
    for lie in (damaged, relabelled):
        with pytest.raises(ClusterError) as refused:
            checked_batch("t/0", batch_to_wire(lie))
        assert refused.value.code is ErrorCode.DATA_CORRUPTED


class BreakingStream:
    """It breaks, and in the same turn of the loop the link is stopped."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self._task = task
        self.closed = False

    async def send(self, message: bytes) -> None:
        del message

    async def deliver(self, take: Callable[[Received], None]) -> None:
        del take
        asyncio.get_running_loop().call_soon(self._task.cancel)
        raise UnreachableError("the server is stopping")

    async def close(self, failure: PenstockError | None) -> None:
        del failure
        self.closed = True


class BreakingLink(LeaderLink):
    def __init__(self) -> None:
        replicas: Any = SimpleNamespace(
            leaders={}, peer_connected=lambda _: None, peer_lost=lambda _: None
        )
        address: Any = SimpleNamespace(used="127.0.0.1:1")
        config = LinkConfig("id", BrokerId(2), "run", 1)
        unused: Any = None
        super().__init__(LEADER, address, config, replicas, unused, unused)
        self.streams: list[BreakingStream] = []

    async def _connect(self) -> MessageStream:
        assert not self.streams, "it was stopped, and connects again"
        task = asyncio.current_task()
        assert task is not None
        self.streams.append(BreakingStream(task))
        stream: Any = self.streams[0]
        return cast("MessageStream", stream)


async def test_a_link_that_is_stopped_while_its_stream_breaks_ends() -> None:
    """As when all brokers stop at once: the process would wait for it for ever."""
    link = BreakingLink()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(link.run())
    assert running.cancelled()
    assert [stream.closed for stream in link.streams] == [True]


class FlakyLink(BreakingLink):
    """Its connections break as soon as they are there, if they are; then it is stopped."""

    def __init__(self, *connects: bool) -> None:
        super().__init__()
        self._connects = iter(connects)

    async def _connect(self) -> MessageStream:
        connects, task = next(self._connects, None), asyncio.current_task()
        assert task is not None
        if connects is None:
            task.cancel()
        if not connects:
            raise UnreachableError("there is no server")
        stream: Any = BreakingStream(cast("Any", SimpleNamespace(cancel=lambda: None)))
        return cast("MessageStream", stream)


@pytest.mark.parametrize(
    ("connects", "said"),
    [
        ((True,), ["the server is stopping"]),
        ((False, False), ["there is no server"]),
        ((True, False, False), ["the server is stopping", "there is no server"]),
        ((False, True, True), ["there is no server", *["the server is stopping"] * 2]),
    ],
)
async def test_a_link_says_whenever_it_breaks_and_once_that_it_cannot_connect(
    connects: tuple[bool, ...],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(following, "_BACKOFF_S", (0.0,))
    link = FlakyLink(*connects)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(link.run())
    told = [record for record in caplog.records if record.getMessage() == "leader stream broke"]
    assert [each.__dict__["fields"]["reason"] for each in told] == said


async def test_acks_of_one_turn_leave_together_and_only_the_newest() -> None:
    outbox = FollowerOutbox()
    for end in (1, 2, 3):
        outbox.put(KEY, SendAck(LEADER, EPOCH, Offset(end), Offset(0)))
    outbox.put(ReplicaKey(TopicId("id"), 4), SendAck(LEADER, EPOCH, Offset(9), Offset(9)))
    message = await outbox.take()
    assert message is not None
    assert [(ack.partition, ack.written_end) for ack in message.acks] == [(3, 3), (4, 9)]


async def test_a_new_start_voids_older_acks_and_a_stop_voids_all() -> None:
    outbox = FollowerOutbox()
    outbox.put(KEY, SendAck(LEADER, EPOCH, Offset(5), Offset(5)))
    outbox.put(KEY, SendEpochQuery(LEADER, EPOCH, LeaderEpoch(1)))
    outbox.put(KEY, SendFollowStart(LEADER, EPOCH, Offset(4), 1))
    message = await outbox.take()
    assert message is not None
    assert (len(message.epoch_queries), len(message.starts), len(message.acks)) == (1, 1, 0)
    outbox.put(KEY, SendFollowStart(LEADER, EPOCH, Offset(4), 1))
    outbox.put(KEY, SendFollowStop(LEADER))
    message = await outbox.take()
    assert message is not None
    assert (len(message.stops), len(message.starts)) == (1, 0)
