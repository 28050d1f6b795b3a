"""Every port of brokers and controllers, in one table: who may call it, and how a pod learns of it.

Containers, environment, headless Services and network policies are made from it. A port that came
after the first is told by an environment variable and not by an option: an image of an older
release would refuse an option that it does not know.

| port | in modes | who proves what |
|---|---|---|
| 9092, 9094, 9097 | all | Strict: TLS, and callers show tokens; otherwise plaintext |
| 9093, 9096 | all | Strict: certificates of both sides; otherwise plaintext |
| 9095 | Migrate, Strict | TLS, and callers show tokens |
| 9098, 9108 | Migrate, Strict | certificates of both sides |
| 9099 | Migrate, Strict | TLS, and brokers' pods show tokens |
| 9100 | the same, with `clientCertificates` | certificates of both sides, the callers' of users |
| 9404, 9405 | all | nobody is asked: metrics and health, read only |
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from penstock.core.manifest.objects import SecurityMode
from penstock_operator.model import Object
from penstock_operator.names import (
    CERTIFICATE_PORT,
    CONTROLLER_PORT,
    ENROL_PORT,
    EXTERNAL_PORT,
    GRPC_PORT,
    HEALTH_PORT,
    INTERNAL_PORT,
    METRICS_PORT,
    REPLICATION_PORT,
    SECURE_CONTROLLER_PORT,
    SECURE_PORT,
    STREAM_PORT,
)
from penstock_operator.objects.desired import DesiredCluster


class Callers(Enum):
    """Who may open connections; pods of other namespaces only where it says so."""

    CLIENTS = "clients: `spec.allowFrom.clients`, and the cluster's own pods"
    OUTSIDE = "clients outside Kubernetes, whose addresses a NodePort hides"
    BROKERS = "the brokers of this cluster"
    SERVERS = "the brokers and controllers of this cluster"
    SCRAPERS = "`spec.allowFrom.metrics`"
    NODE = "the kubelet, which policies never keep out"


@dataclass(frozen=True, slots=True)
class Port:
    """`variable`: the environment variable with the address to listen on; "": an option has it.

    `in_service`: the headless Service names it.
    """

    name: str
    number: int
    callers: Callers
    variable: str = ""
    in_service: bool = True

    @property
    def container(self) -> Object:
        return {"name": self.name, "containerPort": self.number, "protocol": "TCP"}

    @property
    def service(self) -> Object:
        # By number: pods of an older release may have no port of this name.
        return {"name": self.name, "port": self.number, "targetPort": self.number}

    @property
    def allowed(self) -> Object:
        """As network policies list it."""
        return {"port": self.number, "protocol": "TCP"}


CLIENT: Final = Port("grpc", GRPC_PORT, Callers.CLIENTS)
CONTROLLER: Final = Port("grpc", CONTROLLER_PORT, Callers.BROKERS)
METRICS: Final = Port("metrics", METRICS_PORT, Callers.SCRAPERS)
REPLICATION: Final = Port(
    "replication", REPLICATION_PORT, Callers.BROKERS, "PENSTOCK_REPLICATION_LISTEN"
)
STREAMS: Final = Port("streams", STREAM_PORT, Callers.CLIENTS, "PENSTOCK_STREAM_LISTEN")
EXTERNAL: Final = Port("external", EXTERNAL_PORT, Callers.OUTSIDE, in_service=False)
HEALTH: Final = Port(
    "health", HEALTH_PORT, Callers.NODE, "PENSTOCK_HEALTH_LISTEN", in_service=False
)

SECURE: Final = Port("secure", SECURE_PORT, Callers.CLIENTS, "PENSTOCK_SECURE_LISTEN")
SECURE_CONTROLLER: Final = Port(
    "secure", SECURE_CONTROLLER_PORT, Callers.BROKERS, "PENSTOCK_SECURE_LISTEN"
)
INTERNAL: Final = Port("internal", INTERNAL_PORT, Callers.SERVERS, "PENSTOCK_INTERNAL_LISTEN")
ENROL: Final = Port("enrol", ENROL_PORT, Callers.BROKERS, "PENSTOCK_ENROL_LISTEN")

CERTIFICATE: Final = Port(
    "certificates", CERTIFICATE_PORT, Callers.CLIENTS, "PENSTOCK_CERTIFICATE_LISTEN"
)


def certificate_ports(desired: DesiredCluster) -> tuple[Port, ...]:
    """Where users show certificates: one, or none."""
    given = desired.client_certificates
    if given is None:
        return ()
    return (replace(CERTIFICATE, callers=Callers.OUTSIDE) if given.node_port else CERTIFICATE,)


def broker_ports(desired: DesiredCluster) -> tuple[Port, ...]:
    """Those that the brokers of this Cluster listen on."""
    external = () if desired.external is None else (EXTERNAL,)
    secure = (SECURE, INTERNAL) if desired.has_tls else ()
    certificates = certificate_ports(desired)
    return (CLIENT, STREAMS, METRICS, REPLICATION, *secure, *external, *certificates, HEALTH)


def controller_ports(desired: DesiredCluster) -> tuple[Port, ...]:
    """Those that the controllers of this Cluster listen on."""
    secure = (SECURE_CONTROLLER, ENROL) if desired.has_tls else ()
    return (CONTROLLER, METRICS, *secure, HEALTH)


def environment(desired: DesiredCluster, ports: tuple[Port, ...]) -> list[Object]:
    """Where to listen, for ports that no option tells of; and that plaintext is meant, or who may
    do everything."""
    listen = [
        {"name": port.variable, "value": f"0.0.0.0:{port.number}"}
        for port in ports
        if port.variable
    ]
    if desired.mode is not SecurityMode.STRICT:
        listen.append({"name": "PENSTOCK_INSECURE", "value": "true"})
    if not desired.has_tls:
        return listen
    namespace, names = desired.names.namespace, desired.names
    return [
        *listen,
        {"name": "PENSTOCK_ADMINS", "value": f"serviceaccount:{namespace}/{names.admin}"},
        {"name": "PENSTOCK_VIEWERS", "value": f"serviceaccount:{namespace}/{names.viewer}"},
    ]
