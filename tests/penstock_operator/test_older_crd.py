"""An operator that is newer than the CRDs: fields that the API server drops are said, once."""

import copy
from dataclasses import replace
from typing import Any, Final

import pytest
from support.operator_world import World, desired, settled

from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.metrics import Metrics
from penstock_operator.pace import AGAIN_S, Pace
from penstock_operator.plan import plan_cluster
from penstock_operator.report import Reporting

WISH: Final = desired()


class Server(Kube):
    """Its CRD knows neither `status.upgrade` nor the rack of a broker."""

    def __init__(self, *, drops: bool = True) -> None:
        self.status: dict[str, Any] = {}
        self.drops = drops
        self.written = 0
        self.told: list[str] = []

    async def merge(
        self, kind: str, namespace: str, name: str, body: dict[str, Any], *, status: bool = False
    ) -> dict[str, Any]:
        assert (kind, status) == ("Cluster", True)
        self.written += 1
        self.status |= copy.deepcopy(body["status"])
        if self.drops:
            self.status.pop("upgrade", None)
            for row in self.status["brokerStatuses"]:
                row.pop("rack", None)
        return {"status": copy.deepcopy(self.status)}

    async def create(self, kind: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["reason"] == "CrdOutdated":
            self.told.append(body["note"])
        return body


class Bench:
    def __init__(self, server: Server) -> None:
        self.server, self.world = server, settled(WISH)
        self.now_s = 1_000.0
        self.reporting = Reporting(server, Events(server, "test"), Metrics())
        self.reporting._pace = Pace(lambda: self.now_s)

    async def report(self) -> bool:
        metadata = {"name": "flights", "namespace": "default", "uid": "cluster-uid"}
        body = {"metadata": metadata, "status": copy.deepcopy(self.server.status)}
        seen = self.world.observed()
        return await self.reporting.report(body, WISH, seen, plan_cluster(WISH, seen))


@pytest.fixture
def bench() -> Bench:
    return Bench(Server())


async def test_what_the_crd_drops_is_told_and_not_written_again_and_again(bench: Bench) -> None:
    for _ in range(5):
        assert await bench.report(), "nothing more is to be said"
    assert bench.server.written == 1
    (told,) = bench.server.told
    assert told == (
        "the CRD that is installed is older than this operator and drops brokerStatuses, upgrade "
        "of the status: apply the CRDs of this release (kubectl apply --server-side -f crds)"
    )


async def test_a_change_is_written_all_the_same(bench: Bench) -> None:
    await bench.report()
    change(bench.world)
    await bench.report()
    assert bench.server.written == 2
    assert bench.server.status["brokers"]["ready"] == 2


async def test_a_crd_of_this_release_drops_nothing() -> None:
    bench = Bench(Server(drops=False))
    await bench.report()
    await bench.report()
    assert (bench.server.written, bench.server.told) == (1, [])


async def test_all_is_written_once_the_crd_is_new(bench: Bench) -> None:
    await bench.report()
    bench.server.drops = False
    bench.now_s += AGAIN_S
    await bench.report()
    assert "upgrade" in bench.server.status


def change(world: World) -> None:
    world.pods[1] = replace(world.pods[1], ready=False)
