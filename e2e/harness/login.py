"""What a pod shows to a Strict Cluster: the files that the client finds without any option.

ConfigMap <cluster>-trust ─┐
token of its ServiceAccount ─▶ /var/run/secrets/penstock.dev ─▶ the client in the pod
"""

from dataclasses import dataclass
from typing import Any, Final

NAME: Final = "penstock"
MOUNT: Final = "/var/run/secrets/penstock.dev"
API_SERVER: Final = ""
"""As an audience: the API server's own, which every pod's default token has."""


@dataclass(frozen=True, slots=True)
class Login:
    """`trust`: the ConfigMap with the CA's certificate. `audience` None: the pod has no token."""

    account: str
    trust: str
    audience: str | None

    def add_to(self, spec: dict[str, Any]) -> None:
        """Puts the account and the files into a pod's spec, for its first container."""
        sources: list[dict[str, Any]] = [{"configMap": {"name": self.trust}}]
        if self.audience is not None:
            token: dict[str, Any] = {"path": "token", "expirationSeconds": 3600}
            if self.audience != API_SERVER:
                token["audience"] = self.audience
            sources.append({"serviceAccountToken": token})
        spec["serviceAccountName"] = self.account
        spec["volumes"].append({"name": NAME, "projected": {"sources": sources}})
        spec["containers"][0]["volumeMounts"].append(
            {"name": NAME, "mountPath": MOUNT, "readOnly": True}
        )
