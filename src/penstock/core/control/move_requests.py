"""Moves that people ask for, decided on a draft. What they change: `moves`.

Each change of a request succeeds or fails on its own. After an unknown write the request is decided
again on what is stored, and recognizes its own effect: the target is stored, or is the replicas
already. Nothing of this is written into a journal, which may be lost: data that was deleted on its
word would be gone, while the store still names its owner (I30).
"""

from collections import Counter
from typing import Final

from penstock.core.control.cordons import end_spread
from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Draft
from penstock.core.control.election import Liveness
from penstock.core.control.formats import check_moves
from penstock.core.control.move_contract import (
    AlterReplicas,
    ReplicaChange,
    ReplicaOutcome,
    ReplicasAltered,
)
from penstock.core.control.moves import cancel, move_state, redirect
from penstock.core.control.partition import PartitionDocument
from penstock.core.control.requests import check_cluster_id, partition_of
from penstock.core.control.sizes import PartitionSizes
from penstock.core.control.switching import switched_if_ready
from penstock.core.limits import REPLICA_CHANGES_MAX
from penstock.core.types import MoveReason
from penstock.core.words import listed
from penstock.errors import ClusterError, ErrorCode, PenstockError

OPEN_MOVES_MAX: Final = 1_000
"""Of one topic: its document has to fit into an object of 1 MiB (`sizes`)."""


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
    sizes: dict[str, PartitionSizes] = {}
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
                after = _altered(draft, request, change, liveness, (topic, stored))
            if topic.name not in sizes:
                sizes[topic.name] = PartitionSizes(topic.name, topic.partitions)
            sizes[topic.name].change(stored, after)
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
    draft: Draft,
    request: AlterReplicas,
    change: ReplicaChange,
    liveness: Liveness,
    found: tuple[TopicDocument, PartitionDocument],
) -> PartitionDocument:
    topic, document = found
    state = document.state
    if change.target and change.target == (document.target or state.replicas):
        return document
    if set(change.expected) != set(state.replicas):
        raise ClusterError(
            f"{change.topic}/{change.partition} is expected to have the replicas "
            f"{listed(change.expected)}, but has {listed(state.replicas)}; plan the move again",
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
        f"ended; its replicas are {listed(document.state.replicas)}",
        ErrorCode.NO_MOVE,
    )


def _check_target(
    draft: Draft, request: AlterReplicas, change: ReplicaChange, topic: TopicDocument
) -> None:
    target, replicas = change.target, topic.partitions[change.partition].state.replicas
    unknown = sorted(set(target) - set(draft.cluster.brokers))
    cordoned = sorted((set(target) - set(replicas)) & draft.cordoned_for_placement)
    if len(set(target)) != len(target):
        raise _invalid(change, f"would have a broker twice: {listed(target)}")
    if unknown:
        raise _invalid(
            change, f"would have replicas on {listed(unknown)}, which are not registered"
        )
    if cordoned:
        raise _invalid(change, f"would have new replicas on {listed(cordoned)}, which are cordoned")
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
