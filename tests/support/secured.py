"""A cluster of real processes with TLS, whose users show tokens.

    with secured_cluster(tmp_path) as secured:
        Producer(secured.cluster.bootstrap, **secured.options("ada"))

The user etl/root is an administrator.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.cluster import Cluster
from support.tokens import Issuer, write_issuers

from penstock.client import Admin, Producer

ROOT: Final = "serviceaccount:etl/root"


@dataclass(frozen=True)
class Secured:
    """The cluster, and what its users show."""

    cluster: Cluster
    issuer: Issuer
    path: Path

    def options(self, name: str = "root") -> dict[str, Any]:
        """For a client of etl/`name`."""
        token = self.path / f"{name}.token"
        token.write_text(self.issuer.token(f"etl/{name}"))
        certificates = self.cluster.certificates
        assert certificates is not None
        return {"ca_file": certificates.stranger().files.ca, "token_file": token}

    def admin(self, name: str = "root") -> Admin:
        return Admin(self.cluster.bootstrap, request_timeout_ms=20_000, **self.options(name))

    def producer(self, name: str, **more: Any) -> Producer:
        return Producer(self.cluster.bootstrap, **self.options(name), **more)


@contextmanager
def secured_cluster(path: Path, brokers: int = 2, **more: Any) -> Iterator[Secured]:
    """`more`: as for `Cluster`."""
    path.mkdir(parents=True, exist_ok=True)
    issuer = Issuer()
    issuers = write_issuers(path / "issuers.json", issuer)
    roles = ["--admin", ROOT]
    with Cluster(
        path / "cluster",
        brokers=brokers,
        secure=True,
        broker_options=["--token-issuers", str(issuers), *roles],
        controller_options=roles,
        **more,
    ) as cluster:
        yield Secured(cluster, issuer, path)
