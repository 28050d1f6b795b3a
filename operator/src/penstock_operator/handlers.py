"""Kopf's part: watching. Every event wakes the worker of the Cluster it belongs to.

Only `on.event` handlers: Kopf then writes nothing, neither annotations nor finalizers, and an
operator that was down sees every object again when it starts. Objects of a Cluster are recognized
by their label, a Topic by its spec.

Handlers are coroutines: Kopf calls plain functions in threads, and two threads would start two
workers for one Cluster.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any, Final

import kopf

from penstock.kubernetes.names import (
    CLUSTER_LABEL,
    GROUP,
    METADATA_LABEL,
    TRUST_COPY_LABEL,
    TRUST_LABEL,
    VERSION,
    trust_copies_in,
)
from penstock_operator.workers import Workers

WATCHED = (
    ("apps", "v1", "statefulsets"),
    ("apps", "v1", "deployments"),
    ("", "v1", "pods"),
    ("", "v1", "persistentvolumeclaims"),
    ("", "v1", "services"),
    ("policy", "v1", "poddisruptionbudgets"),
)
"""Objects whose changes are handled at once; others within five minutes."""
AGAIN_MAX_S: Final = 10.0
"""Between two attempts of a request of Kopf's that the API server refuses."""


class _Again(Iterable[float]):
    """Pauses in seconds, without end. After a last one, Kopf would end all watches for a single
    one that is refused, as those of a namespace that was deleted and took its RoleBinding along."""

    def __iter__(self) -> Iterator[float]:
        return chain((1.0, 2.0, 5.0), repeat(AGAIN_MAX_S))


def register(workers: Workers, *, everywhere: bool = True) -> kopf.OperatorRegistry:
    """The handlers, bound to these workers. `everywhere`: Namespaces can be watched, too."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> Any:
        """In a pod with its ServiceAccount, elsewhere with the kubeconfig."""
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(GROUP, VERSION, "clusters", registry=registry)
    async def cluster_changed(namespace: str | None, name: str | None, **_: Any) -> None:
        workers.wake(namespace or "", name or "")

    @kopf.on.event(GROUP, VERSION, "topics", registry=registry)
    async def topic_changed(namespace: str | None, spec: Mapping[str, Any], **_: Any) -> None:
        if spec.get("cluster"):
            workers.wake(namespace or "", str(spec["cluster"]), topics=True)

    @kopf.on.event(GROUP, VERSION, "consumergroups", registry=registry)
    async def group_changed(
        namespace: str | None, spec: Mapping[str, Any], body: Mapping[str, Any], **other: Any
    ) -> None:
        if spec.get("cluster"):
            deleted = other.get("type") == "DELETED"
            where = (namespace or "", str(spec["cluster"]))
            workers.group_changed(*where, body, deleted=deleted)

    async def child_changed(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        workers.wake(namespace or "", labels[CLUSTER_LABEL])

    async def metadata_changed(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        # A topic was changed through the brokers: check whether it drifted.
        workers.wake(namespace or "", labels[CLUSTER_LABEL], topics=True)

    for group, version, plural in WATCHED:
        watch = kopf.on.event(
            group, version, plural, labels={CLUSTER_LABEL: kopf.PRESENT}, registry=registry
        )
        watch(child_changed)
    kopf.on.event("", "v1", "configmaps", labels={METADATA_LABEL: "topic"}, registry=registry)(
        metadata_changed
    )
    _watch_trust(registry, workers, everywhere=everywhere)
    return registry


def _watch_trust(registry: kopf.OperatorRegistry, workers: Workers, *, everywhere: bool) -> None:
    """The trust of Clusters, its copies, and namespaces that ask for one."""
    asking: dict[str, frozenset[tuple[str, str]]] = {}
    """By the uid of a namespace, as it was last seen: for which Clusters."""

    async def original_changed(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        workers.wake(namespace or "", labels[TRUST_LABEL])

    async def copy_changed(labels: Mapping[str, str], **_: Any) -> None:
        for cluster in trust_copies_in(labels):
            workers.copies_changed(*cluster)

    async def namespace_changed(uid: str | None, labels: Mapping[str, str], **other: Any) -> None:
        # One that is deleted and made again has the same name and labels, and no copy.
        gone = other.get("type") == "DELETED"
        now = frozenset() if gone else trust_copies_in(labels)
        for cluster in now ^ asking.pop(uid or "", frozenset()):
            workers.copies_changed(*cluster)
        if now:
            asking[uid or ""] = now

    watch = kopf.on.event
    original, copy = {TRUST_LABEL: kopf.PRESENT}, {TRUST_COPY_LABEL: kopf.PRESENT}
    watch("", "v1", "configmaps", labels=original, registry=registry)(original_changed)
    watch("", "v1", "configmaps", labels=copy, registry=registry)(copy_changed)
    if everywhere:
        watch("", "v1", "namespaces", registry=registry)(namespace_changed)


def kopf_settings(*, cluster_wide: bool) -> kopf.OperatorSettings:
    """Kopf as a watcher: no events, no peering, and no reads of CRDs that it may not see."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = not cluster_wide
    # A connection that hangs silently is closed and opened again.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.networking.error_backoffs = _Again()
    # Kopf starts a task for each object, ours or not, and keeps it while it is idle. Their number
    # must not be limited: the next object would wait for an idle one to end.
    settings.queueing.idle_timeout = 0.1
    return settings
