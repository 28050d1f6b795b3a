"""Which user a certificate is about. Pure.

    certificate ─ one CN ─▶ "cert:<CN>"

Whoever shows it has its key, and a CA of the users has signed it: TLS has checked that. A
certificate of a server of any cluster is no user's, whoever has signed it.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from penstock.errors import ClusterError, ErrorCode
from penstock_broker.certificates.names import TRUST_DOMAIN

NAME_LENGTH_MAX: Final = 64
"""Of a common name, in characters: X.520 allows no longer one."""
_BROKEN: Final = (
    ValueError,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_SERVERS: Final = f"spiffe://{TRUST_DOMAIN}/"


@dataclass(frozen=True, slots=True)
class CertifiedUser:
    """`expires_s`: when the certificate ends, in seconds since 1970."""

    principal: str
    expires_s: float


def user_of(pem: bytes) -> CertifiedUser:
    """Raises ClusterError(UNAUTHENTICATED), which says what is wrong with the certificate."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a name that is too long, as is said below
            certificate = x509.load_pem_x509_certificate(pem)
            common_names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            uris = _uris(certificate)
    except _BROKEN as error:
        raise _refused(f"it cannot be read ({error})") from None
    named = [uri for uri in uris if uri.lower().startswith(_SERVERS)]
    if named:
        raise _refused(f"it names a server of a cluster, {named[0][:200]!r}")
    if len(common_names) != 1:
        raise _refused(f"its subject has {len(common_names)} common names (CN)")
    name = common_names[0].value
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= NAME_LENGTH_MAX:
        raise _refused(
            f"its common name (CN) is {name[:NAME_LENGTH_MAX]!r}, of {len(name)} characters; it "
            f"must have 1 to {NAME_LENGTH_MAX}, all printable"
        )
    return CertifiedUser(f"cert:{name}", certificate.not_valid_after_utc.timestamp())


def _uris(certificate: x509.Certificate) -> Sequence[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _refused(why: str) -> ClusterError:
    return ClusterError(
        f"the certificate is refused: {why}; a user's has one CN, which is the user's name",
        ErrorCode.UNAUTHENTICATED,
    )
