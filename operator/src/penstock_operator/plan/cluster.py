"""All tracks together, and what blocks them: a pause, a former Cluster that is still leaving.

Each track looks for itself whether it knows what it needs: its sections of the spec
(`DesiredCluster.knows`), the kinds it decides from (`Observed.knows`), and that what it changes is
ours (`Reach.may_change`). Otherwise it keeps what is live, and the others go on (I28).
"""

from dataclasses import dataclass

from penstock_operator.compare import is_applied, stamped
from penstock_operator.format_model import FormatPending
from penstock_operator.hibernation_model import Record
from penstock_operator.hibernation_model import Stage as HibernationStage
from penstock_operator.model import (
    Action,
    Apply,
    MarkRack,
    MoveLeaders,
    Object,
    Observed,
    Plan,
    RemoveObject,
    RestartPod,
    Severity,
    Wait,
)
from penstock_operator.move_model import DrainState, Offer
from penstock_operator.names import ASLEEP
from penstock_operator.objects import (
    DesiredCluster,
    Section,
    broker_objects,
    controller_objects,
)
from penstock_operator.objects.broker import live_template_hash
from penstock_operator.plan.authority import authority_lost, plan_authority
from penstock_operator.plan.damage import plan_damage
from penstock_operator.plan.finalize import plan_finalize
from penstock_operator.plan.gates import broker_ids, can_lose_one
from penstock_operator.plan.hibernate import Hibernation, plan_hibernation
from penstock_operator.plan.owning import plan_owners
from penstock_operator.plan.pinning import broker_pods, controller_pods, is_made
from penstock_operator.plan.reach import BUDGET, CLAIM, POD, TRUST, Reach, former, reach_of
from penstock_operator.plan.requests import plan_requests
from penstock_operator.plan.roll import plan_roll
from penstock_operator.plan.scale import Scale, forgotten, going_volumes, plan_scale
from penstock_operator.plan.security import Stage
from penstock_operator.plan.spread import plan_spread
from penstock_operator.plan.storage import plan_storage, with_claim_template
from penstock_operator.plan.throttle import plan_throttle
from penstock_operator.plan.upgrade import next_stage
from penstock_operator.plan.volumes import holds_restarts, plan_volumes
from penstock_operator.plan.waiting import plan_waits


@dataclass(frozen=True, slots=True)
class _Track:
    actions: tuple[Action, ...] = ()
    waits: tuple[Wait, ...] = ()
    drains: tuple[DrainState, ...] = ()
    offer: Offer | None = None
    format: FormatPending | None = None


def plan_cluster(desired: DesiredCluster, observed: Observed) -> Plan:
    """The next steps, and what to wait for; empty when the Cluster matches its spec."""
    if desired.paused:
        paused = Wait("Paused", "paused by annotation: nothing is changed")
        return Plan(waits=(paused, *desired.refusals))
    leaving = former(desired, observed)
    if leaving:
        return Plan(waits=(*desired.refusals, *leaving))
    stage = next_stage(desired, observed)
    reach = reach_of(desired, observed)
    brokers, seen = stage.brokers, reach.observed
    sleep = plan_hibernation(brokers, seen, may_change=_may_scale(brokers, reach))
    roll = _roll(stage, reach, sleep)
    tracks = (
        _Track(waits=(*desired.refusals, *reach.waits, *plan_requests(brokers, seen))),
        _Track(waits=() if sleep.stage.is_down else authority_lost(desired, seen)),
        _Track(sleep.actions, sleep.waits),
        _storage(brokers, reach, sleep),
        _owners(brokers, reach),
        _volumes(brokers, reach, sleep),
        _objects(stage, reach, sleep, takes_brokers=_takes_brokers(roll, seen)),
        _brokers(brokers, reach, sleep),
        _spread(brokers, reach, sleep),
        _throttle(brokers, seen),
        _finalize(brokers, seen, sleep),
        _racks(seen),
        roll,
        _Track(waits=() if sleep.stage.is_down else plan_damage(seen)),
        _Track(waits=() if sleep.stage.is_down else plan_waits(brokers, seen)),
        _Track(waits=() if stage.wait is None or sleep.stage.is_down else (stage.wait,)),
    )
    actions = tuple(action for track in tracks for action in track.actions)
    waits = tuple(dict.fromkeys(wait for track in tracks for wait in track.waits))
    drains = tuple(drain for track in tracks for drain in track.drains)
    offer = next((track.offer for track in tracks if track.offer is not None), None)
    resting = sleep.wait if sleep.holds_still else None
    never = sleep.record == Record() == observed.rest.record  # else the status has to forget it
    record = None if never else sleep.record
    pending = next((track.format for track in tracks if track.format is not None), None)
    return Plan(actions, waits, drains, offer, record, resting, pending)


def _may_scale(desired: DesiredCluster, reach: Reach) -> bool:
    known = desired.knows(Section.BROKERS, Section.POLICY) and reach.observed.knows(POD)
    return known and reach.may_change("StatefulSet", desired.names.broker)


def _storage(desired: DesiredCluster, reach: Reach, sleep: Hibernation) -> _Track:
    if not (desired.knows(Section.STORAGE) and reach.observed.knows(CLAIM)):
        return _Track()
    # The set remembers that it sleeps, so it is not made again meanwhile.
    can_remake = not sleep.holds_still and _can_remake(desired, reach)
    actions, waits = plan_storage(desired, reach.observed, may_replace=can_remake)
    if sleep.stage.is_down:
        # What grows is done growing once a pod mounts it.
        waits = tuple(wait for wait in waits if wait.severity is Severity.BLOCKED)
    return _Track(actions, waits)


def _volumes(desired: DesiredCluster, reach: Reach, sleep: Hibernation) -> _Track:
    """Nothing is deleted that would not be made again, nor while the cluster sleeps.

    Nodes may go while it does. Without their volumes no controller takes over, and it would start
    for ever: so requests count from there on.
    """
    observed, name = reach.observed, desired.names.broker
    if sleep.holds_still and sleep.stage is not HibernationStage.STARTING:
        return _Track()
    known = desired.knows(Section.STORAGE, Section.BROKERS) and observed.knows(POD, CLAIM)
    live = observed.live("StatefulSet", name)
    if live is None or not (known and reach.may_change("StatefulSet", name)):
        return _Track()
    return _Track(*plan_volumes(desired, observed, int(live["spec"].get("replicas", 1))))


def _owners(desired: DesiredCluster, reach: Reach) -> _Track:
    """Also while it sleeps. Before the StatefulSet is applied, which then owns claims no longer."""
    known = desired.knows(Section.POLICY, Section.BROKERS) and reach.observed.knows(CLAIM, POD)
    name = desired.names.broker
    if not known or not reach.may_change("StatefulSet", name):
        return _Track()
    return _Track(plan_owners(desired, reach.observed))


def _can_remake(desired: DesiredCluster, reach: Reach) -> bool:
    """Whether the StatefulSet would be made again as it is, if it was deleted now."""
    names = desired.names
    live = reach.observed.live("StatefulSet", names.broker)
    knows = desired.knows() and reach.observed.knows(POD)
    if live is None or not (knows and reach.may_change("StatefulSet", names.broker)):
        return False
    again = broker_pods(desired, 0, None, reach.observed.live("Deployment", names.controller))
    return again.hash == live_template_hash(live)


def _knows_rest(stage: Stage) -> bool:
    """Whether all is known that objects other than the StatefulSet are made from."""
    sections = (Section.BROKERS, Section.TEMPLATE, Section.POLICY)
    return stage.is_known and stage.rest.knows(*sections)


def _objects(stage: Stage, reach: Reach, sleep: Hibernation, *, takes_brokers: bool) -> _Track:
    """`takes_brokers`: see `_budget`."""
    desired, observed = stage.rest, reach.observed
    names = desired.names
    live = observed.live("Deployment", names.controller)
    controllers = controller_pods(desired, live, observed.live("StatefulSet", names.broker))
    rest = [each for each in controller_objects(desired) if each["kind"] != "Deployment"]
    deployment = controllers.wanted
    if not sleep.controllers:
        deployment = {**deployment, "spec": {**deployment["spec"], "replicas": 0}}
    wanted = [*rest, deployment, *broker_objects(desired, len(broker_ids(desired, observed)))]
    everything = _knows_rest(stage)
    if not everything:
        wanted = [each for each in wanted if each["kind"] == BUDGET]  # it depends on none of these
    live_budget = observed.live(BUDGET, names.broker)
    wanted = [_budget(each, observed, live_budget, takes_brokers=takes_brokers) for each in wanted]
    actions: list[Action] = []
    if everything and observed.knows(TRUST) and not sleep.stage.is_down:
        actions += plan_authority(desired, observed)
    for each in wanted:
        key = (each["kind"], each["metadata"]["name"])
        if reach.may_change(*key) and not _is_applied(each, observed):
            actions.append(Apply(stamped(each)))
    if not everything:
        return _Track(tuple(actions))
    keep = {(each["kind"], each["metadata"]["name"]) for each in wanted}
    for (kind, name), live in sorted(observed.objects.items()):
        if (kind, name) not in keep and _is_left_over(live, kind, desired, observed):
            actions.append(RemoveObject(kind, name, live["metadata"]["uid"]))
    return _Track(tuple(actions))


def _is_applied(wanted: Object, observed: Observed) -> bool:
    """Whether it is live, or all of it that a webhook lets through."""
    key = (wanted["kind"], wanted["metadata"]["name"])
    return is_applied(wanted, observed.live(*key), observed.overruled.get(key))


def _is_left_over(live: Object, kind: str, desired: DesiredCluster, observed: Observed) -> bool:
    """Whether the Cluster has it, and is of those that it can come to need no longer."""
    metadata = live["metadata"]
    owners = {ref["uid"] for ref in metadata.get("ownerReferences") or ()}
    if desired.uid not in owners:
        return False
    if kind == "Service":
        # Of a broker that is to go and still runs, its clients need it.
        knows = desired.external is None or observed.knows(POD, "StatefulSet")
        return knows and desired.names.is_external(metadata["name"])
    if kind in {"Role", "RoleBinding"}:
        # Permissions of an earlier installation go once those of this one are there.
        binding = desired.names.controller_binding(desired.installation.controller_role)
        return observed.live("RoleBinding", binding) is not None
    return False


def _takes_brokers(roll: _Track, observed: Observed) -> bool:
    """Whether it stops any that serve now. Others count as unavailable already."""
    return any(
        isinstance(action, MoveLeaders)
        or (isinstance(action, RestartPod) and observed.pods[action.broker_id].ready)
        for action in roll.actions
    )


def _budget(
    wanted: Object, observed: Observed, live: Object | None, *, takes_brokers: bool
) -> Object:
    """Evictions are allowed one at a time, and only while no partition lacks a replica, nor is
    about to. `takes_brokers`: a roll is about to restart some."""
    if wanted["kind"] != "PodDisruptionBudget":
        return wanted
    spec = wanted["spec"]
    if observed.brokers is not None:
        allowed = 1 if can_lose_one(observed.brokers) and not takes_brokers else 0
    else:
        allowed = spec["maxUnavailable"] if live is None else live["spec"].get("maxUnavailable", 1)
    return {**wanted, "spec": {**spec, "maxUnavailable": allowed}}


def _brokers(desired: DesiredCluster, reach: Reach, sleep: Hibernation) -> _Track:
    observed, name = reach.observed, desired.names.broker
    known = desired.knows(Section.BROKERS, Section.TEMPLATE, Section.POLICY)
    if not (known and reach.may_change("StatefulSet", name)):
        return _Track()
    live = observed.live("StatefulSet", name)
    # How many pods there are, and which image the controllers have, decides what is made.
    can_make = desired.knows(Section.STORAGE) and observed.knows(POD, "Deployment")
    if live is None and not can_make:
        return _Track()
    if sleep.brokers is not None:
        scale = Scale(sleep.brokers)
    elif observed.knows(POD):
        scale = plan_scale(desired, observed, live)
    else:
        assert live is not None, "it is not made without knowing the pods"
        scale = Scale(int(live["spec"].get("replicas", 1)))
    other = observed.live("Deployment", desired.names.controller)
    wanted = with_claim_template(broker_pods(desired, scale.replicas, live, other).wanted, live)
    if sleep.asleep is not None:
        wanted = _asleep(wanted, sleep.asleep)
    # Who takes back each time what we apply must not keep the rest waiting.
    apply = () if _is_applied(wanted, observed) else (Apply(stamped(wanted)),)
    if live is None or scale.replicas != live["spec"].get("replicas", 1):
        return _Track((*apply, *scale.actions), scale.waits, scale.drains)
    # Whether a claim shall go has to be known before the registration goes, which remembers it.
    knows = observed.knows(POD, CLAIM) and desired.knows(Section.STORAGE)
    if not knows or sleep.holds_still:
        return _Track((*apply, *scale.actions), scale.waits, scale.drains)
    gone = forgotten(desired, observed, live)
    waits, going = going_volumes(desired, observed, live)
    ids = {one.broker_id for one in going}
    others = [one for one in scale.drains if one.broker_id not in ids]
    drains = sorted((*others, *going), key=lambda one: one.broker_id)
    return _Track((*apply, *gone, *scale.actions), (*scale.waits, *waits), tuple(drains))


def _asleep(wanted: Object, brokers: int) -> Object:
    metadata = wanted["metadata"]
    annotations = {**metadata.get("annotations", {}), ASLEEP: str(brokers)}
    return {**wanted, "metadata": {**metadata, "annotations": annotations}}


def _spread(desired: DesiredCluster, reach: Reach, sleep: Hibernation) -> _Track:
    if sleep.holds_still or not _may_scale(desired, reach):
        return _Track()
    actions, waits, offer = plan_spread(desired, reach.observed)
    return _Track(actions, waits, offer=offer)


def _throttle(desired: DesiredCluster, observed: Observed) -> _Track:
    return _Track(*plan_throttle(desired, observed)) if desired.knows(Section.POLICY) else _Track()


def _finalize(desired: DesiredCluster, observed: Observed, sleep: Hibernation) -> _Track:
    """An hour asleep is none in which a release has shown itself."""
    knows = observed.knows(POD, "StatefulSet", "Deployment") and desired.knows(Section.POLICY)
    if sleep.holds_still and not observed.format_said.since:
        return _Track()
    if sleep.holds_still:
        text = "the cluster hibernates; which format it could have is looked at when it is awake"
        return _Track(format=FormatPending(False, "Hibernates", text))
    if not knows:
        return _Track()
    actions, pending = plan_finalize(desired, observed)
    return _Track(actions, format=pending)


def _racks(observed: Observed) -> _Track:
    marks = [
        MarkRack(pod.name, observed.racks[pod.node])
        for pod in observed.pods.values()
        if observed.racks.get(pod.node) and pod.rack != observed.racks[pod.node]
    ]
    return _Track(tuple(marks))


def _roll(stage: Stage, reach: Reach, sleep: Hibernation) -> _Track:
    desired = stage.brokers
    observed, name = reach.observed, desired.names.broker
    live = observed.live("StatefulSet", name)
    if live is None or not (observed.knows(POD, CLAIM) and reach.may_change("StatefulSet", name)):
        return _Track()
    held = holds_restarts(desired, observed)
    if held is not None:
        return _Track(waits=(held,))
    newest = live_template_hash(live)
    other = observed.live("Deployment", desired.names.controller)
    known = desired.knows(Section.TEMPLATE)
    if known and newest != broker_pods(desired, 0, live, other).hash:
        return _Track()  # the template must change first
    made = True
    if other is not None and _knows_rest(stage):
        made = is_made(controller_pods(stage.rest, other, live), other)
    still = sleep.holds_still
    roll = plan_roll(desired, observed, newest, only_broken=still, controllers_made=made)
    return _Track(*roll)
