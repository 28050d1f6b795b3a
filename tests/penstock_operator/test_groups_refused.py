"""What the API server refuses of a ConsumerGroup, a policy for example, is in its status."""

import copy
from typing import Any

import pytest
from support.operator_world import desired

from penstock.kubernetes.errors import KubernetesError
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.groups import Groups, View
from penstock_operator.kube import Kube

WHY = "the Kubernetes API answered 403: finalizers are not allowed here"
SILENT = View(gone=False, desired=desired(1), problem="no broker answers")


class Server(Kube):
    """Keeps one ConsumerGroup, and refuses what `refusal` says; of its status, if `also_status`."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {
            "metadata": {
                "name": "readers",
                "namespace": "default",
                "uid": "1",
                "generation": 2,
                "resourceVersion": "7",
            },
            "spec": {"cluster": "flights", "groupId": "readers", "deletionPolicy": "Delete"},
        }
        self.refusal: KubernetesError | None = KubernetesError(WHY, 403)
        self.also_status = False
        self.written = self.listed = 0
        self.drops: frozenset[str] = frozenset()
        """Keys of a status that its CRD does not know."""
        self.told: list[str] = []

    async def list(
        self, kind: str, namespace: str | None, selector: str = ""
    ) -> list[dict[str, Any]]:
        self.listed += 1
        return [copy.deepcopy(self.body)]

    async def create(self, kind: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        self.told.append(body["reason"])
        return body

    async def merge(
        self, kind: str, namespace: str, name: str, body: dict[str, Any], *, status: bool = False
    ) -> dict[str, Any]:
        if self.refusal is not None and (not status or self.also_status):
            raise self.refusal
        if status:
            self.written += 1
            written = {**self.body.get("status", {}), **body["status"]}
            self.body["status"] = {
                key: value for key, value in written.items() if key not in self.drops
            }
        else:
            self.body["metadata"] |= body["metadata"]
        return copy.deepcopy(self.body)

    def condition(self, kind: str) -> dict[str, Any]:
        rows = self.body.get("status", {}).get("conditions", [])
        return next((each for each in rows if each["type"] == kind), {})


class Bench:
    def __init__(self) -> None:
        self.server, self.now_ms = Server(), 0
        where = ("default", "flights")
        events = Events(self.server, "test")
        self.groups = Groups(self.server, events, Brokers(), where, lambda: self.now_ms)
        self.groups.see(SILENT)

    async def look(self, after_ms: int = 60_000) -> None:
        self.now_ms += after_ms
        await self.groups.look()


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_refusal_is_in_the_status_and_written_once(bench: Bench) -> None:
    for _ in range(3):
        await bench.look()
    ready, stalled = bench.server.condition("Ready"), bench.server.condition("Stalled")
    assert (ready["status"], ready["reason"]) == ("False", "ApiServerRefused")
    assert (stalled["status"], stalled["message"]) == ("True", WHY)
    assert bench.server.body["status"]["message"] == WHY
    assert bench.server.body["status"]["observedGeneration"] == 2
    assert bench.server.written == 1
    assert bench.server.told == ["ApiServerRefused"]


async def test_what_is_refused_again_and_again_lists_no_groups(bench: Bench) -> None:
    """There may be thousands of others, and it is tried every five seconds."""
    for _ in range(5):
        await bench.look()
    assert bench.server.listed == 1


@pytest.mark.parametrize("status", [0, 404, 409, 503])
async def test_a_group_that_may_have_changed_is_listed_again(bench: Bench, status: int) -> None:
    bench.server.refusal = KubernetesError("not now", status)
    for _ in range(3):
        await bench.look()
    assert bench.server.listed == 3


async def test_what_an_older_crd_drops_is_told_and_not_written_again(bench: Bench) -> None:
    bench.server.refusal, bench.server.drops = None, frozenset({"members"})
    for _ in range(5):
        await bench.look()
    assert bench.server.told == ["CrdOutdated"]
    written = bench.server.written
    assert written <= 2, "the finalizer and what it waits for"
    bench.server.drops = frozenset()
    for _ in range(10):
        await bench.look()
    assert bench.server.written == written + 1, "once the CRD may be new"
    assert bench.server.body["status"]["members"] == 0


async def test_figures_stay_as_they_were(bench: Bench) -> None:
    known = {"state": "Stable", "members": 2, "lag": {"records": 3, "seconds": 4}}
    bench.server.body["status"] = dict(known)
    await bench.look()
    assert known.items() <= bench.server.body["status"].items()


async def test_it_goes_when_nothing_is_refused_any_longer(bench: Bench) -> None:
    await bench.look()
    bench.server.refusal = None
    await bench.look()
    assert bench.server.condition("Ready")["reason"] == "ClusterNotServing"
    assert bench.server.condition("Stalled")["status"] == "False"


@pytest.mark.parametrize("status", [0, 401, 404, 409, 429, 503])
async def test_what_is_no_refusal_of_this_group_is_not(bench: Bench, status: int) -> None:
    bench.server.refusal = KubernetesError("not now", status)
    await bench.look()
    assert bench.server.written == 0


async def test_a_status_that_is_refused_too_ends_nothing(bench: Bench) -> None:
    bench.server.also_status = True
    await bench.look()
    assert bench.server.written == 0
