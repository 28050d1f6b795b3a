"""Scaling with real brokers: the operator's questions and actions, without the pods.

The plan decides from what real brokers say, and what it asks for is done by them.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.cluster import PATIENT, Cluster
from support.operator_world import NAMES, World, desired, settled
from support.reachable import Reachable
from support.waiting import wait_until_async

from penstock.client import AsyncAdmin, AsyncProducer, BrokerChange, Cordon, ReplicaMove
from penstock.core.manifest.objects import WhenScaledDown
from penstock.core.types import MoveReason
from penstock.kubernetes.connect import connect
from penstock_operator.act import Acting
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import Action, MoveReplicas, Observed
from penstock_operator.move_model import MarkSpread
from penstock_operator.move_rows import placement_rows
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.scale import Scale, forgotten, plan_scale
from penstock_operator.plan.spread import plan_spread
from penstock_operator.volume_model import DropClaim, MarkClaim
from penstock_operator.volumes import claim_state

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
        self.when_scaled_down = WhenScaledDown.RETAIN
        self.claimed = -1
        """The broker whose claim the API server has; -1: none."""

    def wish(self, brokers: int) -> DesiredCluster:
        return desired(
            brokers=brokers, names=self.names, spec_when_scaled_down=self.when_scaled_down
        )

    async def make_claim(self, broker_id: int) -> None:
        """The broker's claim is one that the API server has."""
        claim = self.world.claims[broker_id]
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {"name": claim.name}, "spec": spec}
        made = await self.kube.create("PersistentVolumeClaim", self.names.namespace, body)
        self.world.claims[broker_id] = claim_state(broker_id, made, expandable=False)
        self.claimed = broker_id

    async def _look_at_claim(self) -> None:
        if self.claimed in self.world.claims:
            name = self.world.claims[self.claimed].name
            seen = await self.kube.list("PersistentVolumeClaim", self.names.namespace, "")
            for one in seen:
                if one["metadata"]["name"] == name:
                    self.world.claims[self.claimed] = claim_state(
                        self.claimed, one, expandable=False
                    )

    async def has_claim(self, broker_id: int) -> bool:
        """And it is not about to go, once nothing protects it."""
        name = self.world.claims[broker_id].name
        found = await self.kube.list("PersistentVolumeClaim", self.names.namespace, "")
        named = [one["metadata"] for one in found if one["metadata"]["name"] == name]
        return any("deletionTimestamp" not in one for one in named)

    async def observed(self, brokers: int) -> Observed:
        wish = self.wish(brokers)
        await self._look_at_claim()
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

    async def spread(self, before: Callable[[], None] = lambda: None) -> Sequence[Action]:
        """One pass, as far as fresh brokers are concerned: what was asked for, after `before`."""
        wish, seen = self.wish(4), await self.observed(4)
        actions, _, _ = plan_spread(wish, seen)
        before()
        for action in actions:
            await self.acting.carry_out(action, self.body, wish, seen)
        return actions

    async def held(self, broker_id: int) -> int:
        admin = await self.brokers.admin(self.wish(4))
        (logs,) = await admin.describe_logs(broker_ids=[broker_id])
        return len(logs.logs) + len(logs.orphans)


@pytest.fixture
async def bench(api_server: ApiServer, tmp_path: Path) -> AsyncIterator[Bench]:
    with Cluster(tmp_path, brokers=4, controller_config=PATIENT) as servers:
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
    look = await bench.observed(3)
    (placed,) = [one for one in (await admin.describe_moves()).brokers if one.broker_id == 3]
    row = placement_rows(look, plan_cluster(bench.wish(3), look), {})[3]
    assert (row["directoryId"], row["version"]) == (placed.directory_id, placed.software_version)
    assert row["bytes"] > RECORDS * len(b"some text") / 10, "it is compressed"
    await bench.make_claim(3)
    bench.when_scaled_down = WhenScaledDown.DELETE
    said: list[str] = []

    async def is_let_go() -> bool:
        scale = await bench.step(3)
        said.extend(wait.message for wait in scale.waits)
        return scale.replicas == 3

    await wait_until_async(is_let_go, what="broker 3 is empty", timeout_s=TIMEOUT_S)
    assert await bench.held(3) == 0
    assert "broker 3 has 4 replicas left, 0 of them moving, 1 MiB to copy" in said[0]
    seen = await admin.describe_topics(["t", "alone"])
    assert all(3 not in one.replicas for topic in seen.values() for one in topic.partitions)
    assert [len(one.replicas) for one in seen["t"].partitions] == [3, 3, 3]
    assert [len(one.replicas) for one in seen["alone"].partitions] == [1]

    bench.servers.brokers[3].kill()
    del bench.world.pods[3]
    bench.world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"] = 3
    is_registered_when_it_goes: list[bool] = []

    async def is_forgotten() -> bool:
        observed = await bench.observed(3)
        live = observed.live("StatefulSet", NAMES.broker)
        assert live is not None
        assert observed.moves is not None
        for action in forgotten(bench.wish(3), observed, live):
            await bench.acting.carry_out(action, bench.body, bench.wish(3), observed)
        if 3 in bench.world.claims and not await bench.has_claim(3):
            is_registered_when_it_goes.append(observed.moves.broker(3) is not None)
            del bench.world.claims[3]
        return observed.moves.broker(3) is None

    await wait_until_async(is_forgotten, what="broker 3 is unregistered", timeout_s=TIMEOUT_S)
    assert is_registered_when_it_goes == [True]


async def test_a_claim_stays_whose_broker_came_back_after_its_end_was_decided(bench: Bench) -> None:
    """The operator was frozen meanwhile, and its next step would be the claim's end."""
    await bench.make_claim(3)
    claim = bench.world.claims[3]
    bench.when_scaled_down = WhenScaledDown.DELETE
    mark = MarkClaim(3, claim.name, claim.uid, emptied=True)
    await bench.acting.carry_out(mark, bench.body, bench.wish(3), await bench.observed(3))
    del bench.world.pods[3]
    bench.world.objects["StatefulSet", NAMES.broker]["spec"]["replicas"] = 3
    seen = await bench.observed(3)
    assert bench.world.claims[3].emptied
    action = DropClaim(3, claim.name, claim.uid, bench.world.claims[3].version)
    await bench.acting.carry_out(action, bench.body, bench.wish(3), seen)
    assert await bench.has_claim(3), "the broker answers"

    bench.servers.brokers[3].kill()

    async def is_dead() -> bool:
        seen = await bench.observed(3)
        assert seen.moves is not None
        broker = seen.moves.broker(3)
        return broker is not None and not broker.alive

    await wait_until_async(is_dead, what="broker 3 is dead", timeout_s=TIMEOUT_S)
    unmark = replace(mark, emptied=False)
    await bench.acting.carry_out(unmark, bench.body, bench.wish(4), seen)
    await bench.acting.carry_out(action, bench.body, bench.wish(3), seen)
    assert await bench.has_claim(3), "it was changed since, to be used again"


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


async def joined(bench: Bench) -> AsyncAdmin:
    """Broker 3 is new, and the others have a topic, and records."""
    admin = await bench.brokers.admin(bench.wish(4))
    assert [type(one) for one in await bench.spread()] == [MarkSpread], "the cluster is new"
    moving = await admin.describe_moves()
    assert not any(one.fresh for one in moving.brokers)
    await admin.create_topic("t", assignment=[[at % 3, (at + 1) % 3] for at in range(6)])
    async with AsyncProducer(bench.servers.bootstrap) as producer:
        for at in range(RECORDS):
            await producer.send("t", b"some text", partition=at % 6)
    bench.servers.brokers[3].kill()

    async def is_dead() -> bool:
        return not any(
            one.alive for one in (await admin.describe_moves()).brokers if one.broker_id == 3
        )

    await wait_until_async(is_dead, what="broker 3 is dead", timeout_s=TIMEOUT_S)
    await asyncio.to_thread(shutil.rmtree, bench.servers.data_dir(3))
    await asyncio.to_thread(bench.servers.brokers[3].restart)
    await wait_until_async(
        lambda: is_fresh(admin, [3]), what="broker 3 is there", timeout_s=TIMEOUT_S
    )
    return admin


async def is_fresh(admin: AsyncAdmin, wanted: list[int]) -> bool:
    brokers = (await admin.describe_moves()).brokers
    return [one.broker_id for one in brokers if one.fresh] == wanted


async def test_a_new_real_broker_gets_its_share(bench: Bench) -> None:
    admin = await joined(bench)
    (move,) = await bench.spread()
    assert isinstance(move, MoveReplicas)
    assert len(move.moves) == 3

    async def has_its_share() -> bool:
        await bench.spread()
        moves = (await admin.describe_moves()).moves
        return not any(one.target for one in moves) and await is_fresh(admin, [])

    async def is_known() -> bool:
        """Brokers hear of a switch a little later than whoever asks the controller."""
        seen = (await admin.describe_topics(["t"]))["t"].partitions
        assert all(len(one.replicas) == 2 for one in seen)
        return sum(3 in one.replicas for one in seen) == 3

    await wait_until_async(has_its_share, what="broker 3 has its share", timeout_s=TIMEOUT_S)
    await wait_until_async(is_known, what="brokers know it", timeout_s=TIMEOUT_S)
    assert not await bench.spread()


async def test_a_spread_that_is_cancelled_does_not_begin_again(bench: Bench) -> None:
    admin = await joined(bench)
    try:
        (move,) = await bench.spread(bench.servers.brokers[3].pause)
        assert isinstance(move, MoveReplicas)
        cancel = [ReplicaMove(one.where) for one in move.moves]
        outcomes = await admin.alter_replicas(cancel, reason=MoveReason.MANUAL)
        assert [one.error for one in outcomes] == [None] * 3
    finally:
        bench.servers.brokers[3].resume()
    assert await is_fresh(admin, [])
    assert not await bench.spread()
    seen = (await admin.describe_topics(["t"]))["t"].partitions
    assert not any(3 in one.replicas for one in seen)
