"""A new certificate authority for a cluster. Importable only with `cryptography`.

The operator makes one, controllers sign with it (`penstock_broker.certificates.authority`).
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CA_DAYS: Final = 5 * 365
BACKDATED: Final = timedelta(minutes=5)
"""Clocks differ: a certificate counts from a little before it was made."""


def new_authority(
    name: str, *, now: datetime | None = None, days: int = CA_DAYS
) -> tuple[bytes, bytes]:
    """Certificate and key (ECDSA P-256) as PEM. `name`: for people, at most 64 characters."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
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
