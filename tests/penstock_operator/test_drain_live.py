"""Scaling down with real brokers: the operator's questions and actions, without the pods.

The plan decides from what real brokers say, and what it asks for is done by them.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.cluster import Cluster
from support.operator_world import NAMES, World, desired, settled
from support.reachable import Reachable
from support.waiting import wait_until_async

from penstock.client import AsyncProducer, BrokerChange, Cordon
from penstock.kubernetes.connect import connect
from penstock_operator.act import Acting
from penstock_operator.events import Events
from penstock_operator.kube import TIMEOUTS, Kube
from penstock_operator.model import Observed
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.scale import Scale, forgotten, plan_scale

RECORDS = 200
TIMEOUT_S = 90.0


class Bench:
    """Four real brokers, and what Kubernetes would show of them."""

    def __init__(self, server: ApiServer, servers: Cluster) -> None:
        self.servers = servers
        self.brokers = Reachable(servers.bootstrap)
        self.kube = Kube(connect("penstock-tests", TIMEOUTS, kubeconfig=str(server.kubeconfig)))
        self.acting = Acting(self.kube, self.brokers, Events(self.kube, "test"))
        names = replace(NAMES, namespace=server.namespace("drain"))
        self.body = {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": names.cluster, "namespace": names.namespace, "uid": "u"},
        }
        self.world: World = settled(desired(brokers=4), partitions=0)
        self.names = names

    def wish(self, brokers: int) -> DesiredCluster:
        return desired(brokers=brokers, names=self.names)

    async def observed(self, brokers: int) -> Observed:
        wish = self.wish(brokers)
        facts, problem = await self.brokers.ask(wish)
        assert facts is not None, problem
        seen = replace(self.world.observed(), brokers=facts, recorded_cluster_id=facts.cluster_id)
        leaving = range(brokers, seen.last_broker(NAMES.broker) + 1)
        moves, problem = await self.brokers.moves(wish, leaving)
        assert moves is not None, problem
        return replace(seen, moves=moves)

    async def step(self, brokers: int) -> Scale:
        """One pass, as far as brokers are concerned."""
        wish, seen = self.wish(brokers), await self.observed(brokers)
        scale = plan_scale(wish, seen, seen.live("StatefulSet", NAMES.broker))
        for action in scale.actions:
            await self.acting.carry_out(action, self.body, wish, seen)
        return scale

    async def held(self, broker_id: int) -> int:
        admin = await self.brokers.admin(self.wish(4))
        (logs,) = await admin.describe_logs(broker_ids=[broker_id])
        return len(logs.logs) + len(logs.orphans)


@pytest.fixture
async def bench(api_server: ApiServer, tmp_path: Path) -> AsyncIterator[Bench]:
    with Cluster(tmp_path, brokers=4) as servers:
        made = Bench(api_server, servers)
        yield made
        await made.brokers.close()
        made.kube.close()


async def test_real_brokers_are_emptied_and_unregistered(bench: Bench) -> None:
    admin = await bench.brokers.admin(bench.wish(4))
    await admin.create_topic("t", assignment=[[3, 0, 1], [2, 3, 0], [1, 2, 3]])
    await admin.create_topic("alone", assignment=[[3]])
    async with AsyncProducer(bench.servers.bootstrap) as producer:
        for at in range(RECORDS):
            await producer.send("t", b"some text", partition=at % 3)
    assert await bench.held(3) == 4
    said: list[str] = []

    async def is_let_go() -> bool:
        scale = await bench.step(3)
        said.extend(wait.message for wait in scale.waits)
        return scale.replicas == 3

    await wait_until_async(is_let_go, what="broker 3 is empty", timeout_s=TIMEOUT_S)
    assert await bench.held(3) == 0
    assert "broker 3 has 4 replicas left" in said[0]
    seen = await admin.describe_topics(["t", "alone"])
    assert all(3 not in one.replicas for topic in seen.values() for one in topic.partitions)
    assert [len(one.replicas) for one in seen["t"].partitions] == [3, 3, 3]
    assert [len(one.replicas) for one in seen["alone"].partitions] == [1]

    bench.servers.brokers[3].kill()
    del bench.world.pods[3]
    bench.world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"] = 3

    async def is_forgotten() -> bool:
        observed = await bench.observed(3)
        live = observed.live("StatefulSet", NAMES.broker)
        assert live is not None
        assert observed.moves is not None
        for action in forgotten(bench.wish(3), observed, live):
            await bench.acting.carry_out(action, bench.body, bench.wish(3), observed)
        return observed.moves.broker(3) is None

    await wait_until_async(is_forgotten, what="broker 3 is unregistered", timeout_s=TIMEOUT_S)


async def test_a_drain_of_real_brokers_is_taken_back(bench: Bench) -> None:
    admin = await bench.brokers.admin(bench.wish(4))
    await admin.create_topic("t", assignment=[[3, 0], [2, 3]])
    theirs = Cordon(placement=True, leadership=False, why="old disk", by="somebody")
    await admin.alter_brokers([BrokerChange(2, theirs)])
    await bench.step(3)
    cordons = {one.broker_id: one.cordon for one in (await admin.describe_moves()).brokers}
    assert cordons[3] is not None
    assert (cordons[3].by, cordons[3].placement, cordons[3].leadership) == ("operator", True, True)
    await bench.step(3)

    async def is_taken_back() -> bool:
        return not (await bench.step(4)).actions

    await wait_until_async(is_taken_back, what="the drain is taken back", timeout_s=TIMEOUT_S)
    moving = await admin.describe_moves()
    cordons = {one.broker_id: one.cordon for one in moving.brokers if one.cordon is not None}
    assert cordons == {2: theirs}
    assert not [one for one in moving.moves if one.target]
