"""A proposed copy of the cluster: changes collect here and count only once they are durable.

    Stored (adopted documents + store versions) ──Draft──▶ writes ──WriteDone──▶ Stored

Copy on write: untouched documents are shared. `writes` orders the stages so that a crash
between any two leaves something the next controller can finish:

    1  topics         a broker that lost data is out of its ISRs …
    2  the cluster    … before its new incarnation is recorded; deleted topic ids are recorded …
    3  removed topics … before their documents are removed (with both, the topic is removed)
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from penstock.core.authorization import Rule
from penstock.core.control.config import ControlConfig
from penstock.core.control.contract import (
    Decision,
    DocumentWrite,
    PutCluster,
    PutTopic,
    RemoveTopic,
    Severity,
)
from penstock.core.control.documents import (
    CLUSTER_KEY,
    TOMBSTONES_MAX,
    BrokerRegistration,
    ClusterAccess,
    ClusterDocument,
    ClusterQuotas,
    Tombstone,
    TopicDocument,
    topic_key,
)
from penstock.core.control.election import ElectionKind, Liveness, Settings, rest, settle
from penstock.core.control.partition import PartitionDocument
from penstock.core.control.placement import Load
from penstock.core.quotas import QuotaRule
from penstock.core.topic import TopicConfig, is_internal
from penstock.core.types import BrokerId, TopicId
from penstock.errors import OverloadedError

_DETAILS = 20
"""Events of each kind that are logged one by one per draft; the rest are only counted."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The durable and adopted state. `topic_versions` has the store version of each topic.

    `moving`: names of topics, some of whose partitions have a target.
    """

    cluster: ClusterDocument
    cluster_version: str | None
    topics: Mapping[str, TopicDocument]
    topic_versions: Mapping[str, str]
    metadata_version: int
    names: Mapping[TopicId, str] = field(default_factory=dict)
    moving: frozenset[str] = frozenset()

    @property
    def versions(self) -> dict[str, str]:
        """The store version of every document, by key."""
        topics = {topic_key(name): version for name, version in self.topic_versions.items()}
        own = {} if self.cluster_version is None else {CLUSTER_KEY: self.cluster_version}
        return {**own, **topics}


def election_settings(config: TopicConfig, replication_factor: int) -> Settings:
    """The topic settings that elections depend on."""
    return Settings(
        config.effective_min_insync_replicas(replication_factor), config.unclean_leader_election
    )


class Draft:
    """Changes on top of `base`; nothing here is visible to others before it is written."""

    def __init__(self, base: Stored, config: ControlConfig) -> None:
        self.base = base
        self.config = config
        self.cluster = base.cluster
        self.decisions: list[Decision] = []
        self._changed: dict[str, TopicDocument] = {}
        self._removed: set[str] = set()
        self._load: Load | None = None
        self._partitions: int | None = None
        self._touched_cluster = False
        self._details: Counter[str] = Counter()
        self.journaling = False
        """What is written may be lost with a majority of the brokers' disks (`journal`)."""
        self.stored_only = False
        """Something in it must not be written into a journal."""
        self.opening: frozenset[BrokerId] = frozenset()
        """Brokers that have not said yet which of their logs are damaged."""

    # ------------------------------------------------------------ reading

    @property
    def live(self) -> frozenset[BrokerId]:
        """Brokers that have a session, as of this draft."""
        return frozenset(
            broker_id for broker_id, broker in self.cluster.brokers.items() if broker.alive
        )

    @property
    def format(self) -> int:
        """What topics may use. A format that this draft chooses is stored first, or last."""
        return min(self.base.cluster.format, self.cluster.format)

    def liveness(self, leaving: frozenset[BrokerId]) -> Liveness:
        """Who may lead now; `leaving`: want to stop."""
        live = self.live
        return Liveness(live, leaving & live, self.cordoned_for_leadership, self.opening & live)

    @property
    def cordoned_for_placement(self) -> frozenset[BrokerId]:
        """No new replica goes there."""
        cordons = self.cluster.cordons
        return frozenset(one for one, cordon in cordons.items() if cordon.placement)

    @property
    def cordoned_for_leadership(self) -> frozenset[BrokerId]:
        """They lead only what nobody else can."""
        cordons = self.cluster.cordons
        return frozenset(one for one, cordon in cordons.items() if cordon.leadership)

    @property
    def moving(self) -> frozenset[str]:
        """Names of topics, some of whose partitions have a target."""
        changed = {name for name, topic in self._changed.items() if topic.moving}
        return (self.base.moving - self._changed.keys() - self._removed) | changed

    def topic(self, name: str) -> TopicDocument | None:
        """The topic as of this draft."""
        if name in self._removed:
            return None
        return self._changed.get(name) or self.base.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicDocument | None:
        """The topic as of this draft. Topics created in this draft are not found by id."""
        name = self.base.names.get(topic_id)
        found = None if name is None else self.topic(name)
        return found if found is not None and found.topic_id == topic_id else None

    def topics(self) -> Iterator[TopicDocument]:
        """All topics as of this draft; it may be changed while iterating."""
        for name in [*self.base.topics, *(self._changed.keys() - self.base.topics.keys())]:
            found = self.topic(name)
            if found is not None:
                yield found

    def topic_config(self, topic: TopicDocument) -> TopicConfig:
        """The topic's settings with the cluster's defaults filled in."""
        return self.config.topic_config(topic.configs)

    def load(self) -> Load:
        """Replicas and preferred leaders per broker, after all moves; placing adds to it."""
        if self._load is None:
            self._load = Load.of(
                partition.target or partition.state.replicas
                for topic in self.topics()
                for partition in topic.partitions
            )
        return self._load

    def partition_count(self) -> int:
        """Partitions of all topics that are not internal."""
        if self._partitions is None:
            topics = (topic for topic in self.topics() if not is_internal(topic.name))
            self._partitions = sum(len(topic.partitions) for topic in topics)
        return self._partitions

    def _recount(self, topic: TopicDocument, partitions: int) -> None:
        if self._partitions is not None and not is_internal(topic.name):
            before = self.topic(topic.name)
            self._partitions += partitions - (0 if before is None else len(before.partitions))

    def forget_load(self) -> None:
        """Counts again next time: a placement was dropped."""
        self._load = None

    # ------------------------------------------------------------ changing

    def put_topic(self, topic: TopicDocument) -> None:
        """Creates or replaces a topic."""
        self._recount(topic, len(topic.partitions))
        self._changed[topic.name] = topic
        self._removed.discard(topic.name)

    def put_partition(self, topic: str, partition: int, document: PartitionDocument) -> None:
        """Replaces one partition of a topic that is there."""
        found = self.topic(topic)
        assert found is not None
        partitions = list(found.partitions)
        partitions[partition] = document
        self.put_topic(replace(found, partitions=tuple(partitions)))

    def remove_topic(self, topic: TopicDocument) -> None:
        """Deletes it and remembers its id for brokers that are offline."""
        self._recount(topic, 0)
        self._removed.add(topic.name)
        self._changed.pop(topic.name, None)
        self.forget_load()
        self.remember_deleted(topic.topic_id)

    def remember_deleted(self, topic_id: TopicId) -> None:
        """Brokers drop its logs."""
        tombstones = (*self.cluster.tombstones, Tombstone(topic_id, self._next_version))
        self.put_cluster(replace(self.cluster, tombstones=tombstones[-TOMBSTONES_MAX:]))

    def check_deletions(self) -> None:
        """Raises OverloadedError if one more could not be told to brokers beside those of this
        draft: they would keep its logs."""
        known = self.cluster.tombstones
        if (
            len(known) >= TOMBSTONES_MAX
            and known[-TOMBSTONES_MAX].metadata_version == self._next_version
        ):
            raise OverloadedError(
                f"{TOMBSTONES_MAX} topics are being deleted, as many as go at once; delete the "
                "rest when these are gone"
            )

    def is_deleted(self, topic_id: TopicId) -> bool:
        """Whether a topic with this id was deleted, as far as is remembered."""
        return any(one.topic_id == topic_id for one in self.cluster.tombstones)

    def drop_document(self, name: str) -> None:
        """Removes the document of a topic whose deletion is already recorded."""
        self._removed.add(name)

    def put_cluster(self, cluster: ClusterDocument) -> None:
        """Replaces the cluster document, even by an equal one (to force a write)."""
        self.cluster = cluster
        self._touched_cluster = True

    def put_access(self, rules: tuple[Rule, ...], groups: Mapping[str, tuple[Rule, ...]]) -> None:
        """Replaces the rules of the cluster and of all groups."""
        access = ClusterAccess(rules, groups, self._next_version)
        self.put_cluster(replace(self.cluster, access=access))

    def put_quotas(self, rules: tuple[QuotaRule, ...]) -> None:
        """Replaces all quotas."""
        self.put_cluster(replace(self.cluster, quotas=ClusterQuotas(rules, self._next_version)))

    def put_broker(self, broker: BrokerRegistration) -> None:
        """Creates or replaces a registration."""
        if self.cluster.brokers.get(broker.broker_id) != broker:
            brokers = {**self.cluster.brokers, broker.broker_id: broker}
            self.put_cluster(replace(self.cluster, brokers=brokers))

    def drop_broker(self, broker_id: BrokerId) -> None:
        """Removes a registration."""
        brokers = {key: value for key, value in self.cluster.brokers.items() if key != broker_id}
        self.put_cluster(replace(self.cluster, brokers=brokers))

    def decide(self, severity: Severity, event: str, **fields: object) -> None:
        """Records a decision for the log, where it appears once it is durable."""
        self.decisions.append(Decision(severity, event, fields))

    def detail(self, event: str, **fields: object) -> None:
        """Records one of possibly thousands of similar decisions; beyond a few, only counts."""
        self._details[event] += 1
        if self._details[event] <= _DETAILS:
            self.decide(Severity.INFO, event, **fields)

    def settle_all(
        self,
        liveness: Liveness,
        concerned: frozenset[BrokerId] | None,
        only: TopicDocument | None = None,
    ) -> None:
        """Elects leaders and shrinks ISRs of partitions with a replica on `concerned` brokers.

        None = all partitions; `only`: those of one topic. Hibernating: only ends leaderships.
        """
        counts = dict.fromkeys(ElectionKind, 0)
        for topic in self.topics() if only is None else (only,):
            if concerned is not None and _has_none_on(topic, concerned):
                continue  # reading the settings of thousands would cost more than all the rest
            config = self.topic_config(topic)
            partitions = list(topic.partitions)
            for index, before in enumerate(partitions):
                replicas = before.state.replicas
                if concerned is not None and concerned.isdisjoint(replicas):
                    continue
                settings = election_settings(config, len(replicas))
                after, kind = self.settled(before, liveness, settings)
                partitions[index] = after
                if kind is not None:
                    counts[kind] += 1
                    self.note_election(topic.name, index, kind, before, after)
            if any(a is not b for a, b in zip(partitions, topic.partitions, strict=True)):
                self.put_topic(replace(topic, partitions=tuple(partitions)))
        if sum(counts.values()) > 0:
            found = {kind.name.lower(): count for kind, count in counts.items() if count}
            self.decide(
                Severity.WARNING if counts[ElectionKind.NONE] else Severity.INFO,
                "leaders settled",
                elections=found,
                live=sorted(liveness.live),
                leaving=sorted(liveness.leaving),
            )

    def settled(
        self, document: PartitionDocument, liveness: Liveness, settings: Settings
    ) -> tuple[PartitionDocument, ElectionKind | None]:
        """As `election.settle`, or `rest` while the cluster hibernates."""
        decide = rest if self.cluster.hibernating else settle
        return decide(document, liveness, settings)

    # ------------------------------------------------------------ outcome

    @property
    def is_empty(self) -> bool:
        return not (self._changed or self._removed or self._touched_cluster)

    @property
    def _next_version(self) -> int:
        return self.base.metadata_version + 1

    def finish(self) -> tuple[Stored, tuple[tuple[DocumentWrite, ...], ...]]:
        """The state after the writes (with the old versions), and the writes by stage."""
        assert not self.is_empty
        for event, count in self._details.items():
            if count > _DETAILS:
                self.decide(Severity.INFO, f"{event}: more of the same", count=count - _DETAILS)
        version, epoch = self._next_version, self.cluster.controller_epoch
        topics = dict(self.base.topics)
        puts: list[DocumentWrite] = []
        removes: list[DocumentWrite] = []
        for name in sorted(self._removed):
            topics.pop(name, None)
            if name in self.base.topic_versions:
                removes.append(RemoveTopic(name, self.base.topic_versions[name]))
        for name, topic in sorted(self._changed.items()):
            stamped = replace(
                topic, controller_epoch=epoch, metadata_version=version, format=self.format
            )
            topics[name] = stamped
            puts.append(PutTopic(stamped, self.base.topic_versions.get(name)))
        cluster = self.cluster
        stages = [puts]
        if self._touched_cluster:
            cluster = replace(cluster, metadata_version=version)
            stages.append([PutCluster(cluster, self.base.cluster_version)])
        stages.append(removes)
        after = Stored(
            cluster,
            self.base.cluster_version,
            topics,
            self.base.topic_versions,
            version,
            {topic.topic_id: name for name, topic in topics.items()},
            self.moving,
        )
        return after, tuple(tuple(stage) for stage in stages if stage)

    def note_election(
        self,
        topic: str,
        partition: int,
        kind: ElectionKind,
        before: PartitionDocument,
        after: PartitionDocument,
    ) -> None:
        """Logs what `settled` has decided."""
        fields = {
            "topic": topic,
            "partition": partition,
            "how": kind.value,
            "leader": after.state.leader,
            "leader_before": before.state.leader,
            "leader_epoch": after.state.leader_epoch,
            "isr": after.state.isr,
            "isr_before": before.state.isr,
            "elr": after.elr,
            "lossy_before": before.lossy,
        }
        if kind in {ElectionKind.LOSSY, ElectionKind.UNCLEAN}:
            self.decide(Severity.ERROR, "leader elected that may lack records", **fields)
        elif kind is ElectionKind.NONE:
            self.detail("partition has no leader", **fields)
        else:
            self.detail("leader elected", **fields)


def _has_none_on(topic: TopicDocument, brokers: frozenset[BrokerId]) -> bool:
    return all(brokers.isdisjoint(partition.state.replicas) for partition in topic.partitions)
