"""What a new Cluster gets that its author left open: written into its spec, for everybody to see.

    spec.security absent ── brokers are there, or were ─▶ as it is: plaintext, as before
                         └─ new ─▶ mode: Strict

A default in the CRD would apply to old objects, too, as they are read: their brokers would get TLS,
and their clients would not.
"""

from collections.abc import Mapping
from typing import Any

from penstock.core.manifest.objects import SecurityMode
from penstock.core.manifest.problems import Problem
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import PAUSED
from penstock_operator.kube import Kube
from penstock_operator.model import Object
from penstock_operator.names import Names
from penstock_operator.objects.desired import DesiredProblem

_INVALID = 422


async def with_defaults(kube: Kube, body: Object) -> Object:
    """The Cluster, once what it leaves open is decided.

    Raises DesiredProblem if what it says does not fit what it would get; KubernetesError.
    """
    if "security" in (body.get("spec") or {}) or not await _is_new(kube, body):
        return body
    metadata = body["metadata"]
    mode = {"mode": SecurityMode.STRICT.value}
    try:
        found = await kube.merge(
            "Cluster", metadata["namespace"], metadata["name"], {"spec": {"security": mode}}
        )
    except KubernetesError as error:
        if error.status != _INVALID:
            raise
        text = f"a new Cluster is Strict: {error}; or set spec.security.mode to Disabled"
        raise _problem(metadata, text) from None
    if (found["spec"].get("security") or {}).get("mode") != mode["mode"]:
        # The API server has left out what it does not know: without this, it would be plaintext.
        raise _problem(
            metadata,
            "a new Cluster is Strict, and the CRD that is installed has no spec.security: apply "
            "the CRDs of this release (kubectl apply --server-side -f crds)",
        )
    return found


def _problem(metadata: Mapping[str, Any], text: str) -> DesiredProblem:
    return DesiredProblem([Problem(f"Cluster/{metadata['name']}", "", text)])


async def _is_new(kube: Kube, body: Object) -> bool:
    metadata: dict[str, Any] = body["metadata"]
    if (metadata.get("annotations") or {}).get(PAUSED) == "true":
        return False
    if (body.get("status") or {}).get("clusterId"):
        return False
    names = Names(metadata["name"], metadata["namespace"])
    return await kube.get("StatefulSet", names.namespace, names.broker) is None
