"""What `kubectl penstock why` says: what is wrong, since when, the evidence, what to do. Pure.

    Snapshot ──explain──▶ Findings, the causes first

A finding is one thing that is wrong or waited for. They are in the order in which causes lead to
each other: nothing is managed (operator, pause), nothing is running (volumes, pods), nothing leads
(controllers), replicas are missing (partitions), readers wait (transactions). What the resources
themselves say comes first, because that is what the user asked about.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Final

from penstock.cli.kube.pods import pod_findings
from penstock.cli.kube.snapshot import (
    OPERATOR,
    Snapshot,
    condition,
    deletion,
    event_time,
    full_name,
    is_paused,
    name_of,
)
from penstock.cli.kube.status import (
    age,
    broker_id,
    damaged_partitions,
    has_controller,
    is_pod_ready,
    is_ready,
    lease_holder,
    nobody_ready,
    operator_active,
    phase,
    shortfalls,
    topic_name,
)
from penstock.cli.kube.words import last_told, warnings_about
from penstock.kubernetes.names import (
    AUTHORITY_ENDS,
    OPERATOR_REFUSED,
    PAUSED,
    SERVER_CERTIFICATE_ENDS,
)
from penstock.kubernetes.quantity import quantity
from penstock.kubernetes.resources import Json
from penstock.views.blocking import TRANSACTION_CODES, transaction_findings
from penstock.views.damage import PARTITION_DAMAGED, damage_findings
from penstock.views.findings import Finding, some
from penstock.views.shortfalls import Shortfall, partition_findings

TOPICS_SHOWN: Final = 10
_ABOUT_VOLUMES: Final = {
    "VolumeLost": "start the node with its disk, or wait: it is replaced if nothing is in the way",
    "ReplacingVolume": "nothing, unless it says what is in the way; others fill the new volume",
    "VolumeDeleted": "move its records to other brokers, and only then delete its pod",
}
"""What to do, by the reason of a condition."""
_ENDING: Final = {
    AUTHORITY_ENDS: "needs another CA",
    SERVER_CERTIFICATE_ENDS: "has a server whose certificate was not renewed",
}
"""By the reason of the condition Secured."""
_TOLD_AGAIN: Final = timedelta(minutes=15)
"""While it is so, an operator repeats an Event every ten minutes."""
_NOT_SERVED: Final = frozenset(
    {"no-broker-ready", "offline", "under-min-isr", PARTITION_DAMAGED, *TRANSACTION_CODES}
)
"""Codes of findings that mean: clients cannot write or read. They count whatever `Ready` says,
which the operator set a moment ago without knowledge of transactions, or long ago if it is gone."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """`ready`: what the resource says of itself. Without findings, it waits for nothing."""

    subject: str
    ready: bool
    findings: tuple[Finding, ...]

    @property
    def served(self) -> bool:
        """It is ready, and no finding prevents clients from writing or reading."""
        return self.ready and not any(one.code in _NOT_SERVED for one in self.findings)

    def to_dict(self) -> Json:
        return {
            "subject": self.subject,
            "ready": self.ready,
            "served": self.served,
            "findings": [asdict(one) for one in self.findings],
        }


def explain(snapshot: Snapshot) -> Explanation:
    """Why the Cluster is as it is."""
    topics = [one for one in snapshot.topics if not is_ready(one)]
    findings = [
        *_said(snapshot, snapshot.cluster, "Cluster"),
        *_causes(snapshot),
        *_nobody_ready(snapshot),
        *_partitions(snapshot, [] if _sleeps(snapshot.cluster) else shortfalls(snapshot)),
        *_damage(snapshot),
        *transaction_findings(snapshot.blocking),
        *(one for topic in topics[:TOPICS_SHOWN] for one in _said(snapshot, topic, "Topic")),
        *_gaps(snapshot),
    ]
    subject = f"Cluster {full_name(snapshot.cluster)}"
    return Explanation(subject, is_ready(snapshot.cluster), tuple(findings))


def explain_topic(snapshot: Snapshot, topic: Json) -> Explanation:
    """Why one Topic is as it is, including the problems of its Cluster."""
    name = topic_name(topic)
    short = [one for one in shortfalls(snapshot) if one.topic == name]
    findings = [
        *_said(snapshot, topic, "Topic"),
        *_absent(snapshot, topic),
        *_nobody_ready(snapshot),
        *_partitions(snapshot, short),
        *_damage(snapshot, name),
        *transaction_findings(one for one in snapshot.blocking if one.where.topic == name),
    ]
    if findings:
        findings += [*_said(snapshot, snapshot.cluster, "Cluster"), *_causes(snapshot)]
    return Explanation(
        f"Topic {full_name(topic)} of Cluster {snapshot.name}",
        is_ready(topic),
        (*findings, *_gaps(snapshot)),
    )


def _causes(snapshot: Snapshot) -> list[Finding]:
    if _sleeps(snapshot.cluster):
        return [*_operator(snapshot), *_claims(snapshot)]
    return [
        *_operator(snapshot),
        *_claims(snapshot),
        *_missing_pods(snapshot),
        *(
            one
            for pod in (*snapshot.pods_of("broker"), *snapshot.pods_of("controller"))
            for one in pod_findings(snapshot.now, pod, snapshot.events)
        ),
        *_controllers(snapshot),
        *_unregistered(snapshot),
    ]


def _sleeps(cluster: Json) -> bool:
    """No pod of it is to run."""
    return condition(cluster, "Ready").get("reason") == "Hibernated"


def _said(snapshot: Snapshot, thing: Json, kind: str) -> Iterator[Finding]:
    """What the resource itself says: its conditions, and whether they are about its last change."""
    subject = f"{kind} {name_of(thing)}"
    if is_paused(thing):
        yield Finding(
            subject,
            "paused",
            "is paused: the operator changes nothing",
            do=f"kubectl penstock resume {name_of(thing)}"
            if kind == "Cluster"
            else f"remove its annotation {PAUSED}",
        )
    generation = thing["metadata"].get("generation", 0)
    seen = (thing.get("status") or {}).get("observedGeneration", 0)
    if said := deletion(thing):
        yield Finding(
            subject,
            "deleting",
            said,
            since=age(snapshot.now, thing["metadata"]["deletionTimestamp"]),
            do="check that whoever set the finalizers runs: each is removed when its work is done",
        )
    elif seen < generation:
        yield Finding(
            subject,
            "not-seen",
            f"was changed (generation {generation}), but the operator has "
            + (f"seen generation {seen} only" if seen else "not looked at it yet"),
            since=age(snapshot.now, _changed(thing)),
            do="wait a few seconds; if this stays, check the operator's log",
        )
    ready, stalled = condition(thing, "Ready"), condition(thing, "Stalled")
    if stalled.get("status") == "True":
        yield _of_condition(snapshot, subject, stalled, "is stuck and needs your help")
    if ready.get("status") != "True" and ready.get("message") != stalled.get("message"):
        yield _of_condition(snapshot, subject, ready, "is not ready")
    moving = condition(thing, "Reconciling")
    if moving.get("status") == "True" and moving.get("message") != ready.get("message"):
        yield _of_condition(snapshot, subject, moving, "is being reconciled")
    secured = condition(thing, "Secured")
    if what := _ENDING.get(str(secured.get("reason"))):
        # The condition is True all along: since when says nothing.
        yield replace(_of_condition(snapshot, subject, secured, what), since=None)
    rotating = condition(thing, "RotatingCA")
    if rotating.get("status") == "True":
        yield _of_condition(snapshot, subject, rotating, "gets another CA, and works meanwhile")
    pending = condition(thing, "FormatPending")
    if pending.get("status") == "True":
        yield _of_condition(snapshot, subject, pending, "has an upgrade that is not finalized")


def _changed(thing: Json) -> str | None:
    """When the spec was last written, as far as the object tells."""
    times = [
        entry.get("time")
        for entry in thing["metadata"].get("managedFields") or []
        if entry.get("subresource") != "status"
    ]
    known = [time for time in times if time] or [thing["metadata"].get("creationTimestamp")]
    return max((time for time in known if time), default=None)


def _of_condition(snapshot: Snapshot, subject: str, seen: Json, what: str) -> Finding:
    reason = f" ({seen['reason']})" if seen.get("reason") else ""
    return Finding(
        subject,
        str(seen.get("reason") or "unknown"),
        f"{what}: {seen.get('message') or 'no reason given'}{reason}",
        since=age(snapshot.now, seen.get("lastTransitionTime")),
        do=_ABOUT_VOLUMES.get(str(seen.get("reason"))),
    )


def _operator(snapshot: Snapshot) -> Iterator[Finding]:
    """Nothing changes while no operator is active, or brokers refuse it; they keep serving."""
    yield from _refused(snapshot)
    operator = snapshot.operator
    if operator_active(snapshot):
        return
    if not operator.deployments and not operator.leases:
        if not operator.hidden:
            yield Finding(
                "no operator",
                "operator-missing",
                "is installed in this Kubernetes cluster: nothing will change",
                do="install it: helm install penstock charts/penstock",
            )
        return
    for deployment in operator.deployments:
        ready = (deployment.get("status") or {}).get("readyReplicas") or 0
        wanted = (deployment.get("spec") or {}).get("replicas", 1)
        if ready < 1:
            where = f"{deployment['metadata']['namespace']}/{name_of(deployment)}"
            yield Finding(
                f"operator {where}",
                "operator-down",
                f"has {ready} of {wanted} pods ready: nothing will change",
                do="see its pods below"
                if operator.pods
                else "run kubectl describe on it: it has no pod",
            )
    for pod in operator.pods:
        yield from pod_findings(snapshot.now, pod, ())
    renewed = max((str(one["spec"].get("renewTime") or "") for one in operator.leases), default="")
    yield Finding(
        "no operator",
        "operator-lease",
        f"holds the Lease {OPERATOR}: nothing manages this Cluster",
        since=age(snapshot.now, renewed or None),
        do="check the operator's pods and their logs",
    )


def _refused(snapshot: Snapshot) -> Iterator[Finding]:
    """Only an Event says it: an operator that brokers refuse writes no status (ADR 0102)."""
    after = snapshot.now - _TOLD_AGAIN
    event = last_told(snapshot.events, "Cluster", snapshot.name, OPERATOR_REFUSED, after)
    if event is not None:
        yield Finding(
            "the operator",
            "operator-refused",
            f"may change nothing in the brokers: {event.get('message')}",
            since=age(snapshot.now, event_time(event)),
        )


def _missing_pods(snapshot: Snapshot) -> Iterator[Finding]:
    wanted = int((snapshot.cluster.get("spec") or {}).get("brokers") or 0)
    present = {broker_id(pod) for pod in snapshot.pods_of("broker")}
    missing = [one for one in range(wanted) if one not in present]
    if not missing or "Pod" in snapshot.unread:
        return
    owner = f"{snapshot.name}-broker"
    refused = warnings_about(snapshot.events, "StatefulSet", owner)
    if "StatefulSet" in snapshot.unread or any(
        name_of(one) == owner for one in snapshot.statefulsets
    ):
        do = "the evidence says why Kubernetes does not create it"
    else:
        do = f"the StatefulSet {owner} does not exist yet: the operator creates it"
    yield Finding(
        f"{len(missing)} of {wanted} broker pods",
        "pod-missing",
        f"missing: {some([f'{owner}-{i}' for i in missing])}",
        evidence=refused,
        do=do if refused or "missing" in do else "wait: they may just be starting",
    )


def _claims(snapshot: Snapshot) -> Iterator[Finding]:
    for claim in snapshot.claims:
        status = claim.get("status") or {}
        wanted = claim["spec"]["resources"]["requests"]["storage"]
        has = (status.get("capacity") or {}).get("storage")
        said = warnings_about(snapshot.events, "PersistentVolumeClaim", name_of(claim))
        subject = f"volume claim {name_of(claim)}"
        since = age(snapshot.now, claim["metadata"].get("creationTimestamp"))
        if status.get("phase") != "Bound":
            storage_class = claim["spec"].get("storageClassName")
            named = (
                f"StorageClass {storage_class!r}" if storage_class else "the default StorageClass"
            )
            yield Finding(
                subject,
                "claim-pending",
                f"is {status.get('phase') or 'Pending'}: {named} has not provided a volume "
                f"of {wanted} yet",
                since=since,
                evidence=said,
                do="check the StorageClass and its provisioner; with WaitForFirstConsumer the "
                "volume comes when the pod has a node",
            )
        elif has and (quantity(has) or 0) < (quantity(wanted) or 0):
            resizing = [
                str(one.get("message") or one["type"]) for one in status.get("conditions") or []
            ]
            yield Finding(
                subject,
                "claim-resizing",
                f"has {has}, but {wanted} are requested",
                evidence=(*resizing, *said),
                do="the StorageClass must have allowVolumeExpansion; some drivers need a "
                "restart of the pod, which the operator does",
            )


def _controllers(snapshot: Snapshot) -> Iterator[Finding]:
    pods = snapshot.pods_of("controller")
    holder = lease_holder(snapshot.lease)
    lease = f"{snapshot.name}-controller"
    if "Lease" in snapshot.unread:
        return
    if not pods and "Pod" not in snapshot.unread:
        yield Finding(
            "no controller pod",
            "controllers-missing",
            f"exists (Deployment {lease}): no leaders can be elected",
            evidence=warnings_about(snapshot.events, "ReplicaSet", lease, prefix=True),
        )
    elif not has_controller(snapshot):
        who = f"is no longer renewed by {holder}" if holder else "has no holder"
        renewed = ((snapshot.lease or {}).get("spec") or {}).get("renewTime")
        yield Finding(
            f"Lease {lease}",
            "controller-lease",
            f"{who}: no leaders are elected, and in-sync replicas do not change; brokers keep "
            "serving",
            since=age(snapshot.now, renewed),
            evidence=tuple(f"{name_of(pod)} is {phase(pod)}" for pod in pods),
            do="check the controllers' pods and logs; another one takes over by itself",
        )


def _nobody_ready(snapshot: Snapshot) -> Iterator[Finding]:
    if nobody_ready(snapshot) and not _sleeps(snapshot.cluster):
        what = "is ready: clients can neither write nor read"
        yield Finding("no broker pod", "no-broker-ready", what, do="see what is said of its pods")


def _unregistered(snapshot: Snapshot) -> Iterator[Finding]:
    """Running pods that the controller does not consider alive."""
    if snapshot.document is None:
        return
    alive = {int(one) for one, broker in snapshot.document.brokers.items() if broker.alive}
    for pod in snapshot.pods_of("broker"):
        if broker_id(pod) not in alive and phase(pod) == "Running":
            is_not = "is ready" if is_pod_ready(pod) else "runs"
            yield Finding(
                f"pod {name_of(pod)}",
                "not-registered",
                f"{is_not}, but the controller has no session with broker {broker_id(pod)}",
                do=f"kubectl logs {name_of(pod)} shows what it tries; is the network between "
                "brokers and controllers open?",
            )


def _partitions(snapshot: Snapshot, short: Sequence[Shortfall]) -> Iterator[Finding]:
    by_id = {broker_id(pod): pod for pod in snapshot.pods_of("broker")}

    def reason(broker: int) -> str:
        pod = by_id.get(broker)
        if pod is None:
            return "its pod could not be read" if "Pod" in snapshot.unread else "it has no pod"
        return f"pod {name_of(pod)} is {phase(pod)}"

    return partition_findings(short, reason)


def _damage(snapshot: Snapshot, topic: str | None = None) -> Iterator[Finding]:
    found = [one for one in damaged_partitions(snapshot) if topic in (None, one.topic)]
    return damage_findings([] if _sleeps(snapshot.cluster) else found)


def _absent(snapshot: Snapshot, topic: Json) -> Iterator[Finding]:
    name = topic_name(topic)
    if snapshot.document is not None and name not in snapshot.topic_documents:
        yield Finding(
            f"Topic {name_of(topic)}",
            "topic-not-created",
            f"the cluster has no topic {name!r} yet",
            since=age(snapshot.now, topic["metadata"].get("creationTimestamp")),
        )


def _gaps(snapshot: Snapshot) -> Iterator[Finding]:
    for gap in dict.fromkeys(snapshot.gaps):
        yield Finding("something", "not-readable", f"could not be read: {gap}")
