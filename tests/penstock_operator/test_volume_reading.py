"""Whether a volume went with its node, as a real API server says it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.api_proxy import ApiProxy, Kind
from support.apiserver import TIMEOUTS, ApiServer

from penstock.kubernetes.connect import connect
from penstock_operator.kube import Kube
from penstock_operator.model import PodState
from penstock_operator.volume_model import BoundNode, ClaimState, NodeState
from penstock_operator.volumes import GONE_S, HOSTNAME, LOOK_S, Volumes, only_hostname

ZONE = "topology.kubernetes.io/zone"


def host(*names: str, key: str = HOSTNAME, operator: str = "In") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": [*names]}]}


def volume(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [*terms]}}}}


@pytest.mark.parametrize(
    ("body", "node"),
    [
        (volume(host("a")), "a"),
        (volume(host("a"), host("a")), "a"),
        (volume(host("a"), host("b")), ""),
        (volume(host("a"), host("east", key=ZONE)), ""),
        (volume(host("a", "b")), ""),
        (volume(host("a", operator="NotIn")), ""),
        (volume(host("east", key=ZONE)), ""),
        (volume({}), ""),
        (volume(), ""),
        ({"spec": {}}, ""),
    ],
)
def test_only_a_volume_of_one_host_goes_with_it(body: dict[str, Any], node: str) -> None:
    assert only_hostname(body) == node  # planted bug 31: a zonal volume is no local one


class Bench:
    """The broker 1 of a Cluster, whose pod no node can take. `seconds`: what the clock says."""

    def __init__(self, server: ApiServer, proxy: ApiProxy, folder: Path) -> None:
        self.server, self.proxy = server, proxy
        # Volumes and nodes have no namespace: names are of this test alone.
        self.node = server.namespace("volumes")
        self.volume = f"volume-{self.node}"
        kubeconfig = str(proxy.kubeconfig(folder / "kubeconfig"))
        self.kube = Kube(connect("tests", TIMEOUTS, kubeconfig=kubeconfig))
        self.seconds = 1_000.0
        self.volumes = Volumes(self.kube, lambda: self.seconds)
        self.claim = ClaimState(1, "data-1", "claim-uid", 1, 1, False, volume=self.volume)
        self.pod = PodState(1, "pod-1", "pod-uid", False, False, "hash", unschedulable=True)

    def make_node(self, name: str, **labels: str) -> None:
        body = {"metadata": {"name": name, "labels": labels}}
        self.server.request("POST", "/api/v1/nodes", body)

    def make_volume(self, node: str, key: str = HOSTNAME) -> None:
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": "/data"},
            **volume(host(node, key=key))["spec"],
        }
        body = {"metadata": {"name": self.volume}, "spec": spec}
        self.server.request("POST", "/api/v1/persistentvolumes", body)

    async def read(self, after_s: float = LOOK_S) -> BoundNode | None:
        self.seconds += after_s
        return (await self.volumes.read({1: self.pod}, {1: self.claim})).get(1)

    def close(self) -> None:
        self.kube.close()


@pytest.fixture
def bench(api_server: ApiServer, tmp_path: Path) -> Iterator[Bench]:
    proxy = ApiProxy(api_server)
    made = Bench(api_server, proxy, tmp_path)
    yield made
    made.close()
    proxy.close()


def unreadable(plural: str) -> Callable[[str, str], bool]:
    return lambda method, path: method == "GET" and f"/{plural}" in path


async def test_a_node_that_is_gone_for_five_minutes_is_lost(bench: Bench) -> None:
    bench.make_volume(bench.node)
    seen = await bench.read()
    assert seen == BoundNode("claim-uid", bench.node, NodeState.GONE)
    assert await bench.read(GONE_S - 1) == seen
    lost = BoundNode("claim-uid", bench.node, NodeState.LOST)
    assert await bench.read(LOOK_S) == lost
    bench.make_node(bench.node)
    there = BoundNode("claim-uid", bench.node, NodeState.THERE)
    assert await bench.read() == there
    bench.server.request("DELETE", f"/api/v1/nodes/{bench.node}")
    assert await bench.read(GONE_S) == seen, "it was there in between"


async def test_a_node_of_another_name_with_this_hostname_is_there(bench: Bench) -> None:
    bench.make_volume(bench.node)
    bench.make_node(f"named-{bench.node}", **{HOSTNAME: bench.node})
    seen = await bench.read()
    assert seen is not None
    assert seen.state is NodeState.THERE


@pytest.mark.parametrize("plural", ["persistentvolumes", "nodes"])
async def test_what_cannot_be_read_is_unknown_and_the_time_begins_again(
    bench: Bench, plural: str
) -> None:
    bench.make_volume(bench.node)
    await bench.read()
    fault = bench.proxy.plant(Kind.STATUS, fits=unreadable(plural), times=None, status=403)
    seen = await bench.read()
    assert seen is not None
    assert (seen.state, fault.seen > 0) == (NodeState.UNKNOWN, True)
    assert seen.problem
    bench.proxy.heal()
    seen = await bench.read(GONE_S)
    assert seen is not None
    assert seen.state is NodeState.GONE


async def test_a_zonal_volume_is_not_looked_for(bench: Bench) -> None:
    bench.make_volume("east", key=ZONE)
    assert await bench.read() is None
    bench.claim = replace(bench.claim, uid="another", volume=f"gone-{bench.node}")
    assert await bench.read() is None, "nobody knows where that one was"


async def test_the_node_that_was_selected_for_a_claim_without_a_volume_counts(bench: Bench) -> None:
    bench.claim = replace(bench.claim, volume="")
    assert await bench.read() is None
    bench.claim = replace(bench.claim, selected_node=bench.node)
    seen = await bench.read()
    assert seen == BoundNode("claim-uid", bench.node, NodeState.GONE)


async def test_nothing_is_read_while_every_pod_has_a_node_and_little_else(bench: Bench) -> None:
    bench.make_volume(bench.node)
    stranded, bench.pod = bench.pod, replace(bench.pod, unschedulable=False)
    assert await bench.read() is None
    assert not bench.proxy.used
    bench.pod = stranded
    await bench.read(0)
    asked = sum(bench.proxy.calls.values())
    assert await bench.read(LOOK_S / 2) is not None
    assert sum(bench.proxy.calls.values()) == asked, "not in every pass"
    assert {
        ("get", "", "persistentvolumes"),
        ("get", "", "nodes"),
        ("list", "", "nodes"),
    } == bench.proxy.used
