"""Changes whose answer is lost: the repetition finds the first attempt's doing, or somebody else's.

The broker is a real gRPC server on loopback; per change, a script says what becomes of it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Self

import grpc
import pytest

from penstock.client import AsyncAdmin
from penstock.client.admin import topic_calls
from penstock.errors import ClusterError, ErrorCode
from penstock.proto.v1 import admin_pb2, group_pb2
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.admin_pb2_grpc import (
    AdminServiceServicer,
    add_AdminServiceServicer_to_server,
)
from penstock.proto.v1.broker_pb2_grpc import (
    BrokerServiceServicer,
    add_BrokerServiceServicer_to_server,
)
from penstock.proto.v1.group_pb2_grpc import (
    GroupServiceServicer,
    add_GroupServiceServicer_to_server,
)
from penstock.rpc.errors import abort, error_to_wire

DONE, NOT_DONE = True, False
"""What an attempt without an answer did."""
LOST = [ErrorCode.CONTROLLER_UNAVAILABLE, ErrorCode.NOT_CONTROLLER, ErrorCode.SHUTTING_DOWN]


class Broker(BrokerServiceServicer, AdminServiceServicer, GroupServiceServicer):
    """A broker, and the controller and coordinator behind it."""

    @classmethod
    def of(cls) -> Self:
        """To mypy the class is abstract: its other calls are unimplemented."""
        return cls()

    def __init__(self) -> None:
        self.port = 0
        self.topics: dict[str, pb.TopicInfo] = {}
        self.groups: set[str] = set()
        self.partitions_max = 100
        self.script: Iterator[bool] = iter(())
        self.code = ErrorCode.CONTROLLER_UNAVAILABLE
        self.attempts = 0

    def put(self, name: str, partitions: int, factor: int = 1, **configs: str) -> None:
        replicas = [
            pb.PartitionInfo(partition=n, leader=0, replicas=range(factor))
            for n in range(partitions)
        ]
        self.topics[name] = pb.TopicInfo(
            topic=name, topic_id=f"id of {name}", partitions=replicas, configs=configs
        )

    async def _change(self, context: Any, change: Callable[[], None]) -> Any:
        """The change's error, or none; ends the call instead if the answer is to be lost."""
        self.attempts += 1
        fate = next(self.script, None)
        error = None
        if fate is not NOT_DONE:
            try:
                change()
            except ClusterError as refused:
                error = error_to_wire(refused)
        if fate is not None:
            await abort(context, ClusterError("is it done?", self.code))
        return error

    async def Metadata(self, request: Any, context: Any) -> pb.MetadataResponse:  # noqa: N802
        return pb.MetadataResponse(
            cluster_id="cluster",
            brokers=[pb.BrokerInfo(broker_id=0, host="127.0.0.1", port=self.port, alive=True)],
            topics=[self.topics[name] for name in request.topics if name in self.topics],
        )

    async def CreateTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        (new,) = request.topics

        def change() -> None:
            if new.topic in self.topics:
                raise ClusterError("it exists", ErrorCode.TOPIC_ALREADY_EXISTS)
            if request.validate_only:
                return
            factor = len(new.assignment[0].broker_ids) if new.assignment else new.replication_factor
            partitions = len(new.assignment) or new.partitions
            self.put(new.topic, partitions or 4, factor or 3, **new.configs)
            for made, wanted in zip(
                self.topics[new.topic].partitions, new.assignment, strict=False
            ):
                made.replicas[:] = wanted.broker_ids
            # What brokers show has the cluster's defaults as well.
            self.topics[new.topic].configs["retention.ms"] = "7"
            self.topics[new.topic].inherited_configs.append("retention.ms")

        error = await self._change(context, change)
        return admin_pb2.CreateTopicsResponse(
            results=[admin_pb2.TopicResult(topic=new.topic, error=error)]
        )

    async def DeleteTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        name = request.topics[0].topic

        def change() -> None:
            if name not in self.topics:
                raise ClusterError("there is none", ErrorCode.UNKNOWN_TOPIC)
            if not request.validate_only:
                del self.topics[name]

        error = await self._change(context, change)
        return admin_pb2.DeleteTopicsResponse(
            results=[admin_pb2.TopicResult(topic=name, error=error)]
        )

    async def CreatePartitions(self, request: Any, context: Any) -> Any:  # noqa: N802
        def change() -> None:
            have = len(self.topics[request.topic].partitions)
            if not have < request.partitions <= self.partitions_max:
                raise ClusterError("can only be added", ErrorCode.INVALID_PARTITIONS)
            if not request.validate_only:
                self.put(request.topic, request.partitions)

        error = await self._change(context, change)
        return admin_pb2.CreatePartitionsResponse(error=error)

    async def FindCoordinator(self, request: Any, context: Any) -> Any:  # noqa: N802
        return group_pb2.FindCoordinatorResponse(host="127.0.0.1", port=self.port)

    async def DeleteGroup(self, request: Any, context: Any) -> Any:  # noqa: N802
        def change() -> None:
            if request.group_id not in self.groups:
                raise ClusterError("there is none", ErrorCode.UNKNOWN_GROUP)
            self.groups.remove(request.group_id)

        before = set(self.groups)
        if await self._change(context, change) is not None:
            await abort(context, ClusterError(f"none of {before}", ErrorCode.UNKNOWN_GROUP))
        return group_pb2.DeleteGroupResponse()


@asynccontextmanager
async def serving() -> AsyncIterator[Broker]:
    server = grpc.aio.server()
    broker = Broker.of()
    add_BrokerServiceServicer_to_server(broker, server)
    add_AdminServiceServicer_to_server(broker, server)
    add_GroupServiceServicer_to_server(broker, server)
    broker.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield broker
    finally:
        await server.stop(grace=None)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with serving() as made:
        yield made


@pytest.fixture
async def admin(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncAdmin]:
    monkeypatch.setattr(topic_calls, "SETTLE_S", 0.0)
    options: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 1}
    async with AsyncAdmin(f"127.0.0.1:{broker.port}", **options) as made:
        yield made


async def refused(change: Awaitable[object]) -> ErrorCode:
    with pytest.raises(ClusterError) as error:
        await change
    return error.value.code


@pytest.mark.parametrize("code", LOST)
async def test_a_topic_counts_as_created_that_the_first_attempt_created(
    broker: Broker, admin: AsyncAdmin, code: ErrorCode
) -> None:
    broker.code = code
    broker.script = iter([DONE])
    made = await admin.create_topic("t", 3, 2, {"cleanup.policy": "compact"})
    assert (made.topic_id, len(made.partitions)) == ("id of t", 3)
    broker.script = iter([DONE])
    placed = await admin.create_topic("placed", assignment=[[0, 1], [1, 0]])
    assert [one.replicas for one in placed.partitions] == [(0, 1), (1, 0)]
    broker.script = iter([DONE])
    assert len((await admin.create_topic("as configured")).partitions) == 4
    assert broker.attempts == 6


@pytest.mark.parametrize(
    "asked",
    [
        {"partitions": 2, "replication_factor": 2},
        {"partitions": 3, "replication_factor": 1},
        {"partitions": 3, "replication_factor": 2, "configs": {"retention.ms": "1"}},
        {"assignment": [[1, 0], [0, 1], [0, 1]]},
    ],
    ids=str,
)
async def test_a_topic_of_somebody_else_does_not_count_as_created(
    broker: Broker, admin: AsyncAdmin, asked: dict[str, Any]
) -> None:
    """A broker without a controller's session answers the same, and has done nothing."""
    broker.put("t", 3, 2)
    broker.script = iter([NOT_DONE])
    assert await refused(admin.create_topic("t", **asked)) is ErrorCode.TOPIC_ALREADY_EXISTS
    assert broker.attempts == 2


async def test_what_was_only_to_be_checked_was_not_done_by_an_attempt_without_an_answer(
    broker: Broker, admin: AsyncAdmin
) -> None:
    broker.put("t", 3)
    broker.script = iter([NOT_DONE])
    exists = await refused(admin.create_topic("t", 3, 1, validate_only=True))
    assert exists is ErrorCode.TOPIC_ALREADY_EXISTS
    broker.script = iter([NOT_DONE])
    unknown = await refused(admin.delete_topic("nosuch", validate_only=True))
    assert unknown is ErrorCode.UNKNOWN_TOPIC
    broker.script = iter([NOT_DONE])
    has = await refused(admin.create_partitions("t", 3, validate_only=True))
    assert has is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("code", LOST)
async def test_a_topic_counts_as_deleted_that_the_first_attempt_deleted(
    broker: Broker, admin: AsyncAdmin, code: ErrorCode
) -> None:
    broker.put("t", 1)
    broker.code = code
    broker.script = iter([DONE])
    await admin.delete_topic("t")
    assert broker.attempts == 2
    assert await refused(admin.delete_topic("t")) is ErrorCode.UNKNOWN_TOPIC


@pytest.mark.parametrize("code", LOST)
async def test_partitions_count_as_added_that_the_first_attempt_added(
    broker: Broker, admin: AsyncAdmin, code: ErrorCode
) -> None:
    broker.put("t", 1)
    broker.code = code
    broker.script = iter([DONE])
    await admin.create_partitions("t", 3)
    assert broker.attempts == 2
    assert await refused(admin.create_partitions("t", 3)) is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("wanted", [2, 101])
async def test_partitions_that_are_not_as_many_as_were_asked_for_were_not_added(
    broker: Broker, admin: AsyncAdmin, wanted: int
) -> None:
    broker.put("t", 3)
    broker.script = iter([NOT_DONE])
    assert await refused(admin.create_partitions("t", wanted)) is ErrorCode.INVALID_PARTITIONS
    assert broker.attempts == 2


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.SHUTTING_DOWN])
async def test_a_group_counts_as_deleted_that_the_first_attempt_deleted(
    broker: Broker, admin: AsyncAdmin, code: ErrorCode
) -> None:
    broker.groups.add("g")
    broker.code = code
    broker.script = iter([DONE])
    await admin.delete_group("g")
    assert broker.attempts == 2
    assert await refused(admin.delete_group("g")) is ErrorCode.UNKNOWN_GROUP


async def test_a_refusal_without_effect_explains_nothing(broker: Broker, admin: AsyncAdmin) -> None:
    """The coordinator had no room for the request: the group was never there."""
    broker.code = ErrorCode.OVERLOADED
    broker.script = iter([NOT_DONE])
    assert await refused(admin.delete_group("g")) is ErrorCode.UNKNOWN_GROUP
    assert broker.attempts == 2
