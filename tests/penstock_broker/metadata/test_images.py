"""What a broker does with the controller's images, and with its limits: real gRPC and RocksDB,
the test plays the controller.
"""

import asyncio
from pathlib import Path

import pytest
from support.local_broker import LocalBroker, local_broker, topic_info
from support.waiting import wait_until_async
from support.wire import make_batch

from penstock.core.types import ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import admin_pb2, controller_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.rpc.batches import batch_to_wire
from penstock_broker.metadata.image import ClusterView
from penstock_broker.store.rocks import RocksLogStore

KEY = ReplicaKey(TopicId("id-1"), 0)


async def produce(
    broker: LocalBroker,
    value: bytes = b"a",
    *,
    acks: pb.Acks.ValueType = pb.ACKS_ALL,
    timeout_ms: int = 60_000,
) -> pb.ProduceResult:
    part = pb.ProducePartition(topic="t", batch=batch_to_wire(make_batch([value])))
    request = pb.ProduceRequest(acks=acks, timeout_ms=timeout_ms, partitions=[part])
    return (await broker.data.Produce(request)).results[0]


async def fetch(broker: LocalBroker, offset: int, wait_ms: int) -> pb.FetchResponse:
    part = pb.FetchPartition(topic="t", offset=offset)
    return await broker.data.Fetch(
        pb.FetchRequest(max_wait_ms=wait_ms, min_bytes=1, partitions=[part])
    )


def stored_keys(path: Path) -> set[ReplicaKey]:
    store = RocksLogStore(path / "log")
    try:
        return set(store.slots())
    finally:
        store.close()


async def test_an_older_controller_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(), epoch=5)
        with pytest.raises(ClusterError) as refused:
            await broker.apply(epoch=4)
        assert refused.value.code is ErrorCode.STALE_CONTROLLER_EPOCH
        assert not (await produce(broker)).HasField("error"), "nothing of it was applied"
    async with local_broker(tmp_path) as broker:
        for epoch, version in ((4, 50), (5, 0)):
            with pytest.raises(ClusterError) as refused:
                await broker.apply(epoch=epoch, version=version)
            assert refused.value.code is ErrorCode.STALE_CONTROLLER_EPOCH


async def test_data_of_an_unknown_topic_is_kept_and_of_a_deleted_one_removed(
    tmp_path: Path,
) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info())
        await produce(broker)
        await broker.apply()  # a full image that does not name the topic: not a deletion
        assert ErrorCode((await produce(broker)).error.code) is ErrorCode.UNKNOWN_TOPIC
    assert stored_keys(tmp_path) == {KEY}
    async with local_broker(tmp_path) as broker:
        await broker.apply()
        await broker.apply(topic_info(epoch=2, version=3))
        answer = await fetch(broker, 0, 1_000)
        assert len(answer.results[0].batches) == 1, "the topic came back with its data"
        await broker.apply(full=False, deleted=("id-1",))
    assert stored_keys(tmp_path) == set()


async def test_a_topic_deleted_while_the_broker_was_down_is_removed(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info())
        await produce(broker)
    async with local_broker(tmp_path) as broker:
        await broker.apply(deleted=("id-1",))
    assert stored_keys(tmp_path) == set()


async def test_a_parked_fetch_hears_that_the_leader_moved(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        parked = broker.tasks.create_task(fetch(broker, 0, 30_000))
        await wait_until_async(
            lambda: broker.process.totals().parked_fetches == 1, what="it parked"
        )
        await broker.apply(topic_info(leader=1, epoch=2, version=2, replicas=(0, 1)))
        answer = await asyncio.wait_for(parked, 120)
        assert ErrorCode(answer.results[0].error.code) is ErrorCode.NOT_LEADER
        assert answer.results[0].error.current_leader.broker_id == 1


async def test_a_produce_that_waits_ends_when_its_topic_is_deleted(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))  # broker 1 does not exist
        waiting = broker.tasks.create_task(produce(broker))
        await wait_until_async(lambda: broker.process.totals().inflight_bytes > 0, what="it waits")
        await broker.apply(full=False, deleted=("id-1",))
        result = await asyncio.wait_for(waiting, 120)
        assert ErrorCode(result.error.code) is ErrorCode.UNKNOWN_TOPIC
        assert broker.process.totals().inflight_bytes == 0


async def test_a_produce_without_enough_acks_times_out_with_unknown_outcome(
    tmp_path: Path,
) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        result = await produce(broker, timeout_ms=300)
        assert ErrorCode(result.error.code) is ErrorCode.REQUEST_TIMED_OUT
        assert "unknown" in result.error.message or "may" in result.error.message


async def test_produces_beyond_the_memory_bound_are_told_to_come_back(tmp_path: Path) -> None:
    async with local_broker(tmp_path, "produce.inflight.bytes=10000") as broker:
        await broker.apply(topic_info(replicas=(0, 1)))
        waiting = broker.tasks.create_task(produce(broker, b"x" * 9_000))
        await wait_until_async(lambda: broker.process.totals().inflight_bytes > 0, what="it waits")
        refused = await produce(broker, b"x" * 9_000)
        assert ErrorCode(refused.error.code) is ErrorCode.OVERLOADED
        assert refused.error.throttle_ms > 0
        await broker.apply(topic_info(leader=1, epoch=2, version=2, replicas=(0, 1)))
        assert ErrorCode((await waiting).error.code) is ErrorCode.NOT_LEADER
        assert broker.process.totals().inflight_bytes == 0


async def test_fetches_beyond_the_parking_bound_are_told_to_come_back(tmp_path: Path) -> None:
    async with local_broker(tmp_path, "fetch.parked.max=1") as broker:
        await broker.apply(topic_info())
        parked = broker.tasks.create_task(fetch(broker, 0, 30_000))
        await wait_until_async(
            lambda: broker.process.totals().parked_fetches == 1, what="it parked"
        )
        with pytest.raises(Exception, match=r"fetch\.parked\.max"):
            await fetch(broker, 0, 30_000)
        await produce(broker)
        assert len((await parked).results[0].batches) == 1


async def test_fetches_beyond_the_memory_bound_are_told_to_come_back(tmp_path: Path) -> None:
    async with local_broker(tmp_path, "fetch.inflight.bytes=15000") as broker:
        await broker.apply(topic_info())
        for _ in range(2):
            await produce(broker, b"x" * 10_000)
        part = pb.FetchPartition(topic="t")
        both = [part, pb.FetchPartition(topic="t", offset=1)]
        answer = await broker.data.Fetch(pb.FetchRequest(partitions=both))
        assert [len(result.batches) for result in answer.results] == [1], "as much as there is room"
        held = pb.FetchRequest(partitions=[part], min_bytes=50_000, max_wait_ms=60_000)
        waiting = broker.tasks.create_task(waited(broker, held))
        await wait_until_async(
            lambda: broker.process.totals().parked_fetches == 1, what="it holds what it has read"
        )
        with pytest.raises(Exception, match="in flight"):
            await broker.data.Fetch(pb.FetchRequest(partitions=[part]))
        await broker.apply(topic_info(leader=1, epoch=2, version=2))
        await waiting
        await broker.apply(topic_info(epoch=3, version=3))
        answer = await broker.data.Fetch(pb.FetchRequest(partitions=[part], max_bytes=100))
        assert len(answer.results[0].batches) == 1, "nothing leaked from the budget"


async def waited(broker: LocalBroker, request: pb.FetchRequest) -> pb.FetchResponse:
    """The answer, as a coroutine."""
    return await broker.data.Fetch(request)


def test_an_id_of_a_newer_image_is_unknown_and_one_that_was_deleted_a_mismatch() -> None:
    """Who knows more than this broker asks again; who knows less is never going to be right."""
    view = ClusterView()
    view.apply(controller_pb2.ClusterImage(full=True, topics=[topic_info(topic_id="id-1")]))
    with pytest.raises(ClusterError, match="with id id-2") as newer:
        view.topic("t", "id-2")
    assert newer.value.code is ErrorCode.UNKNOWN_TOPIC
    assert newer.value.retriable
    again = controller_pb2.ClusterImage(
        deleted_topic_ids=["id-1"], topics=[topic_info(topic_id="id-2")]
    )
    view.apply(again)
    assert view.topic("t", "id-2").topic_id == "id-2"
    with pytest.raises(ClusterError, match="deleted and created again") as older:
        view.topic("t", "id-1")
    assert older.value.code is ErrorCode.TOPIC_ID_MISMATCH


async def test_metadata_before_the_first_image_is_retriable(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        with pytest.raises(Exception, match="no metadata yet"):
            await broker.data.Metadata(pb.MetadataRequest())
        await broker.apply(topic_info(configs={"retention.ms": "5", "a.newer.key": "x"}))
        answer = await broker.data.Metadata(pb.MetadataRequest(topics=["t", "nope"]))
        assert [info.error.code for info in answer.topics] == [0, ErrorCode.UNKNOWN_TOPIC]
        configs = await broker.admin.DescribeConfigs(admin_pb2.DescribeConfigsRequest(topic="t"))
        values = {entry.name: entry.value for entry in configs.configs}
        assert values["retention.ms"] == "5", "unknown keys are left out, known ones count"


async def test_latest_is_unknown_until_the_isr_confirms_a_new_leaders_log(tmp_path: Path) -> None:
    async with local_broker(tmp_path) as broker:
        await broker.apply(topic_info(replicas=(0, 1)))  # broker 1 never confirms anything
        await produce(broker, acks=pb.ACKS_LEADER)
        await broker.apply(topic_info(epoch=2, version=2, replicas=(0, 1)))
        part = pb.ListOffsetsPartition(topic="t", latest=pb.Latest())
        answer = await broker.data.ListOffsets(pb.ListOffsetsRequest(partitions=[part]))
        assert ErrorCode(answer.results[0].error.code) is ErrorCode.LEADER_NOT_AVAILABLE
        result = (await fetch(broker, 1, 0)).results[0]
        assert not result.HasField("error"), "an offset that consumers may have seen just waits"
        assert (result.high_watermark, len(result.batches)) == (0, 0)
