"""A Cluster goes to sleep and wakes: how many brokers and controllers there are, and what is asked.

    spec.hibernate ─▶ nothing drains, all in sync? ─▶ writes refused ─▶ quiet, twice ─▶ brokers to 0
                      └─ waits                        └─ not in 5 min: Blocked, writes allowed again
    brokers gone ─▶ controllers to 0 ─▶ Hibernated
    wake ─▶ controllers ─▶ brokers ─▶ all are back, or 60 s ─▶ writes allowed, leaders elected

The set of brokers at 0 says, in an annotation, how many it had: that is the word that everything
had come to rest, and it is written together with the 0. So another operator continues at any point.

A drain goes first: its brokers still hold replicas, and who they are is known only while they run.
A roll does not: all pods are made from the newest template at wake, which is what it wanted. What
is broken meanwhile (a broker down, replicas out of sync) is waited for: it could not come to rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.core.control.documents import FORMAT_MOVES
from penstock_operator.hibernation_model import Hibernate, Record, Stage
from penstock_operator.model import BrokerFacts, Object, Observed, Severity, Wait
from penstock_operator.names import ASLEEP
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import is_serving, some, trusted
from penstock_operator.plan.reach import CLAIM
from penstock_operator.plan.volumes import holds_restarts

REST_S: Final = 300.0
"""How long writes are refused for nothing, if the cluster does not come to rest."""
RETURN_S: Final = 60.0
"""How long brokers are waited for, once one answers: others lead what they led."""
_WAKES: Final = frozenset({Stage.STARTING, Stage.WAKING})
_ASKED: Final = frozenset({Stage.HIBERNATING, Stage.WAKING, Stage.BLOCKED})
"""What a pass without an answer goes on with: its time runs on, and a wake is still one."""
_NOT_HEARD: Final = (
    "it was asked to and does not hibernate: a controller or broker of an older release does not "
    "know how, and none does while its metadata store is unavailable"
)


@dataclass(frozen=True, slots=True)
class Hibernation:
    """What is to be done. `brokers`: replicas of the StatefulSet, None: as `plan.scale` says.

    `asleep`: how many brokers there are awake, to be noted on the set; None: it is not asleep.
    `controllers`: whether they run. `wait`: why the Cluster is not Ready; None: it is not for this.
    """

    stage: Stage = Stage.AWAKE
    brokers: int | None = None
    asleep: int | None = None
    controllers: bool = True
    actions: tuple[Hibernate, ...] = ()
    wait: Wait | None = None
    record: Record | None = None

    @property
    def holds_still(self) -> bool:
        """Brokers are neither rolled, drained nor filled: they are to stop, or have just begun."""
        return self.stage not in {Stage.AWAKE, Stage.BLOCKED}

    @property
    def waits(self) -> tuple[Wait, ...]:
        """Asleep it waits for nothing, though it is not Ready."""
        return () if self.wait is None or self.stage is Stage.HIBERNATED else (self.wait,)


def brokers_asleep(live: Object | None) -> int | None:
    """How many brokers a StatefulSet that sleeps has awake; None: it does not sleep."""
    if live is None or live["spec"].get("replicas", 1) != 0:
        return None
    annotations: Mapping[str, str] = live["metadata"].get("annotations") or {}
    text = annotations.get(ASLEEP, "")
    return int(text) if text.isdecimal() else None


def plan_hibernation(
    desired: DesiredCluster, observed: Observed, *, may_change: bool
) -> Hibernation:
    """`may_change`: the set of brokers and its pods are known to be ours, and what is wanted of
    them is known; if not, all stays as it is."""
    live, record = observed.live("StatefulSet", desired.names.broker), observed.rest.record
    if not may_change:
        deployment = observed.live("Deployment", desired.names.controller)
        runs = deployment is None or deployment["spec"].get("replicas", 1) != 0
        asleep = brokers_asleep(live)
        brokers = None if asleep is None else 0
        kept = Hibernation(record.stage, brokers, asleep, controllers=runs, record=record)
        text = f"{record.stage.value}, as it was: what runs, or is wanted, cannot be read now"
        return replace(kept, wait=Wait("NotRead", text)) if kept.holds_still else kept
    made = _made(desired, observed, live)
    asleep = brokers_asleep(live)
    if asleep is None and live is None and not observed.pods and desired.spec.hibernate:
        asleep = made  # nothing runs, so nothing has to come to rest
    if asleep is not None and desired.spec.hibernate:
        found = _down(desired, observed, asleep)
    elif asleep is not None:
        found = _starting(desired, observed, asleep)
    elif _wakes(desired, observed):
        found = _waking(observed, made)
    elif record.stage is Stage.STARTING and trusted(observed) is None:
        found = Hibernation(Stage.STARTING, made, wait=Wait("Waking", "waking up: brokers start"))
    elif desired.spec.hibernate:
        found = _going(desired, observed, made)
    else:
        found = Hibernation()
    if found.record is not None:
        return found
    if found.stage is Stage.AWAKE and trusted(observed) is None and record.stage in _ASKED:
        return replace(found, record=record)  # brokers that cannot be asked now allow no writes
    return replace(found, record=_record(found, record))


def _made(desired: DesiredCluster, observed: Observed, live: Object | None) -> int:
    """Brokers that there are, or are made."""
    known = observed.last_broker(desired.names.broker) + 1
    return known if live is not None or observed.pods else max(known, desired.spec.brokers)


def _record(found: Hibernation, before: Record) -> Record:
    """What the status is to say, with since when."""
    return before if found.stage is before.stage else Record(found.stage)


# ── To sleep ──────────────────────────────────────────────────────────────────────────────


def _going(desired: DesiredCluster, observed: Observed, made: int) -> Hibernation:
    rest, facts = observed.rest, trusted(observed)
    record = rest.record
    # The wake that was asked for may still wait for the metadata store. If brokers stopped now, it
    # would be stored while they sleep.
    held = facts is not None and facts.hibernating
    if record.stage is Stage.BLOCKED and (held or record.generation == desired.generation):
        return _blocked(desired, record.waiting_for, facts, record)
    if facts is None:
        why = observed.brokers_problem or "no controller is active"
        return _not_yet(f"waiting until the brokers can be asked: {why}")
    tried_long = record.stage is Stage.HIBERNATING and rest.waited_s >= REST_S
    if not facts.hibernating:
        if tried_long:
            return _blocked(desired, _NOT_HEARD, facts, None)
        return _begin(desired, observed, facts, made)
    losing = _would_lose(desired, observed)
    if rest.proven and _all_alive(facts) and not losing:
        text = "everything is fsynced on all replicas; brokers stop"
        wait = Wait("Hibernating", text)
        return Hibernation(Stage.STOPPING, 0, made, wait=wait)
    why = losing or rest.waiting_for or _away(facts) or "it is checked twice"
    if tried_long:
        return _blocked(desired, why, facts, None)
    text = f"going to sleep, writes are refused: waiting until all brokers are at rest: {why}"
    severity = Severity.BLOCKED if losing else Severity.PROGRESS
    return Hibernation(Stage.HIBERNATING, made, wait=Wait("Hibernating", text, severity))


def _begin(
    desired: DesiredCluster, observed: Observed, facts: BrokerFacts, made: int
) -> Hibernation:
    """Refuses writes, if the cluster can be expected to come to rest then."""
    moves = observed.moves
    if moves is None:
        return _not_yet(f"waiting for what moves: {observed.moves_problem}")
    if moves.moving.format < FORMAT_MOVES:
        text = (
            f"cannot hibernate before the stored metadata has format {FORMAT_MOVES}; once every "
            "broker and controller runs this release: penstock cluster finalize"
        )
        return Hibernation(wait=Wait("HibernateBlocked", text, Severity.BLOCKED))
    if made > desired.spec.brokers:
        return _not_yet(f"waiting until scaling down to {desired.spec.brokers} is done")
    for broker_id in range(desired.spec.brokers):
        if not is_serving(observed.pods.get(broker_id), facts):
            return _not_yet(f"waiting until broker {broker_id} serves")
    if away := _away(facts):
        return _not_yet(f"{away}, which is registered")
    if losing := _would_lose(desired, observed):
        text = f"cannot hibernate: {losing}"
        return Hibernation(wait=Wait("HibernateBlocked", text, Severity.BLOCKED))
    if facts.not_full:
        return _not_yet(f"waiting until replicas catch up: {some(facts.not_full)}")
    text = "going to sleep: writes are refused from now on"
    return Hibernation(
        Stage.HIBERNATING,
        made,
        actions=(Hibernate(hibernating=True),),
        wait=Wait("Hibernating", text),
    )


def _would_lose(desired: DesiredCluster, observed: Observed) -> str:
    """Why no pod may stop; empty: they may. A claim that is deleted goes when its pod does, and so
    does the volume of a broker for which a loss is accepted."""
    if not observed.knows(CLAIM):
        return "whether volumes are being deleted cannot be read now"
    going = [one for _, one in sorted(observed.claims.items()) if one.deleting]
    if not going:
        held = holds_restarts(desired, observed)
        return held.message if held is not None else ""
    first = going[0]
    return (
        f"claim {first.name} is being deleted, and the records of broker {first.broker_id} go with "
        f"it when its pod stops: copy them away first (penstock broker drain {first.broker_id}), "
        "then delete that pod, so that it gets a new volume"
    )


def _not_yet(text: str) -> Hibernation:
    """It works as before: only a wait tells that it is to sleep."""
    return Hibernation(wait=Wait("Hibernating", f"to be put to sleep: {text}"))


def _blocked(
    desired: DesiredCluster, why: str, facts: BrokerFacts | None, record: Record | None
) -> Hibernation:
    text = (
        f"did not come to rest in {REST_S / 60:.0f} min, so it stays awake, and writes are allowed "
        f"again: {why}; tried again when the spec changes"
    )
    held = facts is not None and facts.hibernating and record is not None  # said, as in `_waking`
    return Hibernation(
        Stage.BLOCKED,
        actions=(Hibernate(hibernating=False),) if held else (),
        wait=Wait("HibernateBlocked", text, Severity.BLOCKED),
        record=record or Record(Stage.BLOCKED, "", desired.generation, why),
    )


def _down(desired: DesiredCluster, observed: Observed, asleep: int) -> Hibernation:
    """The brokers are to be gone; the controllers go when they are, and have seen them go."""
    left = [pod.name for pod in observed.pods.values()]
    if left or not observed.knows("Pod"):
        text = f"going to sleep: {', '.join(left) or 'brokers'} stopping"
        return Hibernation(Stage.STOPPING, 0, asleep, wait=Wait("Hibernating", text))
    deployment = observed.live("Deployment", desired.names.controller)
    running = 0 if deployment is None else (deployment.get("status") or {}).get("replicas", 0)
    if running:
        text = "going to sleep: controllers are stopping"
        wait = Wait("Hibernating", text)
        return Hibernation(Stage.STOPPING, 0, asleep, controllers=False, wait=wait)
    text = (
        f"asleep: {asleep} brokers and their controllers are stopped, volumes are kept; wake it "
        "with spec.hibernate: false"
    )
    wait = Wait("Hibernated", text)
    return Hibernation(Stage.HIBERNATED, 0, asleep, controllers=False, wait=wait)


# ── Awake again ───────────────────────────────────────────────────────────────────────────


def _starting(desired: DesiredCluster, observed: Observed, asleep: int) -> Hibernation:
    """Controllers first: the first broker that registers is not to wait for one.

    They are only made, not ready: who takes over asks a majority of the brokers first (ADR 29), so
    that a single controller is not ready before they run.
    """
    brokers = max(asleep, desired.spec.brokers)
    deployment = observed.live("Deployment", desired.names.controller)
    status: Object = {} if deployment is None else deployment.get("status") or {}
    wait = Wait("Waking", f"waking up: controllers start, then {brokers} brokers")
    if status.get("replicas", 0):
        return Hibernation(Stage.STARTING, brokers, wait=wait)
    return Hibernation(Stage.STARTING, 0, asleep, wait=wait)


def _wakes(desired: DesiredCluster, observed: Observed) -> bool:
    """Brokers run in a cluster that hibernates, and it is not the way to sleep.

    Who is to sleep again while they come back wakes first: nobody leads before that, and nothing
    could come to rest. The same holds once a wake was asked for: it may still be stored, whatever
    is wanted since, and must not be while brokers stop (see `_going` for one that was blocked).
    """
    facts = trusted(observed)
    if facts is None or not facts.hibernating:
        return False
    again = observed.rest.record.stage in _WAKES
    return again or not desired.spec.hibernate


def _waking(observed: Observed, made: int) -> Hibernation:
    facts, rest = trusted(observed), observed.rest
    assert facts is not None, "it says that it hibernates"
    waited = rest.waited_s if rest.record.stage is Stage.WAKING else 0.0
    if _all_alive(facts) or waited >= RETURN_S:
        # The status says so first. If this operator ends now, the next one sees the wake through,
        # whatever is wanted by then.
        said = rest.record.stage in _WAKES
        actions = (Hibernate(hibernating=False),) if said else ()
        wait = Wait("Waking", "waking up: leaders are elected")
        return Hibernation(Stage.WAKING, made, actions=actions, wait=wait)
    text = f"waking up: {_away(facts)}; others lead after {RETURN_S:.0f} s"
    return Hibernation(Stage.WAKING, made, wait=Wait("Waking", text))


def _all_alive(facts: BrokerFacts) -> bool:
    return all(one.alive for one in facts.brokers.values())


def _away(facts: BrokerFacts) -> str:
    away = [str(one.broker_id) for one in facts.brokers.values() if not one.alive]
    return f"waiting for broker {', '.join(away)}" if away else ""
