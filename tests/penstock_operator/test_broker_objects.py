"""What the brokers' objects say about ports: who may reach which, and what pods are told."""

from dataclasses import replace
from typing import Any

import pytest

from penstock_operator.objects import (
    DesiredCluster,
    Installation,
    controller_objects,
    read_cluster,
)
from penstock_operator.objects.broker import broker_objects, broker_set


def wish(**spec: Any) -> DesiredCluster:
    metadata = {"name": "flights", "namespace": "air", "uid": "u", "generation": 7}
    return read_cluster({"metadata": metadata, "spec": spec}, Installation("penstock-broker:1"))


def the(kind: str, name: str, desired: DesiredCluster) -> dict[str, Any]:
    (found,) = (
        one
        for one in broker_objects(desired)
        if one["kind"] == kind and one["metadata"]["name"] == name
    )
    return found


def sources(policy: dict[str, Any]) -> dict[int, Any]:
    """Who may connect by port; None: everybody."""
    return {
        allowed["port"]: rule.get("from")
        for rule in policy["spec"]["ingress"]
        for allowed in rule["ports"]
    }


def pods(desired: DesiredCluster, component: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": desired.names.selector(component)}}


EXTERNAL = {"external": {"type": "NodePort"}}
PEER = {"namespaceSelector": {"matchLabels": {"team": "air"}}}


@pytest.mark.parametrize("spec", [{}, EXTERNAL])
def test_each_port_of_brokers_has_callers_of_its_own(spec: dict[str, Any]) -> None:
    desired = wish(**spec)
    found = sources(the("NetworkPolicy", "flights-broker", desired))
    outside = {9094: None} if spec else {}
    assert found == {9092: None, 9097: None, 9404: None, 9096: [pods(desired, "broker")], **outside}
    labels = broker_set(desired, 3)["spec"]["template"]["metadata"]["labels"]
    assert desired.names.selector("broker").items() <= labels.items(), "it selects brokers' pods"


def test_clients_and_scrapers_can_be_named() -> None:
    desired = wish(allowFrom={"clients": [PEER], "metrics": [PEER]}, **EXTERNAL)
    found = sources(the("NetworkPolicy", "flights-broker", desired))
    assert found[9404] == [PEER]
    operator = {"app.kubernetes.io/name": "penstock-operator"}
    own = [pods(desired, "broker"), pods(desired, "controller")]
    peers = {"namespaceSelector": {}, "podSelector": {"matchLabels": operator}}
    assert found[9092] == [*own, peers, PEER], "the cluster's own pods call each other there"
    assert found[9097] == found[9092], "the same callers, without gRPC"
    assert found[9094] is None, "a NodePort hides who calls"
    assert found[9096] == [pods(desired, "broker")]
    (policy,) = [each for each in controller_objects(desired) if each["kind"] == "NetworkPolicy"]
    assert sources(policy) == {9093: [pods(desired, "broker")], 9404: [PEER]}


def test_policies_let_pods_reach_what_they_call_and_no_more() -> None:
    desired = wish()
    (of_controllers,) = [
        each for each in controller_objects(desired) if each["kind"] == "NetworkPolicy"
    ]
    of_brokers = the("NetworkPolicy", "flights-broker", desired)

    def targets(policy: dict[str, Any]) -> dict[int, Any]:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        return {
            port["port"]: rule.get("to")
            for rule in policy["spec"]["egress"]
            for port in rule["ports"]
        }

    dns = {53: None, 5353: None}
    brokers, controllers = [pods(desired, "broker")], [pods(desired, "controller")]
    assert targets(of_brokers) == {**dns, 9092: brokers, 9096: brokers, 9093: controllers}
    assert targets(of_controllers) == {**dns, 9092: brokers, 443: None, 6443: None}


def test_controllers_are_not_kept_from_an_api_server_whose_ports_are_not_known() -> None:
    metadata = {"name": "flights", "namespace": "air", "uid": "u", "generation": 7}
    installed = Installation("penstock-broker:1", api_server_ports=())
    desired = read_cluster({"metadata": metadata, "spec": {}}, installed)
    (policy,) = [each for each in controller_objects(desired) if each["kind"] == "NetworkPolicy"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]


@pytest.mark.parametrize(
    ("image", "port"),
    [
        ("", 9405),
        ("penstock-broker:1", 9405),
        ("registry.example.com:5000/team/penstock-broker:0.1.0", 9405),
        ("penstock-broker:v0.2.1-mirrored@sha256:00", 9405),
        ("penstock-broker:1.0", 9405),
        ("penstock-broker:0.0.9", 9092),
        ("penstock-broker:mine", 9092),
        ("penstock-broker", 9092),
        ("registry.example.com:5000/penstock-broker", 9092),
        ("penstock-broker@sha256:00", 9092),
    ],
)
def test_probes_ask_a_port_that_the_image_is_known_to_have(image: str, port: int) -> None:
    """One that does not listen there would be restarted for ever."""
    desired = wish(image=image) if image else wish()
    (broker,) = broker_set(desired, 3)["spec"]["template"]["spec"]["containers"]
    (deployment,) = [each for each in controller_objects(desired) if each["kind"] == "Deployment"]
    (controller,) = deployment["spec"]["template"]["spec"]["containers"]
    for container, before in ((broker, 9092), (controller, 9093)):
        wanted = port if port == 9405 else before
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["grpc"]["port"] == wanted, probe
        env = {one["name"]: one.get("value") for one in container["env"]}
        assert env["PENSTOCK_HEALTH_LISTEN"] == "0.0.0.0:9405", "whatever is probed"
        assert env["PENSTOCK_INSECURE"] == "true"
        assert not [word for word in container["args"] if "health" in word or "insecure" in word]


def test_brokers_listen_for_followers_at_the_port_that_is_open() -> None:
    desired = wish(external={"type": "NodePort"})
    (container,) = broker_set(desired, 3)["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env["PENSTOCK_REPLICATION_LISTEN"] == "0.0.0.0:9096"
    assert env["PENSTOCK_STREAM_LISTEN"] == "0.0.0.0:9097"
    assert not [word for word in container["args"] if "replication" in word], (
        "an image of an older release would refuse an option that it does not know"
    )
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {
        "grpc": 9092,
        "metrics": 9404,
        "replication": 9096,
        "streams": 9097,
        "external": 9094,
        "health": 9405,
    }


def test_the_headless_service_names_the_port_and_the_others_do_not() -> None:
    desired = wish()
    headless = the("Service", "flights-brokers", desired)["spec"]["ports"]
    assert {one["name"]: one["targetPort"] for one in headless} == {
        "grpc": 9092,
        "metrics": 9404,
        "replication": 9096,
        "streams": 9097,
    }
    bootstrap = the("Service", "flights-bootstrap", desired)["spec"]["ports"]
    assert [one["name"] for one in bootstrap] == ["grpc"]


def test_brokers_and_controllers_are_pulled_with_the_secrets_of_the_installation() -> None:
    def secrets(desired: DesiredCluster) -> list[Any]:
        made = [*controller_objects(desired), broker_set(desired, 3)]
        workloads = [each for each in made if each["kind"] in {"Deployment", "StatefulSet"}]
        return [each["spec"]["template"]["spec"].get("imagePullSecrets") for each in workloads]

    assert secrets(wish()) == [None, None], "templates stay as they are"
    installed = Installation("penstock-broker:1", pull_secrets=("registry", "mirror"))
    given = [{"name": "registry"}, {"name": "mirror"}]
    assert secrets(replace(wish(), installation=installed)) == [given, given]
