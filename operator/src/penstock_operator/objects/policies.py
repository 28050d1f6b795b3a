"""Network policies: who reaches which port of brokers and controllers, and what these reach.

Labels decide, and whoever may create pods in the namespace may label them: the namespace is the
boundary. Where nothing enforces policies they change nothing.
"""

from typing import Final

from penstock.core.manifest.objects import SecurityMode
from penstock_operator.model import Object
from penstock_operator.objects.desired import DesiredCluster
from penstock_operator.objects.pods import meta
from penstock_operator.objects.ports import (
    CLIENT,
    CONTROLLER,
    ENROL,
    INTERNAL,
    REPLICATION,
    SECURE,
    SECURE_CONTROLLER,
    Callers,
    Port,
    broker_ports,
    controller_ports,
)

OPERATOR_LABELS: Final = {"app.kubernetes.io/name": "penstock-operator"}
NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
DNS_PORTS: Final = (53, 5353)
"""Behind the DNS Service; OpenShift's pods listen on 5353. Policies see the address after the
Service's is translated."""


def broker_policy(desired: DesiredCluster) -> Object:
    """Brokers call each other and the controllers."""
    secure = [SECURE_CONTROLLER.allowed, ENROL.allowed] if desired.has_tls else []
    between = [port.allowed for port in _between_servers(desired)]
    egress = [
        _dns(),
        {
            "to": [_pods(desired, "broker")],
            "ports": [*between, REPLICATION.allowed],
        },
        {"to": [_pods(desired, "controller")], "ports": [CONTROLLER.allowed, *secure]},
    ]
    return _policy(desired, "broker", broker_ports(desired), egress)


def controller_policy(desired: DesiredCluster) -> Object:
    """Controllers call the API server, and brokers, which keep their journal."""
    ports = desired.installation.api_server_ports
    egress = [
        _dns(),
        {
            "to": [_pods(desired, "broker")],
            "ports": [port.allowed for port in _between_servers(desired)],
        },
        # A policy cannot name the API server's address.
        {"ports": [{"port": port, "protocol": "TCP"} for port in ports]},
    ]
    return _policy(desired, "controller", controller_ports(desired), egress if ports else None)


def _between_servers(desired: DesiredCluster) -> list[Port]:
    """Where brokers and controllers call brokers. Some may not have TLS yet."""
    plaintext = [] if desired.mode is SecurityMode.STRICT else [CLIENT]
    return [*plaintext, INTERNAL] if desired.has_tls else plaintext


def _policy(
    desired: DesiredCluster, component: str, ports: tuple[Port, ...], egress: list[Object] | None
) -> Object:
    """`egress` None: unrestricted."""
    spec: Object = {
        "podSelector": {"matchLabels": desired.names.selector(component)},
        "policyTypes": ["Ingress"] if egress is None else ["Ingress", "Egress"],
        "ingress": [_ingress(desired, port) for port in ports if port.callers is not Callers.NODE],
    }
    if egress is not None:
        spec["egress"] = egress
    name = desired.names.broker if component == "broker" else desired.names.controller
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": meta(desired, name, component),
        "spec": spec,
    }


def _ingress(desired: DesiredCluster, port: Port) -> Object:
    callers = _callers(desired, port)
    return {"from": callers, "ports": [port.allowed]} if callers else {"ports": [port.allowed]}


def _callers(desired: DesiredCluster, port: Port) -> list[Object]:
    """Empty: everybody."""
    match port.callers:
        case Callers.BROKERS:
            return [_pods(desired, "broker")]
        case Callers.SERVERS:
            return [_pods(desired, "broker"), _pods(desired, "controller")]
        case Callers.SCRAPERS:
            return list(desired.metrics_from)
        case Callers.CLIENTS if desired.clients_from:
            servers = [_pods(desired, "broker"), _pods(desired, "controller")]
            is_secure = port is SECURE or desired.mode is SecurityMode.STRICT
            own = [] if is_secure else servers
            return [*own, _operator(desired), *desired.clients_from]
        case _:
            return []


def _pods(desired: DesiredCluster, component: str) -> Object:
    return {"podSelector": {"matchLabels": desired.names.selector(component)}}


def _operator(desired: DesiredCluster) -> Object:
    namespace = desired.installation.namespace
    return {
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: namespace}} if namespace else {},
        "podSelector": {"matchLabels": OPERATOR_LABELS},
    }


def _dns() -> Object:
    ports = [{"port": port, "protocol": kind} for port in DNS_PORTS for kind in ("UDP", "TCP")]
    return {"ports": ports}
