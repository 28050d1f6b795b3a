"""What `kubectl penstock status` says: one document out of a snapshot. Pure.

    Snapshot ──describe──▶ {"cluster": …, "ready": …, "brokers": […], "partitions": {…}, …}

The same document is printed as JSON or YAML, or drawn by `picture`. Partitions are judged by the
controller's own documents: a leader, the in-sync replicas, and min.insync.replicas.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from penstock.cli.kube.snapshot import (
    Snapshot,
    condition,
    deletion,
    event_time,
    full_name,
    is_paused,
    name_of,
    parse_time,
)
from penstock.core.control.damage import DamagedPartition
from penstock.core.control.documents import BrokerRegistration, TopicDocument
from penstock.kubernetes.resources import Json
from penstock.views.findings import count_age
from penstock.views.shortfalls import Shortfall, judge, min_isr_of

EVENTS_SHOWN: Final = 8
NOBODY_READY: Final = "no broker pod is ready: clients can neither write nor read"
CONDITIONS: Final = ("Ready", "Reconciling", "Stalled")


def shortfalls(snapshot: Snapshot) -> list[Shortfall]:
    """By topic and partition."""
    return [
        one
        for _, topic in sorted(snapshot.topic_documents.items())
        for one in _topic_shortfalls(topic)
    ]


def _topic_shortfalls(topic: TopicDocument) -> Iterator[Shortfall]:
    for index, partition in enumerate(topic.partitions):
        state = partition.state
        isr, replicas = tuple(map(int, state.isr)), tuple(map(int, state.replicas))
        min_isr = min_isr_of(topic.configs, len(replicas))
        kind = judge(state.leader, len(isr), len(replicas), min_isr)
        if kind is not None:
            yield Shortfall(kind, topic.name, index, isr, replicas, min_isr)


def damaged_partitions(snapshot: Snapshot) -> list[DamagedPartition]:
    """By topic and partition."""
    return [
        DamagedPartition(name, index, one.state.leader, one.state.isr, one.state.damaged)
        for name, topic in sorted(snapshot.topic_documents.items())
        for index, one in enumerate(topic.partitions)
        if one.state.damaged
    ]


def describe(snapshot: Snapshot) -> Json:
    """The whole status. `ready` decides the exit code. None: not known, or nothing."""
    status = snapshot.cluster.get("status") or {}
    spec = snapshot.cluster.get("spec") or {}
    nobody = nobody_ready(snapshot)
    message = status.get("message") or condition(snapshot.cluster, "Ready").get("message")
    return {
        "cluster": full_name(snapshot.cluster),
        "ready": is_ready(snapshot.cluster) and not nobody,
        "phase": status.get("phase") or None,
        "message": NOBODY_READY if nobody and is_ready(snapshot.cluster) else message,
        "operator_active": operator_active(snapshot),
        "paused": is_paused(snapshot.cluster),
        "deleting": deletion(snapshot.cluster) or None,
        "age": age(snapshot.now, snapshot.cluster["metadata"].get("creationTimestamp")),
        "cluster_id": status.get("clusterId") or _document_id(snapshot),
        "bootstrap": status.get("bootstrap") or None,
        "brokers_desired": spec.get("brokers"),
        "conditions": [_condition(snapshot, kind) for kind in CONDITIONS],
        "brokers": brokers(snapshot),
        "controllers": controllers(snapshot),
        "partitions": _partitions(snapshot),
        "topics": topics(snapshot),
        "storage": storage(snapshot),
        "events": [_event(snapshot, event) for event in snapshot.events[-EVENTS_SHOWN:]],
        "gaps": list(snapshot.gaps),
        "unread": sorted(snapshot.unread),
    }


def _partitions(snapshot: Snapshot) -> Json:
    """`current`: a controller keeps the rest up to date; False: it is as one last wrote it.

    Numbers None: not all could be read, and lists lack what could not. All None: nothing was."""
    short, known = shortfalls(snapshot), snapshot.sees_partitions
    found: Json = {
        "current": None if "Lease" in snapshot.unread else has_controller(snapshot),
        "topics": len(snapshot.topic_documents),
        "total": sum(len(one.partitions) for one in snapshot.topic_documents.values()),
        **{
            kind: [one.text for one in short if one.kind == kind]
            for kind in ("offline", "under_min_isr", "under_replicated")
        },
        "damaged": [one.name for one in damaged_partitions(snapshot)],
    }
    if known:
        return found
    unknown = ("topics", "total") if snapshot.topic_documents else found
    return {**found, **dict.fromkeys(unknown)}


def has_controller(snapshot: Snapshot) -> bool:
    """One holds the Lease, and renews it."""
    return bool(lease_holder(snapshot.lease)) and not lease_expired(snapshot.lease, snapshot.now)


def operator_active(snapshot: Snapshot) -> bool | None:
    """One renews its Lease; None: that could not be read."""
    operator = snapshot.operator
    if any(not lease_expired(lease, snapshot.now) for lease in operator.leases):
        return True
    return None if not operator.leases and operator.hidden else False


def nobody_ready(snapshot: Snapshot) -> bool:
    """There should be broker pods, and none is ready, whatever the Cluster's conditions say: they
    are an operator's last word, which may be old."""
    wanted = int((snapshot.cluster.get("spec") or {}).get("brokers") or 0)
    known = "Pod" not in snapshot.unread and wanted > 0
    return known and not any(map(is_pod_ready, snapshot.pods_of("broker")))


def is_ready(cluster: Json) -> bool:
    """Ready is True and describes the current spec."""
    ready = condition(cluster, "Ready")
    generation = cluster["metadata"].get("generation", 0)
    return ready.get("status") == "True" and ready.get("observedGeneration", 0) >= generation


def _document_id(snapshot: Snapshot) -> str | None:
    return snapshot.document.cluster_id if snapshot.document else None


def _condition(snapshot: Snapshot, kind: str) -> Json:
    seen = condition(snapshot.cluster, kind)
    return {
        "type": kind,
        "status": seen.get("status", "Unknown"),
        "for": age(snapshot.now, seen.get("lastTransitionTime")),
        "reason": seen.get("reason"),
        "message": seen.get("message"),
    }


def brokers(snapshot: Snapshot) -> list[Json]:
    """A row per broker pod and per registered broker, by id: each may exist without the other.

    None: not known, because pods or metadata could not be read."""
    sees_pods, sees_roles = "Pod" not in snapshot.unread, snapshot.sees_partitions
    pods = {broker_id(pod): pod for pod in snapshot.pods_of("broker")}
    registered = snapshot.document.brokers if snapshot.document else {}
    led, held = _leaders_and_replicas(snapshot)
    ids = sorted({*(one for one in pods if one is not None), *map(int, registered)})
    rows = []
    for one in ids:
        pod, broker = pods.get(one), next((b for i, b in registered.items() if int(i) == one), None)
        rows.append(
            {
                "broker": one,
                "pod": name_of(pod) if pod else None,
                "node": pod["spec"].get("nodeName") if pod else None,
                "phase": phase(pod) if pod else "Missing" if sees_pods else None,
                "ready": is_pod_ready(pod) if pod else False if sees_pods else None,
                "restarts": restarts(pod) if pod else None,
                "registered": _is_alive(snapshot, broker),
                "rack": broker.rack or None if broker else None,
                "leaders": led.get(one, 0) if sees_roles else None,
                "replicas": held.get(one, 0) if sees_roles else None,
            }
        )
    return rows


def _is_alive(snapshot: Snapshot, broker: BrokerRegistration | None) -> bool | None:
    if snapshot.document is None:
        return None
    return broker is not None and broker.alive


def broker_id(pod: Json) -> int | None:
    """Of a broker's pod."""
    text = name_of(pod).rpartition("-")[2]
    return int(text) if text.isdecimal() else None


def _leaders_and_replicas(snapshot: Snapshot) -> tuple[dict[int, int], dict[int, int]]:
    led: dict[int, int] = {}
    held: dict[int, int] = {}
    for topic in snapshot.topic_documents.values():
        for partition in topic.partitions:
            state = partition.state
            led[int(state.leader)] = led.get(int(state.leader), 0) + 1
            for replica in state.replicas:
                held[int(replica)] = held.get(int(replica), 0) + 1
    return led, held


def controllers(snapshot: Snapshot) -> list[Json]:
    """`active`: holds the Lease, which has not expired."""
    holder = lease_holder(snapshot.lease)
    valid = not lease_expired(snapshot.lease, snapshot.now)
    return [
        {
            "pod": name_of(pod),
            "node": pod["spec"].get("nodeName"),
            "phase": phase(pod),
            "ready": is_pod_ready(pod),
            "restarts": restarts(pod),
            "active": valid and bool(holder) and name_of(pod) in holder,
        }
        for pod in snapshot.pods_of("controller")
    ]


def lease_holder(lease: Json | None) -> str:
    """The holder; "" if there is none."""
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")


def lease_expired(lease: Json | None, now: datetime) -> bool:
    """It was not renewed in time, by our clock, with twice the time for clocks that differ."""
    spec = (lease or {}).get("spec") or {}
    renewed = parse_time(spec.get("renewTime"))
    if renewed is None:
        return True
    return now - renewed > timedelta(seconds=2 * (spec.get("leaseDurationSeconds") or 15))


def topics(snapshot: Snapshot) -> list[Json]:
    """A row per Topic resource; topics without one are counted in `partitions`."""
    rows = []
    for topic in snapshot.topics:
        name = topic_name(topic)
        document = snapshot.topic_documents.get(name)
        ready = condition(topic, "Ready")
        rows.append(
            {
                "topic": name,
                "ready": is_ready(topic),
                "partitions": len(document.partitions) if document else None,
                "replicas": max((len(one.state.replicas) for one in document.partitions), default=0)
                if document
                else None,
                "paused": is_paused(topic),
                "message": None if is_ready(topic) else ready.get("message"),
            }
        )
    return sorted(rows, key=lambda row: str(row["topic"]))


def topic_name(topic: Json) -> str:
    """Of a Topic resource: its topic may have a name that no object can have."""
    spec = topic.get("spec") or {}
    return str(spec.get("topicName") or name_of(topic))


def storage(snapshot: Snapshot) -> list[Json]:
    return [
        {
            "claim": name_of(claim),
            "phase": (claim.get("status") or {}).get("phase"),
            "size": ((claim.get("status") or {}).get("capacity") or {}).get("storage"),
            "wanted": claim["spec"]["resources"]["requests"]["storage"],
            "class": claim["spec"].get("storageClassName"),
        }
        for claim in snapshot.claims
    ]


def _event(snapshot: Snapshot, event: Json) -> Json:
    thing = event["involvedObject"]
    return {
        "ago": age(snapshot.now, event_time(event)),
        "type": event.get("type"),
        "object": f"{thing.get('kind', '?')}/{thing.get('name', '?')}",
        "reason": event.get("reason"),
        "times": event.get("count") or (event.get("series") or {}).get("count") or 1,
        "message": " ".join(str(event.get("message") or "").split()),
    }


def is_pod_ready(pod: Json) -> bool:
    return condition(pod, "Ready").get("status") == "True" and not is_leaving(pod)


def is_leaving(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def phase(pod: Json) -> str:
    """As kubectl shows it: the reason a container waits, rather than the pod's phase."""
    if is_leaving(pod):
        return "Terminating"
    for container in containers(pod):
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason"):
            return str(waiting["reason"])
    return str((pod.get("status") or {}).get("phase") or "Unknown")


def containers(pod: Json) -> list[Json]:
    """States of all containers, init containers first."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def restarts(pod: Json) -> int:
    return sum(int(one.get("restartCount") or 0) for one in containers(pod))


def age(now: datetime, text: str | None) -> str | None:
    """`12s`, `5m`, `3h`, `9d`: as kubectl counts; None if never."""
    moment = parse_time(text)
    return None if moment is None else count_age((now - moment).total_seconds())
