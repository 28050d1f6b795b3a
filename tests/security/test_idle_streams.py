"""Attack 20: whoever holds as many streams as are allowed keeps nobody else from being answered."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.cluster import Cluster
from support.metrics import scrape
from support.waiting import wait_until, wait_until_async

from penstock.errors import OverloadedError
from penstock.proto.v1 import broker_pb2 as pb
from penstock.proto.v1.broker_pb2_grpc import BrokerServiceStub
from penstock.rpc.channel import open_aio_channel
from penstock.rpc.errors import error_from_rpc
from penstock_broker.serving.open_streams import OpenStreams

RPCS_MAX = 200
SUBSCRIBE = "/penstock.proto.v1.BrokerService/Subscribe"
METHODS = (
    SUBSCRIBE,
    "/penstock.proto.v1.BrokerService/ProduceStream",
    "/penstock.proto.v1.GroupService/Join",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    limit = {"rpcs.max": str(RPCS_MAX)}
    path: Path = tmp_path_factory.mktemp("streams")
    with Cluster(path, broker_config=limit) as running:
        yield running


@pytest.fixture
def address(cluster: Cluster) -> str:
    """Where no stream is open: those of the test before end a moment after it."""
    wait_until(
        lambda: scrape(cluster.metrics_ports[0])["penstock_open_streams{grpc}"] == 0,
        what="no stream is open",
    )
    return cluster.brokers[0].address


@asynccontextmanager
async def held(address: str, method: str, count: int) -> AsyncIterator[list[Any]]:
    """That many streams, of which as many as the limit of a host are open."""
    async with open_aio_channel(address) as channel:
        opening: Any = channel.stream_stream(method)
        calls = [opening() for _ in range(count)]
        if method.endswith("Watch"):
            for call in calls:
                with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    await call.write(b"")  # it may have been refused by now
        refused = count - RPCS_MAX // 4
        await wait_until_async(
            lambda: sum(call.done() for call in calls) >= refused, what="the others are refused"
        )
        yield calls
        for call in calls:
            call.cancel()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.rpartition("/")[2])
async def test_calls_are_answered_while_all_streams_are_held(address: str, method: str) -> None:
    async with held(address, method, 4 * RPCS_MAX) as calls, open_aio_channel(address) as channel:
        assert sum(not call.done() for call in calls) == RPCS_MAX // 4
        for _ in range(5):
            await BrokerServiceStub(channel).Metadata(pb.MetadataRequest(), timeout=20)
            request = health_pb2.HealthCheckRequest()
            await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)
        another: Any = channel.stream_stream(SUBSCRIBE)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await another().read()
        error = error_from_rpc(caught.value)
        assert isinstance(error, OverloadedError)
        assert "50 streams are open here, 50 of them from 127.0.0.1; the limits are 100 and 50" in (
            error.message
        )

    async def room() -> bool:
        async with open_aio_channel(address) as channel:
            stream: Any = channel.stream_stream(SUBSCRIBE)()
            await stream.initial_metadata()
            open_now = not stream.done()
            stream.cancel()
            return open_now

    await wait_until_async(room, what="streams that ended make room")


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_a_health_call_without_its_request_does_not_stay(address: str, method: str) -> None:
    """Nobody is asked who they are there: a stranger could keep all calls out."""
    async with open_aio_channel(address) as theirs, open_aio_channel(address) as channel:
        withheld: Any = theirs.stream_stream(f"/grpc.health.v1.Health/{method}")
        calls = [withheld() for _ in range(2 * RPCS_MAX)]
        await wait_until_async(
            lambda: sum(call.done() for call in calls) >= RPCS_MAX, what="no further call gets in"
        )

        async def is_answered() -> bool:
            try:
                await BrokerServiceStub(channel).Metadata(pb.MetadataRequest(), timeout=20)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                return False
            return True

        await wait_until_async(is_answered, what="there is room again")
        await wait_until_async(lambda: all(call.done() for call in calls), what="all are dropped")


async def test_health_is_told_to_whoever_asks(address: str) -> None:
    async with open_aio_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        serving = health_pb2.HealthCheckResponse.SERVING
        assert (await health.Check(request, timeout=20)).status == serving
        watch: Any = health.Watch(request)
        assert (await watch.read()).status == serving
        watch.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="no.such"), timeout=20)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        nothing: Any = channel.stream_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await nothing(iter([]), timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_one_host_leaves_room_for_others_and_all_together_for_calls() -> None:
    streams = OpenStreams(16)
    with ExitStack() as stack:
        for host in ("10.0.0.1", "10.0.0.2"):
            for port in range(4):
                stack.enter_context(streams.opened(f"ipv4:{host}:{port}"))
            for peer in (f"ipv4:{host}:9", "ipv6:%5B::1%5D:9"):
                if host == "10.0.0.1" and peer.startswith("ipv6"):
                    continue
                with pytest.raises(OverloadedError), streams.opened(peer):
                    pytest.fail("one too many")
    with streams.opened("ipv4:10.0.0.1:9"):
        pass
