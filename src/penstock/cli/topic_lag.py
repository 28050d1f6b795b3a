"""The LAG of `penstock topic list --lag`: of all groups that read a topic, the one furthest behind.

groups ─▶ describe_group, group_lag: a call to its coordinator, and some to leaders ─▶ per topic

As `penstock group describe` says it, so that nobody has to explain two numbers.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ErrorCode, PenstockError

if TYPE_CHECKING:
    from penstock.client import Admin, TopicPartition
    from penstock.core.lag import PartitionLag


@dataclass(frozen=True, slots=True)
class TopicLag:
    """`records` is that of `group`; None: no group has committed an offset in all partitions it
    reads of the topic."""

    records: int | None = None
    group: str | None = None


def read_lags(admin: "Admin") -> dict[str, TopicLag]:
    """By topic, of topics that a group reads. Raises PenstockError if a group cannot be asked."""
    largest: dict[str, TopicLag] = {}
    for listed in admin.list_groups():
        try:
            lags = admin.group_lag(admin.describe_group(listed.group_id))
        except PenstockError as error:
            if error.code is ErrorCode.UNKNOWN_GROUP:  # deleted since
                continue
            raise
        for topic, records in by_topic(lags).items():
            found = TopicLag(records, listed.group_id)
            if _is_behind(found, largest.get(topic, TopicLag())):
                largest[topic] = found
    return largest


def by_topic(lags: "dict[TopicPartition, PartitionLag]") -> dict[str, int | None]:
    """The sum of each topic's partitions; None as soon as one is unknown."""
    sums: dict[str, int | None] = {}
    for where, lag in lags.items():
        before = sums.get(where.topic, 0)
        known = before is not None and lag.records is not None
        sums[where.topic] = (before or 0) + (lag.records or 0) if known else None
    return sums


def _is_behind(one: TopicLag, other: TopicLag) -> bool:
    return one.records is not None and (other.records is None or one.records > other.records)
