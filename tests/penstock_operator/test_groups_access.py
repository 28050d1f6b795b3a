"""`spec.access` of a ConsumerGroup, on a real API server and a real broker.

Each test gives the operator's `Groups` its looks and its time, so nothing waits for a timer.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.cluster import Cluster
from support.operator_process import OURS, condition, get, install_crds
from support.operator_world import desired
from support.reachable import Reachable

from penstock.client import AsyncAdmin
from penstock.core.authorization import Kind, Operation, Resource, Rule
from penstock.errors import ClusterError
from penstock.kubernetes.connect import connect
from penstock.kubernetes.names import API_VERSION
from penstock_operator.events import Events
from penstock_operator.groups import Groups, View
from penstock_operator.kube import Kube

ADA_RESETS = {"principals": ["cert:ada"], "operations": ["Reset"]}
RESET = Rule(principals=("cert:ada",), operations=(Operation.RESET,))
READ = Rule(principals=("cert:bob",), operations=(Operation.READ,))
NOBODY: tuple[Rule, ...] = ()


class Bench:
    """A namespace with ConsumerGroups of the Cluster `flights`, whose broker is real."""

    def __init__(self, server: ApiServer, brokers: Cluster) -> None:
        self.server = server
        self.namespace = server.namespace("groups-access")
        self.path = f"{OURS}/namespaces/{self.namespace}/consumergroups"
        self.kube = Kube(connect("penstock-tests", TIMEOUTS, kubeconfig=str(server.kubeconfig)))
        self.brokers = Reachable(brokers.bootstrap)
        self.now_ms = 0
        where = (self.namespace, "flights")
        events = Events(self.kube, "test")
        self.groups = Groups(self.kube, events, self.brokers, where, lambda: self.now_ms)
        self.groups.see(View(gone=False, desired=desired(1), ready=True))

    def create(self, name: str, **spec: Any) -> None:
        body = {
            "apiVersion": API_VERSION,
            "kind": "ConsumerGroup",
            "metadata": {"name": name},
            "spec": {"cluster": "flights", **spec},
        }
        self.server.request("POST", self.path, body)

    def patch(self, name: str, **spec: Any) -> None:
        media = "application/merge-patch+json"
        self.server.request("PATCH", f"{self.path}/{name}", {"spec": spec}, Content_Type=media)

    def seen(self, name: str) -> Any:
        return get(self.server, f"{self.path}/{name}")

    def ready(self, name: str) -> dict[str, Any]:
        return condition(self.seen(name), "Ready")

    def events(self) -> dict[str, str]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        found = self.server.request("GET", path)["items"]
        return {each["reason"]: each["note"] for each in found}

    async def look(self) -> None:
        """As after a watch event of every group, ten seconds later."""
        self.now_ms += 10_000
        for body in self.server.request("GET", self.path)["items"]:
            self.groups.heard(body, deleted=False)
        await self.groups.look()

    @property
    async def admin(self) -> AsyncAdmin:
        return await self.brokers.admin(desired(1))

    async def rules(self, group: str) -> tuple[Rule, ...]:
        resource = Resource(Kind.GROUP, group)
        return (await (await self.admin).describe_access([resource]))[resource]

    async def set_by_hand(self, group: str, *rules: Rule) -> None:
        await (await self.admin).alter_access(Resource(Kind.GROUP, group), rules)


@pytest.fixture
async def bench(api_server: ApiServer, shared_broker: Cluster) -> AsyncIterator[Bench]:
    await asyncio.to_thread(install_crds, api_server)
    made = Bench(api_server, shared_broker)
    yield made
    # Rules of groups stay until they are replaced, and the broker is everybody's.
    every = await (await made.admin).describe_access(None)
    for resource in every:
        if resource.kind is Kind.GROUP:
            await (await made.admin).alter_access(resource, ())
    await made.groups.close()
    made.kube.close()


async def test_a_group_has_its_rules_before_it_exists(bench: Bench) -> None:
    bench.create("guarded", groupId="The guarded", access=[ADA_RESETS])
    await bench.look()
    assert await bench.rules("The guarded") == (RESET,)
    assert bench.ready("guarded")["reason"] == "NoGroup"
    told = bench.events()
    assert told["AccessChanged"] == "group The guarded: access: allows cert:ada Reset"
    assert "spec.security.mode Strict" in told["AccessNotAsked"]


async def test_rules_set_by_hand_are_reset_and_removed_ones_go(bench: Bench) -> None:
    bench.create("reset", access=[ADA_RESETS])
    await bench.look()
    await bench.set_by_hand("reset", RESET, READ)
    await bench.look()
    assert await bench.rules("reset") == (RESET,)
    bench.patch("reset", access=[])
    await bench.look()
    assert await bench.rules("reset") == NOBODY


async def test_rules_that_no_resource_manages_stay(bench: Bench) -> None:
    bench.create("unmanaged", access=[ADA_RESETS])
    await bench.look()
    bench.patch("unmanaged", access=None)
    await bench.set_by_hand("unmanaged", READ)
    await bench.look()
    assert await bench.rules("unmanaged") == (READ,)


async def test_managed_rules_go_with_the_group_if_it_is_deleted(bench: Bench) -> None:
    bench.create("going", access=[ADA_RESETS], deletionPolicy="Delete")
    await bench.look()
    assert await bench.rules("going") == (RESET,)
    bench.server.request("DELETE", f"{bench.path}/going")
    await bench.look()
    assert bench.seen("going") is None
    assert await bench.rules("going") == NOBODY


async def test_rules_that_brokers_refuse_are_said_and_hold_up_no_other_group(bench: Bench) -> None:
    crowd = tuple(f"cert:{number:03}{'x' * 480}" for number in range(62))
    most = Rule(principals=crowd, operations=(Operation.READ,))
    for number in range(8):
        await bench.set_by_hand(f"crowd-{number}", most)
    full = [{"principals": list(crowd), "operations": ["Read"]}]
    bench.create("too-much", access=full)
    bench.create("small", access=[ADA_RESETS])
    await bench.look()
    assert await bench.rules("too-much") == NOBODY
    assert await bench.rules("small") == (RESET,)
    assert condition(bench.seen("too-much"), "Stalled")["reason"] == "AccessRefused"
    assert "the limit is 262144" in bench.events()["AccessRefused"]
    await bench.set_by_hand("crowd-0")
    await bench.look()
    assert await bench.rules("too-much") == (most,)
    assert condition(bench.seen("too-much"), "Stalled")["status"] == "False"


async def test_brokers_that_do_not_say_the_rules_hold_up_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(_: object) -> None:
        raise ClusterError("no such call")

    monkeypatch.setattr(await bench.admin, "describe_access", unknown)
    bench.create("unasked", access=[ADA_RESETS], deletionPolicy="Delete")
    await bench.look()
    assert bench.seen("unasked")["metadata"]["finalizers"], "the rest was done"
    assert condition(bench.seen("unasked"), "Reconciling")["status"] == "True"
    messages = [each["message"] for each in bench.seen("unasked")["status"]["conditions"]]
    monkeypatch.undo()
    assert await bench.rules("unasked") == NOBODY
    await bench.look()
    assert await bench.rules("unasked") == (RESET,), messages
