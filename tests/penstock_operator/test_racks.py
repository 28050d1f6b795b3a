"""Nodes are read when a pod needs its rack, and not in each pass."""

from dataclasses import replace
from typing import Any, Final

import pytest
from support.operator_world import desired, settled

from penstock.kubernetes.errors import KubernetesError
from penstock_operator.kube import Kube
from penstock_operator.model import PodState
from penstock_operator.racks import KNOWN_S, UNKNOWN_S, Racks

ZONE: Final = "topology.kubernetes.io/zone"
BARE: Final = replace(settled(desired()).pods[0], node="a", rack="")
MARKED: Final = replace(BARE, rack="zone-1")


class Server(Kube):
    def __init__(self) -> None:
        self.labels: dict[str, str] = {ZONE: "zone-1"}
        self.answers = True
        self.read: list[str] = []

    async def get(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        assert (kind, namespace) == ("Node", None)
        self.read.append(name)
        if not self.answers:
            raise KubernetesError("no answer", 0)
        return {"metadata": {"name": name, "labels": dict(self.labels)}}


class Bench:
    def __init__(self) -> None:
        self.server, self.now_s = Server(), 1_000.0
        self.racks = Racks(self.server, lambda: self.now_s)

    async def look(self, *pods: PodState) -> dict[str, str]:
        return await self.racks.read(ZONE, pods)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_node_whose_pods_have_their_rack_is_not_read_in_each_pass(bench: Bench) -> None:
    for _ in range(100):
        assert await bench.look(MARKED, replace(MARKED, broker_id=1)) == {"a": "zone-1"}
    assert bench.server.read == ["a"]
    bench.now_s += KNOWN_S
    await bench.look(MARKED)
    assert len(bench.server.read) == 2


async def test_a_new_pod_gets_the_rack_of_the_node_that_has_the_name_now(bench: Bench) -> None:
    await bench.look(MARKED)
    bench.server.labels[ZONE] = "zone-2"  # another machine
    assert await bench.look(MARKED, BARE) == {"a": "zone-2"}


@pytest.mark.parametrize("answers", [True, False])
async def test_a_node_without_a_rack_is_read_again_soon(bench: Bench, answers: bool) -> None:
    bench.server.answers = answers
    bench.server.labels.clear()
    for _ in range(10):
        assert await bench.look(BARE) == {}
    assert len(bench.server.read) == 1
    bench.server.answers, bench.server.labels[ZONE] = True, "zone-1"
    bench.now_s += UNKNOWN_S
    assert await bench.look(BARE) == {"a": "zone-1"}


async def test_pods_without_a_node_have_none(bench: Bench) -> None:
    assert await bench.look(replace(BARE, node="")) == {}
    assert bench.server.read == []
