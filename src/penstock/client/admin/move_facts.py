"""What the planner of moves has to know, made from an admin's answers.

    describe_moves ──▶ brokers: rack, alive, cordons, fresh; what moves already
    describe_topics ─▶ replicas, ISR, leader
    describe_logs ───▶ bytes of every replica, disk of every live broker

Pure. Whoever asks does so in this order, and asks every live broker for its logs: a plan that does
not know a broker's disk could fill it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.admin.move_model import BrokerPlacement, MovesDescription
from penstock.client.model import LogDescription, TopicDescription
from penstock.core.balance import BrokerFacts, Facts, PartitionFacts
from penstock.core.types import BrokerId, TopicPartition

COPY_RATE_BYTES: Final = 40 << 20
"""What brokers copy per second that do not say it, of an older release, unless told otherwise."""
RESERVE_BYTES_MIN: Final = 64 << 20
"""What these keep free, or 1 % of the disk if that is more, without a `disk.reserve.bytes`."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """For the planner, and what else is shown of brokers.

    `topic_ids` by name: a plan is for these very topics.
    """

    facts: Facts
    topic_ids: Mapping[str, str]
    moving: MovesDescription

    def held_bytes(self) -> Counter[int]:
        """By broker: what its replicas take, each as large as its leader has it."""
        found: Counter[int] = Counter()
        for one in self.facts.partitions:
            for broker_id in one.replicas:
                found[broker_id] += one.size_bytes or 0
        return found


def cluster_facts(
    moving: MovesDescription,
    topics: Mapping[str, TopicDescription],
    logs: Iterable[LogDescription],
) -> ClusterFacts:
    """`logs`: of every broker that is alive in `moving`."""
    by_broker = {one.broker_id: one for one in logs}
    sizes = _sizes(topics, by_broker)
    targets = {move.where: move.target for move in moving.moves}
    brokers = tuple(_broker(broker, by_broker.get(broker.broker_id)) for broker in moving.brokers)
    partitions = tuple(
        PartitionFacts(
            partition=TopicPartition(name, one.partition),
            replicas=_ids(one.replicas),
            isr=_ids(one.isr),
            leader=BrokerId(one.leader),
            target=_ids(targets.get(TopicPartition(name, one.partition), ())),
            size_bytes=sizes.get((topic.topic_id, one.partition)),
        )
        for name, topic in topics.items()
        for one in topic.partitions
    )
    facts = Facts(brokers=brokers, partitions=partitions, copy_rate=_copy_rate(by_broker.values()))
    return ClusterFacts(facts, {name: topic.topic_id for name, topic in topics.items()}, moving)


def _broker(broker: BrokerPlacement, log: LogDescription | None) -> BrokerFacts:
    total = log.disk_total_bytes if log else 0
    cordon = broker.cordon
    return BrokerFacts(
        id=BrokerId(broker.broker_id),
        directory_id=broker.directory_id,
        rack=broker.rack,
        disk_bytes=total,
        free_bytes=log.disk_free_bytes if log else 0,
        reserve_bytes=(log.disk_reserve_bytes if log else 0)
        or max(RESERVE_BYTES_MIN, total // 100),
        alive=broker.alive,
        cordoned=cordon is not None and cordon.placement,
        leads=cordon is None or not cordon.leadership,
        fresh=broker.fresh,
    )


def _copy_rate(logs: Iterable[LogDescription]) -> int:
    """Of the slowest broker; 0 = no limit anywhere."""
    rates = [COPY_RATE_BYTES if one.copy_rate is None else one.copy_rate for one in logs]
    return min((rate for rate in rates if rate), default=0)


def _sizes(
    topics: Mapping[str, TopicDescription], logs: Mapping[int, LogDescription]
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
