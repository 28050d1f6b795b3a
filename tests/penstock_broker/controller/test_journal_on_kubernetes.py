"""The API server is away: brokers keep what the controller decides (core.control.journal)."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import grpc
import pytest
from support import holding_child
from support.apiserver import ApiServer
from support.channels import patient_aio_channel
from support.controller_pods import ACTIVE, LIVENESS, Pod, all_serve, create
from support.sessions import Broker
from support.waiting import wait_until, wait_until_async

from penstock.core.control.documents import decode_topic
from penstock.errors import ErrorCode
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.rpc.errors import error_from_rpc

patient = pytest.mark.parametrize("launcher", [holding_child.LAUNCHER], ids=["patient"])
"""Its controllers do not give up while the test's process, with the brokers in it, stands still."""


class Scene:
    """Two controllers and three brokers, each a task that can be ended; broker 0 leads `t`."""

    def __init__(self, pods: tuple[Pod, Pod], tasks: asyncio.TaskGroup) -> None:
        self._group = tasks
        self.pods = list(pods)
        self.brokers = [Broker(number, [pod.address for pod in pods]) for number in range(3)]
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, number: int) -> None:
        """A broker begins to run, or comes back."""
        self.tasks[number] = self._group.create_task(self.brokers[number].run())

    async def stop(self, number: int) -> None:
        """Its session and its server end."""
        task = self.tasks.pop(number)
        task.cancel()
        await asyncio.wait([task])

    def cut(self) -> None:
        """The API server is away from both controllers."""
        for pod in self.pods:
            pod.proxy.cut()

    def heal(self) -> None:
        """It is back."""
        for pod in self.pods:
            pod.proxy.heal()

    async def leader(self, expected: tuple[int, int], sees: int = 2) -> None:
        """Waits until broker `sees` has been told (leader, leader epoch) of `t`."""
        await wait_until_async(
            lambda: self.brokers[sees].leaders.get(("t", 0)) == expected,
            what=f"broker {sees} knows leader and epoch {expected}",
            timeout_s=40.0,
        )


@pytest.fixture
async def scene(pair: tuple[Pod, Pod]) -> AsyncIterator[Scene]:
    async with asyncio.TaskGroup() as tasks:
        made = Scene(pair, tasks)
        for number in range(3):
            made.start(number)
        await all_serve(made.brokers, 1)
        await create(made.pods[0], "t", assignment=[admin_pb2.ReplicaList(broker_ids=[0, 1, 2])])
        await made.leader((0, 1))
        yield made
        for number in list(made.tasks):
            await made.stop(number)


@patient
async def test_a_broker_that_dies_costs_its_leaderships_only_until_it_is_noticed(
    scene: Scene, api_server: ApiServer
) -> None:
    scene.cut()
    await scene.stop(0)
    await scene.leader((1, 2))
    assert scene.pods[0].says(ACTIVE)
    assert "brokers keep" in scene.pods[0].process.log_text()
    for pod in scene.pods:
        assert pod.says(LIVENESS), "a probe must never fail because the API server is away"
    await create(scene.pods[0], "while-away", partitions=1, replication_factor=2)
    scene.start(0)
    await scene.leader((1, 2), sees=0)
    scene.heal()
    await all_serve(scene.brokers, 2)
    await scene.leader((1, 2))
    stored = await asyncio.to_thread(_stored_topics, api_server, scene)
    assert stored["t"] == (1, 2)
    assert "while-away" in stored


@patient
async def test_what_was_decided_survives_the_controllers(scene: Scene) -> None:
    scene.cut()
    await scene.stop(0)
    await scene.leader((1, 2))
    for pod in scene.pods:
        pod.process.kill()
    scene.start(0)
    scene.heal()
    for pod in scene.pods:
        pod.process.start(wait=False)
    await all_serve(scene.brokers, 2)
    await scene.leader((1, 2), sees=0)  # a new controller has learned what the brokers keep


async def test_a_controller_takes_over_only_with_a_majority_of_the_brokers(scene: Scene) -> None:
    for number in (1, 2):
        await scene.stop(number)
    for pod in scene.pods:
        pod.process.kill()
        pod.process.start(wait=False)
    await wait_until_async(
        lambda: any("1 of 3 registered brokers" in pod.process.log_text() for pod in scene.pods),
        what="it waits for brokers, and says so",
        timeout_s=60.0,
    )
    assert not any(pod.says(ACTIVE) for pod in scene.pods)
    scene.start(1)
    await all_serve(scene.brokers[:2], 2)


async def test_without_a_majority_sessions_end_and_views_go_on(scene: Scene) -> None:
    active = scene.pods[0]
    for number in (1, 2):
        await scene.stop(number)
    scene.cut()
    await wait_until_async(
        lambda: not scene.brokers[0].session.connected,
        what="the session ends before another may take over",
    )
    for pod in scene.pods:
        assert pod.says(LIVENESS), "a probe must never fail because the API server is away"
        assert pod.says("")
    await wait_until_async(lambda: not active.says(ACTIVE), what="it is suspended")
    async with patient_aio_channel(active.address) as channel:
        stub = AdminServiceStub(channel)
        seen = await stub.DescribeCluster(admin_pb2.DescribeClusterRequest(), timeout=120)
        assert seen.topics == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateTopics(admin_pb2.CreateTopicsRequest(), timeout=120)
    assert error_from_rpc(caught.value).code is ErrorCode.CONTROLLER_UNAVAILABLE
    for number in (1, 2):
        scene.start(number)
    scene.heal()
    await all_serve(scene.brokers, 2)

    def is_running(pod: Pod) -> bool:
        return pod.process.is_running

    for pod in scene.pods:
        wait_until(partial(is_running, pod), what="it runs")


def _stored_topics(api_server: ApiServer, scene: Scene) -> dict[str, tuple[int, int]]:
    path = f"/api/v1/namespaces/{scene.pods[0].namespace}/configmaps"
    found = api_server.request("GET", path)
    topics = [
        decode_topic(item["data"]["document"], item["data"]["key"])
        for item in found["items"]
        if item.get("data", {}).get("key", "").startswith("topic/")
    ]
    return {
        topic.name: (topic.partitions[0].state.leader, topic.partitions[0].state.leader_epoch)
        for topic in topics
    }
