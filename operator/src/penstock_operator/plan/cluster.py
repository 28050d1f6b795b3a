"""All tracks together, and what blocks them: names taken by others, a pause."""

from dataclasses import dataclass
from typing import Final

from penstock.kubernetes.names import CLUSTER_LABEL
from penstock_operator.compare import is_applied, stamped
from penstock_operator.model import (
    Action,
    Apply,
    MarkRack,
    Object,
    Observed,
    Plan,
    RemoveObject,
    Severity,
    Wait,
)
from penstock_operator.objects import DesiredCluster, broker_objects, broker_set, controller_objects
from penstock_operator.objects.broker import template_hash
from penstock_operator.plan.authority import plan_authority
from penstock_operator.plan.gates import can_lose_one
from penstock_operator.plan.roll import plan_roll
from penstock_operator.plan.scale import forgotten, wanted_replicas
from penstock_operator.plan.security import staged
from penstock_operator.plan.storage import plan_storage, with_claim_template
from penstock_operator.plan.waiting import plan_waits

EXTERNAL_SUFFIX: Final = "-external"


@dataclass(frozen=True, slots=True)
class _Track:
    actions: tuple[Action, ...] = ()
    waits: tuple[Wait, ...] = ()


def plan_cluster(desired: DesiredCluster, observed: Observed) -> Plan:
    """The next steps, and what to wait for; empty when the Cluster matches its spec."""
    if desired.paused:
        return Plan(waits=(Wait("Paused", "paused by annotation: nothing is changed"),))
    taken = _taken(desired, observed)
    if taken:
        return Plan(waits=taken)
    stage = staged(desired, observed)
    brokers = stage.brokers
    tracks = (
        _storage(brokers, observed),
        _objects(stage.rest, observed),
        _brokers(brokers, observed),
        _racks(observed),
        _roll(brokers, observed),
        _Track(waits=plan_waits(brokers, observed)),
        _Track(waits=() if stage.wait is None else (stage.wait,)),
    )
    actions = tuple(action for track in tracks for action in track.actions)
    waits = tuple(dict.fromkeys(wait for track in tracks for wait in track.waits))
    return Plan(actions, waits)


def _taken(desired: DesiredCluster, observed: Observed) -> tuple[Wait, ...]:
    """Objects with our names that belong to others: never touched."""
    waits = []
    for (kind, name), live in sorted(observed.objects.items()):
        metadata = live["metadata"]
        owners = [ref for ref in metadata.get("ownerReferences") or () if ref.get("controller")]
        if any(ref["uid"] == desired.uid for ref in owners):
            continue
        ours = (metadata.get("labels") or {}).get(CLUSTER_LABEL) == desired.names.cluster
        if ours and owners and owners[0].get("kind") == "Cluster":
            # Left by a deleted Cluster with this name: the garbage collector removes it.
            text = f"{kind} {name} of a deleted Cluster with the same name is being removed"
            waits.append(Wait("FormerClusterLeaves", text))
        elif not ours or owners:
            text = (
                f"{kind} {name} exists but does not belong to this Cluster; rename the Cluster, "
                f"remove that {kind}, or label it {CLUSTER_LABEL}={desired.names.cluster} to "
                "adopt it"
            )
            waits.append(Wait("NameTaken", text, Severity.BLOCKED))
    return tuple(waits)


def _storage(desired: DesiredCluster, observed: Observed) -> _Track:
    return _Track(*plan_storage(desired, observed))


def _objects(desired: DesiredCluster, observed: Observed) -> _Track:
    wanted = [*controller_objects(desired), *broker_objects(desired)]
    live_budget = observed.live("PodDisruptionBudget", desired.names.broker)
    wanted = [_budget(each, observed, live_budget) for each in wanted]
    actions: list[Action] = [*plan_authority(desired, observed)]
    for each in wanted:
        key = (each["kind"], each["metadata"]["name"])
        if not is_applied(each, observed.live(*key)):
            actions.append(Apply(stamped(each)))
    keep = {(each["kind"], each["metadata"]["name"]) for each in wanted}
    for (kind, name), live in sorted(observed.objects.items()):
        if (kind, name) not in keep and _is_left_over(live, kind, desired, observed):
            actions.append(RemoveObject(kind, name, live["metadata"]["uid"]))
    return _Track(tuple(actions))


def _is_left_over(live: Object, kind: str, desired: DesiredCluster, observed: Observed) -> bool:
    """Whether it is of a kind that a Cluster can come to need no longer."""
    metadata = live["metadata"]
    if kind == "Service":
        return bool(metadata["name"].endswith(EXTERNAL_SUFFIX))
    owners = {ref["uid"] for ref in metadata.get("ownerReferences") or ()}
    if kind in {"Role", "RoleBinding"} and desired.uid in owners:
        # Permissions of an earlier installation go once those of this one are there.
        binding = desired.names.controller_binding(desired.installation.controller_role)
        return observed.live("RoleBinding", binding) is not None
    return False


def _budget(wanted: Object, observed: Observed, live: Object | None) -> Object:
    """Evictions are allowed one at a time, and only while no partition lacks a replica."""
    if wanted["kind"] != "PodDisruptionBudget":
        return wanted
    spec = wanted["spec"]
    if observed.brokers is not None:
        allowed = 1 if can_lose_one(observed.brokers) else 0
    else:
        allowed = spec["maxUnavailable"] if live is None else live["spec"].get("maxUnavailable", 1)
    return {**wanted, "spec": {**spec, "maxUnavailable": allowed}}


def _brokers(desired: DesiredCluster, observed: Observed) -> _Track:
    live = observed.live("StatefulSet", desired.names.broker)
    replicas, waits = wanted_replicas(desired, observed, live)
    wanted = with_claim_template(broker_set(desired, replicas), live)
    if is_applied(wanted, live):
        return _Track(forgotten(desired, observed), waits)
    return _Track((Apply(stamped(wanted)),), waits)


def _racks(observed: Observed) -> _Track:
    marks = [
        MarkRack(pod.name, observed.racks[pod.node])
        for pod in observed.pods.values()
        if observed.racks.get(pod.node) and pod.rack != observed.racks[pod.node]
    ]
    return _Track(tuple(marks))


def _roll(desired: DesiredCluster, observed: Observed) -> _Track:
    live = observed.live("StatefulSet", desired.names.broker)
    newest = template_hash(desired)
    if live is None or _hash_of(live) != newest:
        return _Track()  # the template must change first
    return _Track(*plan_roll(desired, observed, newest))


def _hash_of(live: Object) -> str:
    template = live["spec"]["template"]["metadata"]
    found: dict[str, str] = template.get("annotations") or {}
    return next((value for key, value in found.items() if key.endswith("/template-hash")), "")
