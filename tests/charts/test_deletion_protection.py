"""What is deleted only if an annotation names it, as a real API server decides by the policies.

Each row is tried both ways. Deletions are dry runs, which admission decides as any other, unless
a test needs what comes after.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.admission import OPERATOR, in_force, refusal
from support.apiserver import ApiServer
from support.operator_process import CRDS, OURS, install_crds
from support.waiting import wait_until

CONFIRM = "penstock.dev/confirm-delete"
MERGE = "application/merge-patch+json"
ON, OFF = {"deletion.protection": "true"}, {"deletion.protection": "false"}
CONTROLLER = "system:serviceaccount:kube-system:"
LET_THROUGH = [
    "system:kube-controller-manager",
    f"{CONTROLLER}generic-garbage-collector",
    f"{CONTROLLER}statefulset-controller",
    f"{CONTROLLER}namespace-controller",
    OPERATOR,
]


class Place:
    """A namespace and what is made and deleted there."""

    def __init__(self, server: ApiServer) -> None:
        install_crds(server)
        self.server, self.namespace = server, server.namespace("protected")

    def path(self, plural: str, name: str = "") -> str:
        base = "/api/v1" if plural == "persistentvolumeclaims" else OURS
        return f"{base}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def make(
        self, kind: str, name: str, *, protected: bool = False, labelled: bool = False, **spec: Any
    ) -> str:
        """An object; its path. `protected`: as its status says."""
        ours = kind != "PersistentVolumeClaim"
        plural = f"{kind.lower()}s"
        labels = {"penstock.dev/cluster": "flights"} if labelled else {}
        body = {
            "apiVersion": "penstock.dev/v1alpha1" if ours else "v1",
            "kind": kind,
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
        }
        self.server.request("POST", self.path(plural), body)
        path = self.path(plural, name)
        if protected:
            self.merge(f"{path}/status", {"status": {"protected": True}})
        return path

    def merge(self, path: str, body: dict[str, Any]) -> None:
        self.server.request("PATCH", path, body, Content_Type=MERGE)

    def confirm(self, path: str, text: str) -> None:
        self.merge(path, {"metadata": {"annotations": {CONFIRM: text}}})

    def cluster(self, name: str, **spec: Any) -> str:
        return self.make("Cluster", name, brokers=3, **spec)

    def topic(self, name: str, *, protected: bool, **spec: Any) -> str:
        return self.make("Topic", name, protected=protected, cluster="flights", **spec)

    def claim(self, name: str, *, labelled: bool = True) -> str:
        size = {"requests": {"storage": "1Gi"}}
        access = ["ReadWriteOnce"]
        return self.make(
            "PersistentVolumeClaim", name, labelled=labelled, accessModes=access, resources=size
        )

    def delete(self, path: str, user: str = "", *, real: bool = False) -> str:
        """Why it is refused; "": it is not. `user`: whom the administrator acts for."""
        query = "" if real else "?dryRun=All"
        headers = {"Impersonate_User": user, "Impersonate_Group": "system:masters"} if user else {}
        return refusal(partial(self.server.request, "DELETE", path + query, **headers))

    def may_go(self, path: str) -> bool:
        return not self.delete(path)


@pytest.fixture(scope="module")
def place(api_server: ApiServer) -> Iterator[Place]:
    """With the policies about our kinds and about claims in force."""
    made = Place(api_server)
    cluster = made.cluster("always", config=ON)
    claim = made.claim("always")
    where = made.namespace
    with (
        in_force(api_server, "-deletion", where, lambda: made.delete(cluster)),
        in_force(api_server, "-claims", where, lambda: made.delete(claim)),
    ):
        yield made


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_a_protected_cluster_goes_only_by_its_own_name(place: Place, policy: str) -> None:
    name = f"flights-{policy.lower()}"
    path = place.cluster(name, config=ON, deletionPolicy=policy)
    told = place.delete(path)
    assert f"Cluster {name} is protected from deletion" in told
    assert f"kubectl annotate clusters {name} -n {place.namespace} {CONFIRM}={name}" in told
    for wrong in ("true", "flights", "other"):
        place.confirm(path, wrong)
        assert place.delete(path)
    place.confirm(path, name)
    assert place.delete(path) == ""


@pytest.mark.parametrize("config", [{}, OFF, {"retention.ms": 1}])
def test_a_cluster_that_nobody_protected_goes_as_before(
    place: Place, config: dict[str, Any]
) -> None:
    path = place.cluster(f"plain-{len(json.dumps(config))}", config=config, deletionPolicy="Delete")
    assert place.delete(path) == ""


def test_switching_protection_off_is_enough(place: Place) -> None:
    path = place.cluster("switched", config=ON)
    assert place.delete(path)
    place.merge(path, {"spec": {"config": OFF}})
    assert place.delete(path) == ""


@pytest.mark.parametrize(
    ("policy", "protected", "config", "refused"),
    [
        ("Delete", True, {}, True),
        ("Delete", True, ON, True),
        ("Delete", False, ON, True),  # the operator has not seen it yet
        ("Delete", True, OFF, False),  # nor this
        ("Delete", False, {}, False),
        ("Retain", True, ON, False),  # its topic stays
    ],
)
def test_a_topic_that_would_take_a_protected_one_along_goes_only_by_its_own_name(
    place: Place, policy: str, protected: bool, config: dict[str, str], refused: bool
) -> None:
    name = f"t-{policy}-{protected}-{config.get('deletion.protection')}".lower()
    path = place.topic(name, protected=protected, config=config, deletionPolicy=policy)
    told = place.delete(path)
    assert (f"Topic {name} is protected from deletion" in told) == refused
    assert bool(told) == refused
    place.confirm(path, name)
    assert place.delete(path) == ""


def test_a_volume_claim_of_a_broker_goes_only_by_its_own_name(place: Place) -> None:
    path = place.claim("data-flights-broker-0")
    told = place.delete(path)
    assert "holds the records of a broker of Cluster flights" in told
    assert f"{CONFIRM}=data-flights-broker-0" in told
    place.confirm(path, "data-flights-broker-1")
    assert place.delete(path)
    place.confirm(path, "data-flights-broker-0")
    assert place.delete(path) == ""
    assert place.delete(place.claim("somebody-elses", labelled=False)) == ""


@pytest.mark.parametrize("user", LET_THROUGH)
def test_what_kubernetes_and_the_operator_clean_up_goes(place: Place, user: str) -> None:
    number = LET_THROUGH.index(user)
    cluster = place.cluster(f"owner-{number}", config=ON)
    claim = place.claim(f"data-{number}")
    topic = place.topic(f"owned-{number}", protected=True, deletionPolicy="Delete")
    for path in (cluster, claim, topic):
        assert place.delete(path), "an administrator is asked"
        assert place.delete(path, "system:serviceaccount:default:penstock-operator")
        assert place.delete(path, user) == ""


def test_all_at_once_is_decided_one_by_one(place: Place) -> None:
    kept = place.cluster("kept", config=ON)
    told = place.delete(f"{place.path('clusters')}?fieldSelector=metadata.name=kept", real=True)
    assert "Cluster kept is protected from deletion" in told
    place.server.request("GET", kept)


def test_what_goes_already_may_be_asked_to_go_again(place: Place) -> None:
    path = place.topic("going", protected=True, deletionPolicy="Delete")
    place.merge(path, {"metadata": {"finalizers": ["penstock.dev/topic"]}})
    assert place.delete(path)
    place.confirm(path, "going")
    assert place.delete(path, real=True) == ""
    place.merge(path, {"metadata": {"annotations": {CONFIRM: None}}})
    assert place.delete(path) == "", "it has been decided"
    place.merge(path, {"metadata": {"finalizers": None}})


def test_a_namespace_that_goes_does_not_hang_on_what_is_protected(api_server: ApiServer) -> None:
    doomed = Place(api_server)
    paths = [
        doomed.cluster("flights", config=ON),
        doomed.topic("t", protected=True, deletionPolicy="Delete"),
        doomed.claim("data-flights-broker-0"),
    ]
    where = doomed.namespace
    with (
        in_force(api_server, "-deletion", where, lambda: doomed.delete(paths[0])),
        in_force(api_server, "-claims", where, lambda: doomed.delete(paths[2])),
    ):
        assert all(doomed.delete(path) for path in paths)
        api_server.request("DELETE", f"/api/v1/namespaces/{where}")
        for path in paths:
            wait_until(partial(doomed.may_go, path), what=f"{path} may go")


def test_a_labelled_namespace_and_a_labelled_definition_go_only_by_their_own_name(
    api_server: ApiServer,
) -> None:
    place = Place(api_server)
    where = f"/api/v1/namespaces/{place.namespace}"
    label = {"metadata": {"labels": {"penstock.dev/protected": ""}}}
    place.merge(where, label)
    definition = f"{CRDS}/clusters.penstock.dev"
    other = f"/api/v1/namespaces/{api_server.namespace('open')}"
    with in_force(api_server, "-labelled", place.namespace, lambda: place.delete(where)):
        told = place.delete(where)
        assert f"Namespace {place.namespace} has the label penstock.dev/protected" in told
        assert f"kubectl annotate namespaces {place.namespace} {CONFIRM}={place.namespace}" in told
        assert place.delete(other) == ""
        assert place.delete(definition) == ""
        place.merge(definition, label)
        assert "kubectl annotate customresourcedefinitions clusters" in place.delete(definition)
        place.merge(definition, {"metadata": {"labels": {"penstock.dev/protected": None}}})
        assert place.delete(definition) == ""
        place.confirm(where, place.namespace)
        assert place.delete(where) == ""
