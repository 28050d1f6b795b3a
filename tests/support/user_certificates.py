"""Certificates of users, for tests: a CA of theirs, as a file that brokers read, and files to show.

users = UserCertificates(tmp_path, cluster.certificates.authority)
Producer(address, **users.options("ada"))
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.channels import patient_channel

from penstock.certificates import BACKDATED, private_pem
from penstock.rpc.tls import Tls, TlsFiles
from penstock_broker.certificates.authority import Authority, Pair

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate that no honest CA would sign. `names`: of the subject, each one CN."""

    names: Sequence[str]
    uris: Sequence[str] = ()
    left_s: float = DAY_S
    """Until it ends; negative: it has ended."""


def signed(authority: Authority, leaf: Leaf) -> Pair:
    """With a new key."""
    pair, key = authority.pair, ec.generate_private_key(ec.SECP256R1())
    signing = serialization.load_pem_private_key(pair.key, password=None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are too long
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, n, _validate=False) for n in leaf.names]
    subject.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, "tests"))
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(x509.load_pem_x509_certificate(pair.certificate).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * BACKDATED)
        .not_valid_after(now + timedelta(seconds=leaf.left_s))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    if leaf.uris:
        uris = [x509.UniformResourceIdentifier(uri) for uri in leaf.uris]
        builder = builder.add_extension(x509.SubjectAlternativeName(uris), critical=False)
    made = builder.sign(signing, hashes.SHA256())
    return Pair(made.public_bytes(serialization.Encoding.PEM), private_pem(key))


class UserCertificates:
    """Below the folder `path`."""

    def __init__(self, path: Path, clusters: Authority) -> None:
        """`clusters`: the CA that users trust."""
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.authority = Authority.new("CA of users")
        self.ca = path / "users-ca.crt"
        """What brokers read."""
        self.clusters_ca = path / "ca.crt"
        self.clusters_ca.write_bytes(clusters.certificate)
        self.trust(self.authority)

    def trust(self, *authorities: Authority) -> None:
        """What brokers read from now on."""
        replace(self.ca, b"".join(each.certificate for each in authorities))

    def files(self, name: str, leaf: Leaf | None = None) -> TlsFiles:
        """Of the user `name`; another pair each time, in the same files."""
        folder = self.path / name
        folder.mkdir(exist_ok=True)
        pair = signed(self.authority, leaf or Leaf([name]))
        files = TlsFiles(self.clusters_ca, folder / "tls.crt", folder / "tls.key")
        replace(folder / "tls.key", pair.key)
        replace(folder / "tls.crt", pair.certificate)
        return files

    def options(self, name: str, leaf: Leaf | None = None) -> dict[str, Any]:
        """The same, as settings of a client, which has no token."""
        files = self.files(name, leaf)
        return {
            "ca_file": files.ca,
            "certificate_file": files.certificate,
            "key_file": files.key,
            "token_file": "",
        }

    def channel(self, address: str, name: str, leaf: Leaf | None = None) -> grpc.Channel:
        """To a server that asks for a certificate."""
        return patient_channel(address, Tls(self.files(name, leaf)))


def replace(path: Path, content: bytes) -> None:
    """As atomically as a volume of Kubernetes is written. Others may not read it."""
    half = path.with_suffix(".half")
    half.touch(mode=0o600)
    half.write_bytes(content)
    half.replace(path)
