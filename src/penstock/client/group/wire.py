"""Converts messages of consumer groups to the client's own types and back; decides nothing."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock.client.config import ConsumerConfig
from penstock.client.group.contract import (
    Assigned,
    GroupPartition,
    Heard,
    Heartbeat,
    Hello,
    Joined,
    Leave,
    Partitions,
    Wish,
)
from penstock.client.group.model import (
    GroupDescription,
    GroupListing,
    GroupState,
    MemberDescription,
    OffsetAndMetadata,
    PendingOffsets,
)
from penstock.core.types import TopicPartition
from penstock.proto.v1 import group_pb2 as pb

_STATES: Final = {
    pb.GROUP_STATE_EMPTY: GroupState.EMPTY,
    pb.GROUP_STATE_ASSIGNING: GroupState.ASSIGNING,
    pb.GROUP_STATE_RECONCILING: GroupState.RECONCILING,
    pb.GROUP_STATE_STABLE: GroupState.STABLE,
    pb.GROUP_STATE_DEAD: GroupState.DEAD,
}
STATES_TO_WIRE: Final = {state: value for value, state in _STATES.items()}


def partitions_to_wire(partitions: Iterable[GroupPartition]) -> list[pb.TopicPartitions]:
    """Grouped by topic, ascending."""
    topics: dict[tuple[str, str], list[int]] = {}
    for topic_id, topic, partition in sorted(partitions):
        topics.setdefault((topic_id, topic), []).append(partition)
    return [
        pb.TopicPartitions(topic_id=topic_id, topic=topic, partitions=numbers)
        for (topic_id, topic), numbers in topics.items()
    ]


def partitions_from_wire(messages: Iterable[pb.TopicPartitions]) -> Partitions:
    return frozenset(
        GroupPartition(message.topic_id, message.topic, partition)
        for message in messages
        for partition in message.partitions
    )


def hello_to_wire(
    hello: Hello, config: ConsumerConfig, member_id: str, cluster_id: str
) -> pb.JoinRequest:
    """The first message of a stream."""
    return pb.JoinRequest(
        hello=pb.MemberHello(
            cluster_id=cluster_id,
            group_id=config.group_id,
            member_id=member_id,
            instance_id=config.group_instance_id,
            client_id=config.client_id,
            rack=config.client_rack,
            subscription=_wish_to_wire(hello.wish),
            assignor=config.partition_assignment_strategy,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_epoch=hello.member_epoch,
            owned=partitions_to_wire(hello.owned),
            transactional_id=config.transactional_id,
        )
    )


def said_to_wire(said: Heartbeat | Leave) -> pb.JoinRequest:
    """Every message after the first."""
    if isinstance(said, Leave):
        return pb.JoinRequest(leave=pb.MemberLeave(keep_seat=said.keep_seat))
    message = pb.JoinRequest(heartbeat=pb.MemberHeartbeat())
    if said.owned is not None:
        message.heartbeat.owned.CopyFrom(
            pb.OwnedPartitions(
                partitions=partitions_to_wire(said.owned), assignment_number=said.number
            )
        )
    if said.wish is not None:
        message.heartbeat.subscription.CopyFrom(_wish_to_wire(said.wish))
    return message


def heard_from_wire(answer: pb.JoinResponse) -> Joined | Assigned | Heard:
    """The coordinator's message; unknown messages of a later version count as a sign of life."""
    match answer.WhichOneof("message"):
        case "joined":
            joined = answer.joined
            return Joined(
                joined.member_epoch, joined.heartbeat_interval_ms, joined.session_timeout_ms
            )
        case "assignment":
            assignment = answer.assignment
            return Assigned(
                assignment.member_epoch,
                partitions_from_wire(assignment.partitions),
                assignment.number,
            )
        case _:
            return Heard()


def commit_to_wire(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], topic_id: Callable[[TopicPartition], str]
) -> list[pb.CommitPartition]:
    """`topic_id`: for offsets that do not know it."""
    return [
        pb.CommitPartition(
            topic=where.topic,
            topic_id=offset.topic_id or topic_id(where),
            partition=where.partition,
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            rewind_epoch=offset.rewind_epoch,
        )
        for where, offset in offsets.items()
    ]


def committed_from_wire(seen: pb.CommittedOffset) -> OffsetAndMetadata | None:
    """None: no offset is committed."""
    if seen.offset < 0:
        return None
    return OffsetAndMetadata(
        seen.offset,
        seen.metadata,
        seen.leader_epoch,
        seen.commit_time_ms,
        seen.rewind_epoch,
        seen.topic_id,
    )


def listing_from_wire(seen: pb.GroupListing) -> GroupListing:
    return GroupListing(seen.group_id, _STATES.get(seen.state, GroupState.DEAD), seen.members)


def description_from_wire(seen: pb.GroupDescription) -> GroupDescription:
    offsets = {
        TopicPartition(each.topic, each.partition): offset
        for each in seen.offsets
        if (offset := committed_from_wire(each)) is not None
    }
    return GroupDescription(
        group_id=seen.group_id,
        state=_STATES.get(seen.state, GroupState.DEAD),
        group_epoch=seen.group_epoch,
        assignor=seen.assignor,
        coordinator=seen.coordinator,
        members=tuple(_member_from_wire(member) for member in seen.members),
        offsets=offsets,
        empty_since_ms=seen.empty_since_ms,
        last_reset_ms=seen.last_reset.time_ms,
        last_reset_id=seen.last_reset.reset_id,
        last_reset_reason=seen.last_reset.reason,
        pending=tuple(
            PendingOffsets(
                one.transactional_id,
                one.producer_id,
                one.producer_epoch,
                _places(one.partitions),
            )
            for one in seen.pending
        ),
    )


def _member_from_wire(seen: pb.MemberDescription) -> MemberDescription:
    return MemberDescription(
        member_id=seen.member_id,
        instance_id=seen.instance_id,
        client_id=seen.client_id,
        client_host=seen.client_host,
        rack=seen.rack,
        member_epoch=seen.member_epoch,
        assignor=seen.assignor,
        topics=tuple(seen.subscription.topics),
        pattern=seen.subscription.pattern,
        connected=seen.connected,
        assigned=_places(seen.assigned),
        pending_revocation=_places(seen.pending_revocation),
        target=_places(seen.target),
    )


def _places(messages: Iterable[pb.TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(each.where for each in partitions_from_wire(messages)))


def _wish_to_wire(wish: Wish) -> pb.Subscription:
    return pb.Subscription(topics=wish.topics, pattern=wish.pattern)
