"""Whether a server's certificate is about the server that shows it. Pure.

A server with another's certificate would start, and be refused by everybody it calls, each in its
own words. So it refuses itself, when it starts.
"""

from datetime import datetime

from cryptography import x509

from penstock.core.types import BrokerId
from penstock.errors import ErrorCode, MisuseError
from penstock_broker.certificates.names import ServerName


def check_own_certificate(
    chain: bytes, broker_id: BrokerId | None, cluster_id: str, now: datetime
) -> None:
    """Raises MisuseError(INVALID_CONFIG).

    `chain`: PEM, the own certificate first. `broker_id` None: of a controller. `cluster_id` "": not
    known yet.
    """
    leaf = x509.load_pem_x509_certificates(chain)[0]
    who = "a controller" if broker_id is None else f"broker {broker_id}"
    uris = _uris(leaf)
    named = ServerName.parse(uris[0]) if len(uris) == 1 else None
    if named is None or named.broker_id != broker_id:
        raise _refused(
            f"it is about {', '.join(uris) or 'no server'}, and this process is {who}; give the "
            "certificate of this server"
        )
    if cluster_id and named.cluster_id != cluster_id:
        raise _refused(
            f"it is of cluster {named.cluster_id!r}, and this process belongs to {cluster_id!r}; "
            "give the certificate of this cluster"
        )
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if now >= ends:
        raise _refused(f"it ended at {ends:%Y-%m-%d %H:%M} UTC; renew it")
    if now < begins:
        raise _refused(f"it begins at {begins:%Y-%m-%d %H:%M} UTC; check the clock, or renew it")


def _uris(leaf: x509.Certificate) -> list[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _refused(why: str) -> MisuseError:
    return MisuseError(f"--tls-certificate cannot be used: {why}", ErrorCode.INVALID_CONFIG)
