"""Kinds and their paths, as plain data. Importable without the `kubernetes` package."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.kubernetes.names import API_VERSION

Json = dict[str, Any]
"""An object as the API server sends it, with every field."""

RESOURCES: Final = {
    "Cluster": (f"/apis/{API_VERSION}", "clusters"),
    "Topic": (f"/apis/{API_VERSION}", "topics"),
    "ConsumerGroup": (f"/apis/{API_VERSION}", "consumergroups"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/apis/events.k8s.io/v1", "events"),
    "Namespace": ("/api/v1", "namespaces"),
    "Node": ("/api/v1", "nodes"),
    "PersistentVolume": ("/api/v1", "persistentvolumes"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "Pod": ("/api/v1", "pods"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "StorageClass": ("/apis/storage.k8s.io/v1", "storageclasses"),
}
"""Base path and plural of every kind that Penstock reads or writes."""


def path_of(kind: str, namespace: str | None = None, name: str | None = None) -> str:
    """The URL path of a kind, of its objects in a namespace, or of one object."""
    base, plural = RESOURCES[kind]
    where = f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"
    return f"{where}/{name}" if name else where


@dataclass(frozen=True, slots=True)
class LeaseObject:
    """Name, namespace and metadata of a Lease."""

    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    owners: Sequence[Json] = ()
