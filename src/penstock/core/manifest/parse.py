"""From parsed YAML documents to a `Manifest`, or to one error that lists every mistake.

    documents ──kind──▶ rows of `schema` ──read_fields──▶ objects ──▶ checks across objects
                                                     all problems ──▶ ManifestError

Checks of one object see its defaults where a field was wrong, so one mistake is reported once.
Checks across objects (replicas against brokers, references) run on whatever could be read.
"""

from collections.abc import Mapping, Sequence

from penstock.core.authorization.model import Kind
from penstock.core.manifest.access import check_access, check_cluster_access
from penstock.core.manifest.fields import read_fields
from penstock.core.manifest.groups import check_group
from penstock.core.manifest.objects import (
    MIN_INSYNC,
    REPLICATION_FACTOR,
    Cluster,
    ClusterSpec,
    ConsumerGroup,
    ConsumerGroupSpec,
    Manifest,
    Topic,
    TopicSpec,
)
from penstock.core.manifest.problems import Problem, Report, describe, did_you_mean
from penstock.core.manifest.quotas import check_cluster_quotas
from penstock.core.manifest.schema import (
    API_VERSION,
    CLUSTER_METADATA,
    CLUSTER_SPEC,
    OBJECT_METADATA,
    SERVER_METADATA,
    TOPIC_SPEC,
)
from penstock.core.manifest.schema_groups import CONSUMER_GROUP_SPEC
from penstock.core.manifest.settings import check_cluster_settings, check_topic_settings
from penstock.core.topic import validate_topic_name
from penstock.errors import ErrorCode, MisuseError, PenstockError

KINDS = ("Cluster", "Topic", "ConsumerGroup")
_ENVELOPE = ("apiVersion", "kind", "metadata", "spec", "status")


class ManifestError(MisuseError):
    """The manifest cannot be used. `problems` is never empty; the message has a line for each."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        lines = "\n".join(f"{source}: {problem}" for problem in problems)
        super().__init__(lines, ErrorCode.INVALID_CONFIG)
        self.problems = tuple(problems)


def parse_manifest(documents: Sequence[object], source: str) -> Manifest:
    """Reads the documents of one YAML file.

    Args:
        documents: what a YAML parser returned, one per document; empty documents are skipped.
        source: name of the file, put before every problem.

    Raises:
        ManifestError: with every problem found. Nothing of the manifest may be used.
    """
    reader = _Reader()
    for number, document in enumerate(documents, start=1):
        if document is not None:
            reader.read(document, number)
    reader.check_references()
    if not reader.problems and not (reader.clusters or reader.topics or reader.groups):
        reader.problems.append(
            Problem("", "", f"contains no object; known kinds: {', '.join(KINDS)}")
        )
    if reader.problems:
        raise ManifestError(source, reader.problems)
    return Manifest(
        source=source,
        clusters=tuple(reader.clusters),
        topics=tuple(reader.topics),
        consumer_groups=tuple(reader.groups),
    )


class _Reader:
    """The objects and problems seen so far."""

    def __init__(self) -> None:
        self.clusters: list[Cluster] = []
        self.topics: list[Topic] = []
        self.groups: list[ConsumerGroup] = []
        self.problems: list[Problem] = []
        self._seen: set[tuple[str, str]] = set()

    def read(self, document: object, number: int) -> None:
        subject = f"document {number}"
        if not isinstance(document, Mapping):
            text = f"is {describe(document)}; it must be a mapping with apiVersion, kind, metadata"
            self.problems.append(Problem(subject, "", text))
            return
        kind = document.get("kind")
        if not self._check_kind(document, kind, subject):
            return
        metadata = document.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        report = Report(f"{kind}/{name}" if isinstance(name, str) else f"{subject} ({kind})")
        for key in document:
            if key not in _ENVELOPE:
                report.add(str(key), f"is not a known field{did_you_mean(str(key), _ENVELOPE)}")
        self._read_kind(str(kind), document, report)
        self.problems.extend(report.problems)

    def _check_kind(self, document: Mapping[object, object], kind: object, subject: str) -> bool:
        version = document.get("apiVersion")
        if kind is None:
            text = f"is missing; it must be {', '.join(KINDS[:-1])} or {KINDS[-1]}"
            self.problems.append(Problem(subject, "kind", text))
        elif kind not in KINDS:
            text = f"is {describe(kind)}, which is not known{did_you_mean(str(kind), KINDS)}"
            self.problems.append(Problem(subject, "kind", text))
        if version != API_VERSION:
            text = "is missing" if version is None else f"is {describe(version)}"
            self.problems.append(
                Problem(subject, "apiVersion", f"{text}; it must be {API_VERSION}")
            )
        return kind in KINDS and version == API_VERSION

    def _read_kind(self, kind: str, document: Mapping[object, object], report: Report) -> None:
        name = self._read_name(kind, document.get("metadata"), report)
        spec = document.get("spec")
        match kind:
            case "Cluster":
                values = read_fields(CLUSTER_SPEC, spec, "spec", report)
                cluster = Cluster(name, ClusterSpec.from_values(values))
                check_cluster_settings(cluster.spec, report)
                check_cluster_access(values, cluster.spec.access, report)
                check_cluster_quotas(cluster.spec.quotas, report)
                self.clusters.append(cluster)
            case "Topic":
                values = read_fields(TOPIC_SPEC, spec, "spec", report)
                topic = Topic(name, TopicSpec.from_values(values, name))
                _check_topic_name(topic, report)
                check_topic_settings(topic.spec, report)
                check_access(Kind.TOPIC, topic.spec.topic_name, topic.spec.access, report)
                self.topics.append(topic)
            case _:
                values = read_fields(CONSUMER_GROUP_SPEC, spec, "spec", report)
                group = ConsumerGroup(name, ConsumerGroupSpec.from_values(values, name))
                check_group(group.spec, report)
                check_access(Kind.GROUP, group.spec.group_id, group.spec.access, report)
                self.groups.append(group)

    def _read_name(self, kind: str, given: object, report: Report) -> str:
        if isinstance(given, Mapping):
            given = {key: value for key, value in given.items() if key not in SERVER_METADATA}
        rows = CLUSTER_METADATA if kind == "Cluster" else OBJECT_METADATA
        name = read_fields(rows, given, "metadata", report).text("name")
        if name and (kind, name) in self._seen:
            report.add("metadata.name", "appears twice; give one of them another name")
        self._seen.add((kind, name))
        return name

    def check_references(self) -> None:
        clusters = {cluster.name: cluster for cluster in self.clusters}
        owners: dict[tuple[str, str], str] = {}
        group_owners: dict[tuple[str, str], str] = {}
        for topic in self.topics:
            report = Report(f"Topic/{topic.name}")
            cluster = clusters.get(topic.spec.cluster)
            if cluster is not None:
                _check_replicas(topic.spec, cluster, report)
            _check_cluster(topic.spec.cluster, clusters, report)
            owner = owners.setdefault((topic.spec.cluster, topic.spec.topic_name), topic.name)
            if owner != topic.name:
                text = f"is {topic.spec.topic_name!r}, which Topic/{owner} already has"
                report.add("spec.topicName", text)
            self.problems.extend(report.problems)
        for group in self.groups:
            report = Report(f"ConsumerGroup/{group.name}")
            _check_cluster(group.spec.cluster, clusters, report)
            owner = group_owners.setdefault((group.spec.cluster, group.spec.group_id), group.name)
            if owner != group.name:
                text = f"is {group.spec.group_id!r}, which ConsumerGroup/{owner} already has"
                report.add("spec.groupId", text)
            self.problems.extend(report.problems)


def _check_cluster(name: str, clusters: Mapping[str, Cluster], report: Report) -> None:
    """The Cluster is in the file, unless one there has an invalid name ("")."""
    if name and name not in clusters and "" not in clusters:
        known = did_you_mean(name, clusters) or "; the file contains no Cluster"
        report.add("spec.cluster", f"is {name!r}, not in this file{known}")


def _check_topic_name(topic: Topic, report: Report) -> None:
    if not topic.spec.topic_name:
        return  # metadata.name is missing and has been reported
    try:
        validate_topic_name(topic.spec.topic_name)
    except PenstockError as error:
        report.add("spec.topicName", f"cannot be used: {error.message}")


def _check_replicas(topic: TopicSpec, cluster: Cluster, report: Report) -> None:
    """Replicas fit the brokers, and min ISR can be met by the replicas."""
    brokers = cluster.spec.brokers
    replicas = topic.effective_replicas(cluster.spec)
    if topic.replicas is not None and replicas > brokers:
        plural = "broker" if brokers == 1 else "brokers"
        report.add(
            "spec.replicas",
            f"is {replicas}, but Cluster/{cluster.name} has {brokers} {plural}; "
            "lower spec.replicas or raise spec.brokers",
        )
    own = topic.config.get(MIN_INSYNC)
    if own is not None and own.isdecimal() and int(own) > replicas:
        where = "" if topic.replicas is not None else f" (the cluster's {REPLICATION_FACTOR})"
        report.add(
            f"spec.config.{MIN_INSYNC}",
            f"is {own}, but the topic has {replicas} replicas{where}, so that no acks=all write "
            f"could succeed; lower it to at most {replicas} or raise spec.replicas",
        )
