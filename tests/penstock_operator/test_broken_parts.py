"""I28 with a real API server: one wrong field, one name taken, one kind that cannot be listed.

Volumes grow all the while: they are what must not wait.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.api_proxy import ApiProxy, Kind
from support.apiserver import ApiServer
from support.operator_process import OURS, condition, get, install_crds, running
from support.waiting import wait_until

STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SPEC = {"brokers": 1, "security": {"mode": "Disabled"}, "storage": {"size": "1Gi"}}
MERGE = "application/merge-patch+json"


class Bench:
    """The Cluster `flights` and the volume of its broker, with an operator behind a proxy."""

    def __init__(self, server: ApiServer, proxy: ApiProxy, namespace: str) -> None:
        self._server, self.proxy = server, proxy
        core = f"/api/v1/namespaces/{namespace}"
        self.services = f"{core}/services"
        self._claims = f"{core}/persistentvolumeclaims"
        self._cluster = f"{OURS}/namespaces/{namespace}/clusters"
        self.workload = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/flights-broker"
        self._size = 1

    def make(self, path: str, name: str, **body: Any) -> None:
        metadata = {"name": name, **body.pop("metadata", {})}
        self._server.request("POST", path, {"metadata": metadata, **body})

    def make_cluster(self, **changes: Any) -> None:
        kind = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster"}
        self.make(self._cluster, "flights", **kind, spec={**SPEC, **changes})

    def make_topic(self) -> None:
        kind = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Topic"}
        path = self._cluster.replace("/clusters", "/topics")
        self.make(path, "t", **kind, spec={"cluster": "flights"})

    def make_claim(self, namespace: str) -> None:
        """As the StatefulSet's controller makes it; there is none here."""
        grows = {"provisioner": "example.com/none", "allowVolumeExpansion": True}
        self.make(STORAGE_CLASSES, namespace, **grows)
        claim = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": namespace,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        labels = {"penstock.dev/cluster": "flights", "app.kubernetes.io/component": "broker"}
        name = "data-flights-broker-0"
        self.make(self._claims, name, metadata={"labels": labels}, spec=claim)
        # A volume that is not bound cannot grow.
        self.patch(f"{self._claims}/{name}", {"spec": {"volumeName": "volume"}})
        bound = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
        self.patch(f"{self._claims}/{name}/status", {"status": bound})

    def patch(self, path: str, body: Any) -> None:
        self._server.request("PATCH", path, body, Content_Type=MERGE)

    def change(self, **spec: Any) -> None:
        self.patch(f"{self._cluster}/flights", {"spec": spec})

    def grow(self, why: str) -> None:
        """The size changes, and the volume follows."""
        self._size += 1
        size = f"{self._size}Gi"
        self.change(storage={"size": size})

        def grown() -> bool:
            claim = self.get(f"{self._claims}/data-flights-broker-0")
            return bool(claim["spec"]["resources"]["requests"]["storage"] == size)

        wait_until(grown, what=f"the volume has {size}, although {why}", timeout_s=60)

    def get(self, path: str) -> Any:
        return get(self._server, path)

    def delete(self, path: str) -> None:
        self._server.request("DELETE", path)

    def stalled(self) -> dict[str, Any]:
        return condition(self.get(f"{self._cluster}/flights"), "Stalled")

    def says(self, words: str) -> bool:
        shown = condition(self.get(f"{self._cluster}/flights"), "Reconciling")
        return words in str(shown.get("message"))


@pytest.fixture
def bench(api_server: ApiServer, tmp_path: Path) -> Iterator[Bench]:
    install_crds(api_server)
    namespace = api_server.namespace("broken")
    proxy = ApiProxy(api_server)
    kubeconfig = proxy.kubeconfig(tmp_path / "kubeconfig")
    options = ["--allowed-images=mirror/*"]
    with running(api_server, tmp_path, namespace, kubeconfig=kubeconfig, options=options):
        made = Bench(api_server, proxy, namespace)
        made.make_claim(namespace)
        yield made
    proxy.close()


def listing(plural: str) -> Callable[[str, str], bool]:
    """Fits what a worker lists; not the watches, which say that something changed."""

    def fits(method: str, path: str) -> bool:
        return (
            method == "GET"
            and path.partition("?")[0].endswith(f"/{plural}")
            and (
                "labelSelector=penstock.dev" in path if plural != "topics" else "watch" not in path
            )
        )

    return fits


def test_a_volume_grows_whatever_cannot_be_listed(bench: Bench) -> None:
    bench.make_cluster()
    wait_until(lambda: bench.get(bench.workload), what="the StatefulSet")
    for plural, told in (
        ("serviceaccounts", "ServiceAccounts cannot be read, and stay as they are: "),
        ("roles", "Roles cannot"),
        ("rolebindings", "RoleBindings cannot"),
        ("services", "Services cannot"),
        ("networkpolicies", "NetworkPolicies cannot"),
        ("poddisruptionbudgets", "PodDisruptionBudgets cannot"),
        ("deployments", "Deployments cannot"),
        ("statefulsets", "StatefulSets cannot"),
        ("pods", "Pods cannot"),
    ):
        bench.proxy.plant(Kind.STATUS, fits=listing(plural), times=None, status=403)
        bench.grow(f"{plural} cannot be listed")
        wait_until(partial(bench.says, told), what=f"it says {told}", timeout_s=60)
        bench.proxy.heal()


def test_a_volume_grows_while_topics_cannot_be_listed(bench: Bench) -> None:
    bench.make_cluster()
    wait_until(lambda: bench.get(bench.workload), what="the StatefulSet")
    bench.proxy.plant(Kind.STATUS, fits=listing("topics"), times=None, status=403)
    bench.make_topic()  # so that Topics are listed again
    told = "Topics wait, and nothing else does: "
    wait_until(partial(bench.says, told), what=f"it says {told}", timeout_s=60)
    bench.grow("Topics cannot be listed")
    bench.proxy.heal()
    wait_until(lambda: not bench.says(told), what="they are read again", timeout_s=60)


def test_what_cannot_be_listed_is_not_taken_for_absent_and_is_healed_later(bench: Bench) -> None:
    bench.make_cluster()
    service = f"{bench.services}/flights-bootstrap"
    wait_until(lambda: bench.get(service), what="the Service")
    bench.proxy.plant(Kind.STATUS, fits=listing("services"), times=None, status=403)
    bench.delete(service)
    bench.grow("Services cannot be listed")
    assert bench.get(service) is None, "it is not known that it is missing"
    bench.proxy.heal()
    wait_until(lambda: bench.get(service), what="it is made again", timeout_s=60)


def test_a_refused_image_and_a_taken_name_hold_up_nothing_else(bench: Bench) -> None:
    bench.make(bench.services, "flights-bootstrap", spec={"ports": [{"port": 1}]})
    bench.make_cluster()
    wait_until(lambda: bench.get(bench.workload), what="the StatefulSet")
    before = bench.get(bench.workload)["spec"]["template"]
    bench.change(image="elsewhere/penstock:1")
    bench.grow("the image is refused")
    said = (
        "spec.image is elsewhere/penstock:1",
        "Service flights-bootstrap exists but does not belong",
    )

    def told() -> bool:
        return all(words in bench.stalled().get("message", "") for words in said)

    wait_until(told, what="both problems are shown", timeout_s=60)
    headless = f"{bench.services}/flights-brokers"
    bench.delete(headless)
    wait_until(lambda: bench.get(headless), what="a Service is healed", timeout_s=60)
    bench.delete(bench.workload)
    wait_until(lambda: bench.get(bench.workload), what="the StatefulSet is healed", timeout_s=60)
    assert bench.get(bench.workload)["spec"]["template"] == before, "as it was last right"
    bench.change(image=None)
    bench.delete(f"{bench.services}/flights-bootstrap")
    wait_until(lambda: bench.stalled().get("status") == "False", what="all is well", timeout_s=60)
