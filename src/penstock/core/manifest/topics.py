"""Makes the topics of a running cluster match the manifest.

    manifest topics ─┐
                     ├─ plan (pure) ─▶ steps ─▶ apply through the admin client
    existing topics ─┘      └─▶ problems: nothing is done at all

A topic that is not in the manifest is left alone. Settings changed by hand are reset to those of
the manifest. Local mode and the operator both carry these steps out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.manifest.fields import Problem
from penstock.core.manifest.objects import MIN_INSYNC, ClusterSpec, Topic
from penstock.core.manifest.parse import ManifestError


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic of the cluster. `config`: set on the topic, or (`inherited`) the cluster's defaults.

    `replicas`: that every partition has. `uneven`: some have more, or move to another number.
    """

    partitions: int
    replicas: int
    config: Mapping[str, str]
    uneven: bool = False
    inherited: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        replicas: Sequence[int],
        targets: Iterable[int],
        config: Mapping[str, str],
        inherited: frozenset[str] = frozenset(),
    ) -> "ExistingTopic":
        """`replicas`: of each partition; `targets`: of each that moves."""
        uneven = len({*replicas, *targets}) > 1
        return cls(len(replicas), min(replicas), config, uneven, inherited)


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


@dataclass(frozen=True, slots=True)
class ChangeReplicas:
    """Every partition shall have `replicas`, and none shall move to another number.

    It takes as long as copies do: the step is there until it is so. Which brokers they are on,
    `balance` plans.
    """

    topic: str
    replicas: int

    def __str__(self) -> str:
        plural = "replica" if self.replicas == 1 else "replicas"
        return f"topic {self.topic}: {self.replicas} {plural} of every partition"


Step = CreateTopic | AddPartitions | AlterConfig | ChangeReplicas


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
        problems.extend(_problems(topic, seen))
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


def _problems(topic: Topic, seen: ExistingTopic) -> list[Problem]:
    wanted = topic.spec.partitions
    if wanted is None or wanted >= seen.partitions:
        return []
    text = (
        f"is {wanted}, but the topic has {seen.partitions}; partitions can never shrink, "
        f"because records would be lost: set it to {seen.partitions} or more, or write to a "
        "new topic"
    )
    return [Problem(f"Topic/{topic.name}", "spec.partitions", text)]


def _changes(topic: Topic, cluster: ClusterSpec, seen: ExistingTopic) -> list[Step]:
    name, replicas = topic.spec.topic_name, topic.spec.replicas
    steps: list[Step] = []
    if topic.spec.partitions is not None and topic.spec.partitions > seen.partitions:
        steps.append(AddPartitions(name, topic.spec.partitions))
    config = topic.spec.config
    changes = {key: value for key, value in config.items() if seen.config.get(key) != value}
    if replicas is not None and _is_early(changes.get(MIN_INSYNC, ""), seen.replicas, replicas):
        del changes[MIN_INSYNC]
    defaults = cluster.effective_config()
    extra = seen.config.keys() - config.keys() - seen.inherited
    removals = tuple(sorted(key for key in extra if seen.config[key] != defaults.get(key)))
    if changes or removals:
        steps.append(AlterConfig(name, changes, removals))
    if replicas is not None and (replicas != seen.replicas or seen.uneven):
        # After the settings: a lower min.insync.replicas may be what allows fewer replicas.
        steps.append(ChangeReplicas(name, replicas))
    return steps


def _is_early(min_insync: str, present: int, wanted: int) -> bool:
    """Whether this min.insync.replicas has to wait for the replicas that it needs."""
    return min_insync.isdecimal() and present < int(min_insync) <= wanted
