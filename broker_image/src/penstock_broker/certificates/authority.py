"""A cluster's certificate authority: made once, signs certificates for its servers and users.

    Authority.new ─▶ certificate, key (PEM)      Authority.load ◀─ the same
    issue ─▶ a new key, signed                   sign ─▶ a CSR, of which only the key counts

Keys are ECDSA P-256: a signature costs 0.03 ms, and every client knows them. Who may have which
names is the caller's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.certificates import BACKDATED, CA_DAYS, key_usage, new_authority, private_pem
from penstock.errors import ErrorCode, MisuseError

LEAF_DAYS: Final = 30


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whom a certificate is about.

    Attributes:
        common_name: Of a user, their name: "ada" is the principal "cert:ada".
        uri: Of a server, `ServerName.uri`.
        hosts: Names and IP addresses under which a server is reached.
    """

    common_name: str
    uri: str = ""
    hosts: Sequence[str] = ()


class Authority:
    """A CA that can sign."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def new(cls, name: str, *, now: datetime | None = None, days: int = CA_DAYS) -> "Authority":
        """A CA with a key of its own. `name`: for people."""
        return cls.load(Pair(*new_authority(name, now=now, days=days)))

    @classmethod
    def load(cls, pair: Pair) -> "Authority":
        """Raises MisuseError unless they are a certificate and its ECDSA key."""
        try:
            certificate = x509.load_pem_x509_certificate(pair.certificate)
            key = serialization.load_pem_private_key(pair.key, password=None)
        except (ValueError, TypeError) as error:
            raise MisuseError(
                f"the CA's certificate or key is not valid PEM: {error}", ErrorCode.INVALID_CONFIG
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or (
            key.public_key() != certificate.public_key()
        ):
            raise MisuseError(
                "the CA's key is not the ECDSA key of its certificate", ErrorCode.INVALID_CONFIG
            )
        return cls(certificate, key)

    @property
    def pair(self) -> Pair:
        """The CA's own certificate and key."""
        return Pair(self.certificate, private_pem(self._key))

    @property
    def certificate(self) -> bytes:
        """The CA's certificate: what others trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def begins(self) -> datetime:
        """From when it counts."""
        return self._certificate.not_valid_before_utc

    def issue(
        self, subject: Subject, *, days: float = LEAF_DAYS, now: datetime | None = None
    ) -> Pair:
        """A certificate with a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        return Pair(self._sign(key.public_key(), subject, days, now), private_pem(key))

    def sign(
        self, csr: bytes, subject: Subject, *, days: float = LEAF_DAYS, now: datetime | None = None
    ) -> bytes:
        """A certificate for the key in a CSR (PEM); the names that the CSR asks for do not count.

        Raises MisuseError if it is not a CSR with an ECDSA P-256 key that signed it.
        """
        try:
            request = x509.load_pem_x509_csr(csr)
            key = request.public_key()
            fits = request.is_signature_valid
        except ValueError as error:
            raise MisuseError(f"not a valid CSR: {error}", ErrorCode.INVALID_REQUEST) from error
        if (
            not fits
            or not isinstance(key, ec.EllipticCurvePublicKey)
            or not isinstance(key.curve, ec.SECP256R1)
        ):
            raise MisuseError(
                "the CSR must have an ECDSA P-256 key, and be signed by it",
                ErrorCode.INVALID_REQUEST,
            )
        return self._sign(key, subject, days, now)

    def _sign(
        self,
        key: ec.EllipticCurvePublicKey,
        subject: Subject,
        days: float,
        now: datetime | None,
    ) -> bytes:
        issuer = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        now = now or datetime.now(UTC)
        ends = min(now + timedelta(days=days), self._certificate.not_valid_after_utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(subject.common_name))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(signs=False), critical=True)
            .add_extension(_purposes(server=bool(subject.uri)), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer.value), False
            )
        )
        if names := _alternative_names(subject):
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM)


def generate_csr() -> tuple[bytes, bytes]:
    """A new key and a CSR for it, as PEM: (csr, key). It names nobody: who signs decides that."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return (
        request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        private_pem(key),
    )


def valid_until(certificate: bytes) -> datetime:
    """When a certificate (PEM) ends. Raises ValueError if it is not one."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative_names(subject: Subject) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    if subject.uri:
        names.append(x509.UniformResourceIdentifier(subject.uri))
    for host in subject.hosts:
        ip = _ip(host)
        names.append(x509.DNSName(host) if ip is None else x509.IPAddress(ip))
    return names


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _purposes(*, server: bool) -> x509.ExtendedKeyUsage:
    """A server also calls others; a user only calls."""
    both = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if server:
        both.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return x509.ExtendedKeyUsage(both)
