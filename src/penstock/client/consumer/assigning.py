"""`assign`: partitions that the user chooses, instead of a group.

    wanted ──▶ topics known? ──▶ where each new one starts ──▶ Assignment, all at once

A partition that stays keeps its position and what was prefetched; one whose topic was created again
is a new partition. See `group_session.py` for partitions that a group assigns.
"""

from collections.abc import Iterable

from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.leaders import known_partition
from penstock.client.config import StartPosition
from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.commits import FindCommitted
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.model import EARLIEST, LATEST
from penstock.core.types import TopicPartition


async def assign(
    cluster: Cluster,
    assignment: Assignment,
    partitions: Iterable[TopicPartition],
    start: StartPosition,
    find_committed: FindCommitted,
) -> None:
    """Replaces the assignment; see `AsyncConsumer.assign`. Raises PenstockError, with nothing
    changed."""
    kept: set[TopicPartition] = set()
    new: dict[TopicPartition, FetchState] = {}
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
            spec = EARLIEST if start == "earliest" else LATEST
            new[where] = FetchState(where, topic.topic_id, spec)
    committed = await find_committed({at: state.topic_id for at, state in new.items()})
    topics = {where.topic for where in kept | new.keys()}
    for where in assignment.states.keys() - kept:
        assignment.remove(where)
        if where.topic not in topics:
            cluster.forget_topic(where.topic)
    for where, state in new.items():
        offset = committed.get(where)
        if offset is not None:
            state.seek(offset.offset)
        assignment.add(state, -1 if offset is None else offset.offset)
