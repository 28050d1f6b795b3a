"""Moves that people and brokers ask for, decided on a draft. What they change: `moves`.

Each change of a request succeeds or fails on its own. After an unknown write the request is decided
again on what is stored, and recognizes its own effect: the target is stored, or is the replicas
already. Nothing of this is written into a journal, which may be lost: data that was deleted on its
word would be gone, while the store still names its owner (I30).
"""

from collections import Counter
from typing import Final

from penstock.core.control.contract import Severity
from penstock.core.control.cordons import end_spread
from penstock.core.control.documents import FORMAT_MOVES, TopicDocument
from penstock.core.control.draft import Draft, election_settings
from penstock.core.control.election import Liveness, move_leader
from penstock.core.control.formats import check_moves
from penstock.core.control.move_contract import (
    AlterReplicas,
    ReplicaChange,
    ReplicaOutcome,
    ReplicasAltered,
    ReplicasReported,
    ReportReplicas,
)
from penstock.core.control.moves import (
    cancel,
    dropped,
    found_damaged,
    found_sound,
    lacks,
    move_state,
    redirect,
    switch,
)
from penstock.core.control.partition import PartitionDocument
from penstock.core.control.requests import check_cluster_id, check_session, partition_of
from penstock.core.control.sessions import Sessions
from penstock.core.limits import REPLICA_CHANGES_MAX
from penstock.core.types import BrokerId, MoveReason, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError

OPEN_MOVES_MAX: Final = 1_000
"""Of one topic: its document has to fit into an object of 1 MiB."""


# ---------------------------------------------------------------- people


def decide_alter_replicas(
    draft: Draft,
    request: AlterReplicas,
    liveness: Liveness,
    before: object,
) -> ReplicasAltered:
    """Stores targets, and cancels moves; one outcome per change, in order.

    `before`: the answer that was decided in a write whose outcome is unknown. Raises ClusterError
    for the whole request: FORMAT_TOO_OLD, MOVES_PAUSED, INVALID_REQUEST.
    """
    check_cluster_id(draft, request.cluster_id)
    check_moves(draft)
    if len(request.changes) > REPLICA_CHANGES_MAX:
        raise ClusterError(
            f"the request names {len(request.changes)} partitions, the limit is "
            f"{REPLICA_CHANGES_MAX}; split it into several",
            ErrorCode.INVALID_REQUEST,
        )
    if draft.journaling:
        raise ClusterError(
            "the metadata store is unavailable: no move begins or ends before it is back; try "
            "again then",
            ErrorCode.MOVES_PAUSED,
        )
    times = Counter((change.topic, change.partition) for change in request.changes)
    earlier = before.outcomes if isinstance(before, ReplicasAltered) else ()
    done = {outcome.change for outcome in earlier if outcome.error is None}
    moving: dict[str, int] = {}
    outcomes = []
    for change in request.changes:
        stored = None
        try:
            topic, stored = _find(draft, change)
            if times[change.topic, change.partition] > 1:
                raise _invalid(change, "is named twice in one request; name it once")
            if change.cancel:
                after = _cancelled(change, stored, known=change in done)
            else:
                after = _altered(draft, request, change, liveness)
            if after.target and not stored.target:
                moving.setdefault(topic.name, topic.moving)
                _check_room(topic.name, moving)
            if not request.validate_only:
                _put(draft, topic, change, stored, after)
            outcomes.append(_outcome(change, after))
        except PenstockError as error:
            outcomes.append(_outcome(change, stored, error))
    return ReplicasAltered(tuple(outcomes))


def _altered(
    draft: Draft, request: AlterReplicas, change: ReplicaChange, liveness: Liveness
) -> PartitionDocument:
    topic, document = _find(draft, change)
    state = document.state
    if change.target and change.target == (document.target or state.replicas):
        return document
    if set(change.expected) != set(state.replicas):
        raise ClusterError(
            f"{change.topic}/{change.partition} is expected to have the replicas "
            f"{list(change.expected)}, but has {list(state.replicas)}; plan the move again",
            ErrorCode.STALE_PARTITION_VERSION,
        )
    _check_target(draft, request, change, topic)
    wanted = redirect(document, change.target, request.why)
    if wanted.target and not wanted.new:
        return switched_if_ready(draft, topic, wanted, liveness)
    return wanted


def _cancelled(
    change: ReplicaChange, document: PartitionDocument, *, known: bool
) -> PartitionDocument:
    """`known`: this request has cancelled it, in a write whose outcome was unknown."""
    if change.expected or change.target:
        raise _invalid(change, "is cancelled and given a target in one request; send one of them")
    if document.target:
        return cancel(document)
    if known:
        return document
    raise ClusterError(
        f"{change.topic}/{change.partition} has no move to cancel: it never had one, or it has "
        f"ended; its replicas are {list(document.state.replicas)}",
        ErrorCode.NO_MOVE,
    )


def _check_target(
    draft: Draft, request: AlterReplicas, change: ReplicaChange, topic: TopicDocument
) -> None:
    target, replicas = change.target, topic.partitions[change.partition].state.replicas
    unknown = sorted(set(target) - set(draft.cluster.brokers))
    cordoned = sorted((set(target) - set(replicas)) & draft.cordoned_for_placement)
    if len(set(target)) != len(target):
        raise _invalid(change, f"would have a broker twice: {list(target)}")
    if unknown:
        raise _invalid(change, f"would have replicas on {unknown}, which are not registered")
    if cordoned:
        raise _invalid(change, f"would have new replicas on {cordoned}, which are cordoned")
    config = draft.topic_config(topic)
    least = config.min_insync_replicas if "min.insync.replicas" in topic.configs else 1
    problem = ""
    if len(target) != len(replicas) and not request.change_factor:
        problem = f"has {len(replicas)} replicas; say change_factor if it shall have {len(target)}"
    elif len(target) < least:
        problem = (
            f"would have {len(target)} replicas, fewer than the {least} of its min.insync.replicas"
        )
    if problem:
        raise ClusterError(
            f"{change.topic}/{change.partition} {problem}", ErrorCode.INVALID_REPLICATION_FACTOR
        )


def _check_room(topic: str, moving: dict[str, int]) -> None:
    """`moving`: open moves by topic; counts this one."""
    if moving[topic] >= OPEN_MOVES_MAX:
        raise ClusterError(
            f"topic {topic!r} has {moving[topic]} moves that have not ended, the limit is "
            f"{OPEN_MOVES_MAX}; submit this one when some have",
            ErrorCode.QUEUE_FULL,
        )
    moving[topic] += 1


def _put(
    draft: Draft,
    topic: TopicDocument,
    change: ReplicaChange,
    before: PartitionDocument,
    after: PartitionDocument,
) -> None:
    if after is before:
        _confirm(draft, topic.name)
        return
    draft.put_partition(topic.name, change.partition, after)
    draft.stored_only = True
    draft.detail(
        "move cancelled" if change.cancel else "replicas altered",
        topic=topic.name,
        partition=change.partition,
        replicas=after.state.replicas,
        target=after.target,
        why=after.why,
        dropping=after.state.dropping,
    )
    if change.cancel and before.why is MoveReason.SPREAD:
        end_spread(draft, before.new)


def _confirm(draft: Draft, topic: str) -> None:
    """Writes the topic as it is: only the store knows that there is nothing to do.

    A former controller may have stored another target since this one read, beside its take-over.
    """
    found = draft.topic(topic)
    assert found is not None, "just found"
    draft.put_topic(found)
    draft.stored_only = True


def _outcome(
    change: ReplicaChange,
    document: PartitionDocument | None,
    error: PenstockError | None = None,
) -> ReplicaOutcome:
    if document is None:
        return ReplicaOutcome(change=change, error=error)
    return ReplicaOutcome(
        change=change,
        replicas=document.state.replicas,
        target=document.target,
        state=move_state(document),
        error=error,
    )


def _find(draft: Draft, change: ReplicaChange) -> tuple[TopicDocument, PartitionDocument]:
    topic = draft.topic(change.topic)
    if topic is None:
        raise ClusterError(
            f"there is no topic {change.topic!r}; check the name", ErrorCode.UNKNOWN_TOPIC
        )
    if change.topic_id not in {None, topic.topic_id}:
        raise ClusterError(
            f"topic {topic.name!r} has id {topic.topic_id}, not {change.topic_id}: it was deleted "
            "and re-created",
            ErrorCode.TOPIC_ID_MISMATCH,
        )
    return topic, partition_of(topic, change.partition)


def _invalid(change: ReplicaChange, problem: str) -> ClusterError:
    return ClusterError(f"{change.topic}/{change.partition} {problem}", ErrorCode.INVALID_REQUEST)


# ---------------------------------------------------------------- the switch


def switched_if_ready(
    draft: Draft, topic: TopicDocument, document: PartitionDocument, liveness: Liveness
) -> PartitionDocument:
    """A target without new brokers, reached at once; the same object if that must wait."""
    settings = election_settings(draft.topic_config(topic), len(document.target))
    isr = document.state.isr
    if draft.cluster.hibernating or lacks(document, isr, liveness, settings):
        return document
    return switched(draft, topic, document, isr, liveness)


def switched(
    draft: Draft,
    topic: TopicDocument,
    document: PartitionDocument,
    isr: tuple[BrokerId, ...],
    liveness: Liveness,
) -> PartitionDocument:
    """The partition after its switch; nothing was lacking. A damaged member leaves (I33)."""
    after = switch(document, isr, liveness)
    if after.state.damaged:
        settings = election_settings(draft.topic_config(topic), len(document.target))
        after, _ = draft.settled(after, liveness, settings)
    return after


def note_switch(
    draft: Draft,
    topic: str,
    partition: int,
    before: PartitionDocument,
    after: PartitionDocument,
) -> None:
    """The draft has a switch, which must reach the store itself."""
    draft.stored_only = True
    draft.detail(
        "replicas switched",
        topic=topic,
        partition=partition,
        replicas_before=before.state.replicas,
        replicas=after.state.replicas,
        isr=after.state.isr,
        leader=after.state.leader,
        leader_epoch=after.state.leader_epoch,
        version=after.state.version,
    )


# ---------------------------------------------------------------- brokers


def decide_report(
    draft: Draft, report: ReportReplicas, sessions: Sessions, liveness: Liveness
) -> ReplicasReported:
    """What a broker says of its own replicas. What is not so, by what is stored, is ignored.

    In a journal nothing counts as dropped: the broker will say it again. Before FORMAT_MOVES it
    cannot be stored that a replica is damaged, and it only loses its seat.
    """
    check_cluster_id(draft, report.cluster_id)
    check_session(sessions, report.broker_id, report.broker_session)
    for one in () if draft.journaling else report.dropped:
        found = _reported(draft, one.topic_id, one.partition)
        if found is not None and found[1].state.version == one.version:
            topic, document = found
            after = dropped(document, report.broker_id)
            if after is not document:
                draft.put_partition(topic.name, one.partition, after)
                draft.stored_only = True
                draft.detail(
                    "replica dropped",
                    topic=topic.name,
                    partition=one.partition,
                    broker=report.broker_id,
                )
    for keys, decide in ((report.damaged, _damaged), (report.missing, _missing)):
        for key in keys:
            found = _reported(draft, key.topic_id, key.partition)
            if found is not None:
                decide(draft, found[0], key.partition, report.broker_id, liveness)
    for key in report.sound:
        found = _reported(draft, key.topic_id, key.partition)
        if found is not None:
            after = found_sound(found[1], report.broker_id)
            if after is not found[1]:
                draft.put_partition(found[0].name, key.partition, after)
                draft.detail(
                    "replica sound again",
                    topic=found[0].name,
                    partition=key.partition,
                    broker=report.broker_id,
                )
    return ReplicasReported(stored=not draft.journaling)


def _missing(
    draft: Draft, topic: TopicDocument, partition: int, broker_id: BrokerId, liveness: Liveness
) -> None:
    """A member has nothing of the log: lost, or the broker ended before it stored the first of it.

    Without any other member there is nothing to wait for: it leads in the next epoch, which it is
    given when it has opened its logs, or now. Else it is damaged; once somebody sound has its seat,
    it may catch up, like a broker with a new disk.
    """
    before = topic.partitions[partition]
    members = {*before.state.isr, *before.elr}
    if broker_id not in members:
        if broker_id in before.state.damaged:
            draft.put_partition(topic.name, partition, found_sound(before, broker_id))
        return
    if members == {broker_id}:
        after = before
        if before.state.leader == broker_id:
            after = move_leader(before, broker_id)
            draft.put_partition(topic.name, partition, after)
        draft.decide(
            Severity.ERROR,
            "log missing, and nobody else has it",
            topic=topic.name,
            partition=partition,
            broker=broker_id,
            leader_epoch=after.state.leader_epoch,
        )
        return
    _damaged(draft, topic, partition, broker_id, liveness)
    found = _reported(draft, topic.topic_id, partition)
    assert found is not None
    after = found[1]
    if broker_id not in {*after.state.isr, *after.elr}:
        draft.put_partition(topic.name, partition, found_sound(after, broker_id))


def _damaged(
    draft: Draft, topic: TopicDocument, partition: int, broker_id: BrokerId, liveness: Liveness
) -> None:
    before = topic.partitions[partition]
    copies = broker_id in before.state.adding
    if copies and draft.journaling:
        return  # as for every step of a move; the broker will say it again
    marked = found_damaged(before, broker_id)
    if marked is before:
        return
    if copies:
        draft.put_partition(topic.name, partition, marked)
        draft.stored_only = True
        draft.decide(
            Severity.WARNING,
            "copy damaged: it is deleted, and begins again",
            topic=topic.name,
            partition=partition,
            broker=broker_id,
        )
        return
    settings = election_settings(draft.topic_config(topic), len(before.state.replicas))
    after, _ = draft.settled(marked, liveness, settings)
    unseated = broker_id not in after.state.isr
    if draft.format < FORMAT_MOVES:
        after = found_sound(after, broker_id)
        if (after.state.isr, after.elr) == (before.state.isr, before.elr):
            after = before
    if after is not before:
        draft.put_partition(topic.name, partition, after)
    draft.decide(
        Severity.WARNING if unseated else Severity.ERROR,
        "replica damaged" if unseated else "replica damaged, and nobody else can take its place",
        topic=topic.name,
        partition=partition,
        broker=broker_id,
        isr=after.state.isr,
        elr=after.elr,
        leader=after.state.leader,
        leader_epoch=after.state.leader_epoch,
    )


def _reported(
    draft: Draft, topic_id: TopicId, partition: int
) -> tuple[TopicDocument, PartitionDocument] | None:
    topic = draft.topic_by_id(topic_id)
    if topic is None or not 0 <= partition < len(topic.partitions):
        return None
    return topic, topic.partitions[partition]
