"""The fields of Cluster, Topic and ConsumerGroup: one row each, the single source of truth.

Names are camelCase as everywhere in Kubernetes; keys below `config` are Kafka's. Rows that only
mean something in Kubernetes (image, resources, storage class) are accepted and checked in local
mode too, so that one file serves both. `parse` reads manifests by these rows; the CRDs carry the
same rows as structural schemas.
"""

from typing import Final

from penstock.core.manifest.fields import Field, Kind
from penstock.core.topic import PARTITIONS_MAX

API_VERSION: Final = "penstock.dev/v1alpha1"
BROKERS_MAX: Final = 1_000


_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_DOC: Final = (
    "lower-case letters, digits and '-', beginning and ending with a letter or digit"
)
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"

DELETION_POLICY: Final = Field(
    name="deletionPolicy",
    kind=Kind.TEXT,
    doc="What becomes of the data when this object is deleted.",
    default="Retain",
    choices=("Retain", "Delete"),
)

CLUSTER_SPEC: Final = (
    Field(
        name="brokers",
        kind=Kind.INTEGER,
        doc="How many brokers.",
        default=3,
        minimum=1,
        maximum=BROKERS_MAX,
    ),
    Field(
        name="storage",
        kind=Kind.OBJECT,
        doc="The volume of each broker. Local mode uses the data directory instead.",
        fields=(
            Field(
                name="size",
                kind=Kind.QUANTITY,
                doc="Size of each broker's volume; it may grow, never shrink.",
                default="10Gi",
            ),
            Field(
                name="storageClassName",
                kind=Kind.TEXT,
                doc="The storage class; absent = the Kubernetes cluster's default.",
                immutable=True,
            ),
        ),
    ),
    Field(
        name="config",
        kind=Kind.SETTINGS,
        doc="Settings of the cluster by Kafka's names; topics inherit the topic settings.",
    ),
    Field(
        name="rack",
        kind=Kind.OBJECT,
        doc="Where brokers stand, so that replicas are spread over racks.",
        fields=(
            Field(
                name="topologyKey",
                kind=Kind.TEXT,
                doc="The node label whose value is a broker's rack; absent = no racks.",
            ),
            Field(
                name="names",
                kind=Kind.TEXTS,
                doc="Local mode, which has no nodes: racks given to brokers 0, 1, … in turn.",
            ),
        ),
    ),
    Field(name="image", kind=Kind.TEXT, doc="Container image; ignored in local mode."),
    Field(
        name="resources",
        kind=Kind.OPAQUE,
        doc="Requests and limits of each broker's container; ignored in local mode.",
    ),
    DELETION_POLICY,
)

TOPIC_SPEC: Final = (
    Field(
        name="cluster",
        kind=Kind.TEXT,
        doc="The name of the Cluster this topic lives in.",
        required=True,
        immutable=True,
        max_length=63,
        pattern=_LABEL,
        pattern_doc=_LABEL_DOC,
    ),
    Field(
        name="topicName",
        kind=Kind.TEXT,
        doc="The topic's name for producers and consumers; absent = metadata.name.",
        immutable=True,
    ),
    Field(
        name="partitions",
        kind=Kind.INTEGER,
        doc="How many partitions; never shrinks. Absent = the cluster's num.partitions.",
        minimum=1,
        maximum=PARTITIONS_MAX,
    ),
    Field(
        name="replicas",
        kind=Kind.INTEGER,
        doc="Copies of each partition. Absent = the cluster's default.replication.factor.",
        minimum=1,
        maximum=BROKERS_MAX,
    ),
    Field(name="config", kind=Kind.SETTINGS, doc="Topic settings by Kafka's names."),
    DELETION_POLICY,
)


SERVER_METADATA: Final = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
"""Added by the Kubernetes API server; ignored, so that `kubectl get -o yaml` can be fed back."""


def _metadata(pattern: str, max_length: int) -> tuple[Field, ...]:
    return (
        Field(
            name="name",
            kind=Kind.TEXT,
            doc="The object's name, unique for its kind and namespace.",
            required=True,
            immutable=True,
            max_length=max_length,
            pattern=pattern,
            pattern_doc=_LABEL_DOC,
        ),
        Field(name="namespace", kind=Kind.TEXT, doc="Kubernetes namespace."),
        Field(name="labels", kind=Kind.SETTINGS, doc="Kubernetes labels."),
        Field(name="annotations", kind=Kind.SETTINGS, doc="Kubernetes annotations."),
    )


CLUSTER_METADATA: Final = _metadata(_LABEL, 40)
"""40 characters leave room for what pods and Services are called: <cluster>-broker-<number>."""
OBJECT_METADATA: Final = _metadata(_SUBDOMAIN, 253)
