"""Certificate authorities: a new one for a cluster, and whether one may sign for users. Importable
only with `cryptography`.

The operator makes one, controllers sign with it (`penstock_broker.certificates.authority`).
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.errors import ErrorCode, MisuseError

CA_DAYS: Final = 5 * 365
USERS_CA_BYTES_MAX: Final = 64 * 1024
MADE_BY: Final = "penstock.dev"
"""The organization in the name of a CA that Penstock has made, and so may replace by itself."""
BACKDATED: Final = timedelta(minutes=5)
"""Clocks differ: a certificate counts from a little before it was made."""


def new_authority(
    name: str, *, now: datetime | None = None, days: int = CA_DAYS
) -> tuple[bytes, bytes]:
    """Certificate and key (ECDSA P-256) as PEM. `name`: for people, at most 64 characters."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, MADE_BY),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    begins = (now or datetime.now(UTC)) - BACKDATED
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private_pem(key)


def first_end(pem: str) -> datetime | None:
    """When the first of these certificates ends; None: there is none that can be read."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        return None
    return min(each.not_valid_after_utc for each in found)


def key_usage(*, signs: bool) -> x509.KeyUsage:
    """Of a CA, or of a server or user."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def check_users_authorities(users: bytes, clusters: bytes) -> None:
    """Whether CAs may sign for users, whose certificates must never count as a server's.

    `users`, `clusters`: PEM certificates; the second are all that servers of the cluster trust or
    show besides their own. Raises MisuseError(INVALID_CONFIG), which says what is wrong.
    """
    try:
        servers = x509.load_pem_x509_certificates(clusters) if clusters else []
    except ValueError:
        raise MisuseError(
            "whether the users' CA can be used is not known, because the cluster's own "
            "certificates cannot be read; controllers publish them again within a minute",
            ErrorCode.INVALID_CONFIG,
        ) from None
    for one in _certificates(users):
        if not _is_authority(one):
            raise _unusable(f"{_name(one)} is not a CA: its basic constraints do not say so")
        for other in servers:
            if _spki(one) == _spki(other):
                raise _unusable(f"{_name(one)} is the CA of the cluster's servers")
            if is_issued_by(other, one) or is_issued_by(one, other):
                raise _unusable(
                    f"{_name(one)} and {_name(other)} of the cluster's servers sign for each other"
                )


def _certificates(users: bytes) -> Sequence[x509.Certificate]:
    if len(users) > USERS_CA_BYTES_MAX:
        raise _unusable(f"it has more than {USERS_CA_BYTES_MAX} bytes")
    try:
        return x509.load_pem_x509_certificates(users)
    except (ValueError, x509.InvalidVersion):
        raise _unusable("it holds no PEM certificate, or a broken one") from None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return False
    return found.value.ca


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the CA has signed it."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _spki(certificate: x509.Certificate) -> bytes:
    """The key: a CA that is renewed with the same one can sign the same."""
    return certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _name(certificate: x509.Certificate) -> str:
    return repr(certificate.subject.rfc4514_string()[:200])


def _unusable(why: str) -> MisuseError:
    return MisuseError(
        f"the users' CA cannot be used: {why}; give the certificates (PEM) of CAs that sign for "
        "users alone",
        ErrorCode.INVALID_CONFIG,
    )
