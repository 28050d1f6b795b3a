"""The life of one move, as pure functions from partition to partition (L1, L2 of ADR 64).

    AlterReplicas          ──▶ redirect   the target is stored; what is copied in vain is dropped
    a tick, slots are free ──▶ activate   the new brokers copy, outside the ISR
    AlterIsr with them     ──▶ switch     replicas, ISR and leader at once, if `lacks` is empty
    AlterReplicas, cancel  ──▶ cancel     replicas and ISR stay what they are
    ReportReplicas         ──▶ dropped    the broker has deleted its data
                               found_damaged, found_sound

Nothing leads from one replica set to another but `switch` (I29). Before it, ISR and replicas are
those of a partition that is not moved: any leader may die, and any controller go on.
"""

from collections.abc import Iterable
from dataclasses import replace

from penstock.core.control.election import Liveness, Settings
from penstock.core.control.move_contract import MoveState
from penstock.core.control.partition import PartitionDocument
from penstock.core.types import NO_LEADER, BrokerId, LeaderEpoch, MoveReason, PartitionState
from penstock.core.words import listed


def move_state(document: PartitionDocument) -> MoveState:
    """`COPYING` from the first broker on that copies."""
    if not document.target:
        return MoveState.SETTLED
    return MoveState.COPYING if document.state.adding else MoveState.QUEUED


def redirect(
    document: PartitionDocument, target: tuple[BrokerId, ...], why: MoveReason
) -> PartitionDocument:
    """The partition with this target, in place of any other; checked by the caller.

    Who copies for both targets goes on. The same replicas need no move: they are only put in order.
    """
    state = document.state
    if set(target) == set(state.replicas):
        return _in_order(cancel(document), target)
    kept = tuple(one for one in state.adding if one in target)
    return replace(document, state=_with_adding(state, kept), target=target, why=why)


def cancel(document: PartitionDocument) -> PartitionDocument:
    """No move any more: the replicas stay, who copies has to delete it."""
    return replace(document, state=_with_adding(document.state, ()), target=(), why=None)


def activate(document: PartitionDocument) -> PartitionDocument:
    """All new brokers of the target copy."""
    adding = document.new
    assert adding
    assert set(adding).isdisjoint(document.state.dropping)
    return replace(document, state=_with_adding(document.state, adding))


def lacks(
    document: PartitionDocument,
    isr: Iterable[BrokerId],
    liveness: Liveness,
    settings: Settings,
) -> str:
    """What forbids the switch to the target with this proposed ISR; "" if nothing does.

    The proposal contains all that copy: others cannot be checked with it.
    `settings`: of a partition with as many replicas as the target. The switch leaves no fewer
    copies in sync than there are now, or than the target can have, and never fewer than
    min.insync.replicas (I29; KAFKA-15665, KAFKA-16218).
    """
    state, target, new = document.state, document.target, document.new
    proposed = set(isr)
    assert proposed.issuperset(state.adding)
    seats = proposed.intersection(target)
    absent = [one for one in new if one not in liveness.staying]
    wanted = max(settings.min_isr, min(len(state.isr), len(target)))
    if state.leader == NO_LEADER:
        return "it has no leader"
    if set(new) != set(state.adding):
        return f"brokers {listed(_others(new, state.adding))} have not begun to copy"
    if absent:
        return f"brokers {listed(absent)} have no session or are shutting down"
    if len(seats) < wanted:
        in_sync = listed(sorted(seats))
        return f"of the target {listed(target)} only {in_sync} would be in sync, {wanted} must be"
    if not _able(document, seats, liveness):
        return f"nobody of {listed(sorted(seats))} can lead now"
    return ""


def switch(
    document: PartitionDocument, isr: Iterable[BrokerId], liveness: Liveness
) -> PartitionDocument:
    """The replicas are the target; nothing was lacking (`lacks`).

    Nobody else is eligible: the ISR has min.insync.replicas members. Who is not in the target has
    to delete its data, and no longer leads.
    """
    state, target = document.state, document.target
    seats = {one for one in isr if one in target}
    leader, epoch = state.leader, state.leader_epoch
    if leader not in seats:
        leader, epoch = _able(document, seats, liveness)[0], LeaderEpoch(epoch + 1)
    return PartitionDocument(
        PartitionState(
            leader=leader,
            leader_epoch=epoch,
            isr=tuple(one for one in target if one in seats),
            replicas=target,
            version=state.version + 1,
            dropping=(*state.dropping, *_others(state.replicas, target)),
            damaged=tuple(one for one in state.damaged if one in target),
        ),
    )


def dropped(document: PartitionDocument, broker_id: BrokerId) -> PartitionDocument:
    """The broker has nothing of the partition any more."""
    state = document.state
    rest = tuple(one for one in state.dropping if one != broker_id)
    if rest == state.dropping:
        return document
    return replace(document, state=replace(state, dropping=rest, version=state.version + 1))


def found_damaged(document: PartitionDocument, broker_id: BrokerId) -> PartitionDocument:
    """A replica cannot serve all it once acknowledged; `settle` then takes its seat away.

    Who only copies has to delete that, and begins again: what it had acknowledged must not be
    switched to, which may be proposed already (I29).
    """
    state = document.state
    if broker_id in state.adding:
        kept = tuple(one for one in state.adding if one != broker_id)
        return replace(document, state=_with_adding(state, kept))
    if broker_id not in state.replicas or broker_id in state.damaged:
        return document
    damaged = tuple(one for one in state.replicas if one in {*state.damaged, broker_id})
    return replace(document, state=replace(state, damaged=damaged, version=state.version + 1))


def found_sound(document: PartitionDocument, broker_id: BrokerId) -> PartitionDocument:
    """A damaged replica has all its data again, and may join the ISR."""
    state = document.state
    if broker_id not in state.damaged:
        return document
    damaged = tuple(one for one in state.damaged if one != broker_id)
    return replace(document, state=replace(state, damaged=damaged, version=state.version + 1))


def _with_adding(state: PartitionState, adding: tuple[BrokerId, ...]) -> PartitionState:
    if adding == state.adding:
        return state
    ended = _others(state.adding, adding)
    return replace(
        state, adding=adding, dropping=(*state.dropping, *ended), version=state.version + 1
    )


def _in_order(document: PartitionDocument, replicas: tuple[BrokerId, ...]) -> PartitionDocument:
    state = document.state
    if replicas == state.replicas:
        return document
    return replace(
        document,
        state=replace(
            state,
            replicas=replicas,
            isr=tuple(one for one in replicas if one in state.isr),
            damaged=tuple(one for one in replicas if one in state.damaged),
            version=state.version + 1,
        ),
        elr=tuple(one for one in replicas if one in document.elr),
    )


def _able(document: PartitionDocument, seats: set[BrokerId], liveness: Liveness) -> list[BrokerId]:
    """Who may lead after the switch; first who should."""
    damaged = document.state.damaged
    able = [
        one
        for one in document.target
        if one in seats and one in liveness.staying and one not in damaged
    ]
    return sorted(able, key=lambda one: one in liveness.cordoned)


def _others(brokers: Iterable[BrokerId], known: Iterable[BrokerId]) -> list[BrokerId]:
    return [one for one in brokers if one not in set(known)]
