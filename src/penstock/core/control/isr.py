"""ISR changes that leaders propose, decided on a draft: compare-and-swaps on a partition's version.

    ISR without `adding`   stored, as proposed
    ISR with all of it     the copies have caught up: replicas, ISR and leader are switched at once
                           (`moves.switch`), or the rest is stored, and the answer is MOVE_WAITS

The rest is stored even if the switch must wait: a member that lags would stay in the ISR otherwise,
and the high watermark would stand still. It is stored even if it changes nothing: its new version
makes sure that the same proposal, if it is still under way somewhere, cannot lead to the switch
after the leader has given it up, and its high watermark no longer waits for the copies (I29).
"""

from penstock.core.control.contract import AlterIsr, IsrAltered, IsrChange, IsrOutcome
from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Draft, election_settings
from penstock.core.control.election import Liveness, alter_isr
from penstock.core.control.moves import lacks
from penstock.core.control.partition import PartitionDocument
from penstock.core.control.requests import (
    check_cluster_id,
    check_controller_epoch,
    check_session,
    partition_of,
)
from penstock.core.control.sessions import Sessions
from penstock.core.control.switching import note_switch, switched
from penstock.core.types import BrokerId, PartitionState
from penstock.core.words import listed
from penstock.errors import ClusterError, CurrentLeader, ErrorCode, NotLeaderError, PenstockError


def decide_alter_isr(
    draft: Draft, request: AlterIsr, sessions: Sessions, liveness: Liveness
) -> IsrAltered:
    """All changes of one leader; each succeeds or fails on its own."""
    check_cluster_id(draft, request.cluster_id)
    check_session(sessions, request.broker_id, request.broker_session)
    check_controller_epoch(request.controller_epoch, draft.cluster.controller_epoch)
    outcomes = []
    for change in request.changes:
        state = None
        try:
            topic, document = _find_partition(draft, change)
            state = document.state
            state, waits = _alter_one(draft, request.broker_id, change, liveness, (topic, document))
            outcomes.append(IsrOutcome(change, state, waits))
        except PenstockError as error:
            outcomes.append(IsrOutcome(change, state, error))
    return IsrAltered(tuple(outcomes))


def _find_partition(draft: Draft, change: IsrChange) -> tuple[TopicDocument, PartitionDocument]:
    topic = draft.topic_by_id(change.topic_id)
    if topic is None:
        raise ClusterError(
            f"there is no topic with id {change.topic_id}; it was deleted",
            ErrorCode.UNKNOWN_TOPIC,
        )
    return topic, partition_of(topic, change.partition)


def _alter_one(
    draft: Draft,
    leader: BrokerId,
    change: IsrChange,
    liveness: Liveness,
    found: tuple[TopicDocument, PartitionDocument],
) -> tuple[PartitionState, ClusterError | None]:
    topic, document = found
    state = document.state
    where = f"{topic.name}/{change.partition}"
    _check_leader(where, leader, change, state)
    if _is_stored(change, state):
        # Asked again after a lost answer.
        waits = not set(state.adding).isdisjoint(change.isr)
        return state, _move_waits(where, "it had to wait a moment ago") if waits else None
    if change.version != state.version:
        raise ClusterError(
            f"ISR change of {where} is based on version {change.version}, but version "
            f"{state.version} is stored; decide again from the stored state",
            ErrorCode.STALE_PARTITION_VERSION,
        )
    _check_members(where, change, state, liveness)
    if draft.cluster.hibernating:
        _check_seats(where, change, state)
    error = None
    if not set(state.adding).isdisjoint(change.isr):
        settings = election_settings(draft.topic_config(topic), len(document.target))
        why = "the metadata store is unavailable" if draft.journaling else ""
        why = "the cluster hibernates" if draft.cluster.hibernating else why
        why = why or lacks(document, change.isr, liveness, settings)
        if not why:
            after = switched(draft, topic, document, change.isr, liveness)
            draft.put_partition(topic.name, change.partition, after)
            note_switch(draft, topic.name, change.partition, document, after)
            return after.state, None
        error = _move_waits(where, why)
    isr = tuple(one for one in change.isr if one not in state.adding)
    return _store(draft, topic, change, isr, liveness), error


def _store(
    draft: Draft,
    topic: TopicDocument,
    change: IsrChange,
    isr: tuple[BrokerId, ...],
    liveness: Liveness,
) -> PartitionState:
    document = topic.partitions[change.partition]
    state = document.state
    settings = election_settings(draft.topic_config(topic), len(state.replicas))
    altered = alter_isr(document, isr, settings)
    if state.damaged:
        altered, _ = draft.settled(altered, liveness, settings)  # somebody sound may have joined
    draft.put_partition(topic.name, change.partition, altered)
    shrunk = len(altered.state.isr) < len(state.isr)
    draft.detail(
        "isr shrunk" if shrunk else "isr grown",
        topic=topic.name,
        partition=change.partition,
        leader=state.leader,
        isr=altered.state.isr,
        isr_before=state.isr,
        elr=altered.elr,
        min_isr=settings.min_isr,
        version=altered.state.version,
    )
    return altered.state


def _is_stored(change: IsrChange, state: PartitionState) -> bool:
    """The version after `change` is what it led to: stored as a whole, cut off, or switched."""
    others = set(change.isr) - set(state.isr)
    whole = set(state.isr) <= set(change.isr) and others <= {*state.adding, *state.dropping}
    return whole and change.version == state.version - 1


def _move_waits(where: str, why: str) -> ClusterError:
    return ClusterError(
        f"the replicas of {where} cannot be switched yet: {why}; the rest of the ISR is stored; "
        "propose it again in a few seconds",
        ErrorCode.MOVE_WAITS,
    )


def _check_leader(where: str, leader: BrokerId, change: IsrChange, state: PartitionState) -> None:
    if state.leader == leader and state.leader_epoch == change.leader_epoch:
        return
    code = ErrorCode.NOT_LEADER
    if change.leader_epoch < state.leader_epoch:
        code = ErrorCode.FENCED_LEADER_EPOCH
    elif change.leader_epoch > state.leader_epoch:
        code = ErrorCode.UNKNOWN_LEADER_EPOCH
    raise NotLeaderError(
        f"broker {leader} claims to lead {where} in epoch {change.leader_epoch}, but the leader "
        f"is {state.leader} in epoch {state.leader_epoch}",
        code,
        CurrentLeader(state.leader, state.leader_epoch),
    )


def _check_seats(where: str, change: IsrChange, state: PartitionState) -> None:
    """Followers of a cluster that hibernates stop one after the other; none loses its seat."""
    lost = [one for one in state.isr if one not in change.isr]
    if lost:
        raise ClusterError(
            f"brokers {lost} cannot leave the ISR of {where}: the cluster hibernates; propose it "
            "again when it is awake",
            ErrorCode.HIBERNATING,
        )


def _check_members(
    where: str, change: IsrChange, state: PartitionState, liveness: Liveness
) -> None:
    isr, adding = set(change.isr), set(state.adding)
    whole = len(isr) == len(change.isr) and isr <= {*state.replicas, *adding}
    if not whole or state.leader not in isr or adding & isr not in (set(), adding):
        raise ClusterError(
            f"ISR {listed(change.isr)} proposed for {where} must contain the leader {state.leader} "
            f"and otherwise only replicas {listed(state.replicas)}, each once, and all or none of "
            f"those that copy it ({listed(state.adding)})",
            ErrorCode.INVALID_REQUEST,
        )
    for broker_id in change.isr:
        if broker_id in (*state.isr, *adding):
            continue
        if broker_id in liveness.staying and broker_id not in state.damaged:
            continue
        why = "is shutting down" if broker_id in liveness.leaving else "has no session"
        if broker_id in liveness.staying:
            why = "is damaged"
        raise ClusterError(
            f"broker {broker_id} cannot join the ISR of {where}: it {why}",
            ErrorCode.INELIGIBLE_REPLICA,
        )
