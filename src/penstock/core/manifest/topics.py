"""Makes the topics of a running cluster match the manifest.

    manifest topics ─┐
                     ├─ plan (pure) ─▶ steps ─▶ apply through the admin client
    existing topics ─┘      └─▶ problems: nothing is done at all

A topic that is not in the manifest is left alone. Settings changed by hand are reset to those of
the manifest. Local mode and the operator both carry these steps out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.manifest.fields import Problem
from penstock.core.manifest.objects import ClusterSpec, Topic
from penstock.core.manifest.parse import ManifestError


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic of the cluster. `config`: set on the topic, or inherited from the cluster."""

    partitions: int
    replicas: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CreateTopic:
    topic: str
    partitions: int
    replicas: int
    config: dict[str, str]

    def __str__(self) -> str:
        return f"topic {self.topic}: created, {self.partitions} partitions × {self.replicas}"


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """`partitions` is the new total."""

    topic: str
    partitions: int

    def __str__(self) -> str:
        return f"topic {self.topic}: now {self.partitions} partitions"


@dataclass(frozen=True, slots=True)
class AlterConfig:
    topic: str
    changes: dict[str, str] = field(default_factory=dict)
    removals: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{key}={value}" for key, value in self.changes.items()]
        parts += [f"{key} reset to its default" for key in self.removals]
        return f"topic {self.topic}: {', '.join(parts)}"


Step = CreateTopic | AddPartitions | AlterConfig


def plan_topics(
    topics: Sequence[Topic],
    cluster: ClusterSpec,
    existing: Mapping[str, ExistingTopic],
    source: str,
) -> list[Step]:
    """The steps from `existing` to `topics`, in order; empty if nothing differs.

    Raises ManifestError if one of them is impossible; then no step may be taken.
    """
    steps: list[Step] = []
    problems: list[Problem] = []
    for topic in topics:
        seen = existing.get(topic.spec.topic_name)
        if seen is None:
            steps.append(_create(topic, cluster))
            continue
        problems.extend(_problems(topic, cluster, seen))
        steps.extend(_changes(topic, cluster, seen))
    if problems:
        raise ManifestError(source, problems)
    return steps


def _create(topic: Topic, cluster: ClusterSpec) -> CreateTopic:
    return CreateTopic(
        topic=topic.spec.topic_name,
        partitions=topic.spec.effective_partitions(cluster),
        replicas=topic.spec.effective_replicas(cluster),
        config=dict(topic.spec.config),
    )


def _problems(topic: Topic, cluster: ClusterSpec, seen: ExistingTopic) -> list[Problem]:
    subject = f"Topic/{topic.name}"
    problems = []
    wanted = topic.spec.partitions
    if wanted is not None and wanted < seen.partitions:
        text = (
            f"is {wanted}, but the topic has {seen.partitions}; partitions can never shrink, "
            f"because records would be lost: set it to {seen.partitions} or more, or write to a "
            "new topic"
        )
        problems.append(Problem(subject, "spec.partitions", text))
    replicas = topic.spec.effective_replicas(cluster)
    if topic.spec.replicas is not None and replicas != seen.replicas:
        text = (
            f"is {replicas}, but the topic has {seen.replicas}; the replicas of an existing "
            f"topic cannot be changed yet: set it to {seen.replicas}, or delete the topic first"
        )
        problems.append(Problem(subject, "spec.replicas", text))
    return problems


def _changes(topic: Topic, cluster: ClusterSpec, seen: ExistingTopic) -> list[Step]:
    name = topic.spec.topic_name
    steps: list[Step] = []
    if topic.spec.partitions is not None and topic.spec.partitions > seen.partitions:
        steps.append(AddPartitions(name, topic.spec.partitions))
    config = topic.spec.config
    changes = {key: value for key, value in config.items() if seen.config.get(key) != value}
    inherited = cluster.effective_config()
    extra = seen.config.keys() - config.keys()
    removals = tuple(sorted(key for key in extra if seen.config[key] != inherited.get(key)))
    if changes or removals:
        steps.append(AlterConfig(name, changes, removals))
    return steps
