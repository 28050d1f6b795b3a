"""`spec.access` and `spec.quotas` of a Cluster: its worker applies them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.cluster import Cluster
from support.operator_process import OURS, condition, get, install_crds
from support.reachable import Reachable
from support.waiting import wait_until_async

from penstock.client import AsyncAdmin
from penstock.core.authorization import CLUSTER, AccessRole, Kind, Operation, Prefix, Rule
from penstock.core.quotas import Limit, QuotaRule
from penstock.kubernetes.connect import connect
from penstock.kubernetes.names import API_VERSION
from penstock_operator import worker as worker_module
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.metrics import Metrics
from penstock_operator.objects import Installation
from penstock_operator.worker import Deps, Worker

VIEWS = {"principals": ["cert:ada"], "role": "viewer"}
READS = {"principals": ["cert:bob"], "topicPrefix": "etl.", "operations": ["Read"]}
VIEWER = Rule(principals=("cert:ada",), role=AccessRole.VIEWER)
READER = Rule(
    principals=("cert:bob",),
    operations=(Operation.READ,),
    prefix=Prefix(Kind.TOPIC, "etl."),
)


class Bench:
    """A Cluster with a worker that runs, and the broker that it asks."""

    def __init__(self, server: ApiServer, namespace: str, admin: AsyncAdmin, own: Worker) -> None:
        self._server, self._admin, self._worker = server, admin, own
        self._path = f"{OURS}/namespaces/{namespace}/clusters"
        self._events = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"

    async def give(self, given: list[dict[str, Any]] | None, field: str = "access") -> None:
        """To the spec of the Cluster."""
        media, body = "application/merge-patch+json", {"spec": {field: given}}
        path = f"{self._path}/flights"
        await asyncio.to_thread(self._server.request, "PATCH", path, body, Content_Type=media)
        self._worker.wake()

    async def set_by_hand(self, *rules: Rule) -> None:
        await self._admin.alter_access(CLUSTER, rules)
        self._worker.wake()

    async def set_quotas_by_hand(self, *quotas: QuotaRule) -> None:
        await self._admin.alter_quotas(quotas)
        self._worker.wake()

    async def has_quotas(self, *quotas: QuotaRule) -> bool:
        return await self._admin.describe_quotas() == quotas

    async def wait_quotas(self, *quotas: QuotaRule) -> None:
        await wait_until_async(lambda: self.has_quotas(*quotas), what=f"there are {quotas}")

    async def has(self, *rules: Rule) -> bool:
        return (await self._admin.describe_access([CLUSTER]))[CLUSTER] == rules

    async def wait_rules(self, *rules: Rule) -> None:
        await wait_until_async(lambda: self.has(*rules), what=f"the cluster has {rules}")

    async def cluster(self) -> Any:
        return await asyncio.to_thread(get, self._server, f"{self._path}/flights")

    async def reasons(self) -> set[str]:
        found = await asyncio.to_thread(self._server.request, "GET", self._events)
        return {each["reason"] for each in found["items"]}


def make_pod(server: ApiServer, namespace: str) -> None:
    """That of the broker, as a kubelet shows it: only then the operator asks brokers."""
    labels = {
        "penstock.dev/cluster": "flights",
        "app.kubernetes.io/component": "broker",
        "apps.kubernetes.io/pod-index": "0",
    }
    pod = {
        "metadata": {"name": "flights-broker-0", "labels": labels},
        "spec": {"containers": [{"name": "broker", "image": "penstock:1"}]},
    }
    path = f"/api/v1/namespaces/{namespace}/pods"
    server.request("POST", path, pod)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    media = "application/merge-patch+json"
    server.request(
        "PATCH", f"{path}/flights-broker-0/status", {"status": status}, Content_Type=media
    )


@pytest.fixture
async def bench(
    api_server: ApiServer, shared_broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    await asyncio.to_thread(install_crds, api_server)
    namespace = api_server.namespace("access")
    body = {
        "apiVersion": API_VERSION,
        "kind": "Cluster",
        "metadata": {"name": "flights"},
        "spec": {"brokers": 1, "security": {"mode": "Disabled"}},
    }
    api_server.request("POST", f"{OURS}/namespaces/{namespace}/clusters", body)
    make_pod(api_server, namespace)
    bootstrap = shared_broker.bootstrap
    monkeypatch.setattr(worker_module, "Brokers", lambda *_: Reachable(bootstrap))
    kube = Kube(connect("penstock-tests", TIMEOUTS, kubeconfig=str(api_server.kubeconfig)))
    deps = Deps(kube, Events(kube, "test"), Metrics(), Installation("penstock-broker:test"))
    worker = Worker(deps, namespace, "flights")
    admin = AsyncAdmin(bootstrap)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(worker.run())
        yield Bench(api_server, namespace, admin, worker)
        running.cancel()
        await asyncio.wait([running])  # or it would put them back
        await admin.alter_access(CLUSTER, [])
        await admin.alter_quotas([])
    await admin.close()
    kube.close()


async def test_a_cluster_has_the_rules_of_its_spec_until_they_go(bench: Bench) -> None:
    await bench.give([VIEWS, READS])
    await bench.wait_rules(VIEWER, READER)
    await bench.set_by_hand(VIEWER)
    await bench.wait_rules(VIEWER, READER)
    await bench.give([READS])
    await bench.wait_rules(READER)
    await bench.give([])
    await bench.wait_rules()
    await wait_until_async(
        lambda: told(bench, {"AccessChanged", "AccessNotAsked"}), what="it is told"
    )


async def told(bench: Bench, wanted: set[str]) -> bool:
    return await bench.reasons() >= wanted


async def test_rules_that_the_spec_does_not_manage_stay(bench: Bench) -> None:
    await bench.give([VIEWS])
    await bench.wait_rules(VIEWER)
    await bench.give(None)
    await looked_at(bench)
    await bench.set_by_hand(READER)
    await bench.give([], "quotas")
    await looked_at(bench)
    assert await bench.has(READER)


async def looked_at(bench: Bench) -> None:
    """The operator has seen the newest spec."""
    seen = (await bench.cluster())["metadata"]["generation"]

    async def settled() -> bool:
        shown = condition(await bench.cluster(), "Ready")
        return bool(shown.get("observedGeneration", 0) >= seen)

    await wait_until_async(settled, what="the operator has looked at the newest spec")


async def test_a_cluster_has_the_quotas_of_its_spec_until_they_go(bench: Bench) -> None:
    every = QuotaRule(("*",), {Limit.PRODUCE: 10 * 1024**2, Limit.STREAMS: 200})
    adas = QuotaRule(("cert:ada",), {Limit.MUTATIONS: 60})
    written = {"principals": ["*"], "produceBytesPerSecond": "10Mi", "streams": 200}
    await bench.give([written, {"principals": ["cert:ada"], "mutationsPerMinute": 60}], "quotas")
    await bench.wait_quotas(every, adas)
    await bench.set_quotas_by_hand(adas)
    await bench.wait_quotas(every, adas)
    await bench.give([], "quotas")
    await bench.wait_quotas()
    await bench.give(None, "quotas")
    await looked_at(bench)
    await bench.set_quotas_by_hand(adas)
    await bench.give([], "access")
    await looked_at(bench)
    assert await bench.has_quotas(adas), "quotas that are not managed stay"
    await wait_until_async(
        lambda: told(bench, {"QuotasChanged", "QuotasNotAsked"}), what="it is told"
    )
