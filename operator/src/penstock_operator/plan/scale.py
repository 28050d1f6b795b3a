"""How many broker pods there should be now.

Up: at once; the controller places new partitions on new brokers. Down: brokers that go are emptied
first (`drain`), and their pods stay until the stored documents name them nowhere and they
themselves list no log, twice (I34). The highest goes first, while others are still emptied.
"""

from dataclasses import dataclass

from penstock.core.manifest.objects import WhenScaledDown
from penstock_operator.model import Action, ForgetBroker, Object, Observed, Wait
from penstock_operator.move_model import DrainState, MoveFacts
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.drain import describe, drain_states, plan_cancel, plan_drain
from penstock_operator.plan.gates import trusted
from penstock_operator.volume_model import ClaimState, DropClaim


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
    cancelled = plan_cancel(moves, wanted) if facts is not None and moves is not None else ()
    if present <= wanted:
        return Scale(wanted, cancelled)
    if facts is None or moves is None:
        why = observed.moves_problem or observed.brokers_problem or "no controller is reachable"
        text = (
            f"scaling down to {wanted} needs the brokers' confirmation that nothing is lost: {why}"
        )
        return Scale(present, waits=(Wait("BrokersDoNotAnswer", text),))
    made = present if live is None else int(live["spec"].get("replicas", 1))
    leaving = range(wanted, present)
    left = [one for one in leaving if not _may_go(desired, observed, moves, one, made)]
    drains = drain_states(moves, leaving, left)
    if cancelled:
        text = f"scaling down to {wanted}: ending the drain of brokers that are to stay"
        return Scale(max([wanted - 1, *left]) + 1, cancelled, (Wait("Draining", text),), drains)
    if not left:
        return Scale(wanted, drains=drains)
    actions, waits = plan_drain(moves, leaving, wanted)
    waits = waits or (describe(observed, moves, drains, wanted),)
    return Scale(max(left) + 1, actions, waits, drains)


def forgotten(
    desired: DesiredCluster, observed: Observed, live: Object
) -> tuple[ForgetBroker | DropClaim, ...]:
    """What is done about brokers beyond the spec that have neither a pod nor a place in the
    StatefulSet `live`: they were let go.

    The claim goes before the registration, if it shall go: so whoever continues here, after a
    restart as well, knows from the controller which ones were let go. A claim without that word is
    never touched: it may be of a Cluster of the same name that was deleted and kept its data.
    """
    facts, moves = trusted(observed), observed.moves
    if facts is None or moves is None:
        return ()
    kept = max(desired.spec.brokers, int(live["spec"].get("replicas", 1)))
    gone = [
        one
        for one in moves.moving.brokers
        if one.broker_id >= kept
        and one.broker_id not in observed.pods
        and not one.alive
        and not moves.needs(one.broker_id)
        and not any(one.broker_id in each.replicas for each in facts.partitions)
    ]
    steps: list[ForgetBroker | DropClaim] = []
    for one in gone:
        claim = _claim_to_go(desired, observed, one.broker_id)
        if claim is None:
            steps.append(ForgetBroker(one.broker_id, one.directory_id))
        elif not claim.deleting:
            steps.append(DropClaim(one.broker_id, claim.name, claim.uid))
    return tuple(steps)


def _claim_to_go(desired: DesiredCluster, observed: Observed, broker_id: int) -> ClaimState | None:
    """None: there is none, or it stays; so does that of a broker that was let go by name, because
    nobody has proven it empty."""
    stays = desired.spec.when_scaled_down is WhenScaledDown.RETAIN
    if stays or desired.forget_broker == broker_id:
        return None
    return observed.claims.get(broker_id)


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
    pod = observed.pods.get(broker_id)
    if broker_id >= made and (pod is None or pod.terminating):
        return True  # it was let go before
    return broker_id in moves.proven
