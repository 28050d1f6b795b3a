"""Whether to use a kubeconfig, by kubectl's rule. Importable without the `kubernetes` package."""

import os
from pathlib import Path


def kubeconfig_is_there(kubeconfig: str | None, context: str | None) -> bool:
    """A kubeconfig is named, or is in its default place. Otherwise only a pod has an API server."""
    if kubeconfig or context or os.environ.get("KUBECONFIG"):
        return True
    try:
        return (Path.home() / ".kube" / "config").exists()
    except RuntimeError:
        return False  # a user id without a home, as pods may have
