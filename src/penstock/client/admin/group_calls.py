"""The admin's calls about consumer groups, sent to each group's coordinator.

Listing asks every live broker; everything else goes to the coordinator of one group. A reset
carries an id, so that a repetition after a lost answer changes nothing twice; after a deletion, the
repetition may find no group.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from penstock.client.admin.asking import Asking, or_own_doing
from penstock.client.admin.lag import ask_lag
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.every_broker import ask_every_broker
from penstock.client.cluster.leaders import known_partition, list_offsets
from penstock.client.group.coordinator import GroupCalls
from penstock.client.group.model import (
    GroupDescription,
    GroupListing,
    GroupState,
    OffsetChange,
)
from penstock.client.group.wire import (
    STATES_TO_WIRE,
    description_from_wire,
    listing_from_wire,
)
from penstock.client.model import EARLIEST, LATEST, ListedOffset
from penstock.client.setting_checks import check_group_id
from penstock.core.lag import PartitionLag
from penstock.core.offset_reset import Move, ResetTo, move
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, OffsetRange
from penstock.proto.v1 import group_pb2 as pb
from penstock.rpc.errors import error_from_wire


async def list_groups(asking: Asking, states: Iterable[GroupState] = ()) -> list[GroupListing]:
    """See `AsyncAdmin.list_groups`."""
    request = pb.ListGroupsRequest(
        cluster_id=await asking.cluster_id(),
        states=[STATES_TO_WIRE[state] for state in states],
    )

    async def ask(connection: Connection, timeout_s: float) -> pb.ListGroupsResponse:
        return await connection.call(connection.group.ListGroups, request, timeout_s)

    answers = await ask_every_broker(asking.cluster, ask, asking.timeout_s)
    found = {group.group_id: group for answer in answers for group in answer.groups}
    return [listing_from_wire(found[name]) for name in sorted(found)]


async def describe_group(
    asking: Asking, group_id: str, *, include_offsets: bool = True
) -> GroupDescription:
    """See `AsyncAdmin.describe_group`."""
    check_group_id(group_id)
    request = pb.DescribeGroupsRequest(
        cluster_id=await asking.cluster_id(),
        group_ids=[group_id],
        include_offsets=include_offsets,
    )
    answer: pb.DescribeGroupsResponse = await GroupCalls(asking.cluster, group_id).call(
        lambda stub: _checked(stub.DescribeGroups), request, asking.timeout_s
    )
    seen = description_from_wire(answer.groups[0])
    if seen.state is GroupState.DEAD:
        raise ClusterError(
            f"group {group_id!r} does not exist: no member, no committed offset",
            ErrorCode.UNKNOWN_GROUP,
        )
    return seen


async def group_lag(
    asking: Asking, group: "str | GroupDescription"
) -> dict[TopicPartition, PartitionLag]:
    """See `AsyncAdmin.group_lag`."""
    seen = await describe_group(asking, group) if isinstance(group, str) else group
    committed = {where: offset.offset for where, offset in seen.offsets.items()}
    for member in seen.members:
        for where in (*member.assigned, *member.target):
            committed.setdefault(where, -1)
    there = await _existing(asking, {where.topic for where in committed})
    asked = {where: committed[where] for where in sorted(committed) if where.topic in there}
    return await ask_lag(asking.cluster, asked, asking.timeout_s)


async def plan_reset(
    asking: Asking,
    to: ResetTo,
    committed: Mapping[TopicPartition, int],
    *,
    clamp: bool = False,
) -> dict[TopicPartition, Move]:
    """See `AsyncAdmin.plan_reset`."""
    await asking.cluster_id()
    timeout_s = asking.timeout_s
    starts = await list_offsets(asking.cluster, dict.fromkeys(committed, EARLIEST), timeout_s)
    ends = await list_offsets(asking.cluster, dict.fromkeys(committed, LATEST), timeout_s)
    time_ms = to.time_ms(time.time_ns() // 1_000_000)
    at_time: dict[TopicPartition, ListedOffset] = {}
    if time_ms is not None:
        asked = dict.fromkeys(committed, time_ms)
        at_time = await list_offsets(asking.cluster, asked, timeout_s)
    return {
        where: move(
            to,
            where,
            offset,
            OffsetRange(starts[where].offset, ends[where].offset),
            at_time[where].offset if where in at_time else -1,
            clamp=clamp,
        )
        for where, offset in committed.items()
    }


async def reset_offsets(
    asking: Asking,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    reset_id: str = "",
    reason: str = "",
    dry_run: bool = False,
) -> dict[TopicPartition, OffsetChange]:
    """See `AsyncAdmin.reset_offsets`."""
    check_group_id(group_id)
    partitions = []
    for where, offset in offsets.items():
        topic = await known_partition(asking.cluster, where)
        partitions.append(
            pb.ResetPartition(
                topic=where.topic,
                topic_id=topic.topic_id,
                partition=where.partition,
                offset=offset,
                leader_epoch=-1,
            )
        )
    request = pb.ResetOffsetsRequest(
        cluster_id=await asking.cluster_id(),
        group_id=group_id,
        partitions=partitions,
        reset_id=reset_id or str(uuid4()),
        reason=reason,
        dry_run=dry_run,
    )
    answer: pb.ResetOffsetsResponse = await GroupCalls(asking.cluster, group_id).call(
        lambda stub: stub.ResetOffsets, request, asking.timeout_s
    )
    for result in answer.results:
        if result.HasField("error"):
            seen = error_from_wire(result.error)
            raise ClusterError(
                f"{result.topic}/{result.partition}: {seen.message}; nothing was changed",
                seen.code,
            )
    return {
        TopicPartition(result.topic, result.partition): OffsetChange(
            result.old_offset, result.new_offset
        )
        for result in answer.results
    }


async def delete_group(asking: Asking, group_id: str) -> None:
    """See `AsyncAdmin.delete_group`."""
    check_group_id(group_id)
    request = pb.DeleteGroupRequest(cluster_id=await asking.cluster_id(), group_id=group_id)

    async def attempt(connection: Connection, timeout_s: float) -> None:
        await connection.call(connection.group.DeleteGroup, request, timeout_s)

    await GroupCalls(asking.cluster, group_id).until_answered(
        or_own_doing(attempt, ErrorCode.UNKNOWN_GROUP), asking.timeout_s
    )


async def _existing(asking: Asking, topics: Iterable[str]) -> set[str]:
    """Which of these topics exist now."""
    names = set(topics)
    return names & (await asking.cluster.refresh(topics=names)).topics.keys()


def _checked(method: Any) -> Callable[..., Awaitable[Any]]:
    """DescribeGroups, with the one group's error raised."""

    async def call(request: Any, *, timeout: float, metadata: Any) -> Any:  # noqa: ASYNC109 - as stubs
        answer = await method(request, timeout=timeout, metadata=metadata)
        if answer.groups[0].HasField("error"):
            raise error_from_wire(answer.groups[0].error)
        return answer

    return call
