"""What the operator makes for a Strict Cluster, once, and what it leaves: a real API server."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from support import operator_world
from support.apiserver import TIMEOUTS, ApiServer
from support.operator_process import OURS, condition, get, install_crds, running
from support.waiting import wait_until

from penstock.certificates import new_authority
from penstock.core.manifest.objects import SecurityMode
from penstock.kubernetes.connect import connect
from penstock.kubernetes.names import ROTATION
from penstock.kubernetes.rotation import RotationState
from penstock_broker.certificates.authority import Authority, Pair
from penstock_operator.brokers import Brokers
from penstock_operator.credentials import Credentials
from penstock_operator.kube import Kube
from penstock_operator.names import Names


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    install_crds(api_server)
    return api_server.namespace("strict")


def make_cluster(server: ApiServer, namespace: str, **spec: Any) -> None:
    given: dict[str, Any] = {"security": {"mode": "Strict"}, **spec}
    body = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "flights"},
        "spec": {key: value for key, value in given.items() if value is not None},
    }
    server.request("POST", f"{OURS}/namespaces/{namespace}/clusters", body)


def patch(server: ApiServer, path: str, **body: Any) -> None:
    """A merge patch. Raises urllib.error.HTTPError."""
    server.request("PATCH", path, body, Content_Type="application/merge-patch+json")


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
    config_map = get(api_server, f"/api/v1/namespaces/{namespace}/configmaps/flights-ca")
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ConfigMap", config_map["metadata"]["uid"])
    owners = config_map["metadata"].get("ownerReferences", [])
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


def mode_of(server: ApiServer, namespace: str) -> str | None:
    found = server.request("GET", f"{OURS}/namespaces/{namespace}/clusters/flights")
    mode: str | None = (found["spec"].get("security") or {}).get("mode")
    return mode


def test_a_new_cluster_is_strict_unless_it_says_otherwise(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    with running(api_server, tmp_path, namespace):
        make_cluster(api_server, namespace, security=None)
        wait_until(lambda: has_brokers(api_server, namespace), what="brokers", timeout_s=60)
    assert mode_of(api_server, namespace) == "Strict"
    assert secret(api_server, namespace) is not None


def test_a_cluster_that_ran_before_there_was_a_mode_stays_open(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    make_cluster(api_server, namespace, security=None)
    path = f"{OURS}/namespaces/{namespace}/clusters/flights"
    patch(api_server, f"{path}/status", status={"clusterId": "AAAAAAAAAAAAAAAAAAAAAA"})
    with running(api_server, tmp_path, namespace):
        wait_until(lambda: has_brokers(api_server, namespace), what="brokers", timeout_s=60)
    assert mode_of(api_server, namespace) is None
    assert secret(api_server, namespace) is None


def test_between_plaintext_and_strict_a_cluster_migrates(
    api_server: ApiServer, namespace: str
) -> None:
    make_cluster(api_server, namespace, security={"mode": "Disabled"})
    path = f"{OURS}/namespaces/{namespace}/clusters/flights"
    patch(api_server, f"{path}/status", status={"clusterId": "AAAAAAAAAAAAAAAAAAAAAA"})
    for mode, next_one in (("Disabled", "Strict"), ("Strict", "Disabled")):
        with pytest.raises(HTTPError) as refused:
            patch(api_server, path, spec={"security": {"mode": next_one}})
        said = refused.value.read().decode()
        assert f"spec.security.mode is {next_one} and was {mode}; between them it is Migr" in said
        for step in ("Migrate", next_one):
            patch(api_server, path, spec={"security": {"mode": step}})
            assert mode_of(api_server, namespace) == step


def test_with_migrate_what_runs_gets_its_ca_first(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    make_cluster(api_server, namespace, security={"mode": "Disabled"})
    apps = f"/apis/apps/v1/namespaces/{namespace}"

    def words(plural: str, name: str) -> list[str]:
        found = get(api_server, f"{apps}/{plural}/{name}")
        if found is None:
            return []
        (main,) = found["spec"]["template"]["spec"]["containers"]
        return list(main["args"])

    with running(api_server, tmp_path, namespace):
        wait_until(lambda: has_brokers(api_server, namespace), what="brokers", timeout_s=60)
        assert "--migrate" not in words("statefulsets", "flights-broker")
        path = f"{OURS}/namespaces/{namespace}/clusters/flights"
        patch(api_server, path, spec={"security": {"mode": "Migrate"}})
        wait_until(
            lambda: "--migrate" in words("statefulsets", "flights-broker"),
            what="brokers of the next mode",
            timeout_s=60,
        )
        assert "--migrate" in words("deployments", "flights-controller")
        assert secret(api_server, namespace) is not None
        patch(api_server, path, spec={"security": {"mode": "Disabled"}})
        wait_until(
            lambda: "--migrate" not in words("statefulsets", "flights-broker"),
            what="brokers of the former mode",
            timeout_s=60,
        )
        assert secret(api_server, namespace) is not None, "a CA that was made stays"


def test_a_new_cluster_that_cannot_be_strict_says_why(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    path = f"{OURS}/namespaces/{namespace}/clusters/flights"

    def said() -> str:
        return str((get(api_server, path).get("status") or {}).get("message"))

    with running(api_server, tmp_path, namespace):
        make_cluster(api_server, namespace, security=None, external={"type": "NodePort"})
        wait_until(lambda: "external.host" in said(), what="a message", timeout_s=60)
        assert "set spec.security.mode to Disabled" in said()
        assert not has_brokers(api_server, namespace)
        patch(api_server, path, spec={"security": {"mode": "Disabled"}})
        wait_until(lambda: has_brokers(api_server, namespace), what="brokers", timeout_s=60)
    assert mode_of(api_server, namespace) == "Disabled"


def secured(server: ApiServer, namespace: str) -> dict[str, Any]:
    found = get(server, f"{OURS}/namespaces/{namespace}/clusters/flights") or {}
    shown = (found.get("status") or {}).get("conditions") or ()
    return next((each for each in shown if each["type"] == "Secured"), {})


def test_a_users_ca_that_is_missing_is_shown_until_it_is_there_and_brokers_run_meanwhile(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    security = {"mode": "Strict", "clientCertificates": {"caConfigMap": "people"}}
    with running(api_server, tmp_path, namespace):
        make_cluster(api_server, namespace, security=security)
        wait_until(
            lambda: (
                "ConfigMap people is missing" in secured(api_server, namespace).get("message", "")
            ),
            what="a condition",
            timeout_s=60,
        )
        wait_until(lambda: has_brokers(api_server, namespace), what="brokers", timeout_s=60)
        ca, _ = new_authority("users")
        body = {"metadata": {"name": "people"}, "data": {"ca.crt": ca.decode()}}
        api_server.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
        wait_until(
            lambda: secured(api_server, namespace).get("reason") == "Strict",
            what="it is seen",
            timeout_s=60,
        )


def rotating(server: ApiServer, namespace: str) -> dict[str, Any]:
    found = get(server, f"{OURS}/namespaces/{namespace}/clusters/flights")
    return condition(found, "RotatingCA")


def test_another_ca_is_made_once_for_each_request_and_never_in_place_of_one(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    """The test publishes what controllers would."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    cluster = f"{OURS}/namespaces/{namespace}/clusters/flights"
    second = f"/api/v1/namespaces/{namespace}/secrets/flights-ca-2"

    def show(text: str) -> None:
        patch(api_server, f"{maps}/flights-trust", metadata={"annotations": {ROTATION: text}})

    with running(api_server, tmp_path, namespace):
        make_cluster(api_server, namespace, deletionPolicy="Delete")
        wait_until(lambda: has_brokers(api_server, namespace), what="brokers", timeout_s=60)
        labels = {"penstock.dev/trust-of": "flights"}
        data = {"ca.crt": base64.b64decode(secret(api_server, namespace)["data"]["tls.crt"])}
        body = {"metadata": {"name": "flights-trust", "labels": labels}}
        text = {key: value.decode() for key, value in data.items()}
        api_server.request("POST", maps, {**body, "data": text})
        asked = {"penstock.dev/rotate-ca": "one", "penstock.dev/rotate-ca-wait-seconds": "7"}
        patch(api_server, cluster, metadata={"annotations": asked})
        made = wait_until(lambda: get(api_server, second), what="another CA", timeout_s=90)
    config_map = get(api_server, f"{maps}/flights-ca-2")
    assert config_map["metadata"]["annotations"] == asked
    assert made["metadata"]["ownerReferences"][0]["uid"] == config_map["metadata"]["uid"]
    with running(api_server, tmp_path, namespace):  # another operator goes on
        wait_until(
            lambda: rotating(api_server, namespace).get("reason") == "Requested",
            what="it says so",
            timeout_s=60,
        )
        show(RotationState("TrustingBoth", "ca", 1.0, ("broker 1",)).text())
        wait_until(
            lambda: "broker 1" in rotating(api_server, namespace).get("message", ""),
            what="it says for whom the rotation waits",
            timeout_s=90,
        )
        api_server.request("DELETE", f"{maps}/flights-ca")
        show(RotationState("Settled", "ca-2", 2.0).text())
        wait_until(
            lambda: rotating(api_server, namespace).get("reason") == "Settled",
            what="it says that it is over",
            timeout_s=90,
        )
    assert get(api_server, second) == made


async def test_the_operator_trusts_another_ca_as_soon_as_it_is_published(
    api_server: ApiServer, namespace: str
) -> None:
    desired = replace(
        operator_world.desired(spec_security=SecurityMode.STRICT),
        names=Names("flights", namespace),
    )
    account = {"metadata": {"name": "flights-admin"}}
    api_server.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    labels = {"penstock.dev/trust-of": "flights"}
    body = {"metadata": {"name": "flights-trust", "labels": labels}, "data": {"ca.crt": "old"}}
    api_server.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
    kube = Kube(connect("tests", TIMEOUTS, kubeconfig=str(api_server.kubeconfig)))
    credentials = Credentials(kube)
    try:
        credentials.use_trust("nothing is known yet")
        files = await credentials.files(desired)
        assert files is not None
        assert files.ca.read_text() == "old"
        brokers = Brokers(credentials)
        brokers.use_trust("")
        assert files.ca.read_text() == "old", "controllers are writing it anew"
        brokers.use_trust("old and new")
        assert files.ca.read_text() == "old and new"
    finally:
        credentials.close()
        kube.close()
