"""Empties brokers that are to go, and stops doing so when they are to stay.

    feasible? ─▶ cordon all that go ─▶ moves, in waves, until nothing is left ─▶ they prove it
                 lift our cordons ◀── cancel our moves ◀── spec.brokers is raised again

Every step is decided again from what the controller has stored, so another operator continues at
any point. A cordon names who made it: what a person has cordoned stays cordoned. A cancelled
drain's cordon is lifted last, so that it marks what is still to be cancelled.
"""

from collections.abc import Collection
from typing import Final

from penstock.client import BrokerChange, BrokerPlacement, Cordon, MoveDescription, ReplicaMove
from penstock.core import balance
from penstock.core.control.documents import FORMAT_MOVES
from penstock.core.limits import REPLICA_CHANGES_MAX
from penstock.core.types import BrokerId, MoveReason
from penstock_operator.model import (
    Action,
    CordonBrokers,
    MoveFacts,
    MoveReplicas,
    Observed,
    Severity,
    Wait,
)
from penstock_operator.plan.waves import has_room, next_wave, open_moves

BY: Final = "operator"
"""Who has made a cordon: only these are lifted."""

Track = tuple[tuple[Action, ...], tuple[Wait, ...]]


def plan_cancel(moves: MoveFacts, wanted: int) -> tuple[Action, ...]:
    """Ends drains of brokers below `wanted`; what has moved stays where it is."""
    kept = [
        one
        for one in moves.moving.brokers
        if one.broker_id < wanted and one.cordon is not None and one.cordon.by == BY
    ]
    if not kept or moves.moving.paused:
        return ()
    ids = {one.broker_id for one in kept}
    leaving = [
        ReplicaMove(one.where, topic_id=one.topic_id)
        for one in moves.moving.moves
        if one.reason is MoveReason.DRAIN and any(_leaves(one, broker_id) for broker_id in ids)
    ]
    if leaving:
        return (MoveReplicas(tuple(leaving[:REPLICA_CHANGES_MAX])),)
    none = Cordon(placement=False, leadership=False)
    changes = tuple(BrokerChange(one.broker_id, none, one.directory_id) for one in kept)
    return (CordonBrokers(changes, f"{_brokers(sorted(ids))}: no longer drained"),)


def plan_drain(moves: MoveFacts, leaving: Collection[int], wanted: int) -> Track:
    """The next step for brokers that are to go, and why nothing more can be done now."""
    known = [one for broker_id in leaving if (one := moves.broker(broker_id)) is not None]
    if moves.moving.format < FORMAT_MOVES:
        return (), _finalize_first(moves, known, wanted)
    if moves.moving.paused:
        text = (
            f"scaling down to {wanted}: the metadata store is unavailable, and no move begins or "
            "ends before it is back"
        )
        return (), (Wait("MovesWait", text),)
    cordons = tuple(_cordon(one, wanted) for one in known if not _is_closed(one))
    if not cordons and not _has_room(moves, leaving):
        return (), ()
    assert moves.seen is not None, "it is read while brokers are to go"
    ids = tuple(BrokerId(one.broker_id) for one in known)
    made = balance.plan(moves.seen.facts, balance.Drain(ids))
    if isinstance(made, balance.Infeasible):
        text = (
            f"scaling down to {wanted} is blocked: {made.reason}; or set spec.brokers to "
            f"{max(leaving) + 1}"
        )
        return (), (Wait("DrainBlocked", text, Severity.BLOCKED),)
    if cordons:
        note = f"scaling down to {wanted}: moving all replicas off {_brokers(sorted(ids))}"
        return (CordonBrokers(cordons, note),), ()
    wave = next_wave(made, moves.seen)
    return ((MoveReplicas(wave),) if wave else ()), ()


def describe(observed: Observed, moves: MoveFacts, left: Collection[int], wanted: int) -> Wait:
    """How far it is, for brokers that cannot go yet."""
    known = () if moves.seen is None else moves.seen.facts.partitions
    words, stuck, draining = [], False, False
    for broker_id in left:
        held = sum(broker_id in one.replicas for one in known)
        moving = sum(_leaves(one, broker_id) for one in moves.moving.moves)
        broker, pod = moves.broker(broker_id), observed.pods.get(broker_id)
        draining = draining or moves.names(broker_id)
        if moves.needs(broker_id):
            words.append(f"broker {broker_id} has {held} replicas left, {moving} of them moving")
        elif broker is None or not broker.alive:
            stuck = stuck or pod is None or bool(pod.trouble)
            words.append(
                f"broker {broker_id} does not answer, and what it stores is not known: start it, "
                f'or give it up with annotation penstock.dev/forget-broker: "{broker_id}"'
            )
        elif count := moves.logs.get(broker_id, 0):
            words.append(f"broker {broker_id} has {count} former replicas to delete")
        else:
            words.append(f"broker {broker_id} is empty, which is checked twice")
    waiting = [one for one in moves.moving.moves if one.target and one.waiting_for]
    if waiting:
        words.append(f"{waiting[0].where} waits: {waiting[0].waiting_for}")
    text = f"scaling down to {wanted}: {'; '.join(words)}"
    severity = Severity.BLOCKED if stuck else Severity.PROGRESS
    return Wait("Draining" if draining else "ProvingEmpty", text, severity)


def _leaves(move: MoveDescription, broker_id: int) -> bool:
    return bool(move.target) and broker_id in move.replicas and broker_id not in move.target


def _is_closed(broker: BrokerPlacement) -> bool:
    return broker.cordon is not None and broker.cordon.placement


def _cordon(broker: BrokerPlacement, wanted: int) -> BrokerChange:
    """A person's cordon, of leaderships alone, stays that person's."""
    theirs = broker.cordon
    by, why = (theirs.by, theirs.why) if theirs else (BY, f"scaling down to {wanted} brokers")
    cordon = Cordon(placement=True, leadership=True, why=why, by=by)
    return BrokerChange(broker.broker_id, cordon, broker.directory_id)


def _finalize_first(
    moves: MoveFacts, known: Collection[BrokerPlacement], wanted: int
) -> tuple[Wait, ...]:
    full = [one.broker_id for one in known if moves.needs(one.broker_id)]
    if not full:
        return ()
    text = (
        f"scaling down to {wanted} is blocked: {_brokers(full)} would have to be emptied, and "
        f"replicas do not move before the stored metadata has format {FORMAT_MOVES}; once every "
        "broker and controller runs this release: penstock cluster finalize"
    )
    return (Wait("DrainBlocked", text, Severity.BLOCKED),)


def _has_room(moves: MoveFacts, leaving: Collection[int]) -> bool:
    """Whether partitions have to move whose topic has room for some."""
    assert moves.seen is not None, "it is read while brokers are to go"
    opened = open_moves(moves.moving.moves)
    return any(
        not one.target
        and any(broker_id in leaving for broker_id in one.replicas)
        and has_room(opened[one.partition.topic])
        for one in moves.seen.facts.partitions
    )


def _brokers(ids: Collection[int]) -> str:
    return f"broker{'s' if len(ids) != 1 else ''} {', '.join(str(one) for one in ids)}"
