"""What the operator shows to the brokers of a Cluster with TLS, as files for its client.

    ConfigMap <cluster>-trust ─▶ ca.crt
    TokenRequest for ServiceAccount <cluster>-admin ─▶ token, an hour long, renewed at half its life

The client reads the files again when they change. They are in a private folder of this process, and
gone with it. The operator's own token is never sent to a broker.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from penstock.errors import ClusterError, ErrorCode
from penstock.kubernetes.names import TRUST_KEY, TRUST_LABEL
from penstock_operator.kube import Kube
from penstock_operator.model import Object
from penstock_operator.objects import DesiredCluster

TOKEN_SECONDS: Final = 3600
RENEWED_AFTER_S: Final = TOKEN_SECONDS / 2


@dataclass(frozen=True, slots=True)
class Files:
    """Paths, for the settings of a client."""

    ca: Path
    token: Path


class Credentials:
    """Of one Cluster. `close` removes the files."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-operator-")  # mode 0700
        path = Path(self._folder.name)
        self._files = Files(path / "ca.crt", path / "token")
        self._renewed_s: float | None = None
        self._renewing = asyncio.Lock()

    async def files(self, desired: DesiredCluster) -> Files | None:
        """None: its brokers are called in plaintext. Raises KubernetesError, or ClusterError while
        the controllers have not published their CA."""
        _, secured = desired.calls
        if not secured:
            return None
        async with self._renewing:
            renewed_s = self._renewed_s
            if renewed_s is None or monotonic() - renewed_s >= RENEWED_AFTER_S:
                self._replace(self._files.ca, await self._trust(desired))
                self._replace(self._files.token, await self._token(desired))
                self._renewed_s = monotonic()
        return self._files

    def use_trust(self, trust: str) -> None:
        """The CAs as they are published now: they may be others before the token is renewed."""
        if self._renewed_s is not None and trust and self._files.ca.read_text() != trust:
            self._replace(self._files.ca, trust)

    def close(self) -> None:
        """Idempotent."""
        self._folder.cleanup()

    async def _trust(self, desired: DesiredCluster) -> str:
        names = desired.names
        selector = f"{TRUST_LABEL}={names.cluster}"
        for each in await self._kube.list("ConfigMap", names.namespace, selector):
            if each["metadata"]["name"] == names.trust and TRUST_KEY in (each.get("data") or {}):
                return str(each["data"][TRUST_KEY])
        raise ClusterError(
            f"ConfigMap {names.trust} is not there yet; controllers write it when they start",
            ErrorCode.AUTH_NOT_READY,
        )

    async def _token(self, desired: DesiredCluster) -> str:
        names = desired.names
        asked: Object = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [names.audience], "expirationSeconds": TOKEN_SECONDS},
        }
        answer = await self._kube.request_token(names.namespace, names.admin, asked)
        return str(answer["status"]["token"])

    def _replace(self, path: Path, text: str) -> None:
        temporary = path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(text)
        temporary.replace(path)
