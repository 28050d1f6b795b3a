"""All names in one place, so that no name is spelt in two ways.

Pure. Names follow the Cluster's (`flights` → `flights-broker-0`); labels select what belongs to a
Cluster; annotations are requests that a person can make besides the spec.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from penstock.kubernetes.names import CLUSTER_LABEL, COMPONENT_LABEL, GROUP, ClusterNames

FIELD_MANAGER: Final = "penstock-operator"
TOPIC_FINALIZER: Final = f"{GROUP}/topic"
GROUP_FINALIZER: Final = f"{GROUP}/consumer-group"

FORCE_ROLL: Final = f"{GROUP}/force-roll"
"""A broker id on a Cluster: restart this broker now, even if the brokers object. Done once: the
operator writes down the pod that it is for (`1@<its uid>`)."""
FORGET_BROKER: Final = f"{GROUP}/forget-broker"
"""A broker id on a Cluster: it goes without its own word that it is empty. Done once."""
REPLACE_VOLUME: Final = f"{GROUP}/replace-volume"
"""A broker id on a Cluster: it gets a new volume. `plan.volumes` has all forms. Done once."""
SKIP_PLAINTEXT_GATE: Final = f"{GROUP}/skip-plaintext-gate"
"""true on a Cluster: plaintext ends whoever uses it."""
EMPTIED: Final = f"{GROUP}/emptied"
"""On a volume claim, its own uid: its broker was proven empty, and the claim may go with it. Bound
to the uid, so that a backup that brings annotations back allows nothing."""
TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
APPLIED_HASH: Final = f"{GROUP}/applied-hash"
MADE_FROM: Final = f"{GROUP}/made-from"
"""JSON, on a StatefulSet and a Deployment: the spec of the Cluster that they were made from."""
ASLEEP: Final = f"{GROUP}/brokers-asleep"
"""On a StatefulSet with 0 replicas: how many brokers the Cluster has when it is awake. It is
written with the 0, once everything had come to rest."""
WOKEN: Final = f"{GROUP}/woken"
"""On a StatefulSet, another value each time before writes are allowed again: what an operator has
decided by the version before, to stop all brokers, is refused."""
RACK: Final = f"{GROUP}/rack"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
_EXTERNAL: Final = "-external"
_INSTANCE: Final = "app.kubernetes.io/instance"

GRPC_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
EXTERNAL_PORT: Final = 9094
SECURE_PORT: Final = 9095
REPLICATION_PORT: Final = 9096
STREAM_PORT: Final = 9097
INTERNAL_PORT: Final = 9098
ENROL_PORT: Final = 9099
CERTIFICATE_PORT: Final = 9100
SECURE_CONTROLLER_PORT: Final = 9108
METRICS_PORT: Final = 9404
HEALTH_PORT: Final = 9405


@dataclass(frozen=True, slots=True)
class Names(ClusterNames):
    """The names of one Cluster's objects."""

    @property
    def controller(self) -> str:
        """Deployment, ServiceAccount, Lease and NetworkPolicy of the controllers."""
        return f"{self.cluster}-controller"

    def controller_binding(self, role: str) -> str:
        """RoleBinding of the controllers; which role it names cannot be changed afterwards."""
        return f"{self.controller}-{hashlib.sha256(role.encode()).hexdigest()[:8]}"

    def claim(self, broker_id: int) -> str:
        """The PersistentVolumeClaim of a broker."""
        return f"data-{self.broker}-{broker_id}"

    def external(self, broker_id: int) -> str:
        """The NodePort Service of a broker."""
        return f"{self.broker}-{broker_id}{_EXTERNAL}"

    @property
    def external_bootstrap(self) -> str:
        return f"{self.bootstrap}{_EXTERNAL}"

    def is_external(self, service: str) -> bool:
        """Whether a Service has the name of one for clients outside Kubernetes."""
        pod = service.removesuffix(_EXTERNAL)
        broker_id = None if pod == service else self.broker_of(pod)
        return service == self.external_bootstrap or broker_id is not None

    @property
    def bootstrap_address(self) -> str:
        return f"{self.bootstrap_host}:{GRPC_PORT}"

    @property
    def controllers_address(self) -> str:
        return f"{self.controllers_host}:{CONTROLLER_PORT}"

    @property
    def secure_controllers_address(self) -> str:
        return f"{self.controllers_host}:{SECURE_CONTROLLER_PORT}"

    @property
    def enrolment_address(self) -> str:
        return f"{self.controllers_host}:{ENROL_PORT}"

    def labels(self, component: str | None = None) -> dict[str, str]:
        """Labels of an object; with `component`, also the labels by which its pods are selected."""
        labels = {
            "app.kubernetes.io/name": "penstock",
            _INSTANCE: self.cluster,
            "app.kubernetes.io/managed-by": FIELD_MANAGER,
            CLUSTER_LABEL: self.cluster,
        }
        return labels if component is None else labels | {COMPONENT_LABEL: component}

    def lasting_labels(self, component: str | None = None) -> dict[str, str]:
        """Of an object that outlives the Cluster, and so has no owner. Without the instance: Argo
        CD before 3.0 deletes what names one of its Applications there, and is not in Git."""
        return {key: each for key, each in self.labels(component).items() if key != _INSTANCE}

    def selector(self, component: str) -> dict[str, str]:
        """Selects pods. It never changes, because a StatefulSet's selector is immutable."""
        return {CLUSTER_LABEL: self.cluster, COMPONENT_LABEL: component}
