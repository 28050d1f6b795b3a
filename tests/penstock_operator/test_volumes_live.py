"""A lost volume with real brokers and a real API server: looked at, decided, deleted, filled again.

Kubelets and the StatefulSet's controller are the test: it writes the pods' status, and gives the
broker an empty directory in place of the one whose claim went.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import TIMEOUTS, ApiServer
from support.cluster import PATIENT, Cluster
from support.operator_process import OURS, get, install_crds
from support.operator_world import NAMES, desired
from support.reachable import Reachable
from support.waiting import wait_until_async

from penstock.client import AsyncProducer
from penstock.core.manifest.containers import BROKER
from penstock.kubernetes.connect import connect
from penstock_operator.act import Acting
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import AnswerRequest, Observed, Wait
from penstock_operator.names import POD_INDEX, REPLACE_VOLUME
from penstock_operator.observe import Children, observe
from penstock_operator.plan.volumes import LOST, plan_volumes
from penstock_operator.volume_model import ReplaceVolume
from penstock_operator.volumes import GONE_S, HOSTNAME

MERGE = "application/merge-patch+json"
RECORDS = 200
TIMEOUT_S = 90.0


class Bench:
    """Three real brokers; the volume of broker 1 is on a node that is not there."""

    def __init__(self, server: ApiServer, servers: Cluster) -> None:
        self.server, self.servers = server, servers
        self.brokers = Reachable(servers.bootstrap)
        self.kube = Kube(connect("penstock-tests", TIMEOUTS, kubeconfig=str(server.kubeconfig)))
        self.seconds = 0.0
        self.children = Children(self.kube, lambda: self.seconds)
        self.acting = Acting(self.kube, self.brokers, Events(self.kube, "test"))
        self.names = replace(NAMES, namespace=server.namespace("volumes"))
        self.core = f"/api/v1/namespaces/{self.names.namespace}"
        self.cluster = f"{OURS}/namespaces/{self.names.namespace}/clusters"
        kind = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster"}
        self.body = server.request(
            "POST", self.cluster, {**kind, "metadata": {"name": self.names.cluster}, "spec": {}}
        )
        self._make_volume()
        for broker_id in range(3):
            self.make_claim(broker_id)
            self._make_pod(broker_id)

    def _make_volume(self) -> None:
        host = {"key": HOSTNAME, "operator": "In", "values": [self.names.namespace]}
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": "/data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}},
        }
        body = {"metadata": {"name": self.names.namespace}, "spec": spec}
        self.server.request("POST", "/api/v1/persistentvolumes", body)

    def make_claim(self, broker_id: int) -> None:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": self.names.namespace if broker_id == 1 else f"other-{broker_id}",
        }
        name, labels = self.names.claim(broker_id), self.names.labels(BROKER)
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        self.server.request("POST", f"{self.core}/persistentvolumeclaims", body)

    def _make_pod(self, broker_id: int) -> None:
        labels = {**self.names.labels(BROKER), POD_INDEX: str(broker_id)}
        name = self.names.pod(broker_id)
        spec = {"containers": [{"name": "broker", "image": "penstock:1"}]}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        self.server.request("POST", f"{self.core}/pods", body)
        kind, status = ("PodScheduled", "False") if broker_id == 1 else ("Ready", "True")
        shown = {"status": {"conditions": [{"type": kind, "status": status}]}}
        path = f"{self.core}/pods/{name}/status"
        self.server.request("PATCH", path, shown, Content_Type=MERGE)

    @property
    def claim(self) -> Any:
        """Of broker 1; None: it is gone, or goes once nothing protects it."""
        found = get(self.server, f"{self.core}/persistentvolumeclaims/{self.names.claim(1)}")
        gone = found is None or "deletionTimestamp" in found["metadata"]
        return None if gone else found

    @property
    def pod(self) -> Any:
        return get(self.server, f"{self.core}/pods/{self.names.pod(1)}")

    def take_pod(self) -> None:
        """A node takes it, and its broker is not ready."""
        conditions = [{"type": "PodScheduled", "status": "True"}]
        path = f"{self.core}/pods/{self.names.pod(1)}/status"
        shown = {"status": {"conditions": conditions}}
        self.server.request("PATCH", path, shown, Content_Type=MERGE)

    def make_node(self) -> None:
        """Under another name than its hostname."""
        name = self.names.namespace
        labels = {HOSTNAME: name}
        body = {"metadata": {"name": f"node-{name}", "labels": labels}}
        self.server.request("POST", "/api/v1/nodes", body)

    def drop_claim(self) -> None:
        """Somebody else deletes it, and it has gone at once."""
        path = f"{self.core}/persistentvolumeclaims/{self.names.claim(1)}"
        self.server.request("DELETE", path)
        if get(self.server, path) is not None:
            bare = {"metadata": {"finalizers": None}}
            self.server.request("PATCH", path, bare, Content_Type=MERGE)

    async def look(self, after_s: float, text: str = "") -> tuple[Observed, Any]:
        self.seconds += after_s
        wish = desired(names=self.names, replace_volume=text)
        self.children.dirty = True
        await self.children.read(self.names)
        seen = await observe(self.children, self.brokers, wish, {})
        return seen, plan_volumes(wish, seen, 3)

    async def act(self, seen: Observed, action: Any, text: str = "") -> None:
        wish = desired(names=self.names, replace_volume=text)
        await self.acting.carry_out(action, self.body, wish, seen)

    async def is_alive(self, wanted: bool) -> bool:
        facts, _ = await self.brokers.ask(desired(names=self.names))
        return facts is not None and facts.brokers[1].alive is wanted

    async def wait_alive(self, *, wanted: bool) -> None:
        await wait_until_async(
            lambda: self.is_alive(wanted), what="broker 1 as wanted", timeout_s=TIMEOUT_S
        )

    async def close(self) -> None:
        await self.brokers.close()
        self.kube.close()


@pytest.fixture
async def bench(api_server: ApiServer, tmp_path: Path) -> AsyncIterator[Bench]:
    install_crds(api_server)
    with Cluster(tmp_path, brokers=3, controller_config=PATIENT) as servers:
        made = Bench(api_server, servers)
        yield made
        await made.close()


async def due(bench: Bench) -> tuple[Observed, ReplaceVolume]:
    """Once nothing stands in the way."""
    found: list[tuple[Observed, ReplaceVolume]] = []

    async def is_due() -> bool:
        seen, (actions, _) = await bench.look(GONE_S)
        found.extend((seen, one) for one in actions if isinstance(one, ReplaceVolume))
        return bool(found)

    await wait_until_async(is_due, what="the volume may go", timeout_s=TIMEOUT_S)
    return found[-1]


async def test_a_lost_volume_is_replaced_and_filled_again(bench: Bench) -> None:
    admin = await bench.brokers.admin(desired(names=bench.names))
    await admin.create_topic("t", assignment=[[1, 0, 2], [0, 1, 2]])
    await admin.create_topic("only", assignment=[[1]])
    async with AsyncProducer(bench.servers.bootstrap) as producer:
        for at in range(RECORDS):
            await producer.send("t", b"some text", partition=at % 2)
    bench.servers.brokers[1].kill()
    await bench.wait_alive(wanted=False)

    _, (actions, (told,)) = await bench.look(0)
    assert (actions, told.reason) == ((), LOST)
    assert told.message.endswith("it is replaced once that has been so for 5 min")
    said: list[Wait] = []

    async def is_refused() -> bool:
        _, (actions, waits) = await bench.look(GONE_S)
        assert not actions
        said[:] = waits
        return any("nobody else has all records of only-0" in one.message for one in waits)

    await wait_until_async(is_refused, what="the only copy is named", timeout_s=TIMEOUT_S)
    assert bench.claim is not None
    await admin.delete_topic("only")

    seen, action = await due(bench)
    # The operator is frozen, and meanwhile the broker comes back.
    await asyncio.to_thread(bench.servers.brokers[1].restart)
    await bench.wait_alive(wanted=True)
    await bench.act(seen, action)
    assert bench.claim is not None, "it is needed by now"
    assert bench.pod is not None

    bench.servers.brokers[1].kill()
    await bench.wait_alive(wanted=False)
    seen, action = await due(bench)
    await bench.act(seen, action)
    assert bench.claim is None
    assert bench.pod is None

    await asyncio.to_thread(shutil.rmtree, bench.servers.data_dir(1))
    await asyncio.to_thread(bench.servers.brokers[1].restart)
    await asyncio.to_thread(bench.servers.wait_in_sync, "t")

    async def is_filled() -> bool:
        (held,) = await admin.describe_logs(broker_ids=[1])
        return sum(log.log_end_offset for log in held.logs) == RECORDS

    await wait_until_async(is_filled, what="broker 1 has all records", timeout_s=TIMEOUT_S)


async def test_another_claim_of_that_name_is_left_alone_and_so_is_its_pod(bench: Bench) -> None:
    bench.servers.brokers[1].kill()
    await bench.wait_alive(wanted=False)
    await bench.look(0)
    seen, action = await due(bench)
    bench.drop_claim()
    bench.make_claim(1)
    await bench.act(seen, action)
    assert bench.claim["metadata"]["uid"] != action.claim_uid
    assert bench.pod is not None


async def test_a_pod_that_a_node_has_taken_meanwhile_keeps_its_volume(bench: Bench) -> None:
    """The operator is frozen; the node comes back, and another one restarts the broker just now."""
    bench.servers.brokers[1].kill()
    await bench.wait_alive(wanted=False)
    await bench.look(0)
    seen, action = await due(bench)
    bench.take_pod()
    await bench.act(seen, action)
    assert bench.claim is not None
    assert bench.pod is not None


async def test_a_node_that_is_back_keeps_its_volume_before_it_takes_the_pod(bench: Bench) -> None:
    """It is not ready for a while, and the pod waits; the operator looked at it 10 s ago."""
    bench.servers.brokers[1].kill()
    await bench.wait_alive(wanted=False)
    await bench.look(0)
    seen, action = await due(bench)
    bench.make_node()
    await bench.act(seen, action)
    assert bench.claim is not None
    assert bench.pod is not None


async def test_a_request_is_bound_to_the_claim_and_taken_back_when_that_is_gone(
    bench: Bench,
) -> None:
    bench.servers.brokers[1].kill()
    await bench.wait_alive(wanted=False)
    _, (actions, _) = await bench.look(0, "1")
    uid = bench.claim["metadata"]["uid"]
    assert actions == (AnswerRequest(REPLACE_VOLUME, f"1@{uid}"),)
    bench.drop_claim()
    bench.make_claim(1)
    _, (actions, _) = await bench.look(0, f"1@{uid}")
    assert AnswerRequest(REPLACE_VOLUME, None) in actions
