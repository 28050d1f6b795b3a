"""A webhook that changes what the operator applies is told of once, and not fought every second."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from support.operator_world import desired, settled

from penstock.kubernetes.errors import KubernetesError
from penstock_operator.act import Acting
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import Apply, Observed
from penstock_operator.objects import DesiredCluster
from penstock_operator.overruled import AGAIN_S, Overrulings
from penstock_operator.plan import plan_cluster

WISH = desired()
SET = ("StatefulSet", "flights-broker")
BODY = {"metadata": {"name": "flights", "namespace": "default", "uid": "cluster-uid"}}


class Mirroring(Kube):
    """An API server with a webhook that pulls images from a mirror."""

    def __init__(self) -> None:
        self.applied = 0
        self.told: list[tuple[str, str]] = []
        self.mirrors = True

    async def apply(self, wanted: dict[str, Any]) -> dict[str, Any]:
        self.applied += 1
        stored = copy.deepcopy(wanted)
        if self.mirrors:
            container = stored["spec"]["template"]["spec"]["containers"][0]
            container["image"] = f"mirror/{container['image']}"
        return stored

    async def create(self, kind: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        assert (kind, namespace) == ("Event", "default")
        self.told.append((body["reason"], body["note"]))
        return body


class Bench:
    """The Cluster at rest, but for its StatefulSet."""

    def __init__(self) -> None:
        self.kube, self.now_s = Mirroring(), 0.0
        self.acting = Acting(self.kube, Brokers(), Events(self.kube, "test"))
        self.acting.overrulings = Overrulings(lambda: self.now_s)
        self.world = settled(WISH)
        self.edit(image="somebody's")

    def edit(self, **changes: Any) -> None:
        container = self.world.objects[SET]["spec"]["template"]["spec"]["containers"][0]
        container.update(changes)

    def observed(self) -> Observed:
        return replace(self.world.observed(), overruled=self.acting.overrulings.known)

    async def step(self, wish: DesiredCluster = WISH) -> int:
        """One pass; how many objects were applied."""
        seen, before = self.observed(), self.kube.applied
        for action in plan_cluster(wish, seen).actions:
            if isinstance(action, Apply):
                await self.acting.carry_out(action, BODY, wish, seen)
                key = (action.object["kind"], action.object["metadata"]["name"])
                self.world.objects[key] = await Mirroring.apply(self.kube, action.object)
                self.kube.applied -= 1
        return self.kube.applied - before


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_what_a_webhook_changes_is_told_once_and_stays(bench: Bench) -> None:
    assert await bench.step() == 1
    assert [await bench.step() for _ in range(5)] == [0] * 5
    assert plan_cluster(WISH, bench.observed()).is_idle, "the Cluster is settled"
    ((reason, note),) = [each for each in bench.kube.told if each[0] == "ChangedByOthers"]
    assert reason == "ChangedByOthers"
    assert note == (
        "StatefulSet flights-broker was changed as it was applied, by a webhook perhaps: "
        'spec.template.spec.containers[broker].image is "mirror/penstock-broker:1", not '
        '"penstock-broker:1"; it stays so, and is applied again in ten minutes'
    )


async def test_any_other_change_is_still_put_back(bench: Bench) -> None:
    await bench.step()
    bench.edit(imagePullPolicy="Always")
    assert await bench.step() == 1
    assert await bench.step() == 0
    bench.edit(image="somebody's")
    assert await bench.step() == 1


async def test_it_is_tried_again_in_case_the_webhook_is_gone(bench: Bench) -> None:
    await bench.step()
    bench.kube.mirrors = False
    assert await bench.step() == 0
    bench.now_s = AGAIN_S
    assert await bench.step() == 1
    assert await bench.step() == 0
    assert not bench.acting.overrulings.known


async def test_a_new_wish_is_applied_at_once(bench: Bench) -> None:
    await bench.step()
    other = replace(WISH, resources={"requests": {"cpu": "1"}})
    assert await bench.step(other) >= 1


async def test_what_is_refused_leaves_nothing_behind(bench: Bench) -> None:
    async def refuse(wanted: dict[str, Any]) -> dict[str, Any]:
        raise KubernetesError("denied", 403)

    bench.kube.apply = refuse  # type: ignore[method-assign]
    with pytest.raises(KubernetesError):
        await bench.step()
    assert not bench.acting.overrulings.known
