"""Restarts pods that do not match their template, a few at a time (I25).

    outdated and broken            restart at once: it serves no clients
    otherwise, in this order       controllers rolled ─▶ every broker serves ─▶ those restarted are
                                   in sync ─▶ what is new has shown itself (`soak`) ─▶ a group
                                   whose partitions are in sync (`roll_groups`) ─▶ leaderships
                                   moved away from all of it ─▶ restart ─▶ (again)

Every step is decided again from a fresh snapshot, so a restarted operator continues where the last
one stopped: if it ends in the middle of a group, the rest of the group waits until those that were
restarted serve and are in sync. Anything that is not known to be healthy stops the roll (fail
closed). If a topic's own settings leave no replica to spare, it is unavailable while its broker
restarts; that cannot be avoided and does not stop the roll.
"""

from collections.abc import Sequence
from dataclasses import replace

from penstock_operator.model import (
    Action,
    AnswerRequest,
    BrokerFacts,
    MoveLeaders,
    Object,
    Observed,
    PodState,
    RestartPod,
    Wait,
)
from penstock_operator.names import FORCE_ROLL
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import (
    brokers_named,
    is_serving,
    led_elsewhere,
    some,
    trusted,
)
from penstock_operator.plan.outlook import outlook
from penstock_operator.plan.roll_groups import Sharing, lagging, missing, sharing
from penstock_operator.plan.soak import SOAKING, soak

Track = tuple[tuple[Action, ...], tuple[Wait, ...]]


def plan_roll(
    desired: DesiredCluster,
    observed: Observed,
    newest: str,
    *,
    only_broken: bool = False,
    controllers_made: bool = True,
) -> Track:
    """`only_broken`: pods that run stay as they are for now. `controllers_made`: the live
    Deployment has the template that it should have."""
    if forced := _forced(desired, observed):
        return (forced,), ()
    outdated = {
        broker_id: pod
        for broker_id, pod in sorted(observed.pods.items())
        if pod.template_hash != newest and not pod.terminating
    }
    if not outdated:
        return (), ()
    facts = trusted(observed)
    broken = [pod for pod in outdated.values() if _is_broken(pod, facts)]
    if broken:
        return (_restart(broken[0], "it is not running, and its template has changed"),), ()
    if only_broken:
        return (), ()
    left = f"{len(outdated)} of {desired.spec.brokers} brokers must restart"
    wait = _obstacle(desired, observed, facts, controllers_made=controllers_made)
    if wait is not None:
        return (), (Wait(wait.reason, f"{left}; {wait.message}", wait.severity),)
    assert facts is not None
    updated = {
        broker_id: pod
        for broker_id, pod in observed.pods.items()
        if pod.template_hash == newest and is_serving(pod, facts)
    }
    ahead = outlook(desired, observed, tuple(outdated), is_first=not updated)
    left = left if ahead is None else f"{left}, {ahead}"
    if soaks := soak(desired, observed, facts, outdated.values(), updated.values()):
        return (), (Wait(SOAKING, f"{left}; {soaks}"),)
    behind = lagging(facts, outdated)
    ready = [broker_id for broker_id in outdated if broker_id not in behind]
    group = _together(desired, observed, facts, is_first=not updated).group(ready)
    waits_for = missing(facts, updated)
    if not group and not waits_for:
        waits_for = tuple(dict.fromkeys(each for found in behind.values() for each in found))
    if waits_for:
        text = f"{left}; waiting until replicas catch up: {some(waits_for)}"
        return (), (Wait("CatchingUp", text),)
    return _take([outdated[broker_id] for broker_id in group], facts, left)


def _forced(desired: DesiredCluster, observed: Observed) -> RestartPod | AnswerRequest | None:
    """A request is bound to the pod that is there when it is seen, and taken back once that one is
    gone: whoever acts on it, and how often, it restarts one pod."""
    asked, uid = desired.force_roll, desired.force_roll_pod
    if asked is None:
        return None
    pod = observed.pods.get(asked)
    if uid and (pod is None or pod.uid != uid):
        return AnswerRequest(FORCE_ROLL, None)
    if pod is None or pod.terminating:
        return None
    if not uid:
        return AnswerRequest(FORCE_ROLL, f"{asked}@{pod.uid}")
    return _restart(pod, "requested by annotation", forced=True)


def _together(
    desired: DesiredCluster, observed: Observed, facts: BrokerFacts, *, is_first: bool
) -> Sharing:
    """Everybody goes alone while it is not known what moves."""
    if observed.moves is None or is_first:
        return sharing(facts, (), 1)
    most = desired.spec.max_parallel.of(desired.spec.brokers)
    return sharing(facts, observed.moves.moving.moves, most)


def _take(pods: Sequence[PodState], facts: BrokerFacts, left: str) -> Track:
    """The next step towards restarting all of these."""
    group = [pod.broker_id for pod in pods]
    led = {broker_id: led_elsewhere(facts, broker_id) for broker_id in group}
    if any(led.values()):
        names = some(tuple(each for found in led.values() for each in found))
        text = f"{left}; moving leaderships off {brokers_named(group)}: {names}"
        moves = tuple(MoveLeaders(broker_id) for broker_id, found in led.items() if found)
        return moves, (Wait("MovingLeaders", text),)
    text = f"{left}; {brokers_named(group)} {'is' if len(group) == 1 else 'are'} next"
    first, *others = (_restart(pod, "its template has changed") for pod in pods)
    restarts = (first, *(replace(other, follows=True) for other in others))
    return restarts, (Wait("Rolling", text),)


def _obstacle(
    desired: DesiredCluster,
    observed: Observed,
    facts: BrokerFacts | None,
    *,
    controllers_made: bool,
) -> Wait | None:
    """The first obstacle to taking any broker down now."""
    if not controllers_made:
        text = "the controllers restart first, and their Deployment is not changed yet"
        return Wait("ControllersRolling", text)
    if not is_rolled_out(observed.live("Deployment", desired.names.controller)):
        return Wait("ControllersRolling", "the controllers restart first, and are not done yet")
    if facts is None:
        why = observed.brokers_problem or "no controller is reachable"
        return Wait("BrokersDoNotAnswer", f"waiting until the brokers can be asked: {why}")
    for broker_id in range(desired.spec.brokers):
        if not is_serving(observed.pods.get(broker_id), facts):
            return Wait("BrokerNotServing", f"waiting until broker {broker_id} serves")
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
