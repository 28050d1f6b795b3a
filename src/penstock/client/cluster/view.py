"""What the client believes about the cluster: who leads what. Pure; one immutable value.

    Metadata answer ──▶ MetadataSnapshot.merge ──▶ new MetadataSnapshot
    leader hint in an error ──▶ MetadataSnapshot.with_leader ──▶ new MetadataSnapshot

Answers come from any broker, and some brokers are behind. So a partition's leader epoch never
goes back here (I1) while the topic id is the same; another topic id is another topic and
replaces everything known under the name. The cluster id is pinned by the first answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.client.model import BrokerDescription, PartitionDescription, TopicDescription
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, CurrentLeader, ErrorCode


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition, as far as known. `address` "" = the broker's address is unknown."""

    broker_id: int
    leader_epoch: int
    address: str


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """Brokers, and the topics requested so far."""

    cluster_id: str = ""
    controller_epoch: int = 0
    metadata_version: int = 0
    brokers: Mapping[int, BrokerDescription] = field(default_factory=dict)
    topics: Mapping[str, TopicDescription] = field(default_factory=dict)

    def merge(self, answer: "MetadataSnapshot", asked: frozenset[str] | None) -> "MetadataSnapshot":
        """This view after an answer.

        Args:
            answer: The answer of one broker.
            asked: The requested topics: those missing in the answer are forgotten. None = all.

        Raises ClusterError(CLUSTER_ID_MISMATCH) if another cluster answered.
        """
        if self.cluster_id and answer.cluster_id != self.cluster_id:
            raise ClusterError(
                f"a broker of cluster {answer.cluster_id!r} answered, but this client belongs to "
                f"cluster {self.cluster_id!r}; check the bootstrap addresses",
                ErrorCode.CLUSTER_ID_MISMATCH,
            )
        version = (answer.controller_epoch, answer.metadata_version)
        if version < (self.controller_epoch, self.metadata_version):
            # The broker is behind: only what was completely unknown is new.
            return replace(
                self,
                brokers={**answer.brokers, **self.brokers},
                topics={**answer.topics, **self.topics},
            )
        kept = {
            name: topic
            for name, topic in self.topics.items()
            if asked is not None and name not in asked
        }
        merged = {
            name: _newer(self.topics.get(name), topic) for name, topic in answer.topics.items()
        }
        return replace(answer, topics={**kept, **merged})

    def with_leader(self, partition: TopicPartition, leader: CurrentLeader) -> "MetadataSnapshot":
        """This view after an error that names the current leader; itself if that is not new."""
        topic = self.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return self
        known = topic.partitions[partition.partition]
        if leader.leader_epoch <= known.leader_epoch:
            return self
        partitions = list(topic.partitions)
        partitions[partition.partition] = replace(
            known, leader=leader.broker_id, leader_epoch=leader.leader_epoch
        )
        brokers = dict(self.brokers)
        if leader.host and leader.broker_id not in brokers:
            brokers[leader.broker_id] = BrokerDescription(
                leader.broker_id, leader.host, leader.port, rack="", alive=True
            )
        topics = {**self.topics, partition.topic: replace(topic, partitions=tuple(partitions))}
        return replace(self, topics=topics, brokers=brokers)

    def leader(self, partition: TopicPartition) -> Leader | None:
        """Who leads now; None if the partition is unknown or has no leader with an address."""
        topic = self.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return None
        known = topic.partitions[partition.partition]
        broker = self.brokers.get(known.leader)
        if broker is None:
            return None
        return Leader(known.leader, known.leader_epoch, broker.address)

    def addresses(self) -> list[str]:
        """Addresses of the brokers, live ones first."""
        brokers = sorted(self.brokers.values(), key=lambda broker: not broker.alive)
        return [broker.address for broker in brokers]


def _newer(known: TopicDescription | None, seen: TopicDescription) -> TopicDescription:
    """The answer, but no partition goes back to an older epoch, and none disappears."""
    if known is None or known.topic_id != seen.topic_id:
        return seen
    pairs = zip(known.partitions, seen.partitions, strict=False)
    partitions = [_newer_partition(old, new) for old, new in pairs]
    longer = max(known.partitions, seen.partitions, key=len)
    return replace(seen, partitions=(*partitions, *longer[len(partitions) :]))


def _newer_partition(
    known: PartitionDescription, seen: PartitionDescription
) -> PartitionDescription:
    behind = (seen.leader_epoch, seen.version) < (known.leader_epoch, known.version)
    return known if behind else seen
