"""Views of the adopted state: images for brokers, numbers for people.

An image since version v contains every topic written after v, all brokers, and the ids deleted
after v. Documents carry the version of their last write, so nothing is kept per session; a
slow broker that missed ten versions gets one image.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.authorization import Rule
from penstock.core.control.config import ControlConfig
from penstock.core.control.documents import (
    TOMBSTONES_MAX,
    BrokerRegistration,
    ClusterAccess,
    ClusterDocument,
    ClusterQuotas,
    TopicDocument,
)
from penstock.core.control.draft import Stored
from penstock.core.topic import is_internal
from penstock.core.types import NO_LEADER, BrokerId, ControllerEpoch, PartitionState, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """`configs`: set keys of the topic and of the cluster's defaults; the rest is built in.

    `inherited`: the keys that only the cluster's defaults set.
    """

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionState, ...]
    configs: Mapping[str, str]
    inherited: frozenset[str]
    internal: bool
    access: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The protocol's ClusterImage. `full` replaces everything known, else topics are upserts.

    A topic that is not in a full image is unknown, not deleted: its data stays. Only
    `deleted_topic_ids` allows removing data (I22). `access` and `quotas` None: as
    before, and never in a full image; topics carry their own rules. `copy_rate` and
    `hibernating`: as stored, always.
    """

    controller_epoch: ControllerEpoch
    metadata_version: int
    full: bool
    brokers: tuple[BrokerRegistration, ...]
    topics: tuple[TopicImage, ...]
    deleted_topic_ids: tuple[TopicId, ...]
    access: ClusterAccess | None = None
    quotas: ClusterQuotas | None = None
    copy_rate: int | None = None
    hibernating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The cluster in numbers, for DescribeCluster and metrics."""

    cluster_id: str
    controller_epoch: ControllerEpoch
    metadata_version: int
    brokers: tuple[BrokerRegistration, ...]
    topics: int
    partitions: int
    offline_partitions: int
    under_replicated_partitions: int
    under_min_isr_partitions: int
    at_min_isr_partitions: int
    not_preferred_leaders: int
    damaged_replicas: int
    leaders: Mapping[BrokerId, int]
    hibernating: bool


def image_since(stored: Stored, config: ControlConfig, since: int) -> Image:
    """The image for a broker that has applied `since`; 0 = nothing yet, the image is full."""
    cluster = stored.cluster
    full = since <= 0 or since < _oldest_tombstone(cluster)
    topics = [
        _topic_image(topic, config)
        for topic in stored.topics.values()
        if full or topic.metadata_version > since
    ]
    return Image(
        controller_epoch=cluster.controller_epoch,
        metadata_version=stored.metadata_version,
        full=full,
        brokers=_brokers(cluster),
        topics=tuple(topics),
        deleted_topic_ids=tuple(
            tombstone.topic_id
            for tombstone in cluster.tombstones
            if full or tombstone.metadata_version > since
        ),
        access=cluster.access if full or cluster.access.version > since else None,
        quotas=cluster.quotas if full or cluster.quotas.version > since else None,
        copy_rate=cluster.copy_rate,
        hibernating=cluster.hibernating,
    )


def summarise(stored: Stored, config: ControlConfig) -> Summary:
    """Counts over all partitions; costs a scan."""
    partitions = offline = under_replicated = under_min_isr = at_min_isr = 0
    not_preferred = damaged = 0
    leaders: dict[BrokerId, int] = dict.fromkeys(stored.cluster.brokers, 0)
    for topic in stored.topics.values():
        topic_config = config.topic_config(topic.configs)
        for partition in topic.partitions:
            state = partition.state
            partitions += 1
            offline += state.leader == NO_LEADER
            under_replicated += len(state.isr) < len(state.replicas)
            wanted = topic_config.effective_min_insync_replicas(len(state.replicas))
            under_min_isr += len(state.isr) < wanted
            at_min_isr += len(state.isr) == wanted < len(state.replicas)
            not_preferred += state.leader not in (NO_LEADER, state.replicas[0])
            damaged += len(state.damaged)
            if state.leader != NO_LEADER:
                leaders[state.leader] = leaders.get(state.leader, 0) + 1
    return Summary(
        cluster_id=stored.cluster.cluster_id,
        controller_epoch=stored.cluster.controller_epoch,
        metadata_version=stored.metadata_version,
        brokers=_brokers(stored.cluster),
        topics=len(stored.topics),
        partitions=partitions,
        offline_partitions=offline,
        under_replicated_partitions=under_replicated,
        under_min_isr_partitions=under_min_isr,
        at_min_isr_partitions=at_min_isr,
        not_preferred_leaders=not_preferred,
        damaged_replicas=damaged,
        leaders=leaders,
        hibernating=stored.cluster.hibernating,
    )


def _topic_image(topic: TopicDocument, config: ControlConfig) -> TopicImage:
    return TopicImage(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(partition.state for partition in topic.partitions),
        configs={**config.topic_defaults, **topic.configs},
        inherited=frozenset(config.topic_defaults.keys() - topic.configs.keys()),
        internal=is_internal(topic.name),
        access=topic.access,
    )


def _brokers(cluster: ClusterDocument) -> tuple[BrokerRegistration, ...]:
    return tuple(broker for _, broker in sorted(cluster.brokers.items()))


def _oldest_tombstone(cluster: ClusterDocument) -> int:
    """Deletions before this version are forgotten; 0 if none was."""
    if len(cluster.tombstones) < TOMBSTONES_MAX:
        return 0
    return cluster.tombstones[0].metadata_version
