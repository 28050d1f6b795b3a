"""A late scale-down of a frozen operator, at a real API server: refused, and decided again."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.operator_process import OURS, install_crds
from support.operator_world import NAMES, desired

from penstock.kubernetes.connect import connect
from penstock_operator.act import Acting
from penstock_operator.brokers import Brokers
from penstock_operator.compare import as_decided, stamped
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import Apply, Object, Observed
from penstock_operator.objects import broker_set
from penstock_operator.objects.controller import controller_objects

WISH = desired(brokers=3)


class Operator:
    """As much of one as applies what it has decided on what it has seen."""

    def __init__(self, server: ApiServer, kind: str) -> None:
        self.kube = Kube(connect("penstock-tests", TIMEOUTS, kubeconfig=str(server.kubeconfig)))
        self.acting = Acting(self.kube, Brokers(), Events(self.kube, "test"))
        self.namespace, self.kind = server.namespace("scaling"), kind
        cluster = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster", "spec": {}}
        where = f"{OURS}/namespaces/{self.namespace}/clusters"
        named = {**cluster, "metadata": {"name": NAMES.cluster}}
        self.body = server.request("POST", where, named)
        made = {"StatefulSet": broker_set(WISH, 3)}
        made |= {one["kind"]: one for one in controller_objects(WISH)}
        self.made = made[kind]
        self.name = self.made["metadata"]["name"]

    def wanted(self, replicas: int) -> Object:
        metadata = {**self.made["metadata"], "namespace": self.namespace}
        metadata.pop("ownerReferences", None)
        return stamped(
            {**self.made, "metadata": metadata, "spec": {**self.made["spec"], "replicas": replicas}}
        )

    async def seen(self) -> Observed:
        live = await self.kube.get(self.kind, self.namespace, self.name)
        objects = {} if live is None else {(self.kind, self.name): live}
        return Observed(objects=objects, pods={}, claims={}, brokers=None)

    async def scale(self, replicas: int, seen: Observed) -> None:
        names = replace(NAMES, namespace=self.namespace)
        wish = replace(WISH, names=names)
        await self.acting.carry_out(Apply(self.wanted(replicas)), self.body, wish, seen)

    async def replicas(self) -> int:
        live = (await self.seen()).live(self.kind, self.name)
        assert live is not None
        return int(live["spec"]["replicas"])


@pytest.fixture(params=["StatefulSet", "Deployment"])
async def operator(
    api_server: ApiServer, request: pytest.FixtureRequest
) -> AsyncIterator[Operator]:
    install_crds(api_server)
    found = Operator(api_server, request.param)
    await found.scale(3, await found.seen())
    yield found
    found.kube.close()


async def test_a_late_scale_down_is_refused_and_decided_again(operator: Operator) -> None:
    frozen = await operator.seen()
    for replicas in (0, 3):  # its successor lets the cluster sleep, and wakes it
        await operator.scale(replicas, await operator.seen())
    await operator.scale(0, frozen)
    assert await operator.replicas() == 3, "brokers that serve by now"
    await operator.scale(0, await operator.seen())
    assert await operator.replicas() == 0, "what is decided on what is there is done"


async def test_a_late_write_that_takes_no_pod_away_is_not_bound(operator: Operator) -> None:
    """It changes nothing that others have set since, and need not be decided again."""
    frozen = await operator.seen()
    assert as_decided(operator.wanted(5), frozen.live(operator.kind, operator.name)) == (
        operator.wanted(5)
    )
    assert as_decided(operator.wanted(0), None) == operator.wanted(0), "there is none to stop"
