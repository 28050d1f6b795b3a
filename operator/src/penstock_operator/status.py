"""The status of Clusters and Topics: what is true, and what they are waiting for, in plain words.

Pure. A status that has not changed is equal to the live one, and is not written again. What it says
of security: `security_rows`; of moves: `move_rows`; the conditions that everything has:
`conditions`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.certificates import first_end
from penstock.core.control.documents import FORMATS
from penstock.core.manifest.containers import BROKER
from penstock.core.topic import DELETION_PROTECTION
from penstock.kubernetes.names import CLUSTER_LABEL, COMPONENT_LABEL
from penstock_operator.conditions import MESSAGE_MAX, condition, conditions
from penstock_operator.format_model import FORMAT_PENDING, FormatSaid
from penstock_operator.hibernation_model import Stage
from penstock_operator.model import BrokerFacts, Object, Observed, Plan, Severity, Wait
from penstock_operator.move_rows import move_rows, placement_rows
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.damage import PARTITION_DAMAGED, condition_row
from penstock_operator.plan.finalize import COMMAND, due
from penstock_operator.plan.gates import is_serving
from penstock_operator.plan.soak import SOAKING
from penstock_operator.plan.upgrade import upgrade_of, wanted_hash
from penstock_operator.security_rows import certificate_rows, rotating, secured

_READ_FROM: Final = {
    "Deployment": ("upgrade",),
    "Pod": ("brokers", "replicas", "brokerStatuses", "upgrade"),
    "StatefulSet": ("brokers", "upgrade"),
    "ConfigMap": ("authorityExpires", "certificates"),
}
"""Fields of a Cluster's status that stay as they were while a kind cannot be read."""
_STAGES: Final = {
    Stage.HIBERNATING: "Hibernating",
    Stage.STOPPING: "Hibernating",
    Stage.HIBERNATED: "Hibernated",
    Stage.STARTING: "Waking",
    Stage.WAKING: "Waking",
}
"""Phases of a Cluster that nobody is served by."""


def cluster_status(
    desired: DesiredCluster, observed: Observed, plan: Plan, before: Mapping[str, Any], now: str
) -> Object:
    """All of `status`; `protected` and what is said of moves only once there was any."""
    facts = observed.brokers
    newest = wanted_hash(desired, observed)
    pods = observed.pods.values()
    not_ready = why_not_ready(desired, observed, plan)
    waits = plan.waits or _applying(plan)
    known = before.get("conditions") or ()
    ends = first_end(observed.trust)
    shown = [
        *conditions(not_ready, waits, desired.generation, known, now),
        *secured(desired, observed, ends, known, now),
        *rotating(desired, observed, known, now),
        *_damaged(desired, observed, known, now),
        *_format_pending(desired, plan, known, now),
    ]
    wanted = f"{COMPONENT_LABEL}={BROKER},{CLUSTER_LABEL}={desired.names.cluster}"
    numbers = _numbers(facts, before)
    ready = sum(pod.ready and not pod.terminating for pod in pods)
    status: Object = {
        "observedGeneration": desired.generation,
        "conditions": shown,
        "phase": _phase(desired, plan, ready=not_ready is None, before=before),
        "message": _message(plan, not_ready),
        "clusterId": observed.recorded_cluster_id or (facts.cluster_id if facts else ""),
        **certificate_rows(desired, observed, ends, before),
        "bootstrap": desired.names.bootstrap_address,
        "brokers": {
            "desired": desired.spec.brokers,
            "ready": ready,
            "summary": f"{ready}/{desired.spec.brokers}",
            "registered": _alive(facts, before),
            "updated": sum(pod.template_hash == newest for pod in pods),
        },
        **numbers,
        "replicas": len(observed.pods),
        "selector": wanted,
        "storage": {"size": desired.spec.storage_size},
        "upgrade": _upgrade(desired, observed, before.get("upgrade") or {}),
        "brokerStatuses": _broker_statuses(observed, plan, before),
        **move_rows(observed, plan, before, now),
        **hibernation_row(plan, before, now),
        **protected_row(before, protected=desired.spec.config.get(DELETION_PROTECTION) == "true"),
    }
    unread = [key for kind, keys in _READ_FROM.items() if not observed.knows(kind) for key in keys]
    return status | {key: before[key] for key in unread if key in before}


def _upgrade(desired: DesiredCluster, observed: Observed, before: Mapping[str, Any]) -> Object:
    """Every key is there: a merge patch leaves those that are not. Steps stay as they were while it
    is not known where replicas are."""
    found = upgrade_of(desired, observed)
    if found is None:
        row: Object = {"available": False, "plan": "", "from": "", "to": "", "changes": []}
        unsaid = dict.fromkeys(("minutes", "format", "newestFormat"))
        return row if "steps" not in before else {**row, "steps": [], **unsaid}
    ahead = found.ahead
    steps = [", ".join(map(str, group)) for group in ahead.groups] if ahead is not None else None
    return {
        "available": True,
        "plan": found.plan,
        "from": found.before,
        "to": found.after,
        "changes": list(found.changes),
        "steps": before.get("steps", []) if steps is None else steps,
        "minutes": before.get("minutes") if ahead is None else ahead.minutes,
        **_formats(observed, before),
    }


def _formats(observed: Observed, before: Mapping[str, Any]) -> Object:
    """What is stored, and the newest that the image of this operator's release writes."""
    if observed.moves is None:
        return {key: before.get(key) for key in ("format", "newestFormat")}
    stored = observed.moves.moving.format
    return {"format": stored, "newestFormat": max(stored, *FORMATS)}


def hibernation_row(plan: Plan, before: Mapping[str, Any], now: str) -> Object:
    """As `protected_row`: none where nobody ever asked for it."""
    record = plan.hibernation
    if record is None or (record.stage is Stage.AWAKE and "hibernation" not in before):
        return {}
    return {
        "hibernation": {
            "state": record.stage.value,
            "since": record.since or now,
            "generation": record.generation,
            "waitingFor": record.waiting_for[:MESSAGE_MAX],
        }
    }


def protected_row(before: Mapping[str, Any], *, protected: bool | None) -> Object:
    """The status' row about protection from deletion; `protected` None: not known now.

    Whatever never was protected has no such row: a new operator does not write every status.
    """
    if protected is None or (not protected and "protected" not in before):
        return {}
    return {"protected": protected}


def moving_row(before: Mapping[str, Any], moving: str) -> Object:
    """The status' row about moves; as `protected_row`: none where there never was any."""
    return {"moving": moving} if moving or "moving" in before else {}


def _damaged(
    desired: DesiredCluster, observed: Observed, before: Sequence[Mapping[str, Any]], now: str
) -> list[Object]:
    """None before the first damage; as before while nobody says what is damaged."""
    known = next((each for each in before if each["type"] == PARTITION_DAMAGED), None)
    row = condition_row(observed)
    if row is None:
        return [] if known is None else [dict(known)]
    if known is None and row[1] == "False":
        return []
    return [condition(row, desired.generation, known, now)]


def _format_pending(
    desired: DesiredCluster, plan: Plan, before: Sequence[Mapping[str, Any]], now: str
) -> list[Object]:
    """None before the first upgrade; as before while nobody says which format is stored.

    Nothing waits for it: the Cluster is Ready, and settled.
    """
    known = next((each for each in before if each["type"] == FORMAT_PENDING), None)
    pending = plan.format
    if pending is None or not (pending.holds or known):
        return [] if known is None else [dict(known)]
    message = pending.message
    if pending.automatic:
        since = FormatSaid.of({"conditions": before}).since or now
        message = (
            f"{message}. It is stored at {due(since):%Y-%m-%dT%H:%M:%SZ}, or as soon after that as "
            "everything is there; from then on the release before cannot be started. Sooner: "
            f"{COMMAND}; not by itself: spec.upgrade.finalize: Manual"
        )
    row = (FORMAT_PENDING, "True" if pending.holds else "False", pending.reason, message)
    return [condition(row, desired.generation, known, now)]


def _applying(plan: Plan) -> tuple[Wait, ...]:
    """A change in this pass may cause more, as a template causes a roll: the generation must not
    count as settled before the next pass has checked."""
    return (Wait("Applying", "changes are in progress"),) if plan.actions else ()


def why_not_ready(desired: DesiredCluster, observed: Observed, plan: Plan) -> Wait | None:
    """Why it is not Ready. A roll or a refused scale-down leaves it Ready while all is served."""
    facts = observed.brokers
    if plan.resting is not None:
        return plan.resting
    if facts is None or not facts.controller_reachable:
        text = observed.brokers_problem or "no controller is active"
        return _first(plan, Wait("NotServing", text))
    for broker_id in range(desired.spec.brokers):
        if not is_serving(observed.pods.get(broker_id), facts):
            return _first(plan, Wait("BrokerNotServing", f"broker {broker_id} does not serve"))
    if facts.offline or facts.under_min_isr:
        return _first(plan, Wait("PartitionsNotServed", "partitions are offline or below min ISR"))
    return None


def _first(plan: Plan, otherwise: Wait) -> Wait:
    return plan.waits[0] if plan.waits else otherwise


def _phase(desired: DesiredCluster, plan: Plan, *, ready: bool, before: Mapping[str, Any]) -> str:
    if desired.paused:
        return "Paused"
    reasons = {wait.reason for wait in plan.waits}
    if plan.hibernation is not None and plan.resting is not None:
        return _STAGES[plan.hibernation.stage]
    if any(wait.severity is Severity.BLOCKED for wait in plan.waits):
        return "Blocked"
    if reasons & {"Rolling", "MovingLeaders", SOAKING}:
        return "Rolling"
    if not ready:
        was = before.get("phase") or "Creating"
        return "Creating" if was == "Creating" else "Degraded"
    return "Ready" if plan.is_idle else "Settling"


def _message(plan: Plan, not_ready: Wait | None) -> str:
    if plan.waits:
        return plan.waits[0].message[:MESSAGE_MAX]
    return "" if not_ready is None else not_ready.message[:MESSAGE_MAX]


def _alive(facts: BrokerFacts | None, before: Mapping[str, Any]) -> int:
    if facts is None:
        return int((before.get("brokers") or {}).get("registered", 0))
    return sum(state.alive for state in facts.brokers.values())


def _numbers(facts: BrokerFacts | None, before: Mapping[str, Any]) -> Object:
    """The brokers' counts; the last known ones while they do not answer."""
    if facts is None:
        keys = (
            "topics",
            "partitions",
            "underReplicatedPartitions",
            "underMinIsrPartitions",
            "offlinePartitions",
        )
        return {key: int(before.get(key, 0)) for key in keys}
    return {
        "topics": len(facts.topics),
        "partitions": len(facts.partitions),
        "underReplicatedPartitions": len(facts.not_full),
        "underMinIsrPartitions": len(facts.under_min_isr),
        "offlinePartitions": len(facts.offline),
    }


def _broker_statuses(observed: Observed, plan: Plan, before: Mapping[str, Any]) -> list[Object]:
    facts = observed.brokers
    known = {each["id"]: each for each in before.get("brokerStatuses") or ()}
    placements = placement_rows(observed, plan, known)
    rows = []
    for broker_id, pod in sorted(observed.pods.items()):
        state = facts.brokers.get(broker_id) if facts else None
        last = known.get(broker_id, {})
        rows.append(
            {
                "id": broker_id,
                "pod": pod.name,
                "node": pod.node,
                "image": pod.image,
                "ready": pod.ready and not pod.terminating,
                "registered": state.alive if state else bool(last.get("registered", False)),
                "rack": state.rack if state else pod.rack,
                "leaders": state.leaders if state else int(last.get("leaders", 0)),
                "replicas": state.replicas if state else int(last.get("replicas", 0)),
                **placements.get(broker_id, {}),
            }
        )
    return rows
