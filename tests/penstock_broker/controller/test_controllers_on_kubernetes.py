"""Controller processes on a real API server: fail-over, API away, one cut off, one frozen.

The law in all of them: brokers keep a session or find the next one, and nobody who lives is
declared dead. How long things take is printed with -s and measured by benchmarks/metadata.py.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.api_proxy import ApiProxy
from support.apiserver import ApiServer
from support.processes import HOST, ServerProcess, free_port
from support.sessions import Broker, running
from support.waiting import wait_until, wait_until_async

from penstock.errors import ErrorCode
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.rpc.channel import open_aio_channel, open_channel
from penstock.rpc.errors import error_from_rpc

LIVENESS = "penstock.liveness"
ACTIVE = "penstock.proto.v1.ControllerService"


class Pod:
    """A controller process behind a proxy of its own."""

    def __init__(self, server: ApiServer, namespace: str, path: Path, name: str) -> None:
        self.proxy = ApiProxy(server)
        port = free_port()
        arguments = [
            "controller", "--metadata=kubernetes", "--cluster=flights", f"--namespace={namespace}",
            f"--listen={HOST}:{port}",
        ]  # fmt: skip
        self.process = ServerProcess(name, arguments, port, path / f"{name}.log")
        self.kubeconfig = self.proxy.kubeconfig(path / f"{name}.kubeconfig")

    @property
    def address(self) -> str:
        return self.process.address

    def says(self, service: str) -> bool:
        """Whether health says SERVING for the service."""
        with open_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=1.0)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        self.process.close()
        self.proxy.close()


Make = Callable[[str], Pod]


@pytest.fixture
def make(api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Pod] = []
    namespace = api_server.namespace()

    def make_one(name: str) -> Pod:
        pod = Pod(api_server, namespace, tmp_path, name)
        made.append(pod)
        monkeypatch.setenv("KUBECONFIG", str(pod.kubeconfig))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        pod.process.start(wait=False)
        return pod

    yield make_one
    for pod in made:
        pod.close()


@pytest.fixture
def pair(make: Make) -> tuple[Pod, Pod]:
    """An active controller and its standby."""
    active, standby = make("one"), None
    wait_until(lambda: active.says(ACTIVE), what="the first is active", timeout_s=40.0)
    standby = make("two")
    wait_until(lambda: standby.says(""), what="the second stands by", timeout_s=40.0)
    return active, standby


@asynccontextmanager
async def three_brokers(*pods: Pod) -> AsyncIterator[list[Broker]]:
    """With a topic of 3 replicas that broker 0 leads; checks at the end that nobody died."""
    brokers = [Broker(number, [pod.address for pod in pods]) for number in range(3)]
    async with running(*brokers):
        await all_serve(brokers, 1)
        await create(pods[0], "t", assignment=[admin_pb2.ReplicaList(broker_ids=[0, 1, 2])])
        await wait_until_async(lambda: brokers[2].leaders.get(("t", 0)) == (0, 1), what="the topic")
        began = len(brokers[2].alive_seen)
        yield brokers
        for alive in brokers[2].alive_seen[began:]:
            assert alive == {0: True, 1: True, 2: True}, "a live broker was taken for dead"
        assert brokers[2].leaders["t", 0] == (0, 1), "a leadership moved for nothing"


async def all_serve(brokers: list[Broker], epoch: int) -> float:
    """Waits until all have a session with this epoch's controller; how long that took (s)."""
    began = time.monotonic()
    await wait_until_async(
        lambda: all(broker.serves(epoch) for broker in brokers),
        what=f"all brokers have sessions of epoch {epoch}",
        timeout_s=30.0,
    )
    return time.monotonic() - began


async def create(pod: Pod, topic: str, **fields: Any) -> None:
    async with open_aio_channel(pod.address) as channel:
        request = admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(topic=topic, **fields)])
        answer = await AdminServiceStub(channel).CreateTopics(request, timeout=20.0)
    assert not answer.results[0].HasField("error"), answer


async def test_kill_9_of_the_active_one_lets_the_other_take_over(pair: tuple[Pod, Pod]) -> None:
    active, standby = pair
    async with three_brokers(active, standby) as brokers:
        active.process.kill()
        took_s = await all_serve(brokers, 2)
        print(f"fail-over after kill -9: {took_s:.2f} s")
        assert took_s < 9.0
        await create(standby, "after", partitions=1, replication_factor=3)


async def test_a_clean_stop_hands_over_at_once(pair: tuple[Pod, Pod]) -> None:
    active, standby = pair
    async with three_brokers(active, standby) as brokers:
        active.process.process.terminate()  # type: ignore[union-attr]  # it runs
        took_s = await all_serve(brokers, 2)
        print(f"fail-over after SIGTERM: {took_s:.2f} s")
        assert took_s < 4.0
    assert active.process.wait_end() == 0, active.process.tail()


async def test_with_the_api_away_views_go_on_and_all_comes_back(pair: tuple[Pod, Pod]) -> None:
    active, standby = pair
    async with three_brokers(active, standby) as brokers:
        for pod in pair:
            pod.proxy.cut()
        await wait_until_async(
            lambda: not any(broker.session.connected for broker in brokers),
            what="sessions end before another may take over",
        )
        for pod in pair:
            assert pod.says(LIVENESS), "a probe must never fail because the API server is away"
            assert pod.says("")
        await wait_until_async(lambda: not active.says(ACTIVE), what="it is suspended")
        async with open_aio_channel(active.address) as channel:
            stub = AdminServiceStub(channel)
            seen = await stub.DescribeCluster(admin_pb2.DescribeClusterRequest(), timeout=5.0)
            assert seen.topics == 1
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.CreateTopics(admin_pb2.CreateTopicsRequest(), timeout=5.0)
        assert error_from_rpc(caught.value).code is ErrorCode.CONTROLLER_UNAVAILABLE
        for pod in pair:
            pod.proxy.heal()
        took_s = await all_serve(brokers, 2)
        print(f"sessions after the API came back: {took_s:.2f} s")
        assert took_s < 5.0
    assert active.process.is_running
    assert standby.process.is_running


async def test_a_controller_that_alone_is_cut_off_gives_way(pair: tuple[Pod, Pod]) -> None:
    cut_off, other = pair
    async with three_brokers(cut_off, other) as brokers:
        cut_off.proxy.cut()
        took_s = await all_serve(brokers, 2)
        print(f"fail-over when cut off from the API: {took_s:.2f} s")
        await create(other, "after", partitions=1, replication_factor=3)
        cut_off.proxy.heal()
        with open_channel(cut_off.address) as channel:
            stub = AdminServiceStub(channel)

            def stands_by() -> bool:
                try:
                    stub.DescribeCluster(admin_pb2.DescribeClusterRequest(), timeout=5.0)
                except grpc.RpcError as error:
                    return error_from_rpc(error).code is ErrorCode.NOT_CONTROLLER
                return False

            await wait_until_async(stands_by, what="it stands by")
        assert other.says(ACTIVE)


async def test_a_frozen_controller_wakes_up_as_standby(pair: tuple[Pod, Pod]) -> None:
    frozen, other = pair
    async with three_brokers(frozen, other) as brokers:
        frozen.process.pause()
        took_s = await all_serve(brokers, 2)
        print(f"fail-over when frozen: {took_s:.2f} s")
        frozen.process.resume()
        await wait_until_async(
            lambda: "lease lost" in frozen.process.log_text(), what="it stands by"
        )
        await create(other, "after", partitions=1, replication_factor=3)
        assert all(broker.serves(2) for broker in brokers)


def test_a_start_while_the_api_is_away_waits_for_it(make: Make, api_server: ApiServer) -> None:
    pod = make("early")
    pod.proxy.cut()
    wait_until(lambda: pod.says(LIVENESS), what="it answers", timeout_s=40.0)
    wait_until(lambda: "lease not renewed" in pod.process.log_text(), what="it has tried")
    assert not pod.says("")
    assert pod.process.is_running
    pod.proxy.heal()
    wait_until(lambda: pod.says(ACTIVE), what="it takes over")
    assert pod.process.stop() == 0


def test_unreadable_metadata_ends_a_new_controller_and_is_left_alone(
    make: Make, api_server: ApiServer
) -> None:
    first = make("first")
    wait_until(lambda: first.says(ACTIVE), what="it takes over", timeout_s=40.0)
    namespace = first.process.arguments[3].partition("=")[2]
    path = f"/api/v1/namespaces/{namespace}/configmaps/flights-metadata"
    good = api_server.request("GET", path)["data"]["document"]

    def edit(text: str) -> None:
        found = api_server.request("GET", path)
        found["data"]["document"] = text
        api_server.request("PUT", path, found)

    assert first.process.stop() == 0
    edit("{kubectl edit")
    second = make("second")
    assert second.process.wait_end(40.0) == 2
    assert "cluster is unreadable" in second.process.log_text()
    assert api_server.request("GET", path)["data"]["document"] == "{kubectl edit"
    edit(good)
    third = make("third")
    wait_until(lambda: third.says(ACTIVE), what="it takes over", timeout_s=40.0)
