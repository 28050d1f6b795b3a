"""What a process uses for TLS, as the controllers are told while a CA is replaced.

It is read from what new connections use, not from files: a file that could not be loaded is not
reported. CAs are known by the SHA-256 of their certificate.
"""

from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from penstock.certificates import is_issued_by
from penstock.rpc.tls import Tls
from penstock_broker.certificates.rotation import Report


def fingerprints(pem: bytes) -> tuple[str, ...]:
    """Of each certificate in `pem`, in hexadecimal digits. Raises ValueError."""
    return tuple(fingerprint(one) for one in x509.load_pem_x509_certificates(pem))


def fingerprint(certificate: x509.Certificate) -> str:
    """In hexadecimal digits."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def report_of(tls: Tls) -> Report:
    """What this process uses now."""
    return _report(*tls.certificates)


@lru_cache(maxsize=8)  # asked for with each heartbeat, and the same for weeks
def _report(roots: bytes, chain: bytes) -> Report:
    trusted = x509.load_pem_x509_certificates(roots)
    leaf = x509.load_pem_x509_certificates(chain)[0]
    issuers = [fingerprint(root) for root in trusted if is_issued_by(leaf, root)]
    return Report(
        frozenset(map(fingerprint, trusted)),
        issuers[0] if issuers else "",
        ends_s=int(leaf.not_valid_after_utc.timestamp()),
    )
