"""An upgrade is finalized with real brokers and a real API server, which remembers since when.

The plan sees what real brokers say, and the Kubernetes objects of a settled world.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.cluster import PATIENT, Cluster
from support.operator_process import OURS, get, install_crds
from support.operator_world import NAMES, desired, settled
from support.reachable import Reachable
from support.waiting import wait_until_async

from penstock.core.manifest.upkeep import FinalizePolicy
from penstock.kubernetes.connect import connect
from penstock_operator.act import Acting
from penstock_operator.events import Events
from penstock_operator.format_model import FORMAT_PENDING, FinalizeFormat, FormatSaid
from penstock_operator.kube import Kube
from penstock_operator.metrics import Metrics
from penstock_operator.model import Plan
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.finalize import FINALIZED_AFTER
from penstock_operator.report import Reporting

TIMEOUT_S = 90.0


class Bench:
    """Two real brokers, and what Kubernetes would show of them."""

    def __init__(self, server: ApiServer, servers: Cluster) -> None:
        self.server, self.servers = server, servers
        self.brokers = Reachable(servers.bootstrap)
        self.kube = Kube(connect("penstock-tests", TIMEOUTS, kubeconfig=str(server.kubeconfig)))
        names = replace(NAMES, namespace=server.namespace("finalize"))
        made = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster"}
        spec = {"brokers": 2, "upgrade": {"finalize": "Automatic"}}
        where = f"{OURS}/namespaces/{names.namespace}/clusters"
        body = {**made, "metadata": {"name": names.cluster}, "spec": spec}
        server.request("POST", where, body)
        self.path = f"{where}/{names.cluster}"
        self.events_path = f"/apis/events.k8s.io/v1/namespaces/{names.namespace}/events"
        self.wish = desired(2, names=names, spec_finalize=FinalizePolicy.AUTOMATIC)
        self.world = settled(desired(2), partitions=0)
        self.another_operator()

    def another_operator(self) -> None:
        events = Events(self.kube, "test")
        self.acting = Acting(self.kube, self.brokers, events)
        self.reporting = Reporting(self.kube, events, Metrics())

    @property
    def body(self) -> Any:
        return get(self.server, self.path)

    @property
    def since(self) -> str:
        return FormatSaid.of(self.body["status"]).since

    async def step(self, at: str) -> Plan:
        """One pass at this time, with what an operator knows that has just started."""
        body = self.body
        facts, problem = await self.brokers.ask(self.wish)
        assert facts is not None, problem
        moves, problem = await self.brokers.moves(self.wish, ())
        assert moves is not None, problem
        observed = replace(
            self.world.observed(),
            brokers=facts,
            moves=moves,
            recorded_cluster_id=facts.cluster_id,
            at=at,
            format_said=FormatSaid.of(body.get("status") or {}),
        )
        plan = plan_cluster(self.wish, observed)
        for action in plan.actions:
            if isinstance(action, FinalizeFormat):
                await self.acting.carry_out(action, body, self.wish, observed)
        await self.reporting.report(body, self.wish, observed, plan)
        return plan

    async def format(self) -> int:
        return (await (await self.brokers.admin(self.wish)).describe_moves()).format

    def told(self, reason: str) -> list[str]:
        items = self.server.request("GET", self.events_path)["items"]
        return [each["note"] for each in items if each["reason"] == reason]


@pytest.fixture
async def bench(api_server: ApiServer, tmp_path: Path) -> AsyncIterator[Bench]:
    install_crds(api_server)
    with Cluster(tmp_path, brokers=2, controller_config=PATIENT) as servers:
        made = Bench(api_server, servers)
        yield made
        await made.brokers.close()
        made.kube.close()


def later(since: str) -> str:
    return f"{datetime.fromisoformat(since) + FINALIZED_AFTER:%Y-%m-%dT%H:%M:%SZ}"


async def test_another_operator_finalizes_an_hour_after_the_first_saw_that_it_can(
    bench: Bench,
) -> None:
    admin = await bench.brokers.admin(bench.wish)
    await bench.step("2026-01-01T00:00:00Z")
    assert bench.since == "", "a new cluster has the newest format"
    await admin.finalize(1)
    await bench.step("2026-01-01T00:00:01Z")
    since = bench.since
    assert since
    written = bench.body["metadata"]["resourceVersion"]
    await bench.step(since)
    assert bench.body["metadata"]["resourceVersion"] == written, "at rest nothing is written"
    bench.another_operator()
    await bench.step(since)
    assert await bench.format() == 1
    await bench.step(later(since))
    assert await bench.format() == 2
    assert bench.told("Finalized") == [
        "the stored metadata has format 2: the release before can no longer be started"
    ]
    (note,) = bench.told(FORMAT_PENDING)
    assert "could have 2: every broker and controller runs a release that reads it" in note
    await bench.step(later(since))
    assert bench.since == ""


async def test_what_the_controller_refuses_is_said(bench: Bench) -> None:
    """The broker has died after it was looked at, before the controller was asked."""
    admin = await bench.brokers.admin(bench.wish)
    await admin.finalize(1)
    await bench.step("2026-01-01T00:00:01Z")
    bench.servers.brokers[1].kill()

    async def is_dead() -> bool:
        brokers = (await admin.describe_moves()).brokers
        return any(not one.alive for one in brokers)

    await wait_until_async(is_dead, what="broker 1 is dead", timeout_s=TIMEOUT_S)
    plan = await bench.step(later(bench.since))
    assert not any(isinstance(each, FinalizeFormat) for each in plan.actions), "it knows, too"
    observed = bench.world.observed()
    await bench.acting.carry_out(FinalizeFormat(2), bench.body, bench.wish, observed)
    assert await bench.format() == 1
    (note,) = bench.told("FinalizeRefused")
    assert note.startswith("format 2 is not stored yet: ")
    assert "broker 1 has no session" in note
