"""Finds the API server and the credentials: from a kubeconfig, or from the pod this runs in.

--kubeconfig, --context, $KUBECONFIG, ~/.kube/config ─┐
else the service account of this pod ─────────────────┴─▶ connect ─▶ Api
"""

import os
from pathlib import Path
from typing import Any, Final

from kubernetes.client import Configuration
from kubernetes.config import (
    ConfigException,
    incluster_config,
    list_kube_config_contexts,
    load_incluster_config,
    load_kube_config,
)
from yaml import YAMLError

from penstock.errors import ErrorCode, MisuseError
from penstock.kubernetes.api import Api, Timeouts
from penstock.kubernetes.kubeconfig import kubeconfig_is_there

ADVICE: Final = "run in a pod whose service account's token is mounted, or set KUBECONFIG"


def connect(
    agent: str,
    timeouts: Timeouts,
    *,
    kubeconfig: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
    advice: str = ADVICE,
) -> Api:
    """Sends no request. Raises MisuseError, ending with `advice`, if nothing usable is found."""
    configuration = Configuration()
    in_pod = not kubeconfig_is_there(kubeconfig, context) and bool(
        os.environ.get(incluster_config.SERVICE_HOST_ENV_NAME)
    )
    # The package reads the variable only once, when it is imported.
    file = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        if in_pod:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            found = _namespace_of_pod()
        else:
            load_kube_config(file, context, configuration)  # type: ignore[no-untyped-call]
            found = _namespace_of_context(file, context)
    except (ConfigException, OSError, ValueError, KeyError, TypeError, YAMLError) as error:
        what = "this pod's account" if in_pod else f"kubeconfig {file}"
        reason = " ".join(str(error).split())
        if not in_pod and not any(
            Path(one).expanduser().exists() for one in file.split(os.pathsep)
        ):
            reason = "no such file"
        raise MisuseError(
            f"{what} cannot be used ({reason}); {advice}", ErrorCode.INVALID_CONFIG
        ) from None
    return Api(configuration, timeouts, agent=agent, namespace=namespace or found or "default")


def _namespace_of_pod() -> str | None:
    try:
        token = Path(incluster_config.SERVICE_TOKEN_FILENAME)
        return token.with_name("namespace").read_text().strip() or None
    except OSError:
        return None


def _namespace_of_context(file: str, context: str | None) -> str | None:
    found: Any = list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
    contexts, chosen = found
    if context is not None:
        chosen = next(one for one in contexts if one["name"] == context)
    namespace = chosen["context"].get("namespace")
    return None if namespace is None else str(namespace)
