"""The times and sizes of consumer groups, and where groups are stored.

A group belongs to one partition of the internal topic: `coordinator_partition`. The coordinator
is that partition's leader, so a group moves with a leadership and never splits.
"""

from dataclasses import dataclass
from typing import Final

from penstock.core.limits import COMMIT_METADATA_MAX_BYTES, GROUP_ID_MAX_CHARS
from penstock.core.partitioner import partition_for_key
from penstock.errors import ClusterError, ErrorCode

OFFSETS_TOPIC: Final = "__consumer_offsets"
OFFSETS_PARTITIONS: Final = 50
OFFSETS_REPLICATION: Final = 3
"""Or the number of live brokers when the topic is created, if lower."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """How a coordinator behaves. All times in ms, all limits inclusive.

    broken_stream_ms: rest of a dynamic member's session once its stream broke.
    assignment_interval_ms: at least this long between two computations of one group's target,
        so that thirty members that join together cost a few and not thirty.
    offsets_retention_ms: how long the offsets of a group without members are kept.
    deleted_topic_grace_ms: offsets of a topic are removed once it was missing for this long:
        briefly missing metadata must not cost offsets (I22).
    groups_max, metadata_bytes_max: per offsets partition; per committed offset.
    """

    heartbeat_interval_ms: int = 15_000
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    broken_stream_ms: int = 1_500
    assignment_interval_ms: int = 100
    offsets_retention_ms: int = 604_800_000
    deleted_topic_grace_ms: int = 600_000
    sweep_interval_ms: int = 60_000
    members_max: int = 1_000
    groups_max: int = 10_000
    metadata_bytes_max: int = COMMIT_METADATA_MAX_BYTES
    subscription_topics_max: int = 1_000
    reason_bytes_max: int = 1_024
    text_max_chars: int = 249


def coordinator_partition(group_id: str, partitions: int) -> int:
    """The offsets partition of a group, 0 <= it < partitions."""
    return partition_for_key(group_id.encode(), partitions)


def check_group_id(group_id: str) -> None:
    """Raises ClusterError(INVALID_REQUEST). Any printable text is an id, as in Kafka."""
    if not 1 <= len(group_id) <= GROUP_ID_MAX_CHARS or not group_id.isprintable():
        seen = group_id if len(group_id) <= 40 else group_id[:40] + "…"
        raise ClusterError(
            f"group id {seen!r} has {len(group_id)} characters; it must have 1 to "
            f"{GROUP_ID_MAX_CHARS}, all printable",
            ErrorCode.INVALID_REQUEST,
        )
