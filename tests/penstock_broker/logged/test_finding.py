"""Where a key is kept, and that the topic is made: the test plays the controller over real gRPC.

CreateTopics is held while the world changes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from support.channels import patient_aio_channel
from support.clocks import HeldBounds
from support.waiting import wait_until_async

from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import admin_pb2, broker_pb2, controller_pb2
from penstock.proto.v1.admin_pb2_grpc import (
    AdminServiceServicer,
    add_AdminServiceServicer_to_server,
)
from penstock.rpc.errors import error_to_wire
from penstock.rpc.transport import GrpcTransport
from penstock_broker.clock import SystemClock
from penstock_broker.config import BrokerConfig
from penstock_broker.logged.finding import Finder
from penstock_broker.logged.topic import InternalTopic
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.session import BrokerIdentity, ControllerConnection, ControllerSession

SUMS = InternalTopic(
    name="__sums",
    partitions=4,
    replication=3,
    keeps="sum",
    find_call="FindSum",
    what_waits="sums",
    check_key=lambda _: None,
    place=lambda key, partitions: len(key) % partitions,
)


class Controller(AdminServiceServicer):
    """Makes topics once `going` is set; answers what `answers` holds, None and later: success."""

    def __init__(self) -> None:
        self.going = asyncio.Event()
        self.going.set()
        self.asked: list[admin_pb2.CreateTopicsRequest] = []
        self.answers: list[PenstockError | None] = []

    async def CreateTopics(  # noqa: N802
        self, request: admin_pb2.CreateTopicsRequest, context: Any
    ) -> admin_pb2.CreateTopicsResponse:
        self.asked.append(request)
        await self.going.wait()
        result = admin_pb2.TopicResult(topic=request.topics[0].topic)
        error = self.answers.pop(0) if self.answers else None
        if error is not None:
            result.error.CopyFrom(error_to_wire(error))
        return admin_pb2.CreateTopicsResponse(results=[result])


class World:
    def __init__(self, address: str) -> None:
        self.view = ClusterView()
        config = BrokerConfig(
            broker_id=BrokerId(0),
            data_dir=Path("unused"),
            listen="unused",
            advertise_host="127.0.0.1",
            advertise_port=0,
            controllers=(address,),
        )
        identity = BrokerIdentity("", "run", "dir", data_intact=True)
        self.session = ControllerSession(
            config,
            lambda: identity,
            self,  # type: ignore[arg-type]
            GrpcTransport(),
            Random(),
            SystemClock().wall,
        )
        self.channel = patient_aio_channel(address)
        self.session._connection = ControllerConnection(address, self.channel, 1, 1)
        self.finder = Finder(SUMS, self.view, self.session, SystemClock())
        self.version = 0
        self.controller = Controller()  # type: ignore[abstract]  # other calls are unimplemented

    def image(self, *, brokers: int = 3, topic: bool, leader: int = 1) -> None:
        self.version += 1
        partitions = [
            broker_pb2.PartitionInfo(partition=number, leader=leader, leader_epoch=7)
            for number in range(SUMS.partitions)
        ]
        info = broker_pb2.TopicInfo(topic="__sums", topic_id="id-s", partitions=partitions)
        self.view.apply(
            controller_pb2.ClusterImage(
                full=True,
                metadata_version=self.version,
                brokers=[
                    broker_pb2.BrokerInfo(broker_id=number, alive=True) for number in range(brokers)
                ],
                topics=[info] if topic else [],
            )
        )
        self.view.announce()

    async def refusal(self) -> PenstockError:
        with pytest.raises(PenstockError) as caught:
            await self.finder.locate("abc")
        return caught.value

    async def asked(self, times: int = 1) -> None:
        await wait_until_async(
            lambda: len(self.controller.asked) == times, what="the controller is asked"
        )


@asynccontextmanager
async def running(*, brokers: int = 3) -> AsyncIterator[World]:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    world = World(f"127.0.0.1:{port}")
    add_AdminServiceServicer_to_server(world.controller, server)
    await server.start()
    world.image(brokers=brokers, topic=False)
    try:
        async with asyncio.timeout(600):
            yield world
    finally:
        world.controller.going.set()
        await world.channel.close()
        await server.stop(None)


async def test_the_first_who_ask_have_the_topic_made_once() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        world.controller.going.clear()
        asking = [tasks.create_task(world.finder.locate("abc")) for _ in range(5)]
        await world.asked()
        world.controller.going.set()
        world.image(topic=True)
        for found in [await each for each in asking]:
            partition, leader = found
            assert (partition, leader.broker_id, leader.leader_epoch) == (3, 1, 7)
        (request,) = world.controller.asked
        (new,) = request.topics
        assert (new.topic, new.partitions, new.replication_factor) == ("__sums", 4, 3)
        assert new.configs["cleanup.policy"] == "compact"


async def test_a_topic_that_another_broker_makes_meanwhile_is_as_good() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        world.controller.going.clear()
        world.controller.answers = [ClusterError("exists", ErrorCode.TOPIC_ALREADY_EXISTS)]
        asking = tasks.create_task(world.finder.locate("abc"))
        await world.asked()
        world.image(topic=True)
        world.controller.going.set()
        assert (await asking)[0] == 3


async def test_whoever_gives_up_lets_the_next_one_try() -> None:
    async with running() as world, asyncio.TaskGroup() as tasks:
        world.controller.going.clear()
        first = tasks.create_task(world.finder.locate("abc"))
        await world.asked()
        second = tasks.create_task(world.finder.locate("abc"))
        first.cancel()
        await world.asked(2)
        world.controller.going.set()
        world.image(topic=True)
        assert (await second)[0] == 3


async def test_what_the_controller_refuses_with_is_told() -> None:
    async with running() as world:
        world.controller.answers = [ClusterError("planted", ErrorCode.CONTROLLER_UNAVAILABLE)]
        assert (await world.refusal()).code is ErrorCode.CONTROLLER_UNAVAILABLE
        world.session._connection = None
        error = await world.refusal()
        assert (error.code, error.retriable) == (ErrorCode.CONTROLLER_UNAVAILABLE, True)


async def test_a_topic_that_no_image_names_is_waited_for_with_a_bound() -> None:
    clock = HeldBounds()
    async with running() as world, asyncio.TaskGroup() as tasks:
        world.finder = Finder(SUMS, world.view, world.session, clock)
        asking = tasks.create_task(world.refusal())
        await clock.pass_bounds()
        error = await asking
        assert (error.code, error.retriable) == (ErrorCode.LEADER_NOT_AVAILABLE, True)


async def test_a_cluster_that_starts_waits_for_brokers_before_it_keeps_few_replicas() -> None:
    async with running(brokers=1) as world:
        few = ClusterError("3 replicas on 1 broker", ErrorCode.INVALID_REPLICATION_FACTOR)
        world.controller.answers = [few]
        error = await world.refusal()
        assert (error.code, error.retriable) == (ErrorCode.LEADER_NOT_AVAILABLE, True)
        assert [request.validate_only for request in world.controller.asked] == [True]


async def test_brokers_that_come_while_the_controller_is_asked_get_replicas() -> None:
    async with running(brokers=1) as world, asyncio.TaskGroup() as tasks:
        world.controller.going.clear()
        asking = tasks.create_task(world.finder.locate("abc"))
        await world.asked()
        world.image(brokers=3, topic=False)
        world.controller.going.set()
        await world.asked(2)
        world.image(topic=True)
        assert (await asking)[0] == 3
        dry, real = world.controller.asked
        assert (dry.validate_only, real.validate_only) == (True, False)
        assert real.topics[0].replication_factor == 3


async def test_brokers_that_only_the_controller_knows_of_yet_get_replicas() -> None:
    """The third has just registered: the controller counts it, this broker's image does not."""
    async with running(brokers=2) as world, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(world.finder.locate("abc"))
        await world.asked(2)
        world.image(brokers=2, topic=True)
        assert (await asking)[0] == 3
        dry, real = world.controller.asked
        assert (dry.validate_only, real.validate_only) == (True, False)
        assert real.topics[0].replication_factor == 3


async def test_there_are_as_many_replicas_as_the_controller_finds_brokers_for() -> None:
    few = ClusterError("so many replicas on 1 broker", ErrorCode.INVALID_REPLICATION_FACTOR)
    async with running(brokers=1) as world, asyncio.TaskGroup() as tasks:
        world.controller.answers = [None, few, few]
        asking = tasks.create_task(world.finder.locate("abc"))
        await world.asked(4)
        world.image(brokers=1, topic=True, leader=0)
        assert (await asking)[0] == 3
        factors = [request.topics[0].replication_factor for request in world.controller.asked]
        assert factors == [0, 3, 2, 1]
    async with running(brokers=1) as world:
        world.controller.answers = [None, few, few, few]
        assert (await world.refusal()).code is ErrorCode.INVALID_REPLICATION_FACTOR


async def test_a_partition_without_a_leader_is_said_to_be_so() -> None:
    async with running() as world:
        with pytest.raises(ClusterError, match="no sum yet; ask FindSum first") as caught:
            world.finder.partition_of("abc")
        assert caught.value.code is ErrorCode.NOT_COORDINATOR
        world.image(topic=True, leader=-1)
        assert (await world.refusal()).code is ErrorCode.LEADER_NOT_AVAILABLE
        assert "nobody does" in str(world.finder.elsewhere(3, 0))
        assert world.finder.leader("abc") is None
        world.image(topic=True, leader=3)
        assert (await world.refusal()).code is ErrorCode.LEADER_NOT_AVAILABLE
        assert world.finder.leaders() == [None] * 4, "the image does not say where broker 3 is"
        world.image(topic=True, leader=2)
        assert world.finder.leader("abc") == 2
        assert world.finder.leaders() == [2] * 4
        assert "broker 2 does" in str(world.finder.elsewhere(3, 0))
        assert world.finder.partition_of("abc") == 3
