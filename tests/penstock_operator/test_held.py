"""What the API server refuses costs a request now and then, and no longer a dozen each second."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.operator_world import desired, settled

from penstock.kubernetes.errors import KubernetesError
from penstock_operator.events import Events
from penstock_operator.held import MOST_S, Held
from penstock_operator.kube import Kube
from penstock_operator.metrics import Metrics
from penstock_operator.model import Apply, MarkRack, Plan, Severity, Wait
from penstock_operator.objects import Installation
from penstock_operator.plan import plan_cluster
from penstock_operator.status import cluster_status
from penstock_operator.worker import Deps, Worker

WISH = desired()
BODY = {"metadata": {"name": "flights", "namespace": "default", "uid": "cluster-uid"}}
DENIED = KubernetesError("the Kubernetes API answered 403: denied by policy", 403)
BUDGET = "PodDisruptionBudget"


class Server(Kube):
    """A policy denies one kind of object."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: KubernetesError | None = DENIED

    async def apply(self, wanted: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(wanted["kind"])
        if self.error is not None and wanted["kind"] == BUDGET:
            raise self.error
        return wanted

    async def merge(self, *where: Any, **how: Any) -> dict[str, Any]:
        assert self.error is not None
        raise self.error


class Bench:
    def __init__(self) -> None:
        self.server, self.now_s = Server(), 0.0
        deps = Deps(self.server, Events(self.server, "test"), Metrics(), Installation("b"))
        self.worker = Worker(deps, "default", "flights")
        self.worker._held = Held(lambda: self.now_s)
        self.world = settled(WISH)
        del self.world.objects[BUDGET, "flights-broker"]

    async def step(self) -> list[Wait]:
        """A second later."""
        self.now_s += 1
        self.worker._children.dirty = False
        seen = self.world.observed()
        plan = plan_cluster(WISH, seen)
        return await self.worker._act(BODY, WISH, seen, plan, asyncio.get_running_loop().time())


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.worker._credentials.close()


async def test_what_is_denied_is_asked_for_less_and_less_often(bench: Bench) -> None:
    wait = Wait("ApiServerRefused", str(DENIED), Severity.BLOCKED)
    listings = 0
    for _ in range(300):
        assert await bench.step() == [wait], "it is said all the while"
        listings += bench.worker._children.dirty
    assert bench.server.asked == [BUDGET] * len(bench.server.asked)
    assert len(bench.server.asked) == listings
    assert 300 / MOST_S < len(bench.server.asked) < 300 / MOST_S + 6


async def test_it_is_seen_soon_that_it_is_allowed(bench: Bench) -> None:
    for _ in range(100):
        await bench.step()
    bench.server.error = None
    waits = [await bench.step() for _ in range(int(MOST_S) + 1)]
    assert [] in waits


async def test_another_action_is_not_held(bench: Bench) -> None:
    for _ in range(20):
        await bench.step()
    bench.server.asked.clear()
    del bench.world.objects["Service", "flights-bootstrap"]
    await bench.step()
    assert "Service" in bench.server.asked


@pytest.mark.parametrize(("status", "stalled"), [(404, "False"), (409, "False"), (403, "True")])
async def test_no_person_is_called_for_a_pod_that_has_just_gone(
    bench: Bench, status: int, stalled: str
) -> None:
    bench.server.error = KubernetesError("the Kubernetes API refused", status)
    seen, mark = settled(WISH).observed(), MarkRack("flights-broker-1", "zone-b")
    now_s = asyncio.get_running_loop().time()
    waits = await bench.worker._act(BODY, WISH, seen, Plan((mark,)), now_s)
    assert [wait.reason for wait in waits] == ["ApiServerRefused"]
    status_of = cluster_status(WISH, seen, Plan(waits=tuple(waits)), {}, "2026-01-01T00:00:00Z")
    assert {each["type"]: each["status"] for each in status_of["conditions"]}["Stalled"] == stalled


@pytest.mark.parametrize("status", [0, 401, 404, 409, 429, 500, 503])
def test_what_is_no_refusal_is_tried_again_at_once(status: int) -> None:
    held = Held(lambda: 0.0)
    action, wait = Apply({"kind": BUDGET}), Wait("ApiServerRefused", "")
    held.failed(action, wait, KubernetesError("", status))
    assert held.why(action) is None
    held.failed(action, wait, DENIED)
    assert held.why(action) == wait
    held.only(())
    assert held.why(action) is None, "another plan may ask for it again, and is not held"
