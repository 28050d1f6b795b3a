"""Restarts pods that do not match their template, one at a time (I25).

    outdated and broken            restart at once: it serves no clients
    otherwise, in this order       controllers rolled ─▶ every broker serves ─▶ every replica in
                                   sync ─▶ leaderships moved away ─▶ restart ─▶ (from the top)

Every step is decided again from a fresh snapshot, so a restarted operator continues where the last
one stopped. Anything that is not known to be healthy stops the roll (fail closed). If a topic's own
settings leave no replica to spare, it is unavailable while its broker restarts; that cannot be
avoided and does not stop the roll.
"""

from penstock_operator.model import (
    Action,
    BrokerFacts,
    MoveLeaders,
    Object,
    Observed,
    PodState,
    RestartPod,
    Wait,
)
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import is_serving, led_elsewhere, some, trusted

Track = tuple[tuple[Action, ...], tuple[Wait, ...]]


def plan_roll(
    desired: DesiredCluster, observed: Observed, newest: str, *, only_broken: bool = False
) -> Track:
    """`only_broken`: pods that run stay as they are for now."""
    forced = observed.pods.get(desired.force_roll) if desired.force_roll is not None else None
    if forced is not None and not forced.terminating:
        return (_restart(forced, "requested by annotation", forced=True),), ()
    outdated = [
        pod
        for _, pod in sorted(observed.pods.items())
        if pod.template_hash != newest and not pod.terminating
    ]
    if not outdated:
        return (), ()
    facts = trusted(observed)
    broken = [pod for pod in outdated if _is_broken(pod, facts)]
    if broken:
        return (_restart(broken[0], "it is not running, and its template has changed"),), ()
    if only_broken:
        return (), ()
    left = f"{len(outdated)} of {desired.spec.brokers} brokers must restart"
    wait = _obstacle(desired, observed, facts)
    if wait is not None:
        return (), (Wait(wait.reason, f"{left}; {wait.message}", wait.severity),)
    assert facts is not None
    return _next(outdated[0], facts, left)


def _next(pod: PodState, facts: BrokerFacts, left: str) -> Track:
    led = led_elsewhere(facts, pod.broker_id)
    if led:
        text = f"{left}; moving leaderships off broker {pod.broker_id}: {some(led)}"
        return (MoveLeaders(pod.broker_id),), (Wait("MovingLeaders", text),)
    text = f"{left}; broker {pod.broker_id} is next"
    return (_restart(pod, "its template has changed"),), (Wait("Rolling", text),)


def _obstacle(
    desired: DesiredCluster, observed: Observed, facts: BrokerFacts | None
) -> Wait | None:
    """The first obstacle to taking a broker down now."""
    if not is_rolled_out(observed.live("Deployment", desired.names.controller)):
        return Wait("ControllersRolling", "the controllers restart first, and are not done yet")
    if facts is None:
        why = observed.brokers_problem or "no controller is reachable"
        return Wait("BrokersDoNotAnswer", f"waiting until the brokers can be asked: {why}")
    for broker_id in range(desired.spec.brokers):
        if not is_serving(observed.pods.get(broker_id), facts):
            return Wait("BrokerNotServing", f"waiting until broker {broker_id} serves")
    if facts.not_full:
        return Wait("CatchingUp", f"waiting until replicas catch up: {some(facts.not_full)}")
    return None


def _is_broken(pod: PodState, facts: BrokerFacts | None) -> bool:
    """It serves no clients: the kubelet says why, or the controller has no session with it."""
    if pod.ready:
        return False
    if facts is None:
        return bool(pod.trouble)
    state = facts.brokers.get(pod.broker_id)
    return state is None or not state.alive


def _restart(pod: PodState, reason: str, *, forced: bool = False) -> RestartPod:
    return RestartPod(pod.broker_id, pod.name, pod.uid, reason, forced)


def is_rolled_out(deployment: Object | None) -> bool:
    """All replicas of a Deployment are of its newest template, and available."""
    if deployment is None:
        return False
    status: Object = deployment.get("status") or {}
    generation: int = deployment["metadata"].get("generation", 1)
    wanted: int = deployment["spec"].get("replicas", 1)
    if status.get("observedGeneration", 0) < generation:
        return False
    return all(status.get(key, 0) >= wanted for key in ("updatedReplicas", "availableReplicas"))
