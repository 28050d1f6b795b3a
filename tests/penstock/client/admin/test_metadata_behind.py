"""Brokers that have not heard yet of what the controller has told: nothing is planned with that.

The broker is a real gRPC server on loopback; a script says which metadata it has.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import chain, repeat
from typing import Any, Self

import grpc
import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.client import AsyncAdmin
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

Version = tuple[int, int]
"""Controller epoch, metadata version."""
MOVED: Version = (2, 7)
"""From then on the partition is on broker 1; before, on broker 0."""


class Broker(BrokerServiceServicer, AdminServiceServicer):
    """A broker, and the controller behind it."""

    @classmethod
    def of(cls) -> Self:
        """To mypy the class is abstract: its other calls are unimplemented."""
        return cls()

    def __init__(self) -> None:
        self.port = 0
        self.told = MOVED
        self.known: Iterator[Version] = repeat((2, 6))
        self.expected: list[list[int]] = []
        """The replicas that moves were asked for with."""

    async def Metadata(self, request: Any, context: Any) -> pb.MetadataResponse:  # noqa: N802
        if request.no_topics:
            epoch, version, topics = 0, 0, []
        else:
            epoch, version = next(self.known)
            replicas = [1 if (epoch, version) >= MOVED else 0]
            partition = pb.PartitionInfo(partition=0, leader=replicas[0], replicas=replicas)
            topics = [pb.TopicInfo(topic="t", topic_id="id", partitions=[partition])]
        return pb.MetadataResponse(
            cluster_id="cluster",
            controller_epoch=epoch,
            metadata_version=version,
            brokers=[pb.BrokerInfo(broker_id=0, host="127.0.0.1", port=self.port, alive=True)],
            topics=topics,
        )

    async def AlterReplicas(  # noqa: N802
        self, request: admin_pb2.AlterReplicasRequest, context: Any
    ) -> admin_pb2.AlterReplicasResponse:
        (change,) = request.changes
        self.expected.append(list(change.expected))
        result = admin_pb2.ReplicaChangeResult(topic=change.topic, partition=change.partition)
        return admin_pb2.AlterReplicasResponse(results=[result])

    async def DescribeMoves(  # noqa: N802
        self, request: Any, context: Any
    ) -> admin_pb2.DescribeMovesResponse:
        epoch, version = self.told
        return admin_pb2.DescribeMovesResponse(controller_epoch=epoch, metadata_version=version)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    made, server = Broker.of(), grpc.aio.server()
    add_BrokerServiceServicer_to_server(made, server)
    add_AdminServiceServicer_to_server(made, server)
    made.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield made
    await server.stop(0)


@pytest.fixture
async def admin(broker: Broker) -> AsyncIterator[AsyncAdmin]:
    address = f"127.0.0.1:{broker.port}"
    async with AsyncAdmin(address, request_timeout_ms=2_000, retry_backoff_ms=1) as made:
        yield made


async def replicas(admin: AsyncAdmin, topics: list[str] | None) -> tuple[int, ...]:
    return (await admin.describe_topics(topics))["t"].partitions[0].replicas


@pytest.mark.parametrize("topics", [None, ["t"]], ids=["all", "named"])
@pytest.mark.parametrize("behind", [(2, 6), (1, 9)], ids=["version", "epoch"])
async def test_topics_are_not_older_than_the_moves_that_were_told_before(
    broker: Broker, admin: AsyncAdmin, topics: list[str] | None, behind: Version
) -> None:
    broker.known = repeat(behind)
    assert await replicas(admin, topics) == (0,), "nothing else was told"
    broker.known = chain(repeat(behind, 3), repeat(MOVED))
    moving = await admin.describe_moves()
    assert (moving.controller_epoch, moving.metadata_version) == MOVED
    assert await replicas(admin, topics) == (1,)


@pytest.mark.parametrize("topics", [None, ["t"]], ids=["all", "named"])
async def test_metadata_that_stays_behind_is_an_error_after_the_timeout(
    broker: Broker, admin: AsyncAdmin, topics: list[str] | None
) -> None:
    await admin.describe_moves()
    with pytest.raises(ClusterError, match="version 6 of controller epoch 2") as late:
        await admin.describe_topics(topics)
    assert late.value.code is ErrorCode.CONTROLLER_UNAVAILABLE
    assert "told of 7 of 2" in late.value.message


async def test_a_controller_that_does_not_say_makes_nobody_wait(
    broker: Broker, admin: AsyncAdmin
) -> None:
    broker.told = (0, 0)
    await admin.describe_moves()
    assert await replicas(admin, None) == (0,)


async def test_a_partition_is_moved_from_where_the_last_move_has_put_it(broker: Broker) -> None:
    broker.known = chain(repeat((2, 6), 3), repeat(MOVED))
    words = ["partitions", "move", "t/0", "--to", "2", "--dry-run"]
    words += ["--bootstrap", f"127.0.0.1:{broker.port}"]
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert (done.exit_code, broker.expected) == (0, [[1]]), done.output
