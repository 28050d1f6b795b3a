"""Volume claims go with their Cluster if it says so, and never with a StatefulSet alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.operator_process import OURS, get, install_crds, running
from support.operator_world import NAMES, World, advance, desired, settled
from support.waiting import wait_until

from penstock.core.manifest.objects import DeletionPolicy
from penstock.kubernetes.names import CLUSTER_LABEL
from penstock_operator.model import Plan, RestartPod
from penstock_operator.objects import DesiredCluster
from penstock_operator.objects.broker import broker_set
from penstock_operator.plan import plan_cluster
from penstock_operator.volume_model import OwnClaim

SET = {"kind": "StatefulSet", "name": NAMES.broker, "uid": "of the set", "controller": True}


def wish(brokers: int = 3, **changes: Any) -> DesiredCluster:
    return desired(brokers, spec_deletion_policy=DeletionPolicy.DELETE, **changes)


def owned(plan: Plan) -> list[int]:
    return [each.broker_id for each in plan.actions if isinstance(each, OwnClaim)]


def owners(world: World, broker_id: int) -> list[str]:
    return [each["uid"] for each in world.claims[broker_id].owners]


@pytest.mark.parametrize("made", [wish(), desired()])
def test_a_statefulset_that_is_deleted_takes_no_claim_along(made: DesiredCluster) -> None:
    policy = broker_set(made, 3)["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_claims_are_owned_by_the_cluster_while_it_says_delete() -> None:
    world = settled(desired())
    assert {each.owners for each in world.claims.values()} == {()}
    assert owned(advance(world, wish())) == [0, 1, 2]
    assert [owners(world, each) for each in range(3)] == [["cluster-uid"]] * 3
    (reference,) = world.claims[0].owners
    assert reference["controller"] is False, "the claim's controller is its StatefulSet"
    assert owned(plan_cluster(wish(), world.observed())) == []
    assert owned(advance(world, desired())) == [0, 1, 2]
    assert {each.owners for each in world.claims.values()} == {()}


def test_what_an_earlier_release_has_made_restarts_nothing() -> None:
    world = settled(wish())
    live = world.objects["StatefulSet", NAMES.broker]
    live["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] = "Delete"
    for broker_id in (0, 1, 2, 4):
        claim = world.claims.get(broker_id) or world.claim(broker_id, 1024**3)
        world.claims[broker_id] = replace(claim, owners=(SET,))
    world.claims[5] = world.claim(5, 1024**3)
    plans = [advance(world, wish()) for _ in range(20)]
    assert not [each for plan in plans for each in plan.actions if isinstance(each, RestartPod)]
    live = world.objects["StatefulSet", NAMES.broker]
    assert live["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"
    for broker_id in (0, 1, 2, 4):
        assert owners(world, broker_id) == ["of the set", "cluster-uid"]
    assert owners(world, 5) == [], "no broker of this Cluster has ever had it"


def test_a_claim_of_a_deleted_cluster_of_this_name_goes_with_that_one() -> None:
    world = settled(desired())
    former = {"kind": "Cluster", "name": "flights", "uid": "another"}
    world.claims[1] = replace(world.claims[1], owners=(former,))
    world.claims[2] = replace(world.claims[2], deleting=True)
    assert owned(advance(world, wish())) == [0]
    assert owners(world, 1) == ["another"]


@pytest.mark.parametrize("kind", ["PersistentVolumeClaim", "Pod", "StatefulSet"])
def test_nothing_is_owned_by_what_is_not_known(kind: str) -> None:
    world = settled(desired())
    world.unknown = {kind: "no answer"}
    assert owned(plan_cluster(wish(), world.observed())) == []


def test_the_api_server_stores_the_owner_and_keeps_others(
    api_server: ApiServer, tmp_path: Path
) -> None:
    install_crds(api_server)
    namespace = api_server.namespace("owning")
    core = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "other"}
    metadata = {"name": "data-flights-broker-0", "labels": {CLUSTER_LABEL: "flights"}}
    size = {"requests": {"storage": "10Gi"}}
    claim = {
        "metadata": {**metadata, "ownerReferences": [other]},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": size},
    }
    api_server.request("POST", core, claim)
    clusters = f"{OURS}/namespaces/{namespace}/clusters"
    spec = {"brokers": 1, "deletionPolicy": "Delete", "security": {"mode": "Disabled"}}
    document = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster"}
    body = {**document, "metadata": {"name": "flights"}, "spec": spec}
    uid = api_server.request("POST", clusters, body)["metadata"]["uid"]

    def uids() -> list[str]:
        found = get(api_server, f"{core}/data-flights-broker-0")["metadata"]
        return [each["uid"] for each in found.get("ownerReferences", ())]

    with running(api_server, tmp_path, namespace):
        wait_until(lambda: uids() == ["other", uid], what="an owner", timeout_s=60)
        media = "application/merge-patch+json"
        change = {"spec": {"deletionPolicy": "Retain"}}
        api_server.request("PATCH", f"{clusters}/flights", change, Content_Type=media)
        wait_until(lambda: uids() == ["other"], what="no owner", timeout_s=60)
