"""Group calls between the wire and `penstock.core.groups`: requests to events, outputs to answers.

Checks only what the core's types cannot represent; the coordinator refuses the rest.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.core.groups import contract as c
from penstock.core.groups.catalog import NamedPartition, Parts, Subscription
from penstock.core.groups.contract_views import (
    Described,
    DescribedMember,
    Fetched,
    FetchRequested,
    GroupState,
    ListedGroup,
    OffsetAnswer,
)
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import errors_pb2
from penstock.proto.v1 import group_pb2 as pb
from penstock.rpc.errors import error_to_wire

STATES: Final = {
    GroupState.EMPTY: pb.GROUP_STATE_EMPTY,
    GroupState.ASSIGNING: pb.GROUP_STATE_ASSIGNING,
    GroupState.RECONCILING: pb.GROUP_STATE_RECONCILING,
    GroupState.STABLE: pb.GROUP_STATE_STABLE,
    GroupState.DEAD: pb.GROUP_STATE_DEAD,
}
_STATE_OF: Final = {int(value): state for state, value in STATES.items()}


# ---------------------------------------------------------------- requests


def joined_from_wire(hello: pb.MemberHello, stream_id: int, client_host: str) -> c.MemberJoined:
    """A hello as the coordinator's event."""
    return c.MemberJoined(
        stream_id=stream_id,
        group_id=hello.group_id,
        member_id=hello.member_id,
        subscription=_subscription(hello.subscription),
        instance_id=hello.instance_id,
        client_id=hello.client_id,
        client_host=client_host,
        rack=hello.rack,
        assignor=hello.assignor,
        session_timeout_ms=hello.session_timeout_ms,
        rebalance_timeout_ms=hello.rebalance_timeout_ms,
        member_epoch=hello.member_epoch,
        owned=parts_from_wire(hello.owned),
        transactional_id=hello.transactional_id,
    )


def heard_from_wire(message: pb.MemberHeartbeat, stream_id: int) -> c.MemberHeard:
    """A heartbeat as the coordinator's event."""
    owned = None
    if message.HasField("owned"):
        parts = parts_from_wire(message.owned.partitions)
        owned = c.Owned(parts, message.owned.assignment_number)
    subscription = None
    if message.HasField("subscription"):
        subscription = _subscription(message.subscription)
    return c.MemberHeard(stream_id, owned, subscription)


def _subscription(message: pb.Subscription) -> Subscription:
    return Subscription(tuple(message.topics), message.pattern)


def parts_from_wire(message: Iterable[pb.TopicPartitions]) -> Parts:
    """Partitions by topic id."""
    return frozenset(
        (TopicId(topic.topic_id), partition) for topic in message for partition in topic.partitions
    )


def commit_from_wire(request: pb.CommitOffsetsRequest, request_id: int) -> c.CommitRequested:
    """A commit as the coordinator's event."""
    return c.CommitRequested(
        request_id=request_id,
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        offsets=tuple(
            c.NewOffset(
                where=_where(part),
                offset=part.offset,
                leader_epoch=part.leader_epoch,
                metadata=part.metadata,
                rewind_epoch=part.rewind_epoch,
            )
            for part in request.partitions
        ),
        transactional_id=request.transactional_id,
        producer_id=ProducerId(request.producer_id),
        producer_epoch=request.producer_epoch,
    )


def fetch_from_wire(request: pb.FetchOffsetsRequest, request_id: int) -> FetchRequested:
    """A fetch of committed offsets as the coordinator's event."""
    return FetchRequested(
        request_id=request_id,
        group_id=request.group_id,
        partitions=tuple(map(_where, request.partitions)),
        allow_unstable=request.allow_unstable,
    )


def reset_from_wire(request: pb.ResetOffsetsRequest, request_id: int) -> c.ResetRequested:
    """A reset as the coordinator's event."""
    return c.ResetRequested(
        request_id=request_id,
        group_id=request.group_id,
        offsets=tuple(
            c.NewOffset(where=_where(part), offset=part.offset, leader_epoch=part.leader_epoch)
            for part in request.partitions
        ),
        reset_id=request.reset_id,
        reason=request.reason,
        dry_run=request.dry_run,
    )


def states_from_wire(states: Iterable[int]) -> frozenset[GroupState]:
    """Raises ClusterError(INVALID_REQUEST) for a state this version does not know."""
    found = set()
    for value in states:
        state = _STATE_OF.get(value)
        if state is None:
            raise ClusterError(
                f"group state {value} is not known; known are "
                + ", ".join(f"{number} ({state.value})" for number, state in _STATE_OF.items()),
                ErrorCode.INVALID_REQUEST,
            )
        found.add(state)
    return frozenset(found)


def _where(part: pb.CommitPartition | pb.OffsetPartition | pb.ResetPartition) -> NamedPartition:
    return NamedPartition(part.topic, TopicId(part.topic_id), part.partition)


# ---------------------------------------------------------------- answers


def join_response(output: c.SendJoined | c.SendAssignment) -> pb.JoinResponse:
    """The answer to a member."""
    if isinstance(output, c.SendJoined):
        return pb.JoinResponse(
            joined=pb.Joined(
                member_epoch=output.member_epoch,
                heartbeat_interval_ms=output.heartbeat_interval_ms,
                session_timeout_ms=output.session_timeout_ms,
                rebalance_timeout_ms=output.rebalance_timeout_ms,
            )
        )
    return pb.JoinResponse(
        assignment=pb.MemberAssignment(
            member_epoch=output.member_epoch,
            number=output.number,
            partitions=parts_to_wire(output.parts, output.names),
        )
    )


def parts_to_wire(parts: Parts, names: Mapping[TopicId, str]) -> list[pb.TopicPartitions]:
    """By topic name, partitions ascending."""
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(parts):
        by_topic.setdefault(topic_id, []).append(partition)
    found = [
        pb.TopicPartitions(topic_id=topic_id, topic=names.get(topic_id, ""), partitions=partitions)
        for topic_id, partitions in by_topic.items()
    ]
    return sorted(found, key=lambda topic: topic.topic)


def commit_response(
    request: pb.CommitOffsetsRequest, answer: c.Committed
) -> pb.CommitOffsetsResponse:
    """One result per partition, in order."""
    return pb.CommitOffsetsResponse(
        results=[
            pb.CommitResult(
                topic=part.topic,
                topic_id=part.topic_id,
                partition=part.partition,
                error=_error(error),
            )
            for part, error in zip(request.partitions, answer.errors, strict=True)
        ]
    )


def fetch_response(answer: Fetched) -> pb.FetchOffsetsResponse:
    """In the order of the answer."""
    return pb.FetchOffsetsResponse(offsets=map(_offset, answer.offsets))


def _offset(answer: OffsetAnswer) -> pb.CommittedOffset:
    return pb.CommittedOffset(
        topic=answer.topic,
        topic_id=answer.topic_id,
        partition=answer.partition,
        error=_error(answer.error),
        offset=answer.offset,
        leader_epoch=answer.leader_epoch,
        metadata=answer.metadata,
        commit_time_ms=answer.commit_time_ms,
        rewind_epoch=answer.rewind_epoch,
    )


def reset_response(request: pb.ResetOffsetsRequest, answer: c.ResetDone) -> pb.ResetOffsetsResponse:
    """One result per partition, in order."""
    return pb.ResetOffsetsResponse(
        results=[
            pb.ResetResult(
                topic=part.topic,
                topic_id=part.topic_id,
                partition=part.partition,
                error=_error(line.error),
                old_offset=line.old_offset,
                new_offset=line.new_offset,
            )
            for part, line in zip(request.partitions, answer.lines, strict=True)
        ],
        applied=answer.applied,
        already_applied=answer.already_applied,
    )


def listing(group: ListedGroup, partition: int) -> pb.GroupListing:
    """A group in a list."""
    return pb.GroupListing(
        group_id=group.group_id,
        state=STATES[group.state],
        members=group.members,
        partition=partition,
    )


def description(answer: Described, partition: int, coordinator: int) -> pb.GroupDescription:
    """Everything that is known about a group."""
    reset = answer.last_reset
    return pb.GroupDescription(
        group_id=answer.group_id,
        state=STATES[answer.state],
        group_epoch=answer.group_epoch,
        assignment_epoch=answer.assignment_epoch,
        assignor=answer.assignor,
        members=[_member(member, answer.names) for member in answer.members],
        offsets=map(_offset, answer.offsets),
        empty_since_ms=answer.empty_since_ms,
        last_reset=None
        if reset is None
        else pb.OffsetReset(reset_id=reset.reset_id, reason=reset.reason, time_ms=reset.time_ms),
        partition=partition,
        coordinator=coordinator,
        pending=[
            pb.PendingOffsets(
                transactional_id=pending.transactional_id,
                producer_id=pending.producer_id,
                producer_epoch=pending.producer_epoch,
                partitions=parts_to_wire(pending.parts, pending.names),
            )
            for pending in answer.pending
        ],
    )


def _member(member: DescribedMember, names: Mapping[TopicId, str]) -> pb.MemberDescription:
    subscription = member.subscription
    return pb.MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rack=member.rack,
        member_epoch=member.member_epoch,
        subscription=pb.Subscription(topics=subscription.topics, pattern=subscription.pattern),
        assignor=member.assignor,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        connected=member.connected,
        assigned=parts_to_wire(member.assigned, names),
        pending_revocation=parts_to_wire(member.pending, names),
        target=parts_to_wire(member.target, names),
    )


def _error(error: PenstockError | None) -> errors_pb2.Error | None:
    return None if error is None else error_to_wire(error)
