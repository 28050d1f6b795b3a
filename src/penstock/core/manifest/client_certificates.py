"""`spec.security.clientCertificates`: users who log in by certificate. Pure.

row ─▶ ClientCertificates ─▶ the operator gives brokers a port, and the CA from the ConfigMap
"""

from dataclasses import dataclass
from typing import Final

from penstock.core.manifest.fields import Values
from penstock.core.manifest.problems import Report
from penstock.core.manifest.rows import Field, Kind

FIELD: Final = "clientCertificates"
_NAME: Final = r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?"

CLIENT_CERTIFICATES: Final = Field(
    name=FIELD,
    kind=Kind.OBJECT,
    doc="Users log in by certificate as well, at a port of its own (9100); absent = they do not. "
    "The principal is cert:<CN>.",
    optional=True,
    fields=(
        Field(
            name="caConfigMap",
            kind=Kind.TEXT,
            doc="A ConfigMap of this namespace whose key ca.crt has the CAs (PEM) that sign for "
            "users, and for no server of the Cluster. Brokers follow its changes. While it is "
            "missing, nobody gets in by certificate.",
            required=True,
            pattern=_NAME,
            pattern_doc="the name of a ConfigMap",
        ),
        Field(
            name="nodePort",
            kind=Kind.INTEGER,
            doc="With spec.external: the port of the bootstrap Service on every node; broker N has "
            "this port + 1 + N. All who show certificates then use these ports and "
            "spec.external.host. Absent = the port can be reached inside Kubernetes only.",
            minimum=1,
            maximum=65_535,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class ClientCertificates:
    """`node_port` 0 = not reached from outside."""

    config_map: str
    node_port: int = 0


def client_certificates_from_values(security: Values | None) -> ClientCertificates | None:
    """Of `spec.security`."""
    found = None if security is None else security.optional(FIELD)
    if found is None:
        return None
    return ClientCertificates(found.text("caConfigMap"), found.optional_integer("nodePort") or 0)


def check_client_certificates(
    given: ClientCertificates | None,
    *,
    strict: bool,
    external_port: int | None,
    brokers: int,
    report: Report,
) -> None:
    """What rows cannot say. `external_port`: `spec.external.nodePort`; None: there is none."""
    path = f"spec.security.{FIELD}"
    if given is None:
        return
    if not strict:
        report.add(path, "needs spec.security.mode Strict: without TLS nobody shows a certificate")
    if not given.node_port:
        return
    if external_port is None:
        report.add(f"{path}.nodePort", "needs spec.external, whose host clients use")
    elif abs(given.node_port - external_port) <= brokers:
        report.add(
            f"{path}.nodePort",
            f"is {given.node_port}, and spec.external.nodePort is {external_port}: each takes "
            f"{brokers + 1} ports from there on, one more than there are brokers; set them further "
            "apart",
        )
