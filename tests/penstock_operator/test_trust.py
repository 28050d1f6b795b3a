"""Copies of a cluster's trust in clients' namespaces: a real operator on a real API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.api_proxy import ApiProxy
from support.apiserver import ApiServer, start_api_server
from support.operator_process import OURS, get, install_crds, running
from support.waiting import wait_until

from penstock.kubernetes.names import ClusterNames, trust_copies_in, trust_copy_label
from penstock_operator.trust import CopyPlan, plan_copies

MERGE = "application/merge-patch+json"
NAME = "flights-trust"

# ------------------------------------------------------------ what is to be done


def copy(namespace: str, name: str = NAME, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "uid": "1"}, "data": data}


def test_who_asks_gets_a_copy_and_who_asks_no_more_loses_it() -> None:
    right, wrong, extra = copy("a", ca="x"), copy("b", ca="y"), copy("c", ca="x", more="z")
    unasked = copy("d", ca="x")
    plan = plan_copies({"ca": "x"}, ["e", "a", "b", "c"], [right, wrong, extra, unasked], NAME)
    assert plan == CopyPlan(["e"], [wrong, extra], [unasked])


def test_without_the_original_nothing_is_written_and_what_nobody_wants_goes() -> None:
    there, unasked = copy("a", ca="x"), copy("b", ca="x")
    assert plan_copies({}, ["a", "c"], [there, unasked], NAME) == CopyPlan(delete=[unasked])


def test_without_a_cluster_all_copies_go() -> None:
    there = copy("a", ca="x")
    assert plan_copies(None, ["a"], [there], NAME) == CopyPlan(delete=[there])


def test_other_config_maps_are_left_alone_whatever_their_labels() -> None:
    other = copy("a", "settings", ca="y")
    assert plan_copies({"ca": "x"}, ["a"], [other], NAME) == CopyPlan(["a"], [], [])
    assert plan_copies(None, ["a"], [other], NAME) == CopyPlan(delete=[])


def test_a_label_names_its_cluster() -> None:
    label = trust_copy_label(ClusterNames("flights", "air"))
    assert label == "flights.air.trust.penstock.dev/copy"
    two = trust_copy_label(ClusterNames("my.trains", "rail"))
    assert trust_copies_in([label, two, "a/b"]) == {("air", "flights"), ("rail", "my.trains")}
    long = trust_copy_label(ClusterNames("c" * 63, "n" * 63))
    assert len(long.partition("/")[0]) <= 253
    assert trust_copies_in(["x.trust.penstock.dev/copy"]) == set()


# ------------------------------------------------------------ a real operator


class Scene:
    """An operator behind a proxy that counts; `clusters` is the namespace of Clusters."""

    def __init__(self, server: ApiServer, path: Path, proxy: ApiProxy) -> None:
        self.server, self.path, self.proxy = server, path, proxy
        self.clusters = server.namespace("air")

    def operator(self, *watched: str) -> Any:
        kubeconfig = self.proxy.kubeconfig(self.path / "operator.kubeconfig")
        watch = ",".join(watched)
        return running(self.server, self.path, self.clusters, watch=watch, kubeconfig=kubeconfig)

    def make(self, cluster: str, certificate: str = "first") -> None:
        """A Strict Cluster, and its trust as its controllers would make it."""
        body = {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": cluster},
            "spec": {"brokers": 1, "security": {"mode": "Strict"}},
        }
        self.server.request("POST", f"{OURS}/namespaces/{self.clusters}/clusters", body)
        labels = {"penstock.dev/trust-of": cluster}
        made = {"metadata": {"name": f"{cluster}-trust", "labels": labels}}
        path = f"/api/v1/namespaces/{self.clusters}/configmaps"
        self.server.request("POST", path, {**made, "data": {"ca.crt": certificate}})

    def remove(self, cluster: str) -> None:
        self.server.request("DELETE", f"{OURS}/namespaces/{self.clusters}/clusters/{cluster}")

    def ask(self, namespace: str, cluster: str = "flights", *, asks: bool = True) -> None:
        label = trust_copy_label(ClusterNames(cluster, self.clusters))
        labels = {label: "" if asks else None}
        self.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})

    def client(self, cluster: str = "flights", *, asks: bool = True) -> str:
        namespace = self.server.namespace("client")
        if asks:
            self.ask(namespace, cluster)
        return namespace

    def merge(self, path: str, body: dict[str, Any]) -> None:
        self.server.request("PATCH", path, body, Content_Type=MERGE)

    def place(self, namespace: str, name: str = NAME) -> str:
        return f"/api/v1/namespaces/{namespace}/configmaps/{name}"

    def data(self, namespace: str, name: str = NAME) -> Any:
        """None: there is no such ConfigMap."""
        return (get(self.server, self.place(namespace, name)) or {}).get("data")

    def wait_data(self, namespace: str, expected: Any, name: str = NAME) -> None:
        wait_until(
            lambda: self.data(namespace, name) == expected,
            what=f"ConfigMap {namespace}/{name} has {expected}",
            timeout_s=60,
        )

    def events(self) -> list[str]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.clusters}/events"
        found = self.server.request("GET", path)["items"]
        return [each["note"] for each in found if each["reason"] == "TrustNotCopied"]


@pytest.fixture(scope="module")
def own_server() -> Iterator[ApiServer]:
    """An operator that watches everything would see the Clusters of other tests."""
    server, scratch = start_api_server()
    with scratch:
        try:
            install_crds(server)
            yield server
        finally:
            server.stop()


@pytest.fixture
def scene(own_server: ApiServer, tmp_path: Path) -> Iterator[Scene]:
    proxy = ApiProxy(own_server)
    made = Scene(own_server, tmp_path, proxy)
    try:
        yield made
        for cluster in ("flights", "trains"):
            path = f"{OURS}/namespaces/{made.clusters}/clusters/{cluster}"
            if get(own_server, path):
                own_server.request("DELETE", path)
    finally:
        proxy.close()


def test_a_copy_follows_the_original_as_long_as_somebody_asks_for_it(scene: Scene) -> None:
    first = {"ca.crt": "first"}
    scene.make("flights")
    before, bystander = scene.client(), scene.client(asks=False)
    with scene.operator():
        scene.wait_data(before, first)
        later = scene.client()
        scene.wait_data(later, first)
        both = {"ca.crt": "first\nsecond", "notes": "a rotation"}
        scene.merge(scene.place(scene.clusters), {"data": both})
        for namespace in (before, later):
            scene.wait_data(namespace, both)
        scene.merge(scene.place(scene.clusters), {"data": {**first, "notes": None}})
        scene.wait_data(before, first)
        scene.merge(scene.place(before), {"data": {"ca.crt": "of somebody else"}})
        scene.wait_data(before, first)
        scene.server.request("DELETE", scene.place(before))
        scene.wait_data(before, first)
        scene.ask(later, asks=False)
        scene.wait_data(later, None)
        assert scene.data(bystander) is None
        scene.remove("flights")
        scene.wait_data(before, None)


def test_a_namespace_may_have_copies_of_several_clusters(scene: Scene) -> None:
    scene.make("flights", "of flights")
    scene.make("trains", "of trains")
    namespace = scene.client()
    scene.ask(namespace, "trains")
    with scene.operator():
        scene.wait_data(namespace, {"ca.crt": "of flights"})
        scene.wait_data(namespace, {"ca.crt": "of trains"}, "trains-trust")
        scene.ask(namespace, asks=False)
        scene.wait_data(namespace, None)
        assert scene.data(namespace, "trains-trust") == {"ca.crt": "of trains"}


def test_a_namespace_that_is_made_again_gets_its_copy_again(scene: Scene) -> None:
    with scene.operator():
        scene.make("flights")
        namespace = scene.client()
        scene.wait_data(namespace, {"ca.crt": "first"})
        place = f"/api/v1/namespaces/{namespace}"
        scene.server.request("DELETE", place)
        # What the controller of namespaces does; none runs here.
        scene.server.request("DELETE", scene.place(namespace))
        finalized = {"metadata": {"name": namespace}, "spec": {"finalizers": []}}
        scene.server.request("PUT", f"{place}/finalize", finalized)
        wait_until(lambda: get(scene.server, place) is None, what="the namespace is gone")
        after_passes(scene)
        labels = {trust_copy_label(ClusterNames("flights", scene.clusters)): ""}
        again = {"metadata": {"name": namespace, "labels": labels}}
        scene.server.request("POST", "/api/v1/namespaces", again)
        scene.wait_data(namespace, {"ca.crt": "first"})


def test_a_config_map_of_somebody_else_is_left_alone(scene: Scene) -> None:
    namespace, other = scene.client(), scene.client(asks=False)
    theirs = {"metadata": {"name": NAME}, "data": {"ca.crt": "theirs"}}
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    scene.server.request("POST", path, theirs)
    scene.make("flights")
    with scene.operator():
        wait_until(scene.events, what="an event says so", timeout_s=60)
        assert f"cannot copy its trust to ConfigMap {namespace}/{NAME}" in scene.events()[0]
        assert "left alone" in scene.events()[0]
        scene.ask(other)  # it holds up nothing else
        scene.wait_data(other, {"ca.crt": "first"})
        scene.remove("flights")
        scene.wait_data(other, None)
    assert scene.data(namespace) == {"ca.crt": "theirs"}


def test_copies_of_a_cluster_that_went_while_no_operator_ran_are_deleted(scene: Scene) -> None:
    scene.make("flights")
    namespace = scene.client()
    with scene.operator():
        scene.wait_data(namespace, {"ca.crt": "first"})
    scene.remove("flights")
    with scene.operator():
        scene.wait_data(namespace, None)


def test_at_rest_nothing_is_listed_or_written(scene: Scene) -> None:
    scene.make("flights")
    namespace = scene.client()
    with scene.operator():
        scene.wait_data(namespace, {"ca.crt": "first"})
        after_passes(scene)
        before = scene.proxy.calls.copy()
        after_passes(scene)
        for call in ("GET namespaces", "GET configmaps", "PATCH configmaps", "POST configmaps"):
            assert scene.proxy.calls[call] == before[call], call


def after_passes(scene: Scene) -> None:
    """A Cluster without brokers makes one every second."""
    seen = scene.proxy.calls["GET clusters"]
    wait_until(lambda: scene.proxy.calls["GET clusters"] >= seen + 4, what="four passes")


def test_an_operator_of_some_namespaces_copies_within_these(scene: Scene) -> None:
    within, without = scene.client(), scene.client()
    scene.make("flights")
    with scene.operator(scene.clusters, within):
        scene.wait_data(within, {"ca.crt": "first"})
        assert not any("without" in note for note in scene.events())
    assert scene.data(without) is None
