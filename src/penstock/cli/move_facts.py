"""What the planner has to know, asked of a running cluster.

    describe_cluster ─▶ brokers: rack, alive       describe_topics ─▶ replicas, ISR, leader
    describe_logs ────▶ bytes of every replica, disk of every live broker

A live broker that does not answer ends the command: a plan that does not know its disk could fill
it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.balance import BrokerFacts, Facts, PartitionFacts
from penstock.core.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from penstock.client import Admin, LogDescription, TopicDescription

COPY_RATE_BYTES: Final = 40 << 20
"""What brokers copy per second unless told otherwise."""
RESERVE_BYTES_MIN: Final = 64 << 20
"""Brokers keep this free, or 1 % of the disk if that is more, without a `disk.reserve.bytes`."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """For the planner, and the ids of the topics by name: a plan is for these very topics."""

    facts: Facts
    topic_ids: dict[str, str]


def read_facts(admin: "Admin") -> ClusterFacts:
    """Asks the controller's view first, and then every live broker for its logs.

    Raises ClusterError, UnreachableError.
    """
    seen = admin.describe_cluster()
    topics = admin.describe_topics()
    alive = [broker.broker_id for broker in seen.brokers if broker.alive]
    logs = {one.broker_id: one for one in admin.describe_logs(broker_ids=alive)}
    sizes = _sizes(topics, logs)
    brokers = tuple(
        _broker(BrokerId(broker.broker_id), broker.rack, logs.get(broker.broker_id))
        for broker in seen.brokers
    )
    partitions = tuple(
        PartitionFacts(
            partition=TopicPartition(name, one.partition),
            replicas=_ids(one.replicas),
            isr=_ids(one.isr),
            leader=BrokerId(one.leader),
            size_bytes=sizes.get((topic.topic_id, one.partition)),
        )
        for name, topic in topics.items()
        for one in topic.partitions
    )
    facts = Facts(brokers=brokers, partitions=partitions, copy_rate=COPY_RATE_BYTES)
    return ClusterFacts(facts, {name: topic.topic_id for name, topic in topics.items()})


def _broker(broker: BrokerId, rack: str, log: "LogDescription | None") -> BrokerFacts:
    if log is None:
        return BrokerFacts(id=broker, rack=rack, alive=False)
    return BrokerFacts(
        id=broker,
        rack=rack,
        disk_bytes=log.disk_total_bytes,
        free_bytes=log.disk_free_bytes,
        reserve_bytes=max(RESERVE_BYTES_MIN, log.disk_total_bytes // 100),
    )


def _sizes(
    topics: "dict[str, TopicDescription]", logs: "dict[int, LogDescription]"
) -> dict[tuple[str, int], int]:
    """By topic id and partition: the bytes its leader has, or the largest replica if it is dead."""
    leaders = {
        (topic.topic_id, one.partition): one.leader
        for topic in topics.values()
        for one in topic.partitions
    }
    sizes: dict[tuple[str, int], int] = {}
    for broker, description in logs.items():
        for log in description.logs:
            key = (log.topic_id, log.partition)
            if leaders.get(key) == broker:
                sizes[key] = log.size_bytes
            elif leaders.get(key) not in logs:
                sizes[key] = max(sizes.get(key, 0), log.size_bytes)
    return sizes


def _ids(brokers: tuple[int, ...]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(one) for one in brokers)
