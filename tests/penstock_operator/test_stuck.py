"""Why a node does not start a pod: read from Events, late and seldom."""

from dataclasses import replace
from typing import Any

import pytest
from support.operator_world import desired, settled

from penstock.kubernetes.errors import KubernetesError
from penstock_operator.kube import Kube
from penstock_operator.model import PodState, Wait
from penstock_operator.observe import pod_state
from penstock_operator.plan import plan_cluster
from penstock_operator.refusals import LOOK_S, MISSING_S
from penstock_operator.stuck import AT_ONCE, Stuck, last_trouble

MULTI = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) in use'


def pod(broker_id: int = 0, *, preparing: bool = True, terminating: bool = False) -> PodState:
    name = f"flights-broker-{broker_id}"
    found = PodState(broker_id, name, f"uid-{broker_id}", False, terminating, "hash")
    return replace(found, preparing=preparing)


def told(note: str, *, uid: str = "uid-0", at: int = 0, reason: str = "FailedAttachVolume") -> Any:
    when = f"2026-01-01T00:00:{at:02}Z"
    about = {"kind": "Pod", "uid": uid}
    return {"reason": reason, "note": note, "regarding": about, "deprecatedLastTimestamp": when}


class Server(Kube):
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: KubernetesError | None = None
        self.told = [told(MULTI)]

    async def events(self, namespace: str, kind: str, name: str) -> list[Any]:
        assert (namespace, kind) == ("default", "Pod")
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        return self.told


class Bench:
    def __init__(self) -> None:
        self.server, self.now_s = Server(), 0.0
        self.stuck = Stuck(self.server, lambda: self.now_s)

    async def read(self, *pods: PodState, after_s: float = 0.0) -> dict[int, str]:
        self.now_s += after_s
        return dict(await self.stuck.read("default", pods))


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_pod_that_waits_for_long_says_why_and_is_looked_at_seldom(bench: Bench) -> None:
    assert await bench.read(pod()) == {}
    assert await bench.read(pod(), after_s=MISSING_S - 1) == {}
    assert bench.server.asked == []
    assert await bench.read(pod(), after_s=1) == {0: MULTI}
    assert await bench.read(pod(), after_s=1) == {0: MULTI}
    assert len(bench.server.asked) == 1
    await bench.read(pod(), after_s=LOOK_S)
    assert len(bench.server.asked) == 2
    assert await bench.read(pod(preparing=False), after_s=1) == {}


async def test_another_pod_of_the_name_begins_anew(bench: Bench) -> None:
    await bench.read(pod())
    assert await bench.read(replace(pod(), uid="uid-9"), after_s=MISSING_S) == {}


async def test_one_that_stops_is_not_looked_at(bench: Bench) -> None:
    await bench.read(pod(terminating=True))
    assert await bench.read(pod(terminating=True), after_s=MISSING_S) == {}
    assert bench.server.asked == []


async def test_of_many_pods_only_some_are_looked_at(bench: Bench) -> None:
    many = [pod(each) for each in range(50)]
    await bench.read(*many)
    await bench.read(*many, after_s=MISSING_S)
    assert len(bench.server.asked) == AT_ONCE


async def test_events_that_cannot_be_read_end_nothing(bench: Bench) -> None:
    bench.server.error = KubernetesError("not allowed", 403)
    await bench.read(pod())
    assert await bench.read(pod(), after_s=MISSING_S) == {}


def test_the_last_trouble_of_this_pod_counts() -> None:
    events = [
        told("first", at=1),
        told("second\nwith  a line", at=2, reason="FailedMount"),
        told("of another one", at=3, uid="uid-1"),
        told("scheduled", at=4, reason="Scheduled"),
    ]
    assert last_trouble(events, "uid-0") == "second with a line"
    assert last_trouble([], "uid-0") == ""


def test_trouble_that_is_over_is_none() -> None:
    """The volume came in the end, and the image is large."""
    events = [told(MULTI, at=1), told("pulling", at=2, reason="Pulling")]
    assert last_trouble(events, "uid-0") == ""
    assert last_trouble([*events, told("again", at=2)], "uid-0") == "again"


@pytest.mark.parametrize(
    ("node", "statuses", "preparing"),
    [
        ("node-1", [], True),
        ("", [], False),
        (
            "node-1",
            [{"name": "broker", "state": {"waiting": {"reason": "ContainerCreating"}}}],
            True,
        ),
        ("node-1", [{"name": "broker", "state": {"waiting": {"reason": "ErrImagePull"}}}], False),
        ("node-1", [{"name": "broker", "state": {"running": {}}}], False),
    ],
)
def test_what_the_kubelet_has_not_begun_to_run(node: str, statuses: Any, preparing: bool) -> None:
    body = {
        "metadata": {"name": "flights-broker-2", "uid": "uid-2"},
        "spec": {"containers": [{"name": "broker", "image": "b"}], "nodeName": node},
        "status": {"containerStatuses": statuses},
    }
    assert pod_state(2, body).preparing is preparing


def test_the_cluster_says_so() -> None:
    wish = desired()
    world = settled(wish)
    world.pods[1] = replace(world.pods[1], ready=False, node="node-1")
    seen = replace(world.observed(), stuck={1: MULTI})
    text = f"pod flights-broker-1 is not started on node node-1: {MULTI}"
    assert Wait("PodNotStarted", text) in plan_cluster(wish, seen).waits
