"""Empties brokers that are to go, and stops doing so when they are to stay.

    feasible? ─▶ cordon all that go ─▶ moves, in waves, until nothing is left ─▶ they prove it
                 lift our cordons ◀── cancel our moves ◀── spec.brokers is raised again

Every step is decided again from what the controller has stored, so another operator continues at
any point. A cordon names who made it: what a person has cordoned stays cordoned. A cancelled
drain's cordon is lifted last, so that it marks what is still to be cancelled.
"""

from collections.abc import Collection, Mapping
from typing import Final

from penstock.client import BrokerChange, BrokerPlacement, Cordon, MoveDescription, ReplicaMove
from penstock.client.admin.receiving import receiving, seconds_left
from penstock.core import balance
from penstock.core.control.documents import FORMAT_MOVES
from penstock.core.limits import REPLICA_CHANGES_MAX
from penstock.core.types import BrokerId, MoveReason, TopicPartition
from penstock_operator.model import (
    Action,
    CordonBrokers,
    MoveReplicas,
    Observed,
    Severity,
    Wait,
)
from penstock_operator.move_model import DrainStage, DrainState, MoveFacts
from penstock_operator.plan.gates import brokers_named
from penstock_operator.plan.waves import has_room, next_wave, open_moves
from penstock_operator.progress import figures

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
    return (CordonBrokers(changes, f"{brokers_named(sorted(ids))}: no longer drained"),)


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
        note = f"scaling down to {wanted}: moving all replicas off {brokers_named(sorted(ids))}"
        return (CordonBrokers(cordons, note),), ()
    wave = next_wave(made, moves.seen)
    return ((MoveReplicas(wave),) if wave else ()), ()


def drain_states(
    moves: MoveFacts, leaving: Collection[int], left: Collection[int]
) -> tuple[DrainState, ...]:
    """How far each broker that is to go is. `left`: those that cannot go yet."""
    return tuple(
        _state(moves, one) if one in left else DrainState(one, DrainStage.STOPPING)
        for one in leaving
    )


def _state(moves: MoveFacts, broker_id: int) -> DrainState:
    broker = moves.broker(broker_id)
    if moves.needs(broker_id):
        return _held(moves, broker_id)
    if broker is None or not broker.alive:
        return DrainState(broker_id, DrainStage.NOT_ANSWERING)
    if count := moves.logs.get(broker_id, 0):
        orphaned = not moves.names(broker_id) and moves.orphans.get(broker_id) == count
        return DrainState(broker_id, DrainStage.DELETING, logs=count, orphaned=orphaned)
    return DrainState(broker_id, DrainStage.PROVING)


def _held(moves: MoveFacts, broker_id: int) -> DrainState:
    known = () if moves.seen is None else moves.seen.facts.partitions
    held = [one for one in known if broker_id in one.replicas]
    going = {one.where: one for one in moves.moving.moves if _leaves(one, broker_id)}
    broker = moves.broker(broker_id)
    begun = bool(going) or (broker is not None and _is_closed(broker))
    waiting = [f"{one.where} waits: {one.waiting_for}" for one in going.values() if one.waiting_for]
    sizes = [_bytes_left(one, going.get(one.partition)) for one in held]
    left = None if None in sizes else sum(size or 0 for size in sizes)
    return DrainState(
        broker_id,
        DrainStage.DRAINING if begun else DrainStage.WAITING,
        replicas=len(held),
        moving=len(going),
        bytes_left=left,
        bytes_per_second=sum(
            _own_part(move, sum(copy.bytes_per_second for copy in move.copies))
            for move in going.values()
        ),
        seconds_left=_seconds_left(moves, held, going) if left else None,
        waiting_for=waiting[0] if waiting else "",
    )


def _seconds_left(
    moves: MoveFacts,
    held: Collection[balance.PartitionFacts],
    going: Mapping[TopicPartition, MoveDescription],
) -> int | None:
    """Until those that receive what leaves have all of it, and what else they receive."""
    known = () if moves.seen is None else moves.seen.facts.partitions
    sizes = {one.partition: one.size_bytes for one in known}
    onto = receiving(going.values(), sizes)
    everything = receiving(moves.moving.moves, sizes)
    unplanned = sum(one.size_bytes or 0 for one in held if one.partition not in going)
    return seconds_left((everything[broker_id] for broker_id in onto), unplanned)


def _bytes_left(one: balance.PartitionFacts, going: MoveDescription | None) -> int | None:
    """As its leader says, or all of it while it says nothing; None: nobody knows."""
    if going is not None and going.copies:
        return _own_part(going, sum(copy.bytes_left for copy in going.copies))
    return one.size_bytes


def _own_part(move: MoveDescription, copied: int) -> int:
    """What one of the brokers that a partition leaves has of the bytes of all its copies: who
    copies in whose place is not stored."""
    leaving = sum(_leaves(move, broker_id) for broker_id in move.replicas)
    return -(-copied // leaving)


def describe(
    observed: Observed, moves: MoveFacts, states: Collection[DrainState], wanted: int
) -> Wait:
    """How far it is, for brokers that cannot go yet.

    Without bytes once a person has to do something: every new text would be an Event.
    """
    words, draining = [], False
    stuck = any(
        one.stage is DrainStage.NOT_ANSWERING and _is_down(observed, one.broker_id)
        for one in states
    )
    for state in states:
        broker_id = state.broker_id
        draining = draining or moves.names(broker_id)
        match state.stage:
            case DrainStage.WAITING | DrainStage.DRAINING:
                how_far = "" if stuck else _how_far(state)
                words.append(
                    f"broker {broker_id} has {state.replicas} replicas left, {state.moving} of "
                    f"them moving{how_far}"
                )
            case DrainStage.NOT_ANSWERING:
                words.append(
                    f"broker {broker_id} does not answer, and what it stores is not known: start "
                    "it, or give it up with annotation penstock.dev/forget-broker: "
                    f'"{broker_id}"'
                )
            case DrainStage.DELETING if state.orphaned:
                words.append(
                    f"broker {broker_id} has {state.logs} logs of topics that the cluster does not "
                    f"know, and keeps them until: penstock broker drop-orphans {broker_id}"
                )
            case DrainStage.DELETING:
                words.append(f"broker {broker_id} has {state.logs} former replicas to delete")
            case DrainStage.PROVING:
                words.append(f"broker {broker_id} is empty, which is checked twice")
            case DrainStage.STOPPING | DrainStage.DELETING_VOLUME:
                pass
    waiting = [state.waiting_for for state in states if state.waiting_for]
    text = f"scaling down to {wanted}: {'; '.join([*words, *waiting[:1]])}"
    severity = Severity.BLOCKED if stuck else Severity.PROGRESS
    return Wait("Draining" if draining else "ProvingEmpty", text, severity)


def _how_far(state: DrainState) -> str:
    return figures(state.bytes_left, state.bytes_per_second, seconds=state.seconds_left)


def _is_down(observed: Observed, broker_id: int) -> bool:
    """Not only for the moment."""
    pod = observed.pods.get(broker_id)
    return pod is None or bool(pod.trouble)


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
        f"scaling down to {wanted} is blocked: {brokers_named(full)} would have to be emptied, and "
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
