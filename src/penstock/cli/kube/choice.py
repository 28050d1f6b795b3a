"""Which API server the user means, and how to reach it.

The `kubernetes` package takes most of a second to import, and may not be installed: this module
imports it, with `penstock.kubernetes.connect`, only when a command connects.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import MisuseError
from penstock.kubernetes.kubeconfig import kubeconfig_is_there

if TYPE_CHECKING:
    from penstock.kubernetes.api import Api

CONNECT_S: Final = 5.0
TOTAL_S: Final = 30.0
IN_CLUSTER_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True, slots=True)
class KubeChoice:
    """The options of the command line; None = what the kubeconfig says."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    @property
    def may_connect(self) -> bool:
        """Whether there is a kubeconfig, or a pod's token: without either, do not try."""
        return kubeconfig_is_there(self.kubeconfig, self.context) or IN_CLUSTER_TOKEN.exists()


def connect(choice: KubeChoice) -> "Api":
    """Sends no request. Raises MisuseError."""
    try:
        from penstock.kubernetes.api import Timeouts  # noqa: PLC0415 - see the module
        from penstock.kubernetes.connect import connect as open_api  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MisuseError(
            f"this needs the Kubernetes client, but the module {error.name!r} is not installed; "
            "install it with: pip install 'penstock[cli]'"
        ) from error
    return open_api(
        "penstock-cli",
        Timeouts(connect_s=CONNECT_S, total_s=TOTAL_S),
        kubeconfig=choice.kubeconfig,
        context=choice.context,
        namespace=choice.namespace,
        advice="check --kubeconfig and --context",
    )
