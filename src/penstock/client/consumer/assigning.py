"""`assign`: partitions that the user chooses, instead of a group. Where any partition starts.

    wanted ──▶ topics known? ──▶ where each new one starts ──▶ last commit of those that go
                                 Assignment, all at once ◀──┘

A partition that stays keeps its position and what was prefetched; one whose topic was created again
is a new partition. See `group_session.py` for partitions that a group assigns.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable

from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.leaders import known_partition
from penstock.client.config import ConsumerConfig
from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.commits import FindCommitted
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.model import EARLIEST, LATEST
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode

CommitDone = Callable[[Collection[TopicPartition]], Awaitable[None]]
"""The automatic commit for partitions that the user gives up."""


async def assign(
    cluster: Cluster,
    assignment: Assignment,
    partitions: Iterable[TopicPartition],
    config: ConsumerConfig,
    find_committed: FindCommitted,
    commit_done: CommitDone,
) -> None:
    """Replaces the assignment; see `AsyncConsumer.assign`. Raises PenstockError, with nothing
    changed."""
    kept: set[TopicPartition] = set()
    new: dict[TopicPartition, str] = {}
    for where in partitions:
        known = assignment.states.get(where)
        replaced = known.replaced_topic_id if known is not None else ""
        topic = await known_partition(cluster, where)
        if topic.topic_id == replaced:
            await cluster.await_other_topic(where.topic, replaced)
            topic = await known_partition(cluster, where)
        if known is not None and known.topic_id == topic.topic_id:
            kept.add(where)
        else:
            new[where] = topic.topic_id
    committed = await find_committed(new)
    await commit_done(assignment.states.keys() - kept - new.keys())
    topics = {where.topic for where in kept | new.keys()}
    for where in assignment.states.keys() - kept:
        assignment.remove(where)
        if where.topic not in topics:
            cluster.forget_topic(where.topic)
    for where, topic_id in new.items():
        add(assignment, config, where, topic_id, committed.get(where))


def add(
    assignment: Assignment,
    config: ConsumerConfig,
    where: TopicPartition,
    topic_id: str,
    committed: OffsetAndMetadata | None,
) -> None:
    """A new partition starts at the committed offset, or else as `auto_offset_reset` says."""
    state = FetchState(where, topic_id, LATEST if config.offset_reset == "latest" else EARLIEST)
    if committed is not None:
        state.seek(committed.offset)
    elif config.offset_reset == "error":
        state.seek(0)
        state.error = _nothing_committed(where, config.group_id)
    assignment.add(state, committed)


def _nothing_committed(where: TopicPartition, group_id: str) -> ClusterError:
    nothing = f"group {group_id!r} has no committed offset" if group_id else "it has no position"
    return ClusterError(
        f"{where}: {nothing}, and auto_offset_reset is 'error'; seek to an offset, "
        + ("reset the group's offsets, " if group_id else "")
        + "or use 'earliest' or 'latest'",
        ErrorCode.OFFSET_OUT_OF_RANGE,
    )
