"""The status of Clusters and Topics: what is true, and what they are waiting for, in plain words.

Pure. Conditions follow kstatus (as `kubectl wait`, Helm and Argo CD expect): `Ready` True when it
works as specified, `Reconciling` True while steps follow by themselves, `Stalled` True when a
person has to act. A condition's `lastTransitionTime` says since when; it stays while its status
stays, so a status that has not changed is equal to the live one and is not written again.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from penstock.certificates import first_end
from penstock.core.manifest.objects import SecurityMode
from penstock.core.topic import DELETION_PROTECTION
from penstock.kubernetes.certificate_ends import CertificateEnd, soonest
from penstock.kubernetes.names import (
    AUTHORITY_ENDS,
    CLUSTER_LABEL,
    COMPONENT_LABEL,
    SERVER_CERTIFICATE_ENDS,
)
from penstock.kubernetes.rotation import SETTLED
from penstock_operator.hibernation_model import Stage
from penstock_operator.model import BrokerFacts, Object, Observed, Plan, Severity, Wait
from penstock_operator.move_rows import move_rows
from penstock_operator.names import SECURE_PORT
from penstock_operator.objects import DesiredCluster, Section
from penstock_operator.objects.broker import BROKER
from penstock_operator.plan.authority import other_authority, wants_another
from penstock_operator.plan.damage import PARTITION_DAMAGED, condition_row
from penstock_operator.plan.gates import is_serving
from penstock_operator.plan.upgrade import upgrade_of, wanted_hash

READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
SECURED: Final = "Secured"
ROTATING_CA: Final = "RotatingCA"
HIBERNATED: Final = "Hibernated"
"""Reason of what waits for a Cluster to wake, which does not happen by itself."""
_READ_FROM: Final = {
    "Deployment": ("upgrade",),
    "Pod": ("brokers", "replicas", "brokerStatuses", "upgrade"),
    "StatefulSet": ("brokers", "upgrade"),
    "ConfigMap": ("authorityExpires", "certificates"),
}
"""Fields of a Cluster's status that stay as they were while a kind cannot be read."""
CERTIFICATE_WARNING: Final = timedelta(days=7)
"""Before the end of a server's certificate, which lasts 30 days and is renewed ten before."""
AUTHORITY_WARNING: Final = timedelta(days=90)
"""Before the end of the CA: time to change it without haste."""
_MESSAGE_MAX: Final = 1_000
_STAGES: Final = {
    Stage.HIBERNATING: "Hibernating",
    Stage.STOPPING: "Hibernating",
    Stage.HIBERNATED: "Hibernated",
    Stage.STARTING: "Waking",
    Stage.WAKING: "Waking",
}
"""Phases of a Cluster that nobody is served by."""
_SECURED_ROWS: Final = {
    SecurityMode.STRICT: ("True", "Strict", "everybody shows who they are"),
    SecurityMode.MIGRATE: (
        "False",
        "Migrating",
        (
            "whoever reaches a plaintext port may do everything; once all clients use "
            f"{SECURE_PORT}, set spec.security.mode Strict"
        ),
    ),
    SecurityMode.DISABLED: (
        "False",
        "SecurityDisabled",
        (
            "whoever reaches a broker may read and change everything; spec.security.mode Migrate "
            "lets clients move to TLS, and then Strict asks everybody who they are"
        ),
    ),
}
"""By the weakest mode of a broker that runs."""


def conditions(
    ready: Wait | None,
    waits: Sequence[Wait],
    generation: int,
    before: Sequence[Mapping[str, Any]],
    now: str,
) -> list[Object]:
    """The three conditions. `ready` None: it is Ready; otherwise why not. `now`: RFC 3339."""
    blocked = [wait for wait in waits if wait.severity is Severity.BLOCKED]
    moving = [
        wait for wait in waits if wait.severity is Severity.PROGRESS and wait.reason != HIBERNATED
    ]
    rows = [
        (READY, "True", "AsDesired", "everything is as it should be")
        if ready is None
        else (READY, "False", ready.reason, ready.message),
        (RECONCILING, "True", moving[0].reason, _all(moving))
        if moving
        else (RECONCILING, "False", "NothingToDo", ""),
        (STALLED, "True", blocked[0].reason, _all(blocked))
        if blocked
        else (STALLED, "False", "NotStalled", ""),
    ]
    known = {each["type"]: each for each in before}
    return [_condition(row, generation, known.get(row[0]), now) for row in rows]


def _condition(
    row: tuple[str, str, str, str], generation: int, before: Mapping[str, Any] | None, now: str
) -> Object:
    kind, status, reason, message = row
    same = before is not None and before.get("status") == status
    since = before["lastTransitionTime"] if same and before is not None else now
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:_MESSAGE_MAX],
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }


def _all(waits: Sequence[Wait]) -> str:
    return "; ".join(dict.fromkeys(wait.message for wait in waits))


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
        *_secured(desired, observed, ends, known, now),
        *_rotating(desired, observed, known, now),
        *_damaged(desired, observed, known, now),
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
        "authorityExpires": _rfc3339(ends) if ends is not None and desired.has_tls else "",
        **_certificates(desired, observed, before),
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
        "brokerStatuses": _broker_statuses(observed, before),
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
        return row if "steps" not in before else {**row, "steps": [], "minutes": None}
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
    }


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
            "waitingFor": record.waiting_for[:_MESSAGE_MAX],
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


def _secured(
    desired: DesiredCluster,
    observed: Observed,
    ends: datetime | None,
    before: Sequence[Mapping[str, Any]],
    now: str,
) -> list[Object]:
    """A warning to whoever looks; nothing waits for it. What runs counts, not what is asked for.
    As before, or none, while neither is known.

    `ends`: when the CA does; None: it is not known.
    """
    known = next((each for each in before if each["type"] == SECURED), None)
    if not observed.pods and not (desired.knows(Section.TEMPLATE) and observed.knows("Pod")):
        return [] if known is None else [dict(known)]
    modes = {pod.mode for pod in observed.pods.values()} or {desired.spec.security}
    weakest = min(modes, key=lambda mode: mode.strength)
    status, reason, words = _SECURED_ROWS[weakest]
    soon = datetime.fromisoformat(now) + AUTHORITY_WARNING
    if weakest.has_tls and ends is not None and ends < soon:
        reason = AUTHORITY_ENDS
        words = (
            f"the CA ends at {_rfc3339(ends)}: nobody can connect from then on; replace it before "
            f"that: kubectl penstock rotate-ca {desired.names.cluster}"
        )
    elif weakest.has_tls and (first := soonest(observed.certificate_ends)) and _ends(first, now):
        reason = SERVER_CERTIFICATE_ENDS
        words = (
            f"the certificate of {first[0]} ends at {first[1].at} and was not renewed: nobody can "
            "connect to it from then on; its log says why"
        )
    elif weakest.has_tls and observed.users_ca_problem:
        reason, words = "UsersCaNotUsed", observed.users_ca_problem
    row = (SECURED, status, reason, words)
    return [_condition(row, desired.generation, known, now)]


def _ends(first: tuple[str, CertificateEnd], now: str) -> bool:
    """Whether this certificate should have been renewed by now."""
    return first[1].at_s < (datetime.fromisoformat(now) + CERTIFICATE_WARNING).timestamp()


def _certificates(desired: DesiredCluster, observed: Observed, before: Mapping[str, Any]) -> Object:
    """The first server's certificate to end; no row where there never was TLS."""
    first = soonest(observed.certificate_ends) if desired.has_tls else None
    if first is not None:
        return {"certificates": {"expires": first[1].at, "server": first[0]}}
    return {"certificates": {"expires": "", "server": ""}} if "certificates" in before else {}


def _rotating(
    desired: DesiredCluster, observed: Observed, before: Sequence[Mapping[str, Any]], now: str
) -> list[Object]:
    """None before the first time. Nothing else waits for it: the Cluster works all the while."""
    if not desired.has_tls:
        return []
    known = next((each for each in before if each["type"] == ROTATING_CA), None)
    seen = observed.authority.rotation
    if seen is not None and seen.phase != SETTLED:
        waits = f"; waits for {', '.join(seen.waits)}" if seen.waits else ""
        row = ("True", seen.phase, f"{_PHASES.get(seen.phase, 'goes on')}{waits}")
    elif wants_another(desired, observed):
        other = other_authority(desired, observed)
        row = ("True", "Requested", f"controllers do not see Secret {other} yet")
    elif seen is None and known is None:
        return []
    else:
        row = ("False", "Settled", "servers and clients use one CA")
    return [_condition((ROTATING_CA, *row), desired.generation, known, now)]


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
    return [_condition(row, desired.generation, known, now)]


_PHASES: Final = {
    "TrustingBoth": "servers learn to trust both CAs",
    "WaitingForClients": "clients learn to trust both CAs",
    "RenewingCertificates": "servers get certificates of the new CA",
    "DroppingOld": "servers stop trusting the old CA",
    "RemovingOldKey": "the old CA's key goes; a Secret that Penstock did not make, delete yourself",
}


def _rfc3339(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"


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
    if reasons & {"Rolling", "MovingLeaders"}:
        return "Rolling"
    if not ready:
        was = before.get("phase") or "Creating"
        return "Creating" if was == "Creating" else "Degraded"
    return "Ready" if plan.is_idle else "Settling"


def _message(plan: Plan, not_ready: Wait | None) -> str:
    if plan.waits:
        return plan.waits[0].message[:_MESSAGE_MAX]
    return "" if not_ready is None else not_ready.message[:_MESSAGE_MAX]


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


def _broker_statuses(observed: Observed, before: Mapping[str, Any]) -> list[Object]:
    facts = observed.brokers
    known = {each["id"]: each for each in before.get("brokerStatuses") or ()}
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
            }
        )
    return rows
