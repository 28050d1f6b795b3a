"""What to do about one ConsumerGroup: pure, from the resource, its Cluster and the observed group.

A group without a resource is left alone. A group with a resource is only watched, unless its spec
asks for more: an offset reset, once per id, or deletion together with the resource.

When an offset reset is due:

    the coordinator's last id is in status.pendingReset ─▶ write down: an operator died before it
                                                           said that this was done (whatever the
                                                           spec asks for by now)
    its id is in status.resetIds ────────────────────────▶ nothing: each is carried out once
    dryRun ──────────────────────────────────────────────▶ carry out, once per id and wording
    the coordinator's last id is this one──────────────────▶ write down: done for another resource
    members ─────────────────────────────────────────────▶ wait until they have left
    otherwise ───────────────────────────────────────────▶ carry out

A plan is empty when everything requested is done (I27).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.manifest import ManifestError, parse_manifest
from penstock.core.manifest.objects import ConsumerGroupSpec, DeletionPolicy
from penstock.kubernetes.names import API_VERSION
from penstock_operator.groups.model import (
    NO_GROUP,
    CarryOut,
    GroupFacts,
    GroupPlan,
    GroupResource,
    Seen,
    View,
    WriteDown,
)
from penstock_operator.groups.reset import found_done, in_words
from penstock_operator.model import Severity, Wait
from penstock_operator.names import GROUP_FINALIZER


def owners_of(resources: Sequence[GroupResource]) -> dict[str, str]:
    """Which resource has a group's id: the oldest, then the first by name."""
    owners: dict[str, str] = {}
    for each in sorted(
        resources, key=lambda r: (r.body["metadata"].get("creationTimestamp", ""), r.name)
    ):
        if not each.deleting:
            owners.setdefault(each.group_id, each.name)
    return owners


def plan_group(
    resource: GroupResource, view: View, owners: Mapping[str, str], seen: Seen
) -> GroupPlan:
    """The next steps. `owners`: from `owners_of`."""
    if resource.deleting:
        return _plan_deletion(resource, view, owners, seen)
    if view.gone:
        cluster = resource.body["spec"].get("cluster", "")
        text = f"waiting for Cluster {cluster} in this namespace"
        return GroupPlan(resource, waits=(Wait("NoCluster", text),))
    if resource.paused or (view.desired is not None and view.desired.paused):
        text = "paused by annotation: nothing is changed"
        return GroupPlan(resource, waits=(Wait("Paused", text),))
    owner = owners.get(resource.group_id, resource.name)
    if owner != resource.name:
        text = (
            f"ConsumerGroup/{owner} already has the group {resource.group_id}; delete one of them"
        )
        return GroupPlan(resource, waits=(Wait("NameTaken", text, Severity.BLOCKED),))
    try:
        spec = _read(resource)
    except ManifestError as error:
        text = "; ".join(str(problem) for problem in error.problems)
        return GroupPlan(resource, waits=(Wait("InvalidSpec", text, Severity.BLOCKED),))
    return _plan_live(resource, spec, view, seen)


def _read(resource: GroupResource) -> ConsumerGroupSpec:
    """Raises ManifestError."""
    spec: Mapping[str, Any] = resource.body["spec"]
    documents = [
        {"kind": "Cluster", "metadata": {"name": spec["cluster"]}},
        {"kind": "ConsumerGroup", "metadata": {"name": resource.name}, "spec": spec},
    ]
    manifest = parse_manifest([{"apiVersion": API_VERSION, **each} for each in documents], "spec")
    return manifest.consumer_groups[0].spec


def _plan_live(
    resource: GroupResource, spec: ConsumerGroupSpec, view: View, seen: Seen
) -> GroupPlan:
    wanted = spec.deletion_policy is DeletionPolicy.DELETE
    finalizer = None if wanted == (GROUP_FINALIZER in resource.finalizers) else wanted
    facts = seen.facts
    if facts is None:
        return GroupPlan(
            resource, spec, finalizer, waits=(_nobody_says(view, seen),), access=spec.access
        )
    waits = []
    step: CarryOut | WriteDown | None = _unfinished(resource.status, facts)
    wait = None
    if step is None:
        step, wait = _plan_reset(resource.status, spec, facts)
    if wait is not None:
        waits.append(wait)
    elif facts.state == NO_GROUP and step is None:
        text = (
            f"group {resource.group_id} does not exist yet: no member has joined and no offset "
            "is committed; waiting for it"
        )
        waits.append(Wait("NoGroup", text))
    if isinstance(seen.scale, Wait):
        waits.append(seen.scale)
    return GroupPlan(
        resource,
        spec,
        finalizer,
        reset=step,
        drop_pending=step is None and _is_stale(resource.status, spec),
        waits=tuple(waits),
        note=_note(resource.status, spec),
        access=spec.access,
    )


def _unfinished(status: Mapping[str, Any], facts: GroupFacts) -> WriteDown | None:
    pending: Mapping[str, Any] = status.get("pendingReset") or {}
    known = status.get("resetIds") or ()
    if not pending or pending["id"] != facts.last_reset_id or pending["id"] in known:
        return None
    return WriteDown(dict(pending))


def _plan_reset(
    status: Mapping[str, Any], spec: ConsumerGroupSpec, facts: GroupFacts
) -> tuple[CarryOut | WriteDown | None, Wait | None]:
    reset = spec.offset_reset
    if reset is None or reset.id in (status.get("resetIds") or ()):
        return None, None
    if not reset.dry_run and facts.last_reset_id == reset.id:
        return WriteDown(found_done(reset, facts.last_reset_ms)), None
    if reset.dry_run:
        shown = status.get("dryRun") or {}
        if shown.get("id") == reset.id and shown.get("request") == in_words(reset):
            return None, None
    elif facts.members:
        live = "1 member is" if facts.members == 1 else f"{facts.members} members are"
        text = (
            f"offset reset {reset.id} must wait while {live} active; stop the consumers: the "
            "reset is applied when the last one has left"
        )
        return None, Wait("GroupNotEmpty", text)
    if facts.committed is None:
        text = f"offset reset {reset.id} is waiting for the brokers: {facts.lag_problem}"
        return None, Wait("BrokersDoNotAnswer", text)
    if not facts.committed and not reset.topics:
        text = (
            f"offset reset {reset.id} has no offsets to move: the group has not committed any; "
            "set spec.offsetReset.topics, or wait for the group"
        )
        return None, Wait("NothingCommitted", text)
    return CarryOut(reset), None


def _is_stale(status: Mapping[str, Any], spec: ConsumerGroupSpec) -> bool:
    """Whether a pending reset is no longer requested."""
    pending: Mapping[str, Any] = status.get("pendingReset") or {}
    asked = spec.offset_reset
    return bool(pending) and (asked is None or asked.dry_run or asked.id != pending["id"])


def _note(status: Mapping[str, Any], spec: ConsumerGroupSpec) -> str:
    """Otherwise, a reset that was changed after it was applied would be ignored silently."""
    reset, last = spec.offset_reset, status.get("lastReset") or {}
    if reset is None or last.get("id") != reset.id or reset.dry_run or not last.get("request"):
        return ""
    if last["request"] == in_words(reset):
        return ""
    return (
        f"offset reset {reset.id} was already applied as {last['request']!r}; for another reset, "
        "set a new id"
    )


def _nobody_says(view: View, seen: Seen) -> Wait:
    if view.asleep:
        return Wait("Hibernated", "its Cluster hibernates; this goes on when it wakes")
    if seen.problem is not None:
        return seen.problem
    return Wait("ClusterNotServing", f"cannot reach the Cluster: {view.problem}")


def _plan_deletion(
    resource: GroupResource, view: View, owners: Mapping[str, str], seen: Seen
) -> GroupPlan:
    """The finalizer is removed when nothing is left to do, as when the Cluster no longer exists.

    With the group go the rules that its resource managed, as those of a topic do.
    """
    if GROUP_FINALIZER not in resource.finalizers:
        return GroupPlan(resource)
    keeps = resource.body["spec"].get("deletionPolicy", "Retain") != "Delete"
    if view.gone or keeps or resource.group_id in owners:
        return GroupPlan(resource, finalizer=False)
    if resource.paused or (view.desired is not None and view.desired.paused):
        text = "paused by annotation: the group is not deleted"
        return GroupPlan(resource, waits=(Wait("Paused", text),))
    facts = seen.facts
    if facts is None:
        return GroupPlan(resource, waits=(_nobody_says(view, seen),))
    access = () if resource.manages_access else None
    if facts.state == NO_GROUP:
        return GroupPlan(resource, finalizer=False, access=access)
    if facts.members:
        text = f"the group will be deleted when its {facts.members} members have left; stop them"
        return GroupPlan(resource, waits=(Wait("GroupNotEmpty", text),))
    return GroupPlan(resource, delete=True, finalizer=False, access=access)
