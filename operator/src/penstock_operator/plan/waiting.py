"""What a Cluster is waiting for besides its own steps, in plain words for its status.

The most important first: what needs a person, then what just takes time.
"""

from typing import Final

from penstock_operator.clock import seconds_between
from penstock_operator.model import Object, Observed, PodState, Severity, Wait
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import some
from penstock_operator.plan.roll import is_rolled_out

PATIENCE_RESTARTS = 2
"""A container that has failed this often is not just slow."""
REFUSED_S: Final = 30.0
"""Pods are refused for a moment while a webhook restarts, or an account is not known yet."""


def plan_waits(desired: DesiredCluster, observed: Observed) -> tuple[Wait, ...]:
    waits: list[Wait] = []
    if observed.knows("Pod"):
        for broker_id in range(desired.spec.brokers):
            if why := observed.refused.get(broker_id):
                text = f"pod {desired.names.pod(broker_id)} cannot be created: {why}"
                waits.append(Wait("PodRefused", text, Severity.BLOCKED))
            else:
                stuck = observed.stuck.get(broker_id, "")
                waits.extend(_pod_waits(desired, broker_id, observed.pods.get(broker_id), stuck))
    live = observed.live("StatefulSet", desired.names.broker)
    kept = desired.spec.brokers if live is None else int(live["spec"].get("replicas", 1))
    leaving = [pod.name for broker_id, pod in observed.pods.items() if broker_id >= kept]
    waits += [Wait("PodStopping", f"pod {name} is stopping") for name in leaving]
    deployment = observed.live("Deployment", desired.names.controller)
    if observed.knows("Deployment") and not is_rolled_out(deployment):
        text = observed.controllers_problem or "the controllers are starting"
        refused = _controllers_refused(deployment, observed.at)
        waits.append(refused or Wait("ControllersNotReady", text))
    waits.extend(_broker_waits(desired, observed))
    waits.sort(key=lambda wait: wait.severity is not Severity.BLOCKED)
    return tuple(waits)


def _controllers_refused(deployment: Object | None, at: str) -> Wait | None:
    """Why a Deployment cannot have its pods, by its own condition; None: it says nothing."""
    status: Object = (deployment or {}).get("status") or {}
    for each in status.get("conditions") or ():
        if (each["type"], each["status"]) == ("ReplicaFailure", "True"):
            text = f"pods of the controllers cannot be created: {each.get('message', '')}"
            since = each.get("lastTransitionTime")
            lasts = not (since and at) or seconds_between(since, at) >= REFUSED_S
            return Wait("PodRefused", text, Severity.BLOCKED if lasts else Severity.PROGRESS)
    return None


def _pod_waits(
    desired: DesiredCluster, broker_id: int, pod: PodState | None, stuck: str
) -> list[Wait]:
    name = desired.names.pod(broker_id)
    if pod is None:
        return [Wait("PodMissing", f"pod {name} is being created")]
    if pod.terminating:
        return [Wait("PodStopping", f"pod {name} is stopping")]
    if pod.ready:
        return []
    if pod.trouble:
        text = f"pod {name} is not running: {pod.trouble}"
        return [Wait("PodNotRunning", text, _severity(pod.restarts))]
    if pod.beside:
        severity = _severity(pod.beside_restarts)
        return [Wait("PodNotRunning", f"pod {name} is not ready: {pod.beside}", severity)]
    if stuck:
        return [Wait("PodNotStarted", f"pod {name} is not started on node {pod.node}: {stuck}")]
    return [Wait("PodNotReady", f"pod {name} is starting")]


def _severity(restarts: int) -> Severity:
    return Severity.BLOCKED if restarts >= PATIENCE_RESTARTS else Severity.PROGRESS


def _broker_waits(desired: DesiredCluster, observed: Observed) -> list[Wait]:
    facts = observed.brokers
    if facts is None:
        return [Wait("BrokersDoNotAnswer", observed.brokers_problem or "no broker answers yet")]
    recorded = observed.recorded_cluster_id
    if recorded and facts.cluster_id != recorded:
        text = (
            f"the brokers belong to cluster {facts.cluster_id}, but this resource belongs to "
            f"{recorded}; nothing is restarted or scaled until they match again"
        )
        return [Wait("WrongCluster", text, Severity.BLOCKED)]
    waits = []
    if not facts.controller_reachable:
        text = (
            "no controller is active: reads and writes continue, elections and topic changes wait"
        )
        waits.append(Wait("NoController", text))
    absent = [
        str(broker_id)
        for broker_id in range(desired.spec.brokers)
        if broker_id not in facts.brokers or not facts.brokers[broker_id].alive
    ]
    if absent:
        waits.append(Wait("BrokersNotRegistered", f"broker {', '.join(absent)} not registered"))
    if facts.offline:
        text = f"no replica can lead {some(facts.offline)}; waiting for in-sync replicas"
        waits.append(Wait("PartitionsOffline", text))
    elif facts.under_min_isr:
        text = (
            f"acks=all writes are refused for {some(facts.under_min_isr)}: too few "
            "replicas are in sync"
        )
        waits.append(Wait("UnderMinIsr", text))
    elif facts.not_full:
        waits.append(Wait("CatchingUp", f"replicas are catching up: {some(facts.not_full)}"))
    return waits
