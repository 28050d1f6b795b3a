"""What the operator makes for a Strict Cluster, once, and what it leaves: a real API server."""

import base64
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.operator_process import OURS, get, install_crds, running
from support.waiting import wait_until

from penstock.certificates import new_authority
from penstock_broker.certificates.authority import Authority, Pair


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    install_crds(api_server)
    return api_server.namespace("strict")


def make_cluster(server: ApiServer, namespace: str, **spec: Any) -> None:
    body = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "flights"},
        "spec": {"security": {"mode": "Strict"}, **spec},
    }
    server.request("POST", f"{OURS}/namespaces/{namespace}/clusters", body)


def has_brokers(server: ApiServer, namespace: str) -> bool:
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/flights-broker"
    return get(server, path) is not None


def secret(server: ApiServer, namespace: str) -> Any:
    return get(server, f"/api/v1/namespaces/{namespace}/secrets/flights-ca")


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_it_makes_one_ca_that_lives_as_long_as_the_data(
    policy: str, api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    with running(api_server, tmp_path, namespace):
        make_cluster(api_server, namespace, deletionPolicy=policy)
        wait_until(lambda: has_brokers(api_server, namespace), what="brokers", timeout_s=60)
        made = secret(api_server, namespace)
    data = {name: base64.b64decode(text) for name, text in made["data"].items()}
    Authority.load(Pair(data["tls.crt"], data["tls.key"]))
    owners = made["metadata"].get("ownerReferences", [])
    assert [each["kind"] for each in owners] == (["Cluster"] if policy == "Delete" else [])
    with running(api_server, tmp_path, namespace):  # another operator, and nobody has published it
        events = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/flights-broker"
        api_server.request("DELETE", path)
        wait_until(lambda: has_brokers(api_server, namespace), what="brokers", timeout_s=60)
        told = [each["reason"] for each in api_server.request("GET", events)["items"]]
    assert told.count("AuthorityMade") == 1
    assert secret(api_server, namespace) == made


def test_a_ca_that_is_there_already_is_used_as_it_is(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    certificate, key = new_authority("of somebody else")
    data = {"tls.crt": certificate, "tls.key": key}
    body = {
        "type": "kubernetes.io/tls",
        "metadata": {"name": "flights-ca"},
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }
    api_server.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body)
    before = secret(api_server, namespace)
    with running(api_server, tmp_path, namespace):
        make_cluster(api_server, namespace)
        wait_until(lambda: has_brokers(api_server, namespace), what="brokers", timeout_s=60)
    assert secret(api_server, namespace) == before


def test_an_open_cluster_gets_no_ca(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    with running(api_server, tmp_path, namespace):
        make_cluster(api_server, namespace, security={"mode": "Disabled"})
        wait_until(lambda: has_brokers(api_server, namespace), what="brokers", timeout_s=60)
    assert secret(api_server, namespace) is None
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts/flights-admin"
    assert get(api_server, accounts) is None
