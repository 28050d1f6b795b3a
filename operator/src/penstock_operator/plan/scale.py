"""How many broker pods there should be now.

Up: at once; the controller places new partitions on new brokers. Down: brokers that go are emptied
first (`drain`), and their pods stay until the stored documents name them nowhere and they
themselves list no log, twice (I34). The highest goes first, while others are still emptied.

A broker that has replicas and a volume is started, however few the spec wants: the StatefulSet may
have been deleted, or made smaller by hand. Then it is emptied like any other.
"""

from collections.abc import Collection
from dataclasses import dataclass

from penstock.client import BrokerPlacement
from penstock_operator.model import (
    Action,
    AnswerRequest,
    ForgetBroker,
    Object,
    Observed,
    Severity,
    Wait,
)
from penstock_operator.move_model import DrainStage, DrainState, MoveFacts
from penstock_operator.names import FORGET_BROKER
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.claims import deletes, marks, stale_marks
from penstock_operator.plan.drain import describe, drain_states, plan_cancel, plan_drain
from penstock_operator.plan.gates import trusted
from penstock_operator.plan.reach import CLAIM
from penstock_operator.volume_model import ClaimState, DropClaim, MarkClaim


@dataclass(frozen=True, slots=True)
class Scale:
    """Replicas of the StatefulSet, what is done for them to become those of the spec, why they are
    not yet, and how far brokers that are to go are."""

    replicas: int
    actions: tuple[Action, ...] = ()
    waits: tuple[Wait, ...] = ()
    drains: tuple[DrainState, ...] = ()


def plan_scale(desired: DesiredCluster, observed: Observed, live: Object | None) -> Scale:
    """`live`: the StatefulSet; None: there is none."""
    wanted = desired.spec.brokers
    present = observed.last_broker(desired.names.broker) + 1
    facts, moves = trusted(observed), observed.moves
    made = present if live is None else int(live["spec"].get("replicas", 1))
    proven: Collection[int] = () if moves is None else moves.proven
    stale = stale_marks(desired, observed, 0 if moves is None else made, proven)
    kept = [mark.broker_id for mark in stale if mark.broker_id < wanted]
    if kept:
        return Scale(max(present, min(kept)), stale)  # before anything can come to its volume
    cancelled = plan_cancel(moves, wanted) if facts is not None and moves is not None else ()
    away = _not_started(desired, observed, present)
    if present <= wanted:
        return Scale(wanted, (*stale, *cancelled), away)
    if facts is None or moves is None or moves.seen is None:
        why = observed.moves_problem or observed.brokers_problem or "no controller is reachable"
        if facts is not None and moves is not None:
            why = "what they store is read in the next pass"
        text = (
            f"scaling down to {wanted} needs the brokers' confirmation that nothing is lost: {why}"
        )
        return Scale(present, stale, (*away, Wait("BrokersDoNotAnswer", text)))
    leaving = range(wanted, present)
    unmarked, marking = _unmarked(desired, observed, moves, made)
    left = [
        one
        for one in leaving
        if one in unmarked or not _may_go(desired, observed, moves, one, made)
    ]
    drains = drain_states(moves, leaving, left)
    if cancelled:
        text = f"scaling down to {wanted}: ending the drain of brokers that are to stay"
        ending = (*away, Wait("Draining", text))
        return Scale(max([wanted - 1, *left]) + 1, (*stale, *cancelled), ending, drains)
    if not left:
        return Scale(wanted, stale, away, drains)
    actions, waits = plan_drain(moves, leaving, wanted)
    waits = waits or (describe(observed, moves, drains, wanted),)
    return Scale(max(left) + 1, (*stale, *marking, *actions), (*away, *waits), drains)


def _not_started(desired: DesiredCluster, observed: Observed, present: int) -> tuple[Wait, ...]:
    """Brokers beyond those `present` that have replicas, or are to get some, and no volume to
    start with: a person has to decide."""
    facts, moves = trusted(observed), observed.moves
    if facts is None or not observed.knows(CLAIM):
        return ()
    waits = []
    for one in sorted(broker_id for broker_id in facts.brokers if broker_id >= present):
        held = sum(one in each.replicas for each in facts.partitions)
        if not held and (moves is None or not moves.needs(one)):
            continue
        has = f"has {held} replicas" if held else "is to get replicas"
        why = "" if one in observed.claims else f", and claim {desired.names.claim(one)} is gone"
        text = (
            f"broker {one} {has} and is not started{why}: set spec.brokers to {one + 1} to start "
            f"it, or give them to others: penstock broker drain {one}"
        )
        waits.append(Wait("BrokerNotStarted", text, Severity.BLOCKED))
    return tuple(waits)


def forgotten(
    desired: DesiredCluster, observed: Observed, live: Object
) -> tuple[ForgetBroker | DropClaim | AnswerRequest, ...]:
    """What is done about brokers beyond the spec that have neither a pod nor a place in the
    StatefulSet `live`: they were let go.

    The claim goes before the registration, if it shall go: so whoever continues here, after a
    restart as well, knows from the controller which ones were let go. A claim without that word is
    never touched: it may be of a Cluster of the same name that was deleted and kept its data.
    """
    steps: list[ForgetBroker | DropClaim | AnswerRequest] = []
    for one, claim in _let_go(desired, observed, live):
        if claim is None:
            steps.append(ForgetBroker(one.broker_id, one.directory_id))
        elif not claim.deleting:
            steps.append(DropClaim(one.broker_id, claim.name, claim.uid, claim.version))
    if _is_forgotten(desired, observed, live):
        steps.append(AnswerRequest(FORGET_BROKER, None))
    return tuple(steps)


def going_volumes(
    desired: DesiredCluster, observed: Observed, live: Object
) -> tuple[tuple[Wait, ...], tuple[DrainState, ...]]:
    """What is said of the claims that `forgotten` deletes, until they are gone."""
    going = [claim for _, claim in _let_go(desired, observed, live) if claim is not None]
    waits = tuple(
        Wait("DeletingVolume", f"claim {claim.name} of broker {claim.broker_id} is being deleted")
        for claim in going
    )
    return waits, tuple(DrainState(one.broker_id, DrainStage.DELETING_VOLUME) for one in going)


def _is_forgotten(desired: DesiredCluster, observed: Observed, live: Object) -> bool:
    """Whether the broker that is to go by name has gone, so that none of that name may follow it
    without its own word."""
    asked, moves = desired.forget_broker, observed.moves
    if asked is None or moves is None or trusted(observed) is None or asked in observed.pods:
        return False
    return moves.broker(asked) is None and asked >= int(live["spec"].get("replicas", 1))


def _let_go(
    desired: DesiredCluster, observed: Observed, live: Object
) -> list[tuple[BrokerPlacement, ClaimState | None]]:
    """Registered brokers that were let go, each with its claim if that shall go first."""
    facts, moves = trusted(observed), observed.moves
    if facts is None or moves is None:
        return []
    kept = max(desired.spec.brokers, int(live["spec"].get("replicas", 1)))
    return [
        (one, _claim_to_go(desired, observed, one.broker_id))
        for one in moves.moving.brokers
        if one.broker_id >= kept
        and one.broker_id not in observed.pods
        and not one.alive
        and not moves.needs(one.broker_id)
        and not any(one.broker_id in each.replicas for each in facts.partitions)
    ]


def _claim_to_go(desired: DesiredCluster, observed: Observed, broker_id: int) -> ClaimState | None:
    """None: there is none, or it stays; so does one that nobody has proven empty, as of a broker
    that was let go by name, or whose pod somebody else has taken away."""
    claim = observed.claims.get(broker_id)
    if claim is None or not claim.emptied or desired.forget_broker == broker_id:
        return None
    return claim if deletes(desired) else None


def _unmarked(
    desired: DesiredCluster, observed: Observed, moves: MoveFacts, made: int
) -> tuple[frozenset[int], tuple[MarkClaim, ...]]:
    """Proven brokers that could go, were their claims marked to go with them; and what marks those.

    While claims cannot be read, none goes whose claim may have to be marked.
    """
    if not deletes(desired):
        return frozenset(), ()
    ready = {one for one in moves.proven if not _was_let_go(observed, one, made)}
    if not observed.knows(CLAIM):
        return frozenset(ready), ()
    marking = marks(desired, observed, ready)
    return frozenset(mark.broker_id for mark in marking), marking


def _may_go(
    desired: DesiredCluster, observed: Observed, moves: MoveFacts, broker_id: int, made: int
) -> bool:
    """Whether its pod may stop. `made`: how many the StatefulSet makes."""
    broker = moves.broker(broker_id)
    alive = broker is not None and broker.alive
    if desired.forget_broker == broker_id and not alive and not moves.needs(broker_id):
        return True
    if moves.names(broker_id):
        return False
    if broker is None:
        return True  # it has never registered, so it never had a replica
    return _was_let_go(observed, broker_id, made) or broker_id in moves.proven


def _was_let_go(observed: Observed, broker_id: int, made: int) -> bool:
    pod = observed.pods.get(broker_id)
    return broker_id >= made and (pod is None or pod.terminating)
