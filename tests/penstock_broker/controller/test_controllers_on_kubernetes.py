"""Controller processes on a real API server: fail-over, API away, one cut off, one frozen.

The law in all of them: brokers keep a session or find the next one, and nobody who lives is
declared dead. How long things take is printed with -s and measured by benchmarks/metadata.py.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import yaml
from support.apiserver import ApiServer
from support.controller_pods import ACTIVE, LIVENESS, Make, Pod, all_serve, create
from support.sessions import Broker, running
from support.waiting import wait_until, wait_until_async

from penstock.errors import ErrorCode
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.admin_pb2_grpc import AdminServiceStub
from penstock.rpc.channel import open_channel
from penstock.rpc.errors import error_from_rpc
from penstock_broker.controller.metadata_store.kubernetes_objects import KEY_FIELD, TEXT_FIELD
from tools.snippets.page import read_page

ROOT = Path(__file__).resolve().parents[3]


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


def stands_by(pod: Pod) -> bool:
    """Whether it refuses to answer for the cluster. It learns that from the lease or a write."""
    with open_channel(pod.address) as channel:
        try:
            AdminServiceStub(channel).DescribeCluster(
                admin_pb2.DescribeClusterRequest(), timeout=120
            )
        except grpc.RpcError as error:
            return error_from_rpc(error).code is ErrorCode.NOT_CONTROLLER
    return False


async def test_kill_9_of_the_active_one_lets_the_other_take_over(pair: tuple[Pod, Pod]) -> None:
    active, standby = pair
    async with three_brokers(active, standby) as brokers:
        active.process.kill()
        took_s = await all_serve(brokers, 2)
        print(f"fail-over after kill -9: {took_s:.2f} s")
        await create(standby, "after", partitions=1, replication_factor=3)


async def test_a_clean_stop_hands_over_at_once(
    pair: tuple[Pod, Pod], api_server: ApiServer
) -> None:
    active, standby = pair
    async with three_brokers(active, standby) as brokers:
        assert holder(api_server, active)
        standby.process.pause()  # else it has the lease before anybody sees that nobody has it
        active.process.terminate()
        assert await asyncio.to_thread(active.process.wait_end) == 0, active.process.tail()
        assert not holder(api_server, active), "nobody has to wait until the lease runs out"
        standby.process.resume()
        took_s = await all_serve(brokers, 2)
        print(f"fail-over after SIGTERM: {took_s:.2f} s")


async def test_a_topic_whose_config_map_was_deleted_outlives_a_clean_stop(
    pair: tuple[Pod, Pod], api_server: ApiServer
) -> None:
    """Nothing is written between the deletion and the stop that could meet a conflict."""
    active, standby = pair
    path = f"/api/v1/namespaces/{active.namespace}/configmaps"

    def of_the_topic() -> list[str]:
        found = api_server.request("GET", path)["items"]
        return [
            one["metadata"]["name"]
            for one in found
            if (one.get("data") or {}).get(KEY_FIELD) == "topic/t"
        ]

    async with three_brokers(active, standby) as brokers:
        [name] = of_the_topic()
        api_server.request("DELETE", f"{path}/{name}")
        active.process.terminate()
        assert await asyncio.to_thread(active.process.wait_end) == 0, active.process.tail()
        assert of_the_topic() == [name]
        await all_serve(brokers, 2)
        with open_channel(standby.address) as channel:
            request = admin_pb2.DescribeConfigsRequest(topic="t")
            answer = await asyncio.to_thread(AdminServiceStub(channel).DescribeConfigs, request)
        assert not answer.HasField("error"), answer


async def test_a_person_writes_the_document_of_the_cluster_again(
    make: Make, api_server: ApiServer
) -> None:
    """As docs/operations.md says, from what brokers know."""
    pods = [make("first")]
    brokers = [Broker(number, [pods[0].address]) for number in range(3)]
    await asyncio.to_thread(wait_until, lambda: pods[0].says(ACTIVE), what="it takes over")
    async with running(*brokers):
        await all_serve(brokers, 1)
        await create(pods[0], "t", assignment=[admin_pb2.ReplicaList(broker_ids=[0, 1, 2])])
        await wait_until_async(lambda: ("t", 0) in brokers[2].leaders, what="the topic")
    pods[0].process.kill()
    path = f"/api/v1/namespaces/{pods[0].namespace}/configmaps"
    gone = api_server.request("GET", f"{path}/flights-metadata")
    api_server.request("DELETE", f"{path}/flights-metadata")
    pods.append(make("second"))
    assert await asyncio.to_thread(pods[1].process.wait_end, 40.0) == 2
    assert "cluster is missing beside those of 1 topics" in pods[1].process.log_text()
    snippets = read_page(ROOT, "docs/operations.md")
    [page] = (one for one in snippets if "flights-metadata" in one.text and one.language == "yaml")
    body = yaml.safe_load(page.text)
    document = {
        **json.loads(body["data"][TEXT_FIELD]),
        "cluster_id": json.loads(gone["data"][TEXT_FIELD])["cluster_id"],
        "controller_epoch": max(broker.controller_epoch for broker in brokers),
        "metadata_version": max(broker.metadata_version for broker in brokers),
    }
    body["data"][TEXT_FIELD] = json.dumps(document)
    api_server.request("POST", path, body)
    pods.append(make("third"))
    again = [Broker(number, [pods[2].address]) for number in range(3)]
    for new, old in zip(again, brokers, strict=True):
        new.controller_epoch, new.metadata_version = old.controller_epoch, old.metadata_version
    async with running(*again):
        await all_serve(again, document["controller_epoch"] + 1)
        await wait_until_async(lambda: ("t", 0) in again[2].leaders, what="a leader")
        await create(pods[2], "after", partitions=1, replication_factor=3)


def holder(api_server: ApiServer, pod: Pod) -> str:
    """Who has the lease; empty: nobody."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{pod.namespace}/leases/flights-controller"
    return str(api_server.request("GET", path)["spec"].get("holderIdentity") or "")


async def test_a_controller_that_alone_is_cut_off_gives_way(pair: tuple[Pod, Pod]) -> None:
    cut_off, other = pair
    async with three_brokers(cut_off, other) as brokers:
        cut_off.proxy.cut()
        took_s = await all_serve(brokers, 2)
        print(f"fail-over when cut off from the API: {took_s:.2f} s")
        await create(other, "after", partitions=1, replication_factor=3)
        cut_off.proxy.heal()
        await wait_until_async(lambda: stands_by(cut_off), what="it stands by")
        await wait_until_async(lambda: other.says(ACTIVE), what="the other one is active")


async def test_a_frozen_controller_wakes_up_as_standby(pair: tuple[Pod, Pod]) -> None:
    frozen, other = pair
    async with three_brokers(frozen, other) as brokers:
        frozen.process.pause()
        took_s = await all_serve(brokers, 2)
        print(f"fail-over when frozen: {took_s:.2f} s")
        frozen.process.resume()
        await wait_until_async(lambda: stands_by(frozen), what="it stands by")
        await create(other, "after", partitions=1, replication_factor=3)
        await all_serve(brokers, 2)


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
    path = f"/api/v1/namespaces/{first.namespace}/configmaps/flights-metadata"
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
