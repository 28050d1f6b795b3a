"""The plan: what it does in the cases people meet, and its properties over generated states."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.operator_world import NAMES, World, desired, settled

from penstock.kubernetes.names import CLUSTER_LABEL
from penstock_operator.model import (
    Apply,
    BrokerFacts,
    GrowClaim,
    MarkRack,
    MoveLeaders,
    OrphanSet,
    Plan,
    RemoveObject,
    RestartPod,
    Severity,
    TopicResource,
    TopicState,
    Wait,
)
from penstock_operator.names import TOPIC_FINALIZER
from penstock_operator.objects import DesiredCluster
from penstock_operator.objects.broker import template_hash
from penstock_operator.objects.desired import External
from penstock_operator.plan import plan_cluster
from penstock_operator.plan.topics import PAUSED_REASON, plan_resources
from penstock_operator.volumes import claim_state

WISH = desired()
GIB = 1024**3


def run(
    world: World,
    wish: DesiredCluster,
    steps: int = 400,
    check: Callable[[World, RestartPod], None] | None = None,
) -> Plan:
    """Plans and acts until nothing is left to do; returns the last plan."""
    plan = Plan()
    for _ in range(steps):
        plan = plan_cluster(wish, world.observed())
        if plan.is_idle:
            return plan
        for action in plan.actions:
            if check and isinstance(action, RestartPod):
                check(world, action)
            world.carry_out(action)
        world.go_on()
    return plan


def reasons(plan: Plan) -> set[str]:
    return {wait.reason for wait in plan.waits}


def test_a_new_cluster_is_made_whole_and_then_left_alone() -> None:
    world = World(random.Random(1))
    assert run(world, WISH).is_idle
    assert {key[0] for key in world.objects} == {
        "ServiceAccount",
        "RoleBinding",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Deployment",
        "StatefulSet",
    }
    assert sorted(world.pods) == [0, 1, 2]


def test_nothing_to_do_is_an_empty_plan() -> None:  # I27
    assert plan_cluster(WISH, settled(WISH).observed()) == Plan()


def test_a_paused_cluster_is_left_alone_whatever_differs() -> None:
    world = settled(WISH)
    plan = plan_cluster(replace(desired(brokers=5), paused=True), world.observed())
    assert plan.actions == ()
    assert reasons(plan) == {"Paused"}


def test_a_changed_object_is_healed() -> None:
    world = settled(WISH)
    world.objects["Service", NAMES.bootstrap]["spec"]["ports"][0]["port"] = 1
    applied = [a.object for a in plan_cluster(WISH, world.observed()).actions if type(a) is Apply]
    assert [(o["kind"], o["metadata"]["name"]) for o in applied] == [("Service", NAMES.bootstrap)]


def test_an_object_of_somebody_else_is_not_touched() -> None:
    world = settled(WISH)
    service = world.objects["Service", NAMES.bootstrap]
    service["metadata"]["ownerReferences"] = []
    del service["metadata"]["labels"][CLUSTER_LABEL]
    plan = plan_cluster(WISH, world.observed())
    assert plan.actions == ()
    assert [(w.reason, w.severity) for w in plan.waits] == [("NameTaken", Severity.BLOCKED)]


def test_former_permissions_go_when_the_new_ones_are_there() -> None:
    """Controllers must not be without them for a moment."""
    world = settled(WISH)
    former = [("Role", NAMES.controller), ("RoleBinding", NAMES.controller)]
    of_a_user = ("RoleBinding", "of-a-user")
    for kind, name in (*former, of_a_user):
        metadata = {"name": name, "uid": name, "labels": {CLUSTER_LABEL: NAMES.cluster}}
        owners = [] if (kind, name) == of_a_user else [WISH.owner()]
        world.objects[kind, name] = {"kind": kind, "metadata": metadata}
        world.objects[kind, name]["metadata"]["ownerReferences"] = owners
    binding = "RoleBinding", NAMES.controller_binding(WISH.installation.controller_role)
    del world.objects[binding]
    first = plan_cluster(WISH, world.observed())
    assert [type(action) for action in first.actions] == [Apply], "nothing is removed yet"
    world.carry_out(first.actions[0])
    then = plan_cluster(WISH, world.observed())
    removed = [(a.kind, a.name) for a in then.actions if isinstance(a, RemoveObject)]
    assert sorted(removed) == former
    assert of_a_user in world.objects
    assert run(world, WISH).is_idle


def test_services_for_outside_go_with_external_and_those_of_others_stay() -> None:
    outside = replace(WISH, external=External("penstock.example"))
    world = settled(outside)
    ours = {(kind, name) for kind, name in world.objects if name.endswith("-external")}
    assert len(ours) == 4
    mine = [("flights-external", True), ("flights-broker-one-external", True)]
    mine += [(NAMES.external(7), False)]
    for name, owned in mine:
        owners = [WISH.owner()] if owned else []
        metadata: dict[str, Any] = {"name": name, "uid": name, "ownerReferences": owners}
        metadata["labels"] = NAMES.labels("broker")
        world.objects["Service", name] = {"kind": "Service", "metadata": metadata}
    assert run(world, WISH).is_idle
    kept = {name for kind, name in world.objects if name.endswith("-external")}
    assert kept == {name for name, _ in mine}


def test_a_roll_moves_leaders_first_and_takes_one_broker_at_a_time() -> None:  # I25
    world = settled(WISH)
    newer = desired(image="penstock-broker:2")
    taken: list[int] = []

    def check(world: World, action: RestartPod) -> None:
        assert not any(p.leader == action.broker_id for p in world.partitions)
        assert all(p.is_full for p in world.partitions)
        assert all(pod.ready for pod in world.pods.values())
        taken.append(action.broker_id)

    assert run(world, newer, check=check).is_idle
    assert taken == [0, 1, 2]


def test_a_roll_stops_at_a_broker_that_does_not_come_back_and_can_be_taken_back() -> None:
    world = settled(WISH)
    bad = desired(image="does-not-exist")
    for _ in range(40):
        for action in plan_cluster(bad, world.observed()).actions:
            world.carry_out(action)
        world.go_on()
        for broker_id, pod in world.pods.items():
            if pod.template_hash == template_hash(bad) and not pod.terminating:
                world.pods[broker_id] = replace(pod, ready=False, trouble="ImagePullBackOff")
                world.alive.discard(broker_id)
    outdated = [p for p in world.pods.values() if p.template_hash == template_hash(bad)]
    assert [pod.broker_id for pod in outdated] == [0]
    assert run(world, desired(image=WISH.image)).is_idle
    assert all(pod.ready for pod in world.pods.values())


def test_a_roll_waits_for_the_brokers_word() -> None:
    world = settled(WISH)
    world.reachable = False
    newer = desired(image="penstock-broker:2")
    run(world, newer, steps=20)
    assert {pod.template_hash for pod in world.pods.values()} == {template_hash(WISH)}


def test_brokers_of_another_cluster_are_not_restarted() -> None:
    world = settled(WISH)
    run(world, desired(image="x"), steps=1)
    observed = replace(world.observed(), recorded_cluster_id="another")
    plan = plan_cluster(desired(image="x"), observed)
    assert not [a for a in plan.actions if isinstance(a, RestartPod | MoveLeaders)]
    assert "WrongCluster" in reasons(plan)


def test_force_roll_restarts_whatever_the_brokers_say() -> None:
    world = settled(WISH)
    world.reachable = False
    bound = replace(WISH, force_roll=1, force_roll_pod=world.pods[1].uid)
    plan = plan_cluster(bound, world.observed())
    assert [(a.broker_id, a.forced) for a in plan.actions if type(a) is RestartPod] == [(1, True)]


def test_scaling_down_happens_once_proven_empty() -> None:
    world = settled(desired(brokers=4), partitions=8)
    world.partitions = [p for p in world.partitions if 3 not in p.replicas]
    assert run(world, desired(brokers=3)).is_idle
    assert sorted(world.pods) == [0, 1, 2]
    assert 3 in world.claims, "the volume stays"
    assert world.registered == {0, 1, 2}, "the controller forgets it"


def test_a_plan_says_what_it_waits_for_when_a_replica_is_out_of_sync() -> None:
    world = settled(WISH)
    world.partitions = [replace(world.partitions[0], isr=world.partitions[0].replicas[:2])]
    assert "CatchingUp" in reasons(plan_cluster(WISH, world.observed()))
    world.partitions = [replace(world.partitions[0], isr=world.partitions[0].replicas[:1])]
    assert "UnderMinIsr" in reasons(plan_cluster(WISH, world.observed()))


def test_a_claim_is_as_large_as_its_volume_and_says_what_resizes_it() -> None:
    claim = {
        "metadata": {"name": "data-0", "uid": "u"},
        "spec": {"resources": {"requests": {"storage": "2Gi"}}},
    }
    unbound = claim_state(0, claim, expandable=True)
    assert (unbound.requested, unbound.capacity, unbound.resizing) == (2 * GIB, 0, "")
    conditions = [
        {"type": "FileSystemResizePending", "status": "True", "message": "wait for the pod"},
        {"type": "Resizing", "status": "True"},
        {"type": "Other", "status": "False"},
    ]
    status = {"capacity": {"storage": "1Gi"}, "conditions": conditions}
    bound = claim_state(0, {**claim, "status": status}, expandable=True)
    assert (bound.capacity, bound.resizing) == (GIB, "wait for the pod; Resizing")


def test_scaling_down_waits_while_nobody_can_be_asked() -> None:
    world = settled(desired(brokers=4))
    world.reachable = False
    plan = run(world, desired(brokers=3), steps=20)
    assert sorted(world.pods) == [0, 1, 2, 3]
    assert "BrokersDoNotAnswer" in reasons(plan)


def test_scaling_up_is_at_once() -> None:
    world = settled(WISH)
    assert run(world, desired(brokers=4)).is_idle
    assert sorted(world.pods) == [0, 1, 2, 3]


def test_volumes_grow_with_nothing_ready_and_nothing_restarts() -> None:  # I28
    world = settled(WISH)
    world.reachable = False
    world.pods = {i: replace(pod, ready=False, trouble="x") for i, pod in world.pods.items()}
    uids = {pod.uid for pod in world.pods.values()}
    larger = desired(spec_storage_size="20Gi")
    first = plan_cluster(larger, world.observed())
    assert isinstance(first.actions[0], GrowClaim)
    run(world, larger, steps=30)
    assert {claim.requested for claim in world.claims.values()} == {20 * GIB}
    live = world.objects["StatefulSet", NAMES.broker]["spec"]["volumeClaimTemplates"][0]
    assert live["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert {pod.uid for pod in world.pods.values()} == uids


def test_a_volume_that_cannot_grow_says_so_and_stops_nothing_else() -> None:
    world = settled(WISH)
    world.claims = {i: replace(claim, expandable=False) for i, claim in world.claims.items()}
    world.objects.pop(("Service", NAMES.bootstrap))
    plan = plan_cluster(desired(spec_storage_size="20Gi"), world.observed())
    assert "StorageCannotGrow" in reasons(plan)
    assert [a.object["metadata"]["name"] for a in plan.actions if type(a) is Apply] == [
        NAMES.bootstrap
    ]
    assert not [a for a in plan.actions if isinstance(a, OrphanSet)]


def test_evictions_are_refused_while_a_replica_is_missing() -> None:
    world = settled(WISH)
    world.partitions[0] = replace(world.partitions[0], isr=world.partitions[0].isr[:2])
    plan = plan_cluster(WISH, world.observed())
    budgets = [
        a.object["spec"]["maxUnavailable"]
        for a in plan.actions
        if isinstance(a, Apply) and a.object["kind"] == "PodDisruptionBudget"
    ]
    assert budgets == [0]


def test_pods_are_told_the_rack_of_their_node() -> None:
    world = settled(WISH)
    world.racks = {"node-1": "zone-b"}
    marks = [a for a in plan_cluster(WISH, world.observed()).actions if isinstance(a, MarkRack)]
    assert marks == [MarkRack(NAMES.pod(1), "zone-b")]


@st.composite
def situations(draw: st.DrawFn) -> tuple[World, DesiredCluster]:
    """A settled world of 1 to 5 brokers, then damage and a new wish, in any combination."""
    before = desired(brokers=draw(st.integers(1, 5)), image=draw(st.sampled_from(["a", "b"])))
    world = settled(before, draw(st.integers(0, 2**16)), draw(st.integers(0, 8)))
    for broker_id in draw(st.sets(st.integers(0, 4))):
        if broker_id in world.pods and draw(st.booleans()):
            world.carry_out(
                RestartPod(broker_id, "", world.pods[broker_id].uid, "damage of the test")
            )
    for key in draw(st.sets(st.sampled_from(sorted(world.objects)))):
        if draw(st.booleans()):
            del world.objects[key]
        else:
            world.objects[key]["spec" if "spec" in world.objects[key] else "x"] = {
                **world.objects[key].get("spec", {}),
                **({"replicas": 1} if key[0] == "Deployment" else {}),
            }
    wish = desired(
        brokers=draw(st.integers(before.spec.brokers, 5)),
        image=draw(st.sampled_from(["a", "b"])),
        spec_storage_size=draw(st.sampled_from(["10Gi", "20Gi"])),
    )
    return world, wish


@given(situations())
@settings(max_examples=100, deadline=None)
def test_from_any_state_it_converges_and_never_takes_two(
    situation: tuple[World, DesiredCluster],
) -> None:  # I25, I27
    world, wish = situation

    def check(world: World, action: RestartPod) -> None:
        pod = world.pods[action.broker_id]
        if not (pod.ready and action.broker_id in world.alive):
            return  # it served nobody
        down = {i for i in range(wish.spec.brokers) if i not in world.alive}
        assert not down, f"broker {action.broker_id} taken while {down} are down"
        assert all(p.is_full for p in world.partitions if action.broker_id in p.replicas)

    plan = run(world, wish, steps=600, check=check)
    assert plan.is_idle, plan
    assert sorted(world.pods) == list(range(wish.spec.brokers))
    assert {pod.template_hash for pod in world.pods.values()} == {template_hash(wish)}
    assert plan_cluster(wish, world.observed()) == Plan()


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
def test_what_was_deleted_comes_back(kind: str) -> None:
    world = settled(WISH)
    name = next(key for key in world.objects if key[0] == kind)
    del world.objects[name]
    assert run(world, WISH).is_idle
    assert name in world.objects


def test_a_paused_cluster_keeps_topics_and_their_finalizers() -> None:
    body = {
        "metadata": {
            "name": "t",
            "finalizers": [TOPIC_FINALIZER],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"cluster": "c", "deletionPolicy": "Delete"},
        "status": {"topicId": "id"},
    }  # fmt: skip
    cluster = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster",
               "metadata": {"name": "c"}, "spec": {"brokers": 3}}  # fmt: skip
    (plan,) = plan_resources([TopicResource("t", body)], cluster, None, paused=True)
    assert (plan.finalizer, plan.delete, plan.steps) == (None, "", ())
    assert plan.wait is not None
    assert plan.wait.reason == PAUSED_REASON
    (gone,) = plan_resources([TopicResource("t", body)], None, None)
    assert gone.finalizer is False, "without a Cluster nothing is left to be done"


def topic(name: str, *, created: str, deleting: bool = False, policy: str = "Delete") -> Any:
    """With a finalizer, for the topic `orders`."""
    metadata = {"name": name, "finalizers": [TOPIC_FINALIZER], "creationTimestamp": created}
    if deleting:
        metadata["deletionTimestamp"] = "2026-02-01T00:00:00Z"
    spec = {"cluster": "c", "topicName": "orders", "deletionPolicy": policy}
    body = {"metadata": metadata, "spec": spec, "status": {"topicId": "id"}}
    return TopicResource(name, body)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"deleting": True}, {}),
        ({}, {"deleting": True}),
        ({"deleting": True, "policy": "Retain"}, {"deleting": True}),
        ({}, {}),
    ],
)
def test_a_topic_is_deleted_by_nobody_while_another_resource_keeps_it(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    cluster = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster",
               "metadata": {"name": "c"}, "spec": {"brokers": 3}}  # fmt: skip
    known = TopicState("orders", "id", (3,), {})
    facts = BrokerFacts("id", True, {}, (), {"orders": known})
    resources = [topic("b", created="1", **first), topic("a", created="2", **second)]
    plans = plan_resources(resources, cluster, facts)
    assert [plan.delete for plan in plans] == ["", ""]
    loser = plans[0] if first.get("deleting") and not second.get("deleting") else plans[1]
    assert loser.finalizer is False, "it will never delete the topic"


def test_of_two_resources_that_both_go_one_deletes_the_topic() -> None:
    cluster = {"apiVersion": "penstock.dev/v1alpha1", "kind": "Cluster",
               "metadata": {"name": "c"}, "spec": {"brokers": 3}}  # fmt: skip
    known = TopicState("orders", "id", (3,), {})
    facts = BrokerFacts("id", True, {}, (), {"orders": known})
    both = [topic("b", created="1", deleting=True), topic("a", created="2", deleting=True)]
    assert [plan.delete for plan in plan_resources(both, cluster, facts)] == ["id", ""]


def test_a_broker_s_pod_that_cannot_be_created_is_not_being_created() -> None:
    world = settled(desired())
    del world.pods[1]
    why = "exceeded quota: compute"
    plan = plan_cluster(desired(), replace(world.observed(), refused={1: why}))
    (told,) = [wait for wait in plan.waits if "flights-broker-1" in wait.message]
    assert told == Wait(
        "PodRefused", f"pod flights-broker-1 cannot be created: {why}", Severity.BLOCKED
    )


@pytest.mark.parametrize(
    ("since", "severity"),
    [("2026-01-01T11:59:45Z", Severity.PROGRESS), ("2026-01-01T11:59:30Z", Severity.BLOCKED)],
)
def test_controllers_whose_pods_are_refused_say_so(since: str, severity: Severity) -> None:
    world = settled(desired())
    world.objects["Deployment", NAMES.controller]["status"] = {
        "conditions": [
            {
                "type": "ReplicaFailure",
                "status": "True",
                "reason": "FailedCreate",
                "lastTransitionTime": since,
                "message": "exceeded quota: compute",
            }
        ]
    }
    plan = plan_cluster(desired(), replace(world.observed(), at="2026-01-01T12:00:00Z"))
    (told,) = [wait for wait in plan.waits if wait.reason == "PodRefused"]
    message = "pods of the controllers cannot be created: exceeded quota: compute"
    assert told == Wait("PodRefused", message, severity)
    assert "ControllersNotReady" not in reasons(plan)
