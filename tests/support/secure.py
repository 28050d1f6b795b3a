"""Certificates of a test's cluster: a CA, files of each server, and what rotates them.

certificates = Certificates(tmp_path)
certificates.broker(1).options          # --tls-ca … of broker 1
certificates.renew()                    # new leaves for all, of the same CA or another
"""

from dataclasses import dataclass
from pathlib import Path

import grpc
from support.channels import patient_channel

from penstock.core.types import BrokerId
from penstock.rpc.tls import Tls, TlsFiles
from penstock_broker.certificates.authority import LEAF_DAYS, Authority, Pair, Subject
from penstock_broker.certificates.names import ServerName

CLUSTER_ID = "secure-cluster"
HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Holder:
    """Files of one server or user."""

    files: TlsFiles

    @property
    def options(self) -> list[str]:
        """For the command line of a server."""
        files = self.files
        named = (("ca", files.ca), ("certificate", files.certificate), ("key", files.key))
        return [word for name, path in named for word in (f"--tls-{name}", str(path))]

    @property
    def tls(self) -> Tls:
        """As they are now."""
        return Tls(self.files)

    def channel(self, address: str) -> grpc.Channel:
        """To a server that asks for a certificate."""
        return patient_channel(address, self.tls)


class Certificates:
    """Below the folder `path`. Written one by one, as atomically as a volume of Kubernetes is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.authority = Authority.new("CA of a test")
        self._trusted = [self.authority]
        self._subjects: dict[str, Subject] = {}

    def broker(self, broker_id: int, cluster_id: str = CLUSTER_ID) -> Holder:
        """Of a broker; made once."""
        uri = ServerName(cluster_id, BrokerId(broker_id)).uri
        return self.issue(f"{cluster_id}-broker-{broker_id}", uri)

    def controller(self, cluster_id: str = CLUSTER_ID) -> Holder:
        """Of all controllers; made once."""
        return self.issue(f"{cluster_id}-controller", ServerName(cluster_id, None).uri)

    def user(self, name: str = "ada") -> Holder:
        """Of someone who is no server; made once."""
        return self.issue(name, "")

    def stranger(self) -> Holder:
        """A client that trusts the CA, and has no certificate."""
        ca = self.path / "ca.crt"
        _replace(ca, self._roots)
        return Holder(TlsFiles(ca))

    def issue(self, name: str, uri: str) -> Holder:
        """Of whoever `uri` says, in the folder `name`; made once."""
        folder = self.path / name
        if name not in self._subjects:
            folder.mkdir(exist_ok=True)
            self._subjects[name] = Subject(common_name=name, uri=uri, hosts=HOSTS if uri else ())
            self._write(name, self.authority.issue(self._subjects[name]))
        return Holder(TlsFiles(folder / "ca.crt", folder / "tls.crt", folder / "tls.key"))

    # ------------------------------------------------------------ rotation

    def trust(self, *authorities: Authority) -> None:
        """From now on all trust exactly these."""
        self._trusted = list(authorities)
        for name in self._subjects:
            _replace(self.path / name / "ca.crt", self._roots)

    def renew(self, authority: Authority | None = None, *, days: float = LEAF_DAYS) -> None:
        """New leaves for all, of this CA (None: of the one before), that last so long."""
        self.authority = authority or self.authority
        for name, subject in self._subjects.items():
            self._write(name, self.authority.issue(subject, days=days))

    @property
    def _roots(self) -> bytes:
        return b"".join(authority.certificate for authority in self._trusted)

    def _write(self, name: str, pair: Pair) -> None:
        folder = self.path / name
        _replace(folder / "ca.crt", self._roots)
        _replace(folder / "tls.key", pair.key)
        _replace(folder / "tls.crt", pair.certificate)


def _replace(path: Path, content: bytes) -> None:
    half = path.with_suffix(".half")
    half.write_bytes(content)
    half.replace(path)
