"""What a Cluster gets that does not say how secure it is, against a real API server."""

from typing import Any

import pytest
import yaml
from support.apiserver import TIMEOUTS, ApiServer, start_api_server
from support.operator_process import CRDS, OURS, ROOT, install_crds
from support.operator_world import desired
from support.waiting import wait_until

from penstock.core.manifest.objects import SecurityMode
from penstock.kubernetes.connect import connect
from penstock_operator.defaults import with_defaults
from penstock_operator.kube import Kube
from penstock_operator.model import Severity
from penstock_operator.names import Names
from penstock_operator.objects import Installation, Section, read_cluster
from penstock_operator.objects.broker import broker_set


def older_crd() -> Any:
    """Of Clusters, without most of their fields."""
    crd = yaml.safe_load((ROOT / "crds" / "clusters.yaml").read_text())
    spec = {"type": "object", "properties": {"brokers": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"spec": spec}}
    (version,) = crd["spec"]["versions"]
    crd["spec"]["versions"] = [
        {
            "name": version["name"],
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
        }
    ]
    return crd


async def test_a_new_cluster_is_not_made_in_plaintext_because_the_crd_is_too_old() -> None:
    server, scratch = start_api_server()
    kube = Kube(connect("tests", TIMEOUTS, kubeconfig=str(server.kubeconfig)))
    try:
        server.request("POST", CRDS, older_crd())
        namespace = server.namespace("old")
        body = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster",
                "metadata": {"name": "flights"}, "spec": {"brokers": 1}}  # fmt: skip

        def made() -> Any:
            try:
                return server.request("POST", f"{OURS}/namespaces/{namespace}/clusters", body)
            except OSError:  # the CRD is not served yet
                return None

        cluster = wait_until(made, what="a Cluster")
        as_it_was, undecided = await with_defaults(kube, cluster)
    finally:
        kube.close()
        server.stop()
        scratch.cleanup()
    assert as_it_was == cluster
    assert undecided is not None
    assert "has no spec.security: apply the CRDs" in undecided.message
    wish = read_cluster(cluster, Installation("penstock-broker:1"), None, undecided)
    assert not wish.knows(Section.TEMPLATE), "nothing is made from it"
    assert undecided in wish.refusals


@pytest.mark.parametrize("mode", list(SecurityMode))
async def test_a_cluster_gets_the_mode_of_the_brokers_that_another_one_has_orphaned(
    mode: SecurityMode, api_server: ApiServer
) -> None:
    """`kubectl delete cluster --cascade=orphan`, and the same manifest again."""
    install_crds(api_server)
    namespace = api_server.namespace("orphaned")
    left = broker_set(desired(names=Names("flights", namespace), spec_security=mode), 3)
    del left["metadata"]["ownerReferences"]
    api_server.request("POST", f"/apis/apps/v1/namespaces/{namespace}/statefulsets", left)
    body = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "flights"}, "spec": {"brokers": 3}}  # fmt: skip
    path = f"{OURS}/namespaces/{namespace}/clusters"
    cluster = api_server.request("POST", path, body)
    kube = Kube(connect("tests", TIMEOUTS, kubeconfig=str(api_server.kubeconfig)))
    try:
        found, undecided = await with_defaults(kube, cluster)
    finally:
        kube.close()
    assert undecided is None
    is_open = mode is SecurityMode.DISABLED
    assert found["spec"].get("security") == (None if is_open else {"mode": mode.value})
    assert read_cluster(found, Installation("penstock-broker:1")).mode is mode


async def test_the_mode_that_a_user_sets_meanwhile_stays(api_server: ApiServer) -> None:
    install_crds(api_server)
    namespace = api_server.namespace("meanwhile")
    body = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "flights"}, "spec": {"brokers": 3}}  # fmt: skip
    path = f"{OURS}/namespaces/{namespace}/clusters"
    read = api_server.request("POST", path, body)
    chosen = {"spec": {"security": {"mode": "Disabled"}}}
    how = "application/merge-patch+json"
    changed = api_server.request("PATCH", f"{path}/flights", chosen, Content_Type=how)
    kube = Kube(connect("tests", TIMEOUTS, kubeconfig=str(api_server.kubeconfig)))
    try:
        as_it_was, undecided = await with_defaults(kube, read)
        found, decided = await with_defaults(kube, changed)
    finally:
        kube.close()
    assert as_it_was == read
    assert undecided is not None
    assert (undecided.reason, undecided.severity) == ("NotRead", Severity.PROGRESS)
    wish = read_cluster(read, Installation("penstock-broker:1"), None, undecided)
    assert not wish.knows(Section.TEMPLATE), "nothing is made from it"
    assert (found["spec"]["security"], decided) == ({"mode": "Disabled"}, None)
    stored = api_server.request("GET", f"{path}/flights")
    assert stored["spec"]["security"] == {"mode": "Disabled"}
