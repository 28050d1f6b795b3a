"""What a manifest says, as frozen data: the input of local mode and of the operator.

Built by `parse` only, which has checked every field; None and defaults mean here what the rows
in `schema` say. `effective_*` resolve what a field left to the cluster.
"""

from dataclasses import dataclass, field
from enum import Enum

from penstock.core.manifest.fields import Values

REPLICATION_FACTOR = "default.replication.factor"
MIN_INSYNC = "min.insync.replicas"
PARTITIONS = "num.partitions"


class DeletionPolicy(Enum):
    RETAIN = "Retain"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """`rack_names` are given to brokers in turn (local mode); `config` holds Kafka's names."""

    brokers: int
    storage_size: str = "10Gi"
    config: dict[str, str] = field(default_factory=dict)
    rack_topology_key: str = ""
    rack_names: tuple[str, ...] = ()
    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN

    @classmethod
    def from_values(cls, values: Values) -> "ClusterSpec":
        rack = values.nested("rack")
        return cls(
            brokers=values.integer("brokers"),
            storage_size=values.nested("storage").text("size"),
            config=values.settings("config"),
            rack_topology_key=rack.text("topologyKey"),
            rack_names=rack.texts("names"),
            deletion_policy=DeletionPolicy(values.text("deletionPolicy")),
        )

    def effective_config(self) -> dict[str, str]:
        """`config` with the defaults that depend on the number of brokers.

        Three replicas and min ISR 2 are the product's defaults; a smaller cluster takes what it
        can hold, so that one broker works without further settings.
        """
        factor = self.config.get(REPLICATION_FACTOR, str(min(3, self.brokers)))
        min_isr = self.config.get(MIN_INSYNC, str(min(2, _number(factor, 1))))
        return {PARTITIONS: "1", **self.config, REPLICATION_FACTOR: factor, MIN_INSYNC: min_isr}


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """`partitions`, `replicas` None = the cluster's defaults."""

    cluster: str
    topic_name: str
    partitions: int | None = None
    replicas: int | None = None
    config: dict[str, str] = field(default_factory=dict)
    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN

    @classmethod
    def from_values(cls, values: Values, object_name: str) -> "TopicSpec":
        return cls(
            cluster=values.text("cluster"),
            topic_name=values.text("topicName") or object_name,
            partitions=values.optional_integer("partitions"),
            replicas=values.optional_integer("replicas"),
            config=values.settings("config"),
            deletion_policy=DeletionPolicy(values.text("deletionPolicy")),
        )

    def effective_partitions(self, cluster: ClusterSpec) -> int:
        return self.partitions or _number(cluster.effective_config()[PARTITIONS], 1)

    def effective_replicas(self, cluster: ClusterSpec) -> int:
        return self.replicas or _number(cluster.effective_config()[REPLICATION_FACTOR], 1)


@dataclass(frozen=True, slots=True)
class Topic:
    """`name` is the object's; `spec.topic_name` is what clients use."""

    name: str
    spec: TopicSpec


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """Recognised so that a file with groups is accepted; its fields come with groups."""

    name: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All objects of one source, in file order. `source` is the file's name, for messages."""

    source: str
    clusters: tuple[Cluster, ...]
    topics: tuple[Topic, ...]
    consumer_groups: tuple[ConsumerGroup, ...] = ()

    def topics_of(self, cluster: str) -> tuple[Topic, ...]:
        return tuple(topic for topic in self.topics if topic.spec.cluster == cluster)


def _number(text: str, otherwise: int) -> int:
    """A setting as a number; `otherwise` if it is none (`parse` has reported that already)."""
    return int(text) if text.isascii() and text.isdecimal() else otherwise
