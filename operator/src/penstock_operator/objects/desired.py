"""A Cluster resource, read and checked: what `objects` and `plan` work from.

The API server has refused what its schema and rules can refuse. Other problems (two settings that
exclude each other, a setting of another version) break one section of the spec, see `sections`: it
counts as it last was, and the Cluster's status says what is wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.manifest.client_certificates import ClientCertificates
from penstock.core.manifest.fields import Report, read_fields
from penstock.core.manifest.objects import ClusterSpec, DeletionPolicy, SecurityMode
from penstock.core.manifest.schema import CLUSTER_SPEC
from penstock.core.manifest.upkeep import UpgradePolicy
from penstock.core.settings import split_config
from penstock.kubernetes.names import API_VERSION, APPROVE, PAUSED, ROTATE_CA, ROTATE_CA_WAIT
from penstock_operator.model import Object, Wait
from penstock_operator.names import (
    FORCE_ROLL,
    FORGET_BROKER,
    GRPC_PORT,
    REPLACE_VOLUME,
    SECURE_PORT,
    SKIP_PLAINTEXT_GATE,
    Names,
)
from penstock_operator.objects.images import has_health_port, repository
from penstock_operator.objects.sections import Chosen, Last, Section, choose, record_of

DEFAULT_RESOURCES: Final[Object] = {
    "requests": {"cpu": "250m", "memory": "512Mi"},
    "limits": {"memory": "1536Mi"},
}
"""Memory of a broker: 330 MB were measured under load; its own limits allow about 1 GB."""
DEFAULT_CONTROLLER_RESOURCES: Final[Object] = {
    "requests": {"cpu": "50m", "memory": "128Mi"},
    "limits": {"memory": "512Mi"},
}


@dataclass(frozen=True, slots=True)
class External:
    """NodePorts for external clients: bootstrap has `node_port`, broker n has `node_port` + 1 + n.

    `host` empty: the address of the node a broker is on.
    """

    host: str = ""
    node_port: int = 31_092


@dataclass(frozen=True, slots=True)
class Installation:
    """What the operator was installed with.

    Attributes:
        image: Of brokers and controllers, unless a Cluster names its own.
        allowed_images: What Clusters may name, see `images.is_allowed`; the image above always.
        pull_secrets: Names of Secrets that nodes pull that image with, in the Clusters' namespaces.
        controller_role: The ClusterRole that controllers are bound to, each in its namespace.
        api_server_ports: What controllers may reach beyond the cluster's own pods; empty: anything.
        namespace: Of the operator; "": unknown.
        namespaces: What it watches, and nothing else; empty: all.
    """

    image: str
    allowed_images: tuple[str, ...] = ("*",)
    pull_secrets: tuple[str, ...] = ()
    controller_role: str = "penstock-controller"
    api_server_ports: tuple[int, ...] = (443, 6443)
    namespace: str = ""
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DesiredCluster:
    """A Cluster's spec with every default filled in. `force_roll`, `forget_broker` None: not
    requested. `force_roll_pod`: the uid that the request is bound to; empty: none yet. `no_ids`:
    what these two annotations say, by name, where it is no id.

    `written`: the fields it was read from, now or earlier. `refusals`: what is wrong with the
    present ones. `unknown`: sections that nothing is known of; here they have defaults, and nothing
    is made from them. `record`: see `sections.record_of`.
    `approved`: the id of a plan that may be carried out. `takes_newest`: pods get what this
    operator would give new ones, see `plan.pinning`.
    `replace_volume`: a request as it was written, see `plan.volumes`; empty: none.
    `rotate_ca`: the id of a request for another CA; empty: none.
    `staged`: the security mode of what is made from it, on the way to the spec's; None: the spec's.
    `called`: the weakest mode of the brokers that run, which says how they can be called; None:
    none run.
    """

    names: Names
    uid: str
    generation: int
    spec: ClusterSpec
    installation: Installation
    image: str
    pull_policy: str = "IfNotPresent"
    resources: Object = field(default_factory=dict)
    storage_class: str = ""
    controllers: int = 2
    controller_resources: Object = field(default_factory=dict)
    external: External | None = None
    node_selector: Object = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()
    clients_from: tuple[Object, ...] = ()
    metrics_from: tuple[Object, ...] = ()
    paused: bool = False
    force_roll: int | None = None
    force_roll_pod: str = ""
    forget_broker: int | None = None
    no_ids: Mapping[str, str] = field(default_factory=dict)
    replace_volume: str = ""
    rotate_ca: str = ""
    rotate_ca_wait: str = ""
    log_level: str = "INFO"
    staged: SecurityMode | None = None
    called: SecurityMode | None = None
    skip_plaintext_gate: bool = False
    approved: str = ""
    takes_newest: bool = False
    written: Object = field(default_factory=dict)
    refusals: tuple[Wait, ...] = ()
    unknown: frozenset[Section] = frozenset()
    record: str = ""

    def knows(self, *sections: Section) -> bool:
        """Whether there are values, of now or earlier, for all of these; of none: for all."""
        return not self.unknown & set(sections or Section)

    @property
    def keeps_data(self) -> bool:
        """Whether volumes and metadata outlive the Cluster."""
        return self.spec.deletion_policy is DeletionPolicy.RETAIN

    @property
    def mode(self) -> SecurityMode:
        """Who must prove who they are, and where."""
        return self.staged or self.spec.security

    @property
    def has_tls(self) -> bool:
        """Whether there are ports where callers must prove who they are."""
        return self.mode.has_tls

    @property
    def ends_plaintext(self) -> bool:
        """Whether brokers serve both, and shall have TLS alone: who calls in plaintext matters."""
        strict = self.spec.security is SecurityMode.STRICT
        return strict and self.called is SecurityMode.MIGRATE

    @property
    def calls(self) -> tuple[int, bool]:
        """The port at which the operator calls brokers, and whether it has TLS."""
        called = self.called or self.mode
        port = SECURE_PORT if called is SecurityMode.MIGRATE else GRPC_PORT
        return port, called.has_tls

    @property
    def client_certificates(self) -> ClientCertificates | None:
        """How users log in by certificate; None: they do not."""
        return self.spec.client_certificates if self.has_tls else None

    @property
    def probes_apart(self) -> bool:
        """Whether probes ask a port of their own, which the image must know."""
        # An image without that port has no TLS either, and Strict there is no other.
        return self.has_tls or has_health_port(self.image, self.installation.image)

    @property
    def broker_settings(self) -> dict[str, str]:
        return split_config(self.spec.config)[0]

    @property
    def controller_settings(self) -> dict[str, str]:
        """With the defaults that depend on the number of brokers."""
        return split_config(self.spec.effective_config())[1]

    def owner(self) -> Object:
        """The reference by which the garbage collector removes what a Cluster owns."""
        return {
            "apiVersion": API_VERSION,
            "kind": "Cluster",
            "name": self.names.cluster,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }

    def claim_owner(self) -> Object:
        """The same for a volume claim, which is managed by its StatefulSet."""
        return {**self.owner(), "controller": False}


def read_cluster(
    body: Mapping[str, Any],
    installation: Installation,
    last: Last | None = None,
    undecided: Wait | None = None,
) -> DesiredCluster:
    """Never fails: see `DesiredCluster.refusals`.

    Args:
        body: The Cluster.
        installation: What the operator was installed with.
        last: What the Cluster was last made from; None: nothing is known of that.
        undecided: Why its template is not decided, whatever the spec says; None: it is.
    """
    metadata: Mapping[str, Any] = body["metadata"]
    subject = f"Cluster/{metadata['name']}"
    allowed = (*installation.allowed_images, repository(installation.image))
    chosen = choose(subject, body.get("spec"), last or Last(), allowed)
    chosen = chosen if undecided is None else _undecided(chosen, undecided)
    spec = chosen.spec
    typed = ClusterSpec.from_values(read_fields(CLUSTER_SPEC, spec, "spec", Report(subject)))
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    controllers: Mapping[str, Any] = spec.get("controllers") or {}
    pod: Mapping[str, Any] = spec.get("pod") or {}
    allow_from: Mapping[str, Any] = spec.get("allowFrom") or {}
    rolled, _, rolled_pod = (annotations.get(FORCE_ROLL) or "").partition("@")
    return DesiredCluster(
        names=Names(metadata["name"], metadata["namespace"]),
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        spec=typed,
        installation=installation,
        image=spec.get("image") or installation.image,
        pull_policy=spec.get("imagePullPolicy") or "IfNotPresent",
        resources=dict(spec.get("resources") or DEFAULT_RESOURCES),
        storage_class=(spec.get("storage") or {}).get("storageClassName") or "",
        controllers=controllers.get("replicas") or 2,
        controller_resources=dict(controllers.get("resources") or DEFAULT_CONTROLLER_RESOURCES),
        external=_external(spec.get("external")),
        node_selector=dict(pod.get("nodeSelector") or {}),
        tolerations=tuple(pod.get("tolerations") or ()),
        clients_from=tuple(allow_from.get("clients") or ()),
        metrics_from=tuple(allow_from.get("metrics") or ()),
        paused=annotations.get(PAUSED) == "true",
        force_roll=_broker_id(rolled),
        force_roll_pod=rolled_pod,
        forget_broker=_broker_id(annotations.get(FORGET_BROKER)),
        no_ids=_no_ids(annotations),
        replace_volume=annotations.get(REPLACE_VOLUME) or "",
        rotate_ca=annotations.get(ROTATE_CA) or "",
        rotate_ca_wait=annotations.get(ROTATE_CA_WAIT) or "",
        skip_plaintext_gate=annotations.get(SKIP_PLAINTEXT_GATE) == "true",
        approved=annotations.get(APPROVE) or "",
        takes_newest=typed.upgrade_policy is UpgradePolicy.AUTOMATIC,
        written=spec,
        refusals=chosen.waits,
        unknown=chosen.unknown,
        record=record_of(chosen),
    )


def _undecided(chosen: Chosen, why: Wait) -> Chosen:
    """Its template is not known."""
    return Chosen(chosen.spec, (why, *chosen.waits), chosen.unknown | {Section.TEMPLATE})


def _external(given: Mapping[str, Any] | None) -> External | None:
    if not given or not given.get("type"):
        return None
    return External(given.get("host") or "", given.get("nodePort") or 31_092)


def _no_ids(annotations: Mapping[str, str]) -> dict[str, str]:
    asked = {name: annotations.get(name) or "" for name in (FORCE_ROLL, FORGET_BROKER)}
    return {
        name: text
        for name, text in asked.items()
        if text and _broker_id(text.partition("@")[0] if name == FORCE_ROLL else text) is None
    }


def _broker_id(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
