"""Everything that Kubernetes shows about one Cluster, read once, for `status` and `why`.

    Api ──take_snapshot──▶ Snapshot (plain objects, frozen) ──▶ status, why

Objects that cannot be read (for example, without permission for pods) or do not exist become a line
in `gaps`, never a failure: a user in trouble sees what is available. Partitions come from the
controller's metadata ConfigMaps, so that they are visible even if no broker answers.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.cli.at_once import at_once
from penstock.core.control.documents import (
    ClusterDocument,
    TopicDocument,
    decode_cluster,
    decode_topic,
)
from penstock.errors import MisuseError, PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import CLUSTER_LABEL, COMPONENT_LABEL, GROUP, METADATA_LABEL, PAUSED
from penstock.kubernetes.resources import Json, path_of

if TYPE_CHECKING:
    from penstock.client import BlockingTransaction
    from penstock.kubernetes.api import Api

Answer = TypeVar("Answer")

READ_S: Final = 20.0
"""For a whole snapshot: an API server that hangs is a finding, too."""
OPERATOR: Final = "penstock-operator"
INSTALL_CRDS: Final = "is Penstock's operator installed in this Kubernetes cluster?"


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator's Deployments, pods and Lease, wherever they are; empty if nowhere.

    `hidden`: not all namespaces could be read; what is not here may be there.
    """

    deployments: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    leases: tuple[Json, ...] = ()
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment. Objects are as the API server sent them; `gaps` says what could not be read.

    `unread`: kinds of which this is so, at least in part, in the Cluster's namespace: an object of
    them that is not here may exist.
    `blocking`: transactions that block readers (`transactions`), which only brokers know.
    """

    now: datetime
    cluster: Json
    topics: tuple[Json, ...] = ()
    groups: tuple[Json, ...] = ()
    pods: tuple[Json, ...] = ()
    claims: tuple[Json, ...] = ()
    statefulsets: tuple[Json, ...] = ()
    deployments: tuple[Json, ...] = ()
    events: tuple[Json, ...] = ()
    config_maps: tuple[Json, ...] = ()
    lease: Json | None = None
    operator: Operator = field(default_factory=Operator)
    document: ClusterDocument | None = None
    topic_documents: Mapping[str, TopicDocument] = field(default_factory=dict)
    blocking: "tuple[BlockingTransaction, ...]" = ()
    gaps: tuple[str, ...] = ()
    unread: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return str(self.cluster["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.cluster["metadata"]["namespace"])

    @property
    def sees_partitions(self) -> bool:
        """The controller's metadata could be read, all of it; there may be none yet."""
        return "ConfigMap" not in self.unread

    def pods_of(self, component: str) -> list[Json]:
        """Pods of "broker" or "controller", by name as people count."""
        found = [pod for pod in self.pods if labels(pod).get(COMPONENT_LABEL) == component]
        return sorted(found, key=lambda pod: (len(name_of(pod)), name_of(pod)))


def name_of(thing: Json) -> str:
    return str(thing["metadata"]["name"])


def labels(thing: Json) -> Mapping[str, str]:
    return thing["metadata"].get("labels") or {}


def annotations(thing: Json) -> Mapping[str, str]:
    return thing["metadata"].get("annotations") or {}


def is_paused(thing: Json) -> bool:
    return annotations(thing).get(PAUSED) == "true"


def deletion(thing: Json) -> str:
    """What is said of one that is being deleted; "" = it is not."""
    if not thing["metadata"].get("deletionTimestamp"):
        return ""
    waits_for = ", ".join(map(str, thing["metadata"].get("finalizers") or []))
    rest = f", and waits for its finalizers: {waits_for}" if waits_for else ""
    return f"is being deleted{rest}"


def condition(thing: Json, kind: str) -> Json:
    """The condition of this type; {} if it has none."""
    found = (thing.get("status") or {}).get("conditions") or []
    return next((one for one in found if one.get("type") == kind), {})


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time; None for none, and for the beginning of 1970, which means none."""
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    return moment if moment.year > 1970 else None


def find_clusters(api: "Api", namespace: str | None) -> list[Json]:
    """Clusters in one namespace, None = all. Raises MisuseError if the kind is not known there."""
    return _penstock(lambda: api.list(path_of("Cluster", namespace)))


def choose_cluster(api: "Api", name: str | None, namespace: str | None) -> Json:
    """The Cluster `NAME` or `NS/NAME`, or the only one there is.

    Without a name the given namespace is searched, or the context's, or, if that has none, all.
    Raises MisuseError that lists what could be chosen.
    """
    if name:
        before, slash, after = name.rpartition("/")
        where = before if slash else namespace or api.namespace
        found = _penstock(lambda: api.find(path_of("Cluster", where, after)))
        if found is None:
            present = ""
            with suppress(PenstockError):
                present = ", ".join(full_name(one) for one in find_visible_clusters(api))
            raise MisuseError(
                f"there is no Cluster {after!r} in namespace {where!r}; "
                + (
                    f"there are: {present}"
                    if present
                    else ("there are none, or you have no permission to list them")
                )
            )
        return found
    clusters = find_clusters(api, namespace or api.namespace)
    if not clusters and namespace is None:
        clusters = find_visible_clusters(api)
    if len(clusters) == 1:
        return clusters[0]
    if not clusters:
        where = f"in namespace {namespace!r}" if namespace else "in any namespace"
        raise MisuseError(f"there is no Cluster {where}; create one with kubectl apply")
    names = ", ".join(full_name(one) for one in clusters)
    raise MisuseError(f"there are several Clusters; name one of them: {names}")


def cluster_of(api: "Api", topic: Json) -> Json:
    """The Cluster of a Topic. Raises MisuseError that says what is wrong without one."""
    namespace, name = str(topic["metadata"]["namespace"]), str(topic["spec"]["cluster"])
    found = _penstock(lambda: api.find(path_of("Cluster", namespace, name)))
    if found is not None:
        return found
    lacks = f"there is no Cluster {name!r} in namespace {namespace!r}"
    said = deletion(topic)
    if not said:
        raise MisuseError(f"Topic {full_name(topic)} waits for its Cluster: {lacks}")
    raise MisuseError(
        f"Topic {full_name(topic)} {said}; {lacks}, so nothing is left to delete, and the operator "
        "takes its finalizer away. If it cannot, as in a namespace that is deleted with the "
        f"operator's rights in it, you may: kubectl -n {namespace} patch "
        f"topic.penstock.dev/{name_of(topic)} --type=merge "
        """-p '{"metadata":{"finalizers":null}}'"""
    )


def choose_changeable(api: "Api", name: str | None, namespace: str | None) -> Json:
    """The same, for a change. Raises MisuseError also if it is being deleted."""
    found = choose_cluster(api, name, namespace)
    refuse_deleted(found)
    return found


def refuse_deleted(cluster: Json) -> None:
    """Raises MisuseError: no operator does anything for it any more."""
    if said := deletion(cluster):
        since = cluster["metadata"]["deletionTimestamp"]
        raise MisuseError(
            f"Cluster {full_name(cluster)} {said} (since {since}): its operator changes nothing "
            "any more; `kubectl penstock why` says more"
        )


def find_visible_clusters(api: "Api") -> list[Json]:
    """In all namespaces, or in the context's where only that may be read. Raises PenstockError."""
    try:
        return find_clusters(api, None)
    except KubernetesError as error:
        if not error.is_forbidden:
            raise
    return find_clusters(api, api.namespace)


def full_name(cluster: Json) -> str:
    return f"{cluster['metadata']['namespace']}/{name_of(cluster)}"


def _penstock(ask: Callable[[], Answer]) -> Answer:
    """The answer of `ask`; an unknown kind is explained."""
    try:
        return ask()
    except KubernetesError as error:
        if error.is_missing:
            raise MisuseError(
                f"Kubernetes does not know the kind Cluster: {INSTALL_CRDS}"
            ) from error
        raise


def take_snapshot(api: "Api", cluster: Json) -> Snapshot:
    """Everything that belongs to the Cluster, asked for at the same time; what cannot be read, or
    not within READ_S, becomes a gap."""
    until_s = monotonic() + READ_S
    namespace, name = str(cluster["metadata"]["namespace"]), name_of(cluster)
    readers = [_Reader(api, namespace, name, until_s) for _ in _READS]
    asks = [partial(ask, one) for ask, one in zip(_READS.values(), readers, strict=True)]
    found = dict(zip(_READS, at_once(asks), strict=True))
    document, topics = readers[0].documents(found["config_maps"])
    return Snapshot(
        now=datetime.now(UTC),
        cluster=cluster,
        **found,
        document=document,
        topic_documents=topics,
        gaps=tuple(dict.fromkeys(gap for one in readers for gap in one.gaps)),
        unread=frozenset(kind for one in readers for kind in one.unread),
    )


class _Reader:
    """Reads one part, and notes what it could not. `until_s`: of the monotonic clock."""

    def __init__(self, api: "Api", namespace: str, cluster: str, until_s: float) -> None:
        self._api = api
        self._namespace = namespace
        self._cluster = cluster
        self._until_s = until_s
        self.gaps: list[str] = []
        self.unread: set[str] = set()
        self._hidden: list[str] = []

    def labelled(self, kind: str, extra: str = "") -> tuple[Json, ...]:
        return self._list(kind, labelSelector=f"{CLUSTER_LABEL}={self._cluster}{extra}")

    def of_cluster(self, kind: str) -> tuple[Json, ...]:
        """Topics or ConsumerGroups whose spec names the Cluster."""
        every = self._list(kind)
        return tuple(one for one in every if one["spec"].get("cluster") == self._cluster)

    def claims(self) -> tuple[Json, ...]:
        """By name: a StatefulSet copies labels to its claims only from its selector."""
        prefix = f"data-{self._cluster}-broker-"
        every = self._list("PersistentVolumeClaim")
        own = [one for one in every if name_of(one).removeprefix(prefix).isdecimal()]
        return tuple(sorted(own, key=lambda one: (len(name_of(one)), name_of(one))))

    def events(self) -> tuple[Json, ...]:
        """Of the Cluster, its Topics and everything named after it, the oldest first."""
        own = (f"{self._cluster}-", f"data-{self._cluster}-")
        every = [
            event
            for event in self._all(f"/api/v1/namespaces/{self._namespace}/events")
            if event["involvedObject"].get("name") == self._cluster
            or str(event["involvedObject"].get("name", "")).startswith(own)
            or event["involvedObject"].get("apiVersion", "").startswith(f"{GROUP}/")
        ]
        return tuple(sorted(every, key=lambda event: event_time(event) or ""))

    def lease(self) -> Json | None:
        path = path_of("Lease", self._namespace, f"{self._cluster}-controller")
        try:
            left_s = min(self._left_s(path), self._api.timeouts.total_s)
            return self._api.find(path, timeouts=replace(self._api.timeouts, total_s=left_s))
        except PenstockError as error:
            self.gaps.append(error.message)
            self.unread.add("Lease")
            return None

    def operator(self) -> Operator:
        """In any namespace, found by name or by labels."""
        labelled = self._anywhere("Deployment", labelSelector=_OPERATOR_LABELS)
        named = self._anywhere("Deployment", fieldSelector=f"metadata.name={OPERATOR}")
        deployments = {one["metadata"]["uid"]: one for one in (*labelled, *named)}
        pods = [pod for one in deployments.values() for pod in self._pods_of(one)]
        held = self._anywhere("Lease", fieldSelector=f"metadata.name={OPERATOR}")
        if self._hidden and not deployments and not held:
            self.gaps.append(self._hidden[0])
        return Operator(tuple(deployments.values()), tuple(pods), held, bool(self._hidden))

    def _pods_of(self, deployment: Json) -> tuple[Json, ...]:
        wanted = (deployment["spec"].get("selector") or {}).get("matchLabels") or {}
        selector = ",".join(f"{key}={value}" for key, value in wanted.items())
        path = path_of("Pod", deployment["metadata"]["namespace"])
        return self._all(path, labelSelector=selector) if selector else ()

    def _anywhere(self, kind: str, **query: object) -> tuple[Json, ...]:
        """In all namespaces; in the Cluster's, where only that may be read."""
        try:
            return self._listed(path_of(kind), query)
        except KubernetesError as error:
            if error.is_forbidden:
                self._hidden.append(error.message)
                return self._list(kind, **query)
            self.gaps.append(error.message)
            self._hidden.append(error.message)
            return ()

    def documents(
        self, config_maps: tuple[Json, ...]
    ) -> tuple[ClusterDocument | None, dict[str, TopicDocument]]:
        cluster, topics = None, {}
        for one in config_maps:
            text = (one.get("data") or {}).get("document", "")
            try:
                if labels(one).get(METADATA_LABEL) == "cluster":
                    cluster = decode_cluster(text, f"ConfigMap {name_of(one)}")
                else:
                    topic = decode_topic(text, f"ConfigMap {name_of(one)}")
                    topics[topic.name] = topic
            except PenstockError as error:
                self.gaps.append(error.message)
                self.unread.add("ConfigMap")
        return cluster, topics

    def _list(self, kind: str, **query: object) -> tuple[Json, ...]:
        before = len(self.gaps)
        found = self._all(path_of(kind, self._namespace), **query)
        if len(self.gaps) > before:
            self.unread.add(kind)
        return found

    def _all(self, path: str, **query: object) -> tuple[Json, ...]:
        try:
            return self._listed(path, query)
        except PenstockError as error:
            self.gaps.append(error.message)
            return ()

    def _listed(self, path: str, query: Mapping[str, object]) -> tuple[Json, ...]:
        """Raises KubernetesError."""
        return tuple(self._api.list(path, total_s=self._left_s(path), **query))

    def _left_s(self, path: str) -> float:
        """Raises KubernetesError if none is left."""
        left_s = self._until_s - monotonic()
        if left_s <= 0:
            text = f"{path} was not read: the Kubernetes API took {READ_S:g} s for the rest"
            raise KubernetesError(text, 0)
        return left_s


_READS: Final[dict[str, Callable[[_Reader], Any]]] = {
    "config_maps": lambda reader: reader.labelled("ConfigMap", extra=f",{METADATA_LABEL}"),
    "topics": lambda reader: reader.of_cluster("Topic"),
    "groups": lambda reader: reader.of_cluster("ConsumerGroup"),
    "pods": lambda reader: reader.labelled("Pod"),
    "claims": lambda reader: reader.claims(),
    "statefulsets": lambda reader: reader.labelled("StatefulSet"),
    "deployments": lambda reader: reader.labelled("Deployment"),
    "events": lambda reader: reader.events(),
    "lease": lambda reader: reader.lease(),
    "operator": lambda reader: reader.operator(),
}
"""Fields of a Snapshot, each read by itself."""


_OPERATOR_LABELS: Final = (
    "app.kubernetes.io/component=operator,app.kubernetes.io/name in (penstock,penstock-operator)"
)


def event_time(event: Json) -> str | None:
    """When it was last seen; events of the two API generations have it in different fields."""
    series = event.get("series") or {}
    found = (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
    )
    return None if found is None else str(found)
