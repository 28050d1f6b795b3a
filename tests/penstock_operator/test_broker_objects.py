"""What the brokers' objects say about ports: who may reach which, and what pods are told."""

from typing import Any

import pytest

from penstock_operator.objects import DesiredCluster, read_cluster
from penstock_operator.objects.broker import broker_objects, broker_set


def wish(**spec: Any) -> DesiredCluster:
    metadata = {"name": "flights", "namespace": "air", "uid": "u", "generation": 7}
    return read_cluster({"metadata": metadata, "spec": spec}, "penstock-broker:1")


def the(kind: str, name: str, desired: DesiredCluster) -> dict[str, Any]:
    (found,) = (
        one
        for one in broker_objects(desired)
        if one["kind"] == kind and one["metadata"]["name"] == name
    )
    return found


@pytest.mark.parametrize(
    ("spec", "open_ports"),
    [({}, [9092, 9404]), ({"external": {"type": "NodePort"}}, [9092, 9404, 9094])],
)
def test_only_brokers_reach_the_replication_port(
    spec: dict[str, Any], open_ports: list[int]
) -> None:
    desired = wish(**spec)
    policy = the("NetworkPolicy", "flights-broker", desired)["spec"]
    to_all, to_brokers = policy["ingress"]
    assert "from" not in to_all
    assert [allowed["port"] for allowed in to_all["ports"]] == open_ports
    assert to_brokers == {
        "from": [{"podSelector": {"matchLabels": desired.names.selector("broker")}}],
        "ports": [{"port": 9096, "protocol": "TCP"}],
    }
    labels = broker_set(desired, 3)["spec"]["template"]["metadata"]["labels"]
    assert desired.names.selector("broker").items() <= labels.items(), "it selects brokers' pods"


def test_brokers_listen_for_followers_at_the_port_that_is_open() -> None:
    desired = wish(external={"type": "NodePort"})
    (container,) = broker_set(desired, 3)["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env["PENSTOCK_REPLICATION_LISTEN"] == "0.0.0.0:9096"
    assert not [word for word in container["args"] if "replication" in word], (
        "an image of an older release would refuse an option that it does not know"
    )
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"grpc": 9092, "metrics": 9404, "replication": 9096, "external": 9094}


def test_the_headless_service_names_the_port_and_the_others_do_not() -> None:
    desired = wish()
    headless = the("Service", "flights-brokers", desired)["spec"]["ports"]
    assert {"name": "replication", "port": 9096, "targetPort": 9096} in headless
    bootstrap = the("Service", "flights-bootstrap", desired)["spec"]["ports"]
    assert [one["name"] for one in bootstrap] == ["grpc"]
