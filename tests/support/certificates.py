"""Files of certificates, as servers and clients read them."""

from pathlib import Path

from penstock.rpc.tls import TlsFiles
from penstock_broker.certificates.authority import Authority, Pair


def write(path: Path, authority: Authority, pair: Pair | None) -> TlsFiles:
    """Writes them into the folder `path`. `pair` None: of a client without a certificate."""
    path.mkdir(exist_ok=True)
    (path / "ca.crt").write_bytes(authority.certificate)
    if pair is None:
        return TlsFiles(path / "ca.crt")
    (path / "tls.crt").write_bytes(pair.certificate)
    (path / "tls.key").write_bytes(pair.key)
    return TlsFiles(path / "ca.crt", path / "tls.crt", path / "tls.key")
