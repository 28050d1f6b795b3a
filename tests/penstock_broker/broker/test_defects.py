"""A defect in one partition's machine, on a real broker: that partition stops, the others serve."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.local_broker import LocalBroker, local_broker, topic_info
from support.waiting import wait_until_async
from support.wire import make_batch

from penstock.core.replication import pending
from penstock.core.types import Offset, ReplicaKey, TopicId
from penstock.errors import ErrorCode
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire
from penstock_broker.replication.replica import Replica
from penstock_broker.store.rocks import RocksLogStore

KEY = ReplicaKey(TopicId("id-1"), 0)
BOTH = (topic_info(replicas=(0, 1)), topic_info("u", topic_id="id-2"))


async def produce(broker: LocalBroker, topic: str = "t") -> Any:
    part = pb.ProducePartition(topic=topic, batch=batch_to_wire(make_batch([b"x"])))
    request = pb.ProduceRequest(acks=pb.ACKS_ALL, timeout_ms=60_000, partitions=[part])
    return (await broker.data.Produce(request)).results[0]


async def fetch(broker: LocalBroker, topic: str = "t", wait_ms: int = 0) -> Any:
    part = pb.FetchPartition(topic=topic, offset=0)
    request = pb.FetchRequest(max_wait_ms=wait_ms, min_bytes=1, partitions=[part])
    return (await broker.data.Fetch(request)).results[0]


def replica_of(broker: LocalBroker) -> Replica:
    return broker.process._replicas.by_key[KEY]


@pytest.fixture
def broken_add(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The rules for waiting produces break, once, after half of their work."""
    add = pending.PendingProduces.add
    struck: list[int] = []

    def strike(self: pending.PendingProduces, waiting: pending.Waiting) -> None:
        add(self, waiting)
        if not struck and waiting.base_offset == 1:
            struck.append(1)
            raise KeyError("planted")

    monkeypatch.setattr(pending.PendingProduces, "add", strike)
    return monkeypatch


async def test_a_defect_stops_one_partition_and_everyone_waiting_hears_of_it(
    tmp_path: Path, broken_add: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(*BOTH)
        parked = broker.tasks.create_task(fetch(broker, wait_ms=60_000))
        first = broker.tasks.create_task(produce(broker))
        replica = replica_of(broker)
        await wait_until_async(lambda: replica.marks.written_end == 1, what="the first is written")
        second = await produce(broker)
        async with asyncio.timeout(600):
            for result in (await first, second, await parked):
                assert result.error.code == ErrorCode.STORAGE_FAILED
                assert "KeyError" in result.error.message
                assert "ProduceRequested" in result.error.message
        for result in (await produce(broker), await fetch(broker)):
            assert result.error.code == ErrorCode.STORAGE_FAILED
        totals = broker.process.totals()
        assert (totals.inflight_bytes, totals.stopped, totals.leaders) == (0, 1, 1)
        assert not (await produce(broker, "u")).HasField("error"), "the others go on"
        assert len((await fetch(broker, "u")).batches) == 1
    (line,) = [one for one in caplog.records if one.getMessage() == "replica stopped"]
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], KeyError), "with its traceback"
    assert line.exc_info[2] is not None


async def test_nothing_of_a_stopped_partition_moves_until_the_broker_starts_again(
    tmp_path: Path, broken_add: pytest.MonkeyPatch
) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(*BOTH)
        first = broker.tasks.create_task(produce(broker))
        replica = replica_of(broker)
        await wait_until_async(lambda: replica.marks.written_end == 1, what="the first is written")
        await produce(broker)
        await first
        marks = replica.marks
        assert (marks.high_watermark, marks.log_end_offset) == (0, 1)
        # The follower leaves: alone in the ISR, a leader would commit all that it has.
        await broker.apply(topic_info(version=2), BOTH[1])
        assert replica_of(broker) is replica, "an image does not open it anew"
        assert replica.marks is marks
        moved = await broker.admin.DeleteRecords(
            admin_pb2.DeleteRecordsRequest(topic="t", partition=0, before_offset=-1)
        )
        assert ErrorCode(moved.error.code) is ErrorCode.STORAGE_FAILED
        assert not await broker.process._replicas.rewrite(replica, None, None, replica.truncations)
        assert replica.extras(written_bytes=1 << 40, now=True) == (None, None)
    store = RocksLogStore(tmp_path / "log")
    try:
        found = store.recover(store.slots()[KEY])
    finally:
        store.close()
    assert found.log_end_offset == 1, "the half-handled produce was not written"
    assert found.checkpoint.high_watermark == Offset(0)
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(epoch=2, version=3), BOTH[1])
        assert not (await produce(broker)).HasField("error")
        assert replica_of(broker).marks.high_watermark == 2
