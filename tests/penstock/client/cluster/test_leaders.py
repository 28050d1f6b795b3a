"""Leaders that do not answer: left once others lead, and waited for as long as nobody does.

The brokers are real gRPC servers on loopback that share one view of who leads partition t/0.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import grpc
import pytest

from penstock.client import LATEST, AsyncAdmin, AsyncConsumer, OffsetSpan, TopicPartition
from penstock.client.cluster import leaders
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import (
    AdminServiceServicer,
    add_AdminServiceServicer_to_server,
)
from penstock.proto.v1.broker_pb2_grpc import (
    BrokerServiceServicer,
    add_BrokerServiceServicer_to_server,
)

FOR_EVER_MS = 600_000
IN_TIME_S = 300
HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


class World:
    """Who leads t/0, by its index; broker 1 leads t/1."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.leader = 0
        self.told = 0
        """How often metadata was asked for."""
        self.changed = asyncio.Condition()

    async def metadata(self) -> pb.MetadataResponse:
        async with self.changed:
            self.told += 1
            self.changed.notify_all()
        epoch = 1 + self.leader
        return pb.MetadataResponse(
            cluster_id="cluster",
            metadata_version=epoch,
            brokers=[
                pb.BrokerInfo(broker_id=index, host="127.0.0.1", port=port, alive=True)
                for index, port in enumerate(self.ports)
            ],
            topics=[
                pb.TopicInfo(
                    topic="t",
                    topic_id="id",
                    partitions=[
                        pb.PartitionInfo(partition=0, leader=self.leader, leader_epoch=epoch),
                        pb.PartitionInfo(partition=1, leader=1, leader_epoch=1),
                    ],
                )
            ],
        )


class Leader(BrokerServiceServicer, AdminServiceServicer):
    """Broker `index`. Before it answers about t/0, it does what `before` says."""

    @classmethod
    def of(cls, world: World, index: int) -> Self:
        """To mypy the class is abstract: its other calls are unimplemented."""
        return cls(world, index)

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.before: Any = None
        self.asked: list[int] = []
        """The partitions of t, one after the other."""

    async def _asked(self, partition: int) -> None:
        self.asked.append(partition)
        if self.before is not None and partition == 0:
            await self.before()

    async def Metadata(self, request: Any, context: Any) -> pb.MetadataResponse:  # noqa: N802
        return await self.world.metadata()

    async def ListOffsets(self, request: Any, context: Any) -> pb.ListOffsetsResponse:  # noqa: N802
        for part in request.partitions:
            await self._asked(part.partition)
        return pb.ListOffsetsResponse(
            results=[
                pb.ListOffsetsResult(
                    topic="t", topic_id="id", partition=part.partition, offset=10 + self.index
                )
                for part in request.partitions
            ]
        )

    async def Fetch(self, request: Any, context: Any) -> pb.FetchResponse:  # noqa: N802
        await asyncio.Event().wait()
        raise AssertionError

    async def AcceptLoss(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._asked(request.partition)
        return admin_pb2.AcceptLossResponse(
            lost=[admin_pb2.OffsetSpan(first=self.index, last=self.index)]
        )


@asynccontextmanager
async def serving(broker: Leader) -> AsyncIterator[int]:
    server = grpc.aio.server()
    add_BrokerServiceServicer_to_server(broker, server)
    add_AdminServiceServicer_to_server(broker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace=None)


@pytest.fixture
async def brokers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Leader, Leader]]:
    """Clients look at once who leads by now."""
    monkeypatch.setattr(leaders, "PATIENCE_S", 0.05)
    world = World()
    made = Leader.of(world, 0), Leader.of(world, 1)
    async with AsyncExitStack() as stack:
        world.ports += [await stack.enter_async_context(serving(broker)) for broker in made]
        yield made


def bootstrap(brokers: tuple[Leader, Leader]) -> str:
    return f"127.0.0.1:{brokers[0].world.ports[0]}"


def cut_off(broker: Leader) -> None:
    """It takes requests and never answers; its partitions get another leader."""

    async def never() -> None:
        broker.world.leader = 1
        await asyncio.Event().wait()

    broker.before = never


async def test_a_leader_that_is_cut_off_is_left_for_its_successor(
    brokers: tuple[Leader, Leader],
) -> None:
    old, new = brokers
    cut_off(old)
    async with (
        asyncio.timeout(IN_TIME_S),
        AsyncAdmin(bootstrap(brokers), request_timeout_ms=FOR_EVER_MS) as admin,
    ):
        found = await admin.list_offsets({HERE: LATEST})
    assert found[HERE].offset == 11
    assert (old.asked, new.asked) == ([0], [0])


async def test_a_reader_s_start_is_found_at_the_successor(brokers: tuple[Leader, Leader]) -> None:
    old, new = brokers
    cut_off(old)
    async with (
        asyncio.timeout(IN_TIME_S),
        AsyncConsumer(bootstrap(brokers), request_timeout_ms=FOR_EVER_MS) as consumer,
    ):
        await consumer.assign([HERE])
        while consumer._assignment.states[HERE].position is None:
            await consumer.poll(0.02)
        assert await consumer.position(HERE) == 11
    assert (old.asked, new.asked) == ([0], [0])


async def test_partitions_of_other_leaders_do_not_wait_for_one_that_is_frozen(
    brokers: tuple[Leader, Leader],
) -> None:
    frozen, other = brokers
    frozen.before = asyncio.Event().wait  # nobody takes its place
    async with (
        asyncio.timeout(IN_TIME_S),
        AsyncConsumer(bootstrap(brokers), request_timeout_ms=FOR_EVER_MS) as consumer,
    ):
        await consumer.assign([HERE, THERE])
        while consumer._assignment.states[THERE].position is None:
            await consumer.poll(0.02)
        assert consumer._assignment.states[HERE].position is None
    assert (frozen.asked, other.asked) == ([0], [1])


async def test_a_leader_that_is_slow_is_asked_once_and_answers(
    brokers: tuple[Leader, Leader],
) -> None:
    """Repeating the question would begin its work again, and the time might never be enough."""
    slow, other = brokers
    world = slow.world

    async def until_looked_for() -> None:
        before = world.told
        async with world.changed:
            await world.changed.wait_for(lambda: world.told >= before + 3)

    slow.before = until_looked_for
    async with (
        asyncio.timeout(IN_TIME_S),
        AsyncAdmin(bootstrap(brokers), request_timeout_ms=FOR_EVER_MS) as admin,
    ):
        found = await admin.list_offsets({HERE: LATEST})
    assert found[HERE].offset == 10
    assert (slow.asked, other.asked) == ([0], [])


async def test_a_leader_without_a_successor_has_all_the_time_there_is(
    brokers: tuple[Leader, Leader],
) -> None:
    frozen, other = brokers
    frozen.before = asyncio.Event().wait
    async with AsyncAdmin(bootstrap(brokers), request_timeout_ms=400) as admin:
        with pytest.raises(ClusterError) as silent:
            await admin.list_offsets({HERE: LATEST})
    assert silent.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert len(frozen.asked) <= 1  # none if this machine stalls
    assert other.asked == []


async def test_a_loss_that_may_be_accepted_already_is_waited_for(
    brokers: tuple[Leader, Leader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor would say that nothing is lost, and not what was given up."""
    monkeypatch.setattr(leaders, "PATIENCE_S", 0.0)
    old, new = brokers
    begun, may_answer = asyncio.Event(), asyncio.Event()

    async def deposed() -> None:
        old.world.leader = 1
        begun.set()
        await may_answer.wait()

    old.before = deposed
    async with (
        asyncio.timeout(IN_TIME_S),
        AsyncAdmin(bootstrap(brokers), request_timeout_ms=FOR_EVER_MS) as admin,
        asyncio.TaskGroup() as group,
    ):
        accepting = group.create_task(admin.accept_loss(HERE, OffsetSpan(0, 9)))
        await begun.wait()
        while old.world.told < 9:  # whoever looks who leads has seen it by then
            await admin._asking.cluster.refresh()
        may_answer.set()
    assert accepting.result() == (OffsetSpan(0, 0),)
    assert (old.asked, new.asked) == ([0], [])
