"""What a Cluster's spec asks for, field by field, and what counts when a field is missing."""

from typing import Any

import pytest

from penstock.kubernetes.names import PAUSED
from penstock_operator.groups.model import GroupPlan, GroupResource
from penstock_operator.names import FORCE_ROLL
from penstock_operator.objects import DesiredCluster, Installation, read_cluster
from penstock_operator.objects.desired import (
    DEFAULT_CONTROLLER_RESOURCES,
    DEFAULT_RESOURCES,
    External,
)


def read(annotations: dict[str, str] | None = None, **spec: Any) -> DesiredCluster:
    metadata: dict[str, Any] = {"name": "flights", "namespace": "air", "uid": "u", "generation": 7}
    if annotations is not None:
        metadata["annotations"] = annotations
    return read_cluster({"metadata": metadata, "spec": spec}, Installation("penstock-broker:1"))


def test_an_empty_spec_has_every_default() -> None:
    wish = read()
    assert (wish.names.cluster, wish.names.namespace) == ("flights", "air")
    assert (wish.uid, wish.generation) == ("u", 7)
    assert (wish.image, wish.pull_policy) == ("penstock-broker:1", "IfNotPresent")
    assert wish.resources == DEFAULT_RESOURCES
    assert (wish.controllers, wish.controller_resources) == (2, DEFAULT_CONTROLLER_RESOURCES)
    assert (wish.storage_class, wish.external) == ("", None)
    assert (wish.node_selector, wish.tolerations) == ({}, ())
    assert (wish.paused, wish.force_roll) == (False, None)


def test_what_the_spec_says_counts() -> None:
    small = {"requests": {"cpu": "1m"}}
    smaller = {"requests": {"cpu": "2m"}}
    wish = read(
        brokers=5,
        image="mine:2",
        imagePullPolicy="Always",
        resources=small,
        storage={"size": "3Gi", "storageClassName": "fast"},
        controllers={"replicas": 1, "resources": smaller},
        external={"type": "NodePort", "host": "h", "nodePort": 30_000},
        pod={"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "k"}]},
    )
    assert (wish.spec.brokers, wish.image, wish.pull_policy) == (5, "mine:2", "Always")
    assert (wish.resources, wish.storage_class) == (small, "fast")
    assert (wish.controllers, wish.controller_resources) == (1, smaller)
    assert wish.external == External("h", 30_000)
    assert (wish.node_selector, wish.tolerations) == ({"disk": "ssd"}, ({"key": "k"},))


def test_external_without_a_host_or_port_has_the_defaults() -> None:
    assert read(external={"type": "NodePort"}).external == External("", 31_092)
    assert read(external={"host": "h"}).external is None


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("x", None), ("", None), ("-1", None)])
def test_annotations_pause_and_force_a_roll(text: str, number: int | None) -> None:
    assert read({FORCE_ROLL: text}).force_roll == number
    bound = read({FORCE_ROLL: f"{text}@uid"})
    assert (bound.force_roll, bound.force_roll_pod) == (number, "uid")
    assert read({PAUSED: "true"}).paused
    assert not read({PAUSED: "false"}).paused


def test_a_spec_with_problems_names_all_of_them() -> None:
    wish = read(brokers="three", config={"no.such.setting": "1"})
    said = "; ".join(wait.message for wait in wish.refusals)
    assert "Cluster/flights: spec.brokers is the string 'three'" in said
    assert "spec.config.no.such.setting cannot be used" in said


def test_the_owner_of_everything_is_the_cluster() -> None:
    owner = read().owner()
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Cluster", "flights", "u")
    assert owner["controller"] is True


@pytest.mark.parametrize(
    ("fields", "acts"),
    [
        ({}, False),
        ({"finalizer": True}, True),
        ({"finalizer": False}, True),
        ({"delete": True}, True),
        ({"drop_pending": True}, True),
    ],
)
def test_a_plan_for_a_group_acts_for_each_thing_it_changes(
    fields: dict[str, bool], acts: bool
) -> None:
    plan: Any = GroupPlan
    assert plan(GroupResource({}), **fields).acts is acts
