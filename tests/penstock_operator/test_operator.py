"""The operator's process against a real API server: it accepts what we build, and is left alone.

No kubelets here: pods never appear, so a Cluster stays `Creating`; what pods do is e2e's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.operator_process import OURS, Operator, condition, get, install_crds, running
from support.waiting import wait_until

from penstock.kubernetes.names import APPROVE
from penstock_operator.names import ASLEEP, TEMPLATE_HASH

SPEC = {"brokers": 3, "config": {"min.insync.replicas": 2, "cache.bytes": 1_000_000}}


@pytest.fixture
def server(api_server: ApiServer) -> ApiServer:
    install_crds(api_server)
    return api_server


@pytest.fixture
def namespace(server: ApiServer) -> str:
    return server.namespace("operator")


@pytest.fixture
def operator(server: ApiServer, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    with running(server, tmp_path, namespace) as operator:
        yield operator


def create(server: ApiServer, namespace: str, kind: str, name: str, **spec: Any) -> Any:
    body = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    return server.request("POST", f"{OURS}/namespaces/{namespace}/{kind.lower()}s", body)


def cluster(server: ApiServer, namespace: str, name: str = "flights") -> Any:
    return get(server, f"{OURS}/namespaces/{namespace}/clusters/{name}")


def patch(server: ApiServer, path: str, body: Any) -> Any:
    return server.request("PATCH", path, body, Content_Type="application/merge-patch+json")


def test_a_cluster_gets_all_its_objects_and_a_status_that_tells(
    server: ApiServer, namespace: str, operator: Operator
) -> None:
    created = create(server, namespace, "Cluster", "flights", **SPEC)
    assert condition(created, "Ready")["status"] == "Unknown", "true from second zero"
    sts = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/flights-broker"
    wait_until(lambda: get(server, sts), what="the StatefulSet")
    for path in (
        f"/apis/apps/v1/namespaces/{namespace}/deployments/flights-controller",
        f"/api/v1/namespaces/{namespace}/services/flights-brokers",
        f"/api/v1/namespaces/{namespace}/services/flights-bootstrap",
        f"/api/v1/namespaces/{namespace}/services/flights-controllers",
        f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/flights-broker",
        f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/flights-broker",
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/flights-controller-288352d7",
    ):
        assert get(server, path), path
    args = get(server, sts)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--config=cache.bytes=1000000" in args
    assert not [each for each in args if "min.insync" in each], "that one is the controllers'"

    def told() -> bool:
        seen = cluster(server, namespace)
        return bool(condition(seen, "Reconciling").get("status") == "True")

    wait_until(told, what="a status")
    seen = cluster(server, namespace)
    assert condition(seen, "Ready")["status"] == "False"
    assert "pod flights-broker-0 is being created" in condition(seen, "Reconciling")["message"]
    assert seen["status"]["observedGeneration"] == seen["metadata"]["generation"]
    assert seen["status"]["phase"] == "Creating"


def test_what_drifts_is_healed_and_at_rest_nothing_is_written(
    server: ApiServer, namespace: str, operator: Operator
) -> None:
    peers = [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]
    external = {"type": "NodePort", "host": "penstock.example"}
    more = {"allowFrom": {"clients": peers, "metrics": peers}, "external": external}
    create(server, namespace, "Cluster", "flights", **SPEC, **more)
    service = f"/api/v1/namespaces/{namespace}/services/flights-bootstrap"
    wait_until(lambda: get(server, service), what="the Service")
    patch(server, service, {"spec": {"selector": {"wrong": "selector"}}})

    def healed() -> bool:
        selector = get(server, service)["spec"]["selector"]
        return "penstock.dev/cluster" in selector and "wrong" not in selector

    wait_until(healed, what="the Service is healed")
    passes = "penstock_operator_reconcile_seconds_count"

    def at_rest() -> bool:
        """Eight passes without a write, but for the Lease's renewals."""
        before = operator.metric(passes), operator.metric("penstock_operator_api_writes")
        wait_until(lambda: operator.metric(passes) >= before[0] + 8, what="eight passes")
        return operator.metric("penstock_operator_api_writes") - before[1] <= 5

    wait_until(at_rest, what="no more writes", timeout_s=60)


def test_a_spec_that_cannot_be_carried_out_is_refused_in_the_status(
    server: ApiServer, namespace: str, operator: Operator
) -> None:
    # The schema cannot know that the Service of this name is somebody else's.
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "flights-brokers"},
        "spec": {"ports": [{"port": 1}]},
    }
    server.request("POST", f"/api/v1/namespaces/{namespace}/services", body)
    create(server, namespace, "Cluster", "flights", **SPEC)

    def stalled() -> bool:
        return condition(cluster(server, namespace), "Stalled").get("reason") == "NameTaken"

    wait_until(stalled, what="the Cluster is Stalled")
    apps = f"/apis/apps/v1/namespaces/{namespace}"
    wait_until(lambda: get(server, f"{apps}/deployments/flights-controller"), what="controllers")
    brokers = f"{apps}/statefulsets/flights-broker"
    assert get(server, brokers) is None, "its pods would have no names"
    server.request("DELETE", f"/api/v1/namespaces/{namespace}/services/flights-brokers")
    wait_until(lambda: get(server, brokers), what="it goes on by itself", timeout_s=60)


def test_a_paused_cluster_is_left_alone(
    server: ApiServer, namespace: str, operator: Operator
) -> None:
    create(server, namespace, "Cluster", "flights", **SPEC)
    service = f"/api/v1/namespaces/{namespace}/services/flights-bootstrap"
    wait_until(lambda: get(server, service), what="the Service")
    mine = f"{OURS}/namespaces/{namespace}/clusters/flights"
    patch(server, mine, {"metadata": {"annotations": {"penstock.dev/paused": "true"}}})

    def paused() -> bool:
        return bool((cluster(server, namespace).get("status") or {}).get("phase") == "Paused")

    wait_until(paused, what="the Cluster says so")
    server.request("DELETE", service)
    patch(server, mine, {"spec": {"brokers": 4}})
    wait_until(
        lambda: cluster(server, namespace)["status"]["observedGeneration"] == 2, what="it was seen"
    )
    assert get(server, service) is None
    patch(server, mine, {"metadata": {"annotations": {"penstock.dev/paused": None}}})
    wait_until(lambda: get(server, service), what="it goes on")


def test_topics_without_their_cluster_wait_and_can_be_deleted(
    server: ApiServer, namespace: str, operator: Operator
) -> None:
    create(server, namespace, "Topic", "t", cluster="nowhere", deletionPolicy="Delete")
    topic = f"{OURS}/namespaces/{namespace}/topics/t"

    def waits() -> bool:
        return condition(get(server, topic), "Ready").get("reason") == "NoCluster"

    wait_until(waits, what="the Topic says what it waits for")
    server.request("DELETE", topic)
    wait_until(lambda: get(server, topic) is None, what="no finalizer holds it")


def test_a_topic_is_checked_against_its_clusters_spec(
    server: ApiServer, namespace: str, operator: Operator
) -> None:
    create(server, namespace, "Cluster", "flights", brokers=2)
    create(server, namespace, "Topic", "t", cluster="flights", replicas=3)
    topic = f"{OURS}/namespaces/{namespace}/topics/t"

    def refused() -> bool:
        return condition(get(server, topic), "Ready").get("reason") == "InvalidSpec"

    wait_until(refused, what="the Topic is refused")
    assert "Cluster/flights has 2 brokers" in condition(get(server, topic), "Ready")["message"]


def test_one_operator_leads_and_another_takes_over(
    server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    with (
        running(server, tmp_path, namespace) as first,
        running(server, tmp_path, namespace) as second,
    ):
        wait_until(lambda: first.leads or second.leads, what="one leads", timeout_s=30)
        active, standby = (first, second) if first.leads else (second, first)
        wait_until(lambda: standby.is_up, what="the other stands by", timeout_s=30)
        assert not standby.leads
        assert active.stop() == 0
        wait_until(lambda: standby.leads, what="the other leads", timeout_s=30)
        create(server, namespace, "Cluster", "flights", **SPEC)
        path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/flights-broker"
        wait_until(lambda: get(server, path), what="it reconciles")


def test_consumer_groups_without_their_cluster_wait_and_can_be_deleted(
    server: ApiServer, namespace: str, operator: Operator
) -> None:
    create(server, namespace, "ConsumerGroup", "g", cluster="nowhere", deletionPolicy="Delete")
    path = f"{OURS}/namespaces/{namespace}/consumergroups/g"

    def waits() -> bool:
        return condition(get(server, path), "Ready").get("reason") == "NoCluster"

    wait_until(waits, what="the ConsumerGroup says what it waits for")
    held = {"metadata": {"finalizers": ["penstock.dev/consumer-group"]}}
    patch(server, path, held)  # as if its Cluster had been there once
    server.request("DELETE", path)
    wait_until(lambda: get(server, path) is None, what="no finalizer holds it")


def test_a_consumer_group_waits_for_the_brokers_of_its_cluster(
    server: ApiServer, namespace: str, operator: Operator
) -> None:
    create(server, namespace, "Cluster", "flights", **SPEC)
    create(server, namespace, "ConsumerGroup", "g", cluster="flights", deletionPolicy="Delete")
    path = f"{OURS}/namespaces/{namespace}/consumergroups/g"

    def waits() -> bool:
        return condition(get(server, path), "Ready").get("reason") == "ClusterNotServing"

    wait_until(waits, what="the ConsumerGroup says what it waits for")
    seen = get(server, path)
    assert seen["metadata"]["finalizers"] == ["penstock.dev/consumer-group"]
    assert "no broker is ready yet" in seen["status"]["message"]


def test_another_operator_offers_its_image_and_template_and_waits_until_they_are_approved(
    server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    apps = f"/apis/apps/v1/namespaces/{namespace}"
    workloads = f"{apps}/statefulsets/flights-broker", f"{apps}/deployments/flights-controller"
    mine = f"{OURS}/namespaces/{namespace}/clusters/flights"

    def images() -> set[str]:
        found = [get(server, path)["spec"]["template"]["spec"] for path in workloads]
        return {spec["containers"][0]["image"] for spec in found}

    def upgrade() -> Any:
        return (get(server, mine).get("status") or {}).get("upgrade") or {}

    with running(server, tmp_path, namespace):
        create(server, namespace, "Cluster", "flights", **SPEC)
        wait_until(lambda: all(get(server, path) for path in workloads), what="the objects")
        wait_until(lambda: upgrade().get("available") is False, what="nothing is offered")
    # As if it had been an operator with another template.
    older = {"metadata": {"annotations": {TEMPLATE_HASH: "older"}}}
    patch(server, workloads[0], {"spec": {"template": older}})
    patch(server, workloads[1], older)
    before = [get(server, path)["spec"]["template"] for path in workloads]
    with running(server, tmp_path, namespace, options=["--broker-image=penstock-broker:next"]):
        wait_until(lambda: upgrade().get("available"), what="it is offered", timeout_s=60)
        assert [get(server, path)["spec"]["template"] for path in workloads] == before
        offered = upgrade()
        assert (offered["from"], offered["to"]) == ("penstock-broker:test", "penstock-broker:next")
        patch(server, mine, {"spec": {"brokers": 4}})
        wait_until(lambda: get(server, workloads[0])["spec"]["replicas"] == 4, what="it scales")
        assert get(server, workloads[0])["spec"]["template"] == before[0], "applied as it is"
        assert upgrade() == offered
        patch(server, mine, {"metadata": {"annotations": {APPROVE: offered["plan"]}}})
        wait_until(lambda: images() == {"penstock-broker:next"}, what="it is taken", timeout_s=60)
        wait_until(lambda: upgrade()["available"] is False, what="nothing is left", timeout_s=60)


def test_a_cluster_sleeps_quietly_and_wakes(
    server: ApiServer, namespace: str, operator: Operator
) -> None:
    """No pod ever runs here, so it is asleep from the first pass; a kubelet's word is played."""
    create(server, namespace, "Cluster", "flights", **SPEC, hibernate=True)
    create(server, namespace, "Topic", "orders", cluster="flights")
    create(server, namespace, "ConsumerGroup", "readers", cluster="flights")
    apps = f"/apis/apps/v1/namespaces/{namespace}"
    brokers = f"{apps}/statefulsets/flights-broker"
    controllers = f"{apps}/deployments/flights-controller"

    def at(phase: str) -> bool:
        return bool(cluster(server, namespace).get("status", {}).get("phase") == phase)

    def reason(kind: str, name: str) -> str:
        found = get(server, f"{OURS}/namespaces/{namespace}/{kind}/{name}")
        return str(condition(found, "Ready").get("reason"))

    def exported(value: int) -> bool:
        series = f'cluster_hibernated{{cluster="flights",namespace="{namespace}"}} {value}.0'
        return series in operator.ask("/metrics")

    wait_until(lambda: at("Hibernated"), what="it sleeps")
    wait_until(lambda: exported(1), what="alerts know it")
    assert get(server, brokers)["spec"]["replicas"] == 0
    assert get(server, brokers)["metadata"]["annotations"][ASLEEP] == "3"
    assert get(server, controllers)["spec"]["replicas"] == 0
    seen = cluster(server, namespace)
    assert condition(seen, "Ready")["reason"] == "Hibernated"
    assert condition(seen, "Stalled")["status"] == "False"

    def rests() -> bool:
        found = cluster(server, namespace)
        return bool(condition(found, "Reconciling").get("status") == "False")

    wait_until(rests, what="nothing is left to do")
    for kind, name in (("topics", "orders"), ("consumergroups", "readers")):
        wait_until(lambda k=kind, n=name: reason(k, n) == "Hibernated", what=f"{name} waits")  # type: ignore[misc]  # mypy infers no type for a defaulted parameter
    patch(server, f"{OURS}/namespaces/{namespace}/clusters/flights", {"spec": {"brokers": 4}})
    wait_until(lambda: cluster(server, namespace)["status"]["brokers"]["desired"] == 4, what="seen")
    assert get(server, brokers)["spec"]["replicas"] == 0

    awake = {"spec": {"hibernate": False}}
    patch(server, f"{OURS}/namespaces/{namespace}/clusters/flights", awake)
    wait_until(lambda: get(server, controllers)["spec"]["replicas"] == 2, what="controllers")
    wait_until(lambda: at("Waking"), what="it says so")
    wait_until(lambda: exported(0), what="alerts count again")
    assert get(server, brokers)["spec"]["replicas"] == 0, "no controller is there yet"
    running_one = {"status": {"replicas": 2, "readyReplicas": 1, "availableReplicas": 1}}
    patch(server, f"{controllers}/status", running_one)
    wait_until(lambda: get(server, brokers)["spec"]["replicas"] == 4, what="brokers")
    assert ASLEEP not in get(server, brokers)["metadata"]["annotations"]
