"""Who gets which certificate, and when one must be replaced. Pure.

    a pod's token, verified ─ broker_of_pod ─▶ broker n ─ broker_subject ─▶ its names
    what lies on the disk ── judge ─▶ use it, renew it soon, or get another before anything else

What a pod asks for counts for nothing: names come from what the controller knows about its own
cluster, and the number from the name of the pod that the API server bound the token to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from penstock.certificates import is_issued_by
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode
from penstock.kubernetes.names import ClusterNames
from penstock_broker.certificates.authority import Subject
from penstock_broker.certificates.names import ServerName
from penstock_broker.certificates.reports import fingerprint

RENEWED_AFTER: Final = 2 / 3
"""Of a certificate's life: with 30 days, ten are left to get another one."""


@dataclass(frozen=True, slots=True)
class PodToken:
    """What a verified token proves. `pod`: the pod it is bound to; empty: none."""

    principal: str
    pod: str


def broker_of_pod(token: PodToken, names: ClusterNames) -> BrokerId:
    """The broker that a pod is. Raises ClusterError(PERMISSION_DENIED) if it is none of this
    cluster."""
    wanted = f"serviceaccount:{names.namespace}/{names.broker}"
    if token.principal != wanted:
        raise _denied(f"{token.principal} is not {wanted}, the account of the brokers")
    if not token.pod:
        raise _denied(f"the token of {token.principal} is not bound to a pod")
    broker_id = names.broker_of(token.pod)
    if broker_id is None:
        raise _denied(f"pod {token.pod} is no broker of {names.namespace}/{names.cluster}")
    return BrokerId(broker_id)


def broker_subject(
    cluster_id: str, broker_id: BrokerId, names: ClusterNames, hosts: Sequence[str]
) -> Subject:
    """`hosts`: names and addresses besides those that Kubernetes gives, of all brokers."""
    own, bootstrap = names.broker_host(broker_id), names.bootstrap_host
    return Subject(
        common_name=_common_name(names.pod(broker_id)),
        uri=ServerName(cluster_id, broker_id).uri,
        hosts=(*_in_namespace(own), *_in_namespace(bootstrap), names.bootstrap, *hosts),
    )


def controller_subject(cluster_id: str, names: ClusterNames, hosts: Sequence[str]) -> Subject:
    """All controllers have the same names: brokers connect to whichever answers."""
    return Subject(
        common_name=_common_name(names.controllers),
        uri=ServerName(cluster_id, None).uri,
        hosts=(*_in_namespace(names.controllers_host), *hosts),
    )


def _in_namespace(host: str) -> tuple[str, ...]:
    """x.namespace, x.namespace.svc, and the usual whole name."""
    assert host.endswith(".svc"), host
    return host, host.removesuffix(".svc"), f"{host}.cluster.local"


def _common_name(name: str) -> str:
    """X.509 allows 64 characters; nobody reads it but people."""
    return name[:64]


class State(Enum):
    """What to do about a certificate."""

    GOOD = "good"
    AGING = "aging"
    """It serves, and should be renewed."""
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True)
class Judgement:
    """`reason`: why another one is needed, in words."""

    state: State
    reason: str = ""


def judge(
    pem: bytes, roots: bytes, broker_id: BrokerId, hosts: Sequence[str], now: datetime
) -> Judgement:
    """Whether a broker can serve with the certificate and key in `pem`.

    `roots`: certificates of trusted CAs, PEM. `hosts`: names that clients will ask for.
    """
    try:
        leaf = x509.load_pem_x509_certificates(pem)[0]
        key = serialization.load_pem_private_key(pem, password=None)
        trusted = x509.load_pem_x509_certificates(roots)
    except (ValueError, TypeError, IndexError):
        return _unusable("it cannot be read")
    if key.public_key() != leaf.public_key():
        return _unusable("it is of another key")
    if not any(is_issued_by(leaf, root) for root in trusted):
        return _unusable("a CA has signed it that is not trusted now")
    if (problem := _names_problem(leaf, broker_id, hosts)) or (problem := _age_problem(leaf, now)):
        return _unusable(problem)
    if now >= _renewal(leaf):
        return Judgement(State.AGING, f"it ends at {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    return Judgement(State.GOOD)


def is_superseded(pem: bytes, roots: bytes, signer: str) -> bool:
    """Whether the CA that signs now is the newest that is trusted (`roots` has it last), and
    another has signed `pem`. So nobody goes back to an older CA because some controller still does.

    Raises ValueError if either is not PEM.
    """
    leaf = x509.load_pem_x509_certificates(pem)[0]
    newest = x509.load_pem_x509_certificates(roots)[-1]
    return fingerprint(newest) == signer and not is_issued_by(leaf, newest)


def renewal_of(pem: bytes) -> datetime:
    """When a certificate should be renewed. Raises ValueError if `pem` is none."""
    return _renewal(x509.load_pem_x509_certificates(pem)[0])


def _renewal(leaf: x509.Certificate) -> datetime:
    life: timedelta = leaf.not_valid_after_utc - leaf.not_valid_before_utc
    return leaf.not_valid_before_utc + life * RENEWED_AFTER


def _names_problem(leaf: x509.Certificate, broker_id: BrokerId, hosts: Sequence[str]) -> str:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "it names nobody"
    uris = found.get_values_for_type(x509.UniformResourceIdentifier)
    named = ServerName.parse(uris[0]) if len(uris) == 1 else None
    if named is None or named.broker_id != broker_id:
        return f"it is about {', '.join(uris) or 'nobody'}, not about broker {broker_id}"
    addresses = map(str, found.get_values_for_type(x509.IPAddress))
    known = {*found.get_values_for_type(x509.DNSName), *addresses}
    missing = [host for host in hosts if host not in known]
    return f"it lacks the name {missing[0]}" if missing else ""


def _age_problem(leaf: x509.Certificate, now: datetime) -> str:
    if now >= leaf.not_valid_after_utc:
        return f"it ended at {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if now < leaf.not_valid_before_utc:
        return f"it begins at {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    return ""


def _unusable(reason: str) -> Judgement:
    return Judgement(State.UNUSABLE, reason)


def _denied(why: str) -> ClusterError:
    return ClusterError(f"no certificate: {why}", ErrorCode.PERMISSION_DENIED)
