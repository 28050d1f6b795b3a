"""The fields of Cluster and Topic: one row each, the single source of truth.

Names are camelCase as everywhere in Kubernetes; keys below `config` are Kafka's. Rows that only
mean something in Kubernetes (image, resources, storage class) are accepted and checked in local
mode too, so that one file serves both. `parse` reads manifests by these rows; the CRDs carry the
same rows as structural schemas (`make crds`). ConsumerGroup is in `schema_groups`, statuses are
in `status`.
"""

from typing import Final

from penstock.core.authorization.model import Kind as ResourceKind
from penstock.core.manifest.access import CLUSTER_ACCESS, own_access
from penstock.core.manifest.client_certificates import CLIENT_CERTIFICATES
from penstock.core.manifest.oidc import OIDC
from penstock.core.manifest.quotas import CLUSTER_QUOTAS
from penstock.core.manifest.rows import Field, Kind
from penstock.core.manifest.upkeep import BALANCE, UPGRADE
from penstock.core.topic import PARTITIONS_MAX, TOPIC_NAME_MAX_CHARS

GROUP: Final = "penstock.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
BROKERS_MAX: Final = 500
"""As many as a controller registers (`penstock.core.control.registration`)."""
CLUSTER_NAME_MAX_CHARS: Final = 40
"""Leaves space for the names of pods and Services: <cluster>-broker-<number>."""

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
LABEL_DOC: Final = "lower-case letters, digits and '-', beginning and ending with a letter or digit"
CLUSTER_NAME: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"
"""Names of Services begin with it, and those begin with a letter."""
CLUSTER_NAME_DOC: Final = (
    "lower-case letters, digits and '-', beginning with a letter and ending with a letter or digit"
)
SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"

DELETION_POLICY: Final = Field(
    name="deletionPolicy",
    kind=Kind.TEXT,
    doc="What happens to the data when this object is deleted. Ignored in local mode.",
    default="Retain",
    choices=("Retain", "Delete"),
)


def _resources(who: str) -> Field:
    return Field(
        name="resources",
        kind=Kind.OBJECT,
        doc=f"Requests and limits of {who}; absent = the operator's defaults. Ignored in "
        "local mode.",
        fields=(
            Field(
                name="requests",
                kind=Kind.QUANTITIES,
                doc="What the scheduler reserves, by resource: cpu, memory.",
                max_items=16,
            ),
            Field(
                name="limits",
                kind=Kind.QUANTITIES,
                doc="The most it may use, by resource: cpu, memory.",
                max_items=16,
            ),
        ),
    )


_STORAGE: Final = Field(
    name="storage",
    kind=Kind.OBJECT,
    doc="The volume of each broker. Local mode uses the data directory instead.",
    fields=(
        Field(
            name="size",
            kind=Kind.QUANTITY,
            doc="Size of each broker's volume; it can grow, but never shrink.",
            default="10Gi",
            max_length=32,
        ),
        Field(
            name="storageClassName",
            kind=Kind.TEXT,
            doc="The storage class; absent = the Kubernetes cluster's default.",
            immutable=True,
            immutable_doc="volumes cannot change their class: create a new Cluster, or restore "
            "the old value",
            pattern=SUBDOMAIN,
            pattern_doc=LABEL_DOC,
        ),
        Field(
            name="replaceLost",
            kind=Kind.TEXT,
            doc="When a broker gets a new volume in place of one that is lost. NodeGone = once the "
            "only node where that one can be used is gone for five minutes, and other brokers have "
            "every record. Never = only at a request (annotation penstock.dev/replace-volume). "
            "Absent = NodeGone.",
            choices=("NodeGone", "Never"),
        ),
        Field(
            name="whenScaledDown",
            kind=Kind.TEXT,
            doc="What happens to the volume of a broker that was scaled away, once it was proven "
            "empty. Retain = it stays, and a broker that is added later finds it. Delete = its "
            "claim is deleted. Absent = Retain.",
            choices=("Retain", "Delete"),
        ),
    ),
)

_RACK: Final = Field(
    name="rack",
    kind=Kind.OBJECT,
    doc="The racks of brokers; the replicas of a partition are spread over racks.",
    fields=(
        Field(
            name="topologyKey",
            kind=Kind.TEXT,
            doc="The node label whose value is a broker's rack, such as "
            "topology.kubernetes.io/zone; absent = no racks.",
            max_length=317,
        ),
        Field(
            name="names",
            kind=Kind.TEXTS,
            doc="Only for local mode, which has no nodes: racks assigned to brokers 0, 1, … "
            "in turn.",
            max_items=BROKERS_MAX,
        ),
    ),
)

_CONTROLLERS: Final = Field(
    name="controllers",
    kind=Kind.OBJECT,
    doc="The processes that elect leaders; one is active, the others stand by.",
    fields=(
        Field(
            name="replicas",
            kind=Kind.INTEGER,
            doc="Number of controllers; one is active. Local mode starts one.",
            default=2,
            minimum=1,
            maximum=5,
        ),
        _resources("each controller's container"),
    ),
)

_EXTERNAL: Final = Field(
    name="external",
    kind=Kind.OBJECT,
    doc="A listener for clients outside Kubernetes; absent = none. Ignored in local mode.",
    optional=True,
    fields=(
        Field(
            name="type",
            kind=Kind.TEXT,
            doc="How clients outside Kubernetes reach brokers: by a port on every node.",
            default="NodePort",
            choices=("NodePort",),
        ),
        Field(
            name="host",
            kind=Kind.TEXT,
            doc="The address clients use; absent = the address of the node a broker runs on.",
        ),
        Field(
            name="nodePort",
            kind=Kind.INTEGER,
            doc="The bootstrap Service's node port; broker N has this port + 1 + N.",
            default=31_092,
            minimum=1,
            maximum=65_535,
        ),
    ),
)

_POD: Final = Field(
    name="pod",
    kind=Kind.OBJECT,
    doc="Where pods of brokers and controllers may run; ignored in local mode.",
    fields=(
        Field(
            name="nodeSelector",
            kind=Kind.LABELS,
            doc="Labels a node must have.",
            max_items=64,
        ),
        Field(
            name="tolerations",
            kind=Kind.OPAQUES,
            doc="Taints the pods tolerate, as in a pod's spec.",
            max_items=64,
        ),
    ),
)

_ALLOW_FROM: Final = Field(
    name="allowFrom",
    kind=Kind.OBJECT,
    doc="Who may connect, as the network policies of the brokers say; ignored in local mode. Ports "
    "between brokers and controllers are never open to others.",
    fields=(
        Field(
            name="clients",
            kind=Kind.OPAQUES,
            doc="Peers, as in a NetworkPolicy's `from`, that reach the brokers besides the "
            "operator; absent or empty = everybody. The port of `external` is open to everybody.",
            max_items=64,
        ),
        Field(
            name="metrics",
            kind=Kind.OPAQUES,
            doc="Peers, as in a NetworkPolicy's `from`, that may read the metrics of brokers and "
            "controllers; absent or empty = everybody.",
            max_items=64,
        ),
    ),
)

_SECURITY: Final = Field(
    name="security",
    kind=Kind.OBJECT,
    doc="Who may connect, and how. Absent = the operator sets mode Strict in a new Cluster; one "
    "that runs already stays Disabled. Ignored in local mode.",
    optional=True,
    fields=(
        Field(
            name="mode",
            kind=Kind.TEXT,
            doc="Strict = TLS everywhere, servers have certificates of the cluster's own CA, users "
            "log in with tokens of ServiceAccounts, and what no rule allows is denied. Disabled = "
            "plaintext: whoever reaches a broker may do everything. Migrate = plaintext, and "
            "beside it TLS, tokens and rules at port 9095. Between Disabled and Strict a Cluster "
            "that runs goes through Migrate, in both directions.",
            required=True,
            choices=("Disabled", "Migrate", "Strict"),
        ),
        OIDC,
        CLIENT_CERTIFICATES,
    ),
)

_HIBERNATE: Final = Field(
    name="hibernate",
    kind=Kind.BOOLEAN,
    doc="True = the cluster sleeps: writes are refused, and once every record is fsynced on all "
    "replicas, brokers and controllers stop. Volumes, Services, Topics and groups stay; false or "
    "absent wakes it. Time counts while it sleeps: at the wake, records, offsets and transactional "
    "ids that have become too old are removed. Other changes of the spec take effect at wake. "
    "Ignored in local mode.",
    optional=True,
)

CLUSTER_SPEC: Final = (
    Field(
        name="brokers",
        kind=Kind.INTEGER,
        doc="Number of brokers.",
        default=3,
        minimum=1,
        maximum=BROKERS_MAX,
    ),
    _STORAGE,
    Field(
        name="config",
        kind=Kind.SETTINGS,
        doc="Settings of the cluster, with Kafka's names; topics inherit the topic settings. "
        "Values are strings or whole numbers; put true and false in quotes.",
        max_items=128,
    ),
    _RACK,
    Field(
        name="image",
        kind=Kind.TEXT,
        doc="Container image of brokers and controllers; absent = the operator's default. "
        "Ignored in local mode.",
        max_length=512,
    ),
    Field(
        name="imagePullPolicy",
        kind=Kind.TEXT,
        doc="When nodes pull the image; absent = IfNotPresent. Ignored in local mode.",
        choices=("Always", "IfNotPresent", "Never"),
    ),
    _resources("each broker's container"),
    _CONTROLLERS,
    _EXTERNAL,
    _POD,
    _ALLOW_FROM,
    _SECURITY,
    CLUSTER_ACCESS,
    CLUSTER_QUOTAS,
    UPGRADE,
    _HIBERNATE,
    BALANCE,
    DELETION_POLICY,
)

CLUSTER_REFERENCE: Final = Field(
    name="cluster",
    kind=Kind.TEXT,
    doc="The name of the Cluster this belongs to, in the same namespace.",
    required=True,
    immutable=True,
    immutable_doc="create another object for the other Cluster",
    max_length=CLUSTER_NAME_MAX_CHARS,
    pattern=_LABEL,
    pattern_doc=LABEL_DOC,
)

TOPIC_SPEC: Final = (
    CLUSTER_REFERENCE,
    Field(
        name="topicName",
        kind=Kind.TEXT,
        doc="The topic's name for producers and consumers; absent = metadata.name.",
        immutable=True,
        immutable_doc="topics cannot be renamed: create another Topic",
        max_length=TOPIC_NAME_MAX_CHARS,
    ),
    Field(
        name="partitions",
        kind=Kind.INTEGER,
        doc="Number of partitions; it can grow, but never shrink. Absent = the cluster's "
        "num.partitions.",
        minimum=1,
        maximum=PARTITIONS_MAX,
    ),
    Field(
        name="replicas",
        kind=Kind.INTEGER,
        doc="Copies of each partition. It can change: replicas are copied, or dropped, while "
        "clients go on. Absent = the cluster's default.replication.factor for a new topic, and "
        "what there is for one that exists.",
        minimum=1,
        maximum=BROKERS_MAX,
    ),
    Field(
        name="config",
        kind=Kind.SETTINGS,
        doc="Topic settings, with Kafka's names. Values are strings or whole numbers; put true and "
        "false in quotes.",
        max_items=64,
    ),
    own_access(ResourceKind.TOPIC),
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
"""Added by the Kubernetes API server; ignored, so that the output of `kubectl get -o yaml` is valid
input."""


def _metadata(pattern: str, pattern_doc: str, max_length: int) -> tuple[Field, ...]:
    return (
        Field(
            name="name",
            kind=Kind.TEXT,
            doc="The object's name, unique for its kind and namespace.",
            required=True,
            immutable=True,
            immutable_doc="create another object",
            max_length=max_length,
            pattern=pattern,
            pattern_doc=pattern_doc,
        ),
        Field(name="namespace", kind=Kind.TEXT, doc="Kubernetes namespace."),
        Field(name="labels", kind=Kind.LABELS, doc="Kubernetes labels."),
        Field(name="annotations", kind=Kind.LABELS, doc="Kubernetes annotations."),
    )


CLUSTER_METADATA: Final = _metadata(CLUSTER_NAME, CLUSTER_NAME_DOC, CLUSTER_NAME_MAX_CHARS)
OBJECT_METADATA: Final = _metadata(SUBDOMAIN, LABEL_DOC, 253)
