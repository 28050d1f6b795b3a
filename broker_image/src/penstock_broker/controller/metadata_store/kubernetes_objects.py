"""The objects of the Kubernetes store: names, labels, owner, and the text inside.

    key "cluster"     ConfigMap  flights-metadata
    key "topic/<t>"   ConfigMap  flights-topic-<readable part of t>-<hash: 20 hex digits>
    any other key     ConfigMap  flights-document-<readable part>-<hash>
    the lease         Lease      flights-controller

A topic's name can have upper case, `_` and 249 characters, an object's name cannot: the hash makes
it unique, the readable part is for people. The object contains its key, so names are only built,
never parsed; an object whose name does not match its key is a copy and is not read. Pure: no I/O
here.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.control.documents import CLUSTER_KEY, TOPIC_KEY_PREFIX
from penstock.core.limits import DOCUMENT_BYTES_MAX
from penstock.errors import ErrorCode, MisuseError
from penstock.kubernetes.names import (
    API_VERSION,
    CLUSTER_LABEL,
    COMPONENT_LABEL,
    GROUP,
    METADATA_LABEL,
)
from penstock.kubernetes.resources import LeaseObject, path_of

OWNER_KIND: Final = "Cluster"
WRITE_ANNOTATION: Final = f"{GROUP}/write"
KEY_FIELD: Final = "key"
TEXT_FIELD: Final = "document"
_READABLE_MAX: Final = 40
_HASH_DIGITS: Final = 20
_NAME_MAX: Final = 40
"""Leaves space for the longest suffix of names of pods and Services made from it (63)."""
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE_MAX: Final = 63


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The namespace and the owner of a cluster's objects.

    `owner_uid` is that of the Cluster object `cluster`: they are deleted with it. Empty: they stay,
    and an owner that they have is removed.
    """

    cluster: str
    namespace: str
    owner_uid: str = ""
    owner_name: str = ""

    def __post_init__(self) -> None:
        """Raises MisuseError for invalid Kubernetes names."""
        _check_label("--cluster", self.cluster, _NAME_MAX)
        _check_label("--namespace", self.namespace, _NAMESPACE_MAX)

    @property
    def config_maps(self) -> str:
        """Path of the collection."""
        return path_of("ConfigMap", self.namespace)

    @property
    def lease(self) -> LeaseObject:
        """Records which controller is active."""
        name = f"{self.cluster}-controller"
        return LeaseObject(self.namespace, name, self.labels(), self.owners)

    @property
    def selector(self) -> str:
        """The label selector that finds all documents, and nothing else."""
        return f"{CLUSTER_LABEL}={self.cluster},{METADATA_LABEL}"

    @property
    def owners(self) -> list[dict[str, Any]]:
        """`metadata.ownerReferences` as they must be; empty without an owner."""
        if not self.owner_uid:
            return []
        return [
            {
                "apiVersion": API_VERSION,
                "kind": OWNER_KIND,
                "name": self.owner_name or self.cluster,
                "uid": self.owner_uid,
            }
        ]

    def labels(self, **more: str) -> dict[str, str]:
        """The labels of every object of a cluster.

        Without app.kubernetes.io/instance: these objects may have no owner, and Argo CD before 3.0
        deletes what names one of its Applications there, has no owner, and is not in Git.
        """
        return {
            "app.kubernetes.io/name": "penstock",
            COMPONENT_LABEL: "controller",
            "app.kubernetes.io/managed-by": "penstock-operator",
            CLUSTER_LABEL: self.cluster,
            **more,
        }

    def name_of(self, key: str) -> str:
        """The ConfigMap's name: valid, and different for every key."""
        if key == CLUSTER_KEY:
            return f"{self.cluster}-metadata"
        kind = "topic" if key.startswith(TOPIC_KEY_PREFIX) else "document"
        plain = re.sub(r"[^a-z0-9]+", "-", key.removeprefix(TOPIC_KEY_PREFIX).lower())
        readable = plain.strip("-")[:_READABLE_MAX].strip("-") or "x"
        digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]
        return f"{self.cluster}-{kind}-{readable}-{digest}"

    def config_map(
        self, key: str, text: str, expected: str | None, write_id: str = ""
    ) -> dict[str, Any]:
        """The object to create (`expected` None), or to replace the version `expected`.

        `write_id` is different for every write: the API server ignores an update that changes
        nothing, and would not change the version.

        Raises MisuseError if the API server would refuse its size.
        """
        size = len(key.encode()) + len(text.encode())
        if size > DOCUMENT_BYTES_MAX:
            raise MisuseError(
                f"metadata {key!r} has {size:,} bytes, a ConfigMap holds {DOCUMENT_BYTES_MAX:,}; "
                "nothing was written: use fewer partitions per topic, or fewer topic settings",
                ErrorCode.INVALID_REQUEST,
            )
        kind = "cluster" if key == CLUSTER_KEY else "topic"
        metadata: dict[str, Any] = {
            "name": self.name_of(key),
            "namespace": self.namespace,
            "labels": self.labels(**{METADATA_LABEL: kind}),
            "annotations": {WRITE_ANNOTATION: write_id},
            "ownerReferences": self.owners,
        }
        if expected is not None:
            metadata["resourceVersion"] = expected
        data = {KEY_FIELD: key, TEXT_FIELD: text}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def is_listed(self, metadata: Mapping[str, Any]) -> bool:
        """Whether `selector` finds the object."""
        labels: Mapping[str, str] = metadata.get("labels") or {}
        return labels.get(CLUSTER_LABEL) == self.cluster and METADATA_LABEL in labels

    def has_right_owner(self, metadata: Mapping[str, Any]) -> bool:
        """Whether the Cluster owns the object, or does not, as it should."""
        found = [
            (owner.get("name"), owner.get("uid"))
            for owner in metadata.get("ownerReferences") or []
            if owner.get("kind") == OWNER_KIND
            and str(owner.get("apiVersion")).startswith(f"{GROUP}/")
        ]
        return found == [(owner["name"], owner["uid"]) for owner in self.owners]


def is_version(text: str) -> bool:
    """Whether an API server can have assigned this resourceVersion.

    In a request, "0" and "" mean "any version": as the expected version they would turn a
    compare-and-swap into an overwrite.
    """
    return text.isascii() and text.isdigit() and int(text) > 0


def _check_label(option: str, value: str, longest: int) -> None:
    if not _LABEL.fullmatch(value) or len(value) > longest:
        raise MisuseError(
            f"{option} is {value!r}; it must be 1 to {longest} lower-case letters, digits and "
            "'-', beginning and ending with a letter or digit",
            ErrorCode.INVALID_CONFIG,
        )
