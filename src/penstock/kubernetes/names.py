"""Labels, annotations and names that several of our programs use. Pure.

The operator, the controller and the command line find each other's objects by them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

GROUP: Final = "penstock.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

CLUSTER_LABEL: Final = f"{GROUP}/cluster"
"""The name of the Cluster that an object belongs to."""
METADATA_LABEL: Final = f"{GROUP}/metadata"
"""On the controller's documents: what a document is about, `cluster` or `topic`."""
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
"""`broker` or `controller`."""
TRUST_LABEL: Final = f"{GROUP}/trust-of"
"""On the ConfigMap with a cluster's CA certificate: the name of the Cluster."""
TRUST_KEY: Final = "ca.crt"
"""The certificate in that ConfigMap."""
ROTATION: Final = f"{GROUP}/ca-rotation"
"""Annotation of that ConfigMap, JSON: how far the CA's replacement by another is. Controllers write
it; see `penstock_broker.controller.enrolment_trust`."""
CERTIFICATE_ENDS: Final = f"{GROUP}/certificate-ends"
"""Annotation of that ConfigMap, JSON: when the certificate of each server ends. Controllers write
it; see `penstock.kubernetes.certificate_ends`."""
ROTATE_CA: Final = f"{GROUP}/rotate-ca"
"""Annotation of a Cluster: an id; each one asks for another CA once. Of the ConfigMap that owns the
Secret of a CA: the id that asked for it."""
ROTATE_CA_WAIT: Final = f"{GROUP}/rotate-ca-wait-seconds"
"""Annotation of a Cluster, and of the ConfigMap that owns the Secret of a CA: how long clients
have, to trust both CAs."""
TRUST_COPY_LABEL: Final = f"{GROUP}/trust-copy"
"""On every copy of such a ConfigMap, besides `trust_copy_label`."""
AUTHORITY_ENDS: Final = "AuthorityEnds"
"""Reason of the condition Secured of a Cluster: its CA ends soon."""
SERVER_CERTIFICATE_ENDS: Final = "ServerCertificateEnds"
"""Reason of that condition: a broker's or controller's certificate ends soon, though it should have
been renewed."""
OPERATOR_REFUSED: Final = "OperatorRefused"
"""Reason of an Event of a Cluster: its operator may change nothing in its brokers."""
APPROVE: Final = f"{GROUP}/approve"
"""Annotation of a Cluster: the id of the plan, as its status shows it, that may be carried out."""
PAUSED: Final = f"{GROUP}/paused"
"""Annotation; `"true"` on a Cluster, Topic or ConsumerGroup: the operator changes nothing but the
status."""


@dataclass(frozen=True, slots=True)
class ClusterNames:
    """Names of a Cluster's objects that not only the operator must know."""

    cluster: str
    namespace: str

    @property
    def broker(self) -> str:
        """StatefulSet, PodDisruptionBudget, ServiceAccount and NetworkPolicy of the brokers."""
        return f"{self.cluster}-broker"

    @property
    def brokers(self) -> str:
        """The headless Service that gives every broker pod a name."""
        return f"{self.cluster}-brokers"

    @property
    def bootstrap(self) -> str:
        """The Service that clients connect to first: ready brokers."""
        return f"{self.cluster}-bootstrap"

    @property
    def controllers(self) -> str:
        """The headless Service of the controllers."""
        return f"{self.cluster}-controllers"

    @property
    def admin(self) -> str:
        """The ServiceAccount whose tokens may do everything."""
        return f"{self.cluster}-admin"

    @property
    def viewer(self) -> str:
        """The ServiceAccount whose tokens may describe everything, and read no record."""
        return f"{self.cluster}-viewer"

    @property
    def authority(self) -> str:
        """The Secret with the CA and its key, in the form of cert-manager: tls.crt, tls.key."""
        return f"{self.cluster}-ca"

    @property
    def authorities(self) -> tuple[str, str]:
        """The two Secrets that take turns, the first of them `authority`; and for each a ConfigMap
        of the same name, which owns it: the Secret goes with it."""
        return self.authority, f"{self.authority}-2"

    @property
    def trust(self) -> str:
        """The ConfigMap with the CA's certificate, `ca.crt`: what clients trust."""
        return f"{self.cluster}-trust"

    @property
    def audience(self) -> str:
        """Of tokens that log in to this cluster."""
        return f"penstock.{self.namespace}.{self.cluster}"

    @property
    def enrolment_audience(self) -> str:
        """Of tokens that get a broker its certificate; they log in nowhere."""
        return f"{self.audience}.ca"

    def pod(self, broker_id: int | str) -> str:
        """A broker's pod."""
        return f"{self.broker}-{broker_id}"

    def broker_of(self, pod: str) -> int | None:
        """The broker whose pod has this name; None: it is no broker's."""
        found = re.fullmatch(rf"{re.escape(self.broker)}-(0|[1-9]\d{{0,8}})", pod, re.ASCII)
        return int(found[1]) if found else None

    def broker_host(self, broker_id: int | str) -> str:
        """The name under which clients and other brokers reach a broker."""
        return f"{self.pod(broker_id)}.{self.brokers}.{self.namespace}.svc"

    @property
    def bootstrap_host(self) -> str:
        """The name under which clients reach any broker."""
        return f"{self.bootstrap}.{self.namespace}.svc"

    @property
    def controllers_host(self) -> str:
        """The name under which brokers reach any controller."""
        return f"{self.controllers}.{self.namespace}.svc"


_COPY_SUFFIX: Final = f".trust.{GROUP}/copy"


def trust_copy_label(names: ClusterNames) -> str:
    """The key of the label by which a namespace asks for a copy of a cluster's trust.

    A prefix of a key may have 253 characters, and the rest of it, like a value, 63: both names fit
    only there. A namespace may have one for each of several clusters.
    """
    return f"{names.cluster}.{names.namespace}{_COPY_SUFFIX}"


def trust_copies_in(labels: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Namespace and name of every Cluster that labels with these keys are about."""
    found = (key.removesuffix(_COPY_SUFFIX) for key in labels if key.endswith(_COPY_SUFFIX))
    parts = (name.rpartition(".") for name in found)
    return frozenset((namespace, cluster) for cluster, _, namespace in parts if cluster)
