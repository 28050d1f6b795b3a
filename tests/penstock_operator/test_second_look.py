"""A broker restarts only if what was seen is still so, however long ago that was (I25)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.operator_world import NAMES, World, desired, settled

from penstock.core.manifest.upkeep import Parallel
from penstock_operator import worker as module
from penstock_operator.act import Acting
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.metrics import Metrics
from penstock_operator.model import BrokerFacts, Object, PodState, RestartPod
from penstock_operator.move_model import MoveFacts
from penstock_operator.names import TEMPLATE_HASH
from penstock_operator.objects import DesiredCluster, Installation
from penstock_operator.plan import plan_cluster
from penstock_operator.worker import Deps, Worker

WISH = desired(brokers=4, image="b", spec_max_parallel=Parallel(percent=100))
BODY = {"metadata": {"name": "flights", "namespace": "default", "uid": "u"}}


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


class Bench(Brokers):
    """Of a world. `asking_s` pass until they have answered, and `deleting_s` until a pod is
    deleted."""

    def __init__(self, world: World, clock: Clock) -> None:
        super().__init__()
        self.world, self.clock = world, clock
        self.asking_s = self.deleting_s = 0.0
        self.asked = 0
        self.stopped: list[int] = []

    async def replicas(
        self, desired: DesiredCluster
    ) -> tuple[BrokerFacts | None, MoveFacts | None]:
        self.asked += 1
        answer = self.world.facts(), self.world.moves()
        self.clock.seconds += self.asking_s
        return answer if self.world.reachable else (None, None)


class Pods(Kube):
    """Those of a world."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def list(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]:
        assert (kind, namespace) == ("Pod", "default")
        return [as_object(each) for each in self.bench.world.pods.values()]

    async def apply(self, wanted: Object) -> Object:
        assert wanted["kind"] == "PodDisruptionBudget"
        return wanted

    async def delete(self, kind: str, namespace: str, name: str, uid: str, **_: Any) -> bool:
        (broker_id,) = (at for at, pod in self.bench.world.pods.items() if pod.uid == uid)
        self.bench.stopped.append(broker_id)
        self.bench.world._stop(broker_id)
        self.bench.clock.seconds += self.bench.deleting_s
        return True

    async def create(self, kind: str, namespace: str, body: Object) -> Object:
        assert kind == "Event"
        return body


def as_object(pod: PodState) -> Object:
    metadata: Object = {"name": pod.name, "uid": pod.uid}
    metadata["annotations"] = {TEMPLATE_HASH: pod.template_hash}
    if pod.terminating:
        metadata["deletionTimestamp"] = "now"
    ready = {"type": "Ready", "status": str(pod.ready), "lastTransitionTime": pod.ready_since}
    spec = {"containers": [{"name": "broker", "image": pod.image}], "nodeName": pod.node}
    status: Object = {"conditions": [ready]}
    if pod.trouble:
        status["containerStatuses"] = [
            {"name": "broker", "state": {"waiting": {"reason": pod.trouble}}}
        ]
    return {"metadata": metadata, "spec": spec, "status": status}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "monotonic", made)
    return made


@pytest.fixture
def world() -> World:
    """Broker 3 has the new template; the others are next, and have no partition in common."""
    made = settled(replace(WISH, image="a"), partitions=0)
    for _ in range(30):
        plan = plan_cluster(WISH, made.observed())
        if any(isinstance(one, RestartPod) for one in plan.actions):
            break
        for action in plan.actions:
            made.carry_out(action)
        made._controllers()
    newest = made.objects["StatefulSet", NAMES.broker]["spec"]["template"]["metadata"]
    hash_of_it = newest["annotations"][TEMPLATE_HASH]
    made.pods[3] = replace(made.pods[3], template_hash=hash_of_it)
    return made


async def act(bench: Bench, *, after_s: float, meanwhile: Callable[[], object] = list) -> None:
    """A plan that was made from what was seen `after_s` ago; `meanwhile`, something happens."""
    kube = Pods(bench)
    deps = Deps(kube, Events(kube, "test"), Metrics(), Installation("b"))
    worker = Worker(deps, "default", "flights")
    worker._brokers, worker._acting = bench, Acting(kube, bench, deps.events)
    observed = bench.world.observed()
    plan = plan_cluster(WISH, observed)
    assert any(isinstance(one, RestartPod) for one in plan.actions)
    seen_s = bench.clock.seconds
    bench.clock.seconds += after_s
    meanwhile()
    await worker._act(BODY, WISH, observed, plan, seen_s)
    worker._credentials.close()


async def test_what_was_just_seen_is_not_asked_for_again(world: World, clock: Clock) -> None:
    bench = Bench(world, clock)
    await act(bench, after_s=1)
    assert (bench.stopped, bench.asked) == ([0, 1, 2], 0)


async def test_nobody_restarts_if_another_broker_has_died_meanwhile(
    world: World, clock: Clock
) -> None:
    bench = Bench(world, clock)
    await act(bench, after_s=60, meanwhile=lambda: world.alive.discard(1))
    assert (bench.stopped, bench.asked) == ([], 1)


async def test_nobody_restarts_while_another_pod_is_being_deleted(
    world: World, clock: Clock
) -> None:
    bench = Bench(world, clock)
    world_1 = replace(world.pods[1], terminating=True)
    await act(bench, after_s=60, meanwhile=lambda: world.pods.update({1: world_1}))
    assert bench.stopped == []


@pytest.mark.parametrize("asking_s", [0, 20])
async def test_a_pass_that_is_always_slow_rolls_nevertheless(
    world: World, clock: Clock, asking_s: float
) -> None:
    bench = Bench(world, clock)
    bench.asking_s = asking_s
    await act(bench, after_s=600)
    assert bench.stopped == ([0] if asking_s else [0, 1, 2])


async def test_who_follows_waits_if_the_first_one_took_long(world: World, clock: Clock) -> None:
    bench = Bench(world, clock)
    bench.deleting_s = 10.0
    await act(bench, after_s=0)
    assert bench.stopped == [0]


async def test_an_answer_that_has_grown_old_counts_no_more(world: World, clock: Clock) -> None:
    """The process was frozen between the answer and the restart."""
    bench = Bench(world, clock)
    bench.asking_s = 300.0
    await act(bench, after_s=600)
    assert bench.stopped == []


async def test_a_broken_broker_that_has_come_back_is_not_taken_for_one(
    world: World, clock: Clock
) -> None:
    bench = Bench(world, clock)
    sound = world.pods[1]
    world.pods[1] = replace(sound, ready=False, ready_since="", trouble="OOMKilled")
    world.alive.discard(1)

    def comes_back() -> None:
        world.pods[1] = sound
        world.alive.add(1)
        world.alive.discard(2)

    await act(bench, after_s=60, meanwhile=comes_back)
    assert bench.stopped == []


async def test_a_broken_broker_restarts_though_nobody_can_be_asked(
    world: World, clock: Clock
) -> None:
    bench = Bench(world, clock)
    world.pods[1] = replace(world.pods[1], ready=False, ready_since="", trouble="OOMKilled")
    world.reachable = False
    await act(bench, after_s=60)
    assert bench.stopped == [1]
