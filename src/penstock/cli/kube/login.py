"""What the command line shows to the brokers of a Strict Cluster.

    ConfigMap <cluster>-trust ─▶ ca.crt        TokenRequest of <cluster>-admin or -viewer ─▶ token

Whoever may create tokens of these ServiceAccounts is let in as them; the API server decides that,
and its audit log has it. The kubeconfig's own token is never sent to a broker. The files are in a
private folder that goes with the process; a thread renews the token at half its life.
"""

import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import TRUST_KEY, ClusterNames
from penstock.kubernetes.resources import Json, path_of

if TYPE_CHECKING:
    from penstock.client.config import SecurityOptions
    from penstock.kubernetes.api import Api

TOKEN_SECONDS: Final = 3600


class Login:
    """Keep it while the client lives: it owns the files."""

    def __init__(self, api: "Api", names: ClusterNames, *, only_look: bool) -> None:
        """`only_look`: the viewer's token is enough. Raises PenstockError."""
        self._api, self._names = api, names
        first, second = (names.viewer, names.admin) if only_look else (names.admin, names.viewer)
        found = api.request("GET", path_of("ConfigMap", names.namespace, names.trust))
        try:
            token, self._account = self._token(first), first
        except KubernetesError as refused:
            if not refused.is_forbidden:
                raise
            token, self._account = self._second(second, refused), second
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-cli-")  # mode 0700
        path = Path(self._folder.name)
        self._ca, self._file = path / "ca.crt", path / "token"
        self._ca.write_text(str((found.get("data") or {}).get(TRUST_KEY) or ""))
        self._write(token)
        self._closed = threading.Event()
        threading.Thread(target=self._renew, name="token", daemon=True).start()

    @property
    def options(self) -> "SecurityOptions":
        """For a client."""
        return {"ca_file": self._ca, "token_file": self._file}

    def close(self) -> None:
        """Removes the files. Idempotent."""
        self._closed.set()
        self._folder.cleanup()

    def _second(self, account: str, refused: KubernetesError) -> str:
        try:
            return self._token(account)
        except KubernetesError as error:
            if not error.is_forbidden:
                raise
        names = self._names
        raise MisuseError(
            f"Cluster {names.namespace}/{names.cluster} asks who calls, and you may create tokens "
            f"of neither ServiceAccount {names.admin} nor {names.viewer}: {refused.message}",
            ErrorCode.PERMISSION_DENIED,
        )

    def _token(self, account: str) -> str:
        asked: Json = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [self._names.audience], "expirationSeconds": TOKEN_SECONDS},
        }
        path = path_of("ServiceAccount", self._names.namespace, account) + "/token"
        return str(self._api.request("POST", path, body=asked)["status"]["token"])

    def _renew(self) -> None:
        while not self._closed.wait(TOKEN_SECONDS / 2):
            try:
                self._write(self._token(self._account))
            except (PenstockError, OSError):
                continue  # the former one lasts as long again

    def _write(self, token: str) -> None:
        temporary = self._file.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(token)
        temporary.replace(self._file)


def login_to(api: "Api", cluster: Json, *, only_look: bool) -> Login:
    """To a Cluster with TLS. Raises PenstockError."""
    metadata = cluster["metadata"]
    names = ClusterNames(str(metadata["name"]), str(metadata["namespace"]))
    return Login(api, names, only_look=only_look)
