"""What a new Cluster gets that its author left open: written into its spec, for everybody to see.

    spec.security absent ── brokers are there, or were ─▶ as it is: plaintext, as before
                         └─ new ─▶ mode: Strict

A default in the CRD would apply to old objects, too, as they are read: their brokers would get TLS,
and their clients would not.
"""

from typing import Final

from penstock.core.manifest.objects import SecurityMode
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import PAUSED
from penstock_operator.kube import Kube
from penstock_operator.model import Object, Severity, Wait
from penstock_operator.names import Names

_INVALID: Final = 422


async def with_defaults(kube: Kube, body: Object) -> tuple[Object, Wait | None]:
    """The Cluster, with what it leaves open; and why that is not decided yet, or None if it is."""
    metadata = body["metadata"]
    subject = f"Cluster/{metadata['name']}"
    mode = {"mode": SecurityMode.STRICT.value}
    try:
        if "security" in (body.get("spec") or {}) or not await _is_new(kube, body):
            return body, None
        found = await kube.merge(
            "Cluster", metadata["namespace"], metadata["name"], {"spec": {"security": mode}}
        )
    except KubernetesError as error:
        if error.status != _INVALID:
            text = f"{subject}: it is not known whether it is new, and so Strict: {error}"
            return body, Wait("NotRead", text)
        text = f"{subject}: a new Cluster is Strict: {error}; or set spec.security.mode to Disabled"
        return body, Wait("InvalidSpec", text, Severity.BLOCKED)
    if (found["spec"].get("security") or {}).get("mode") == mode["mode"]:
        return found, None
    # The API server has left out what it does not know: without this, it would be plaintext.
    text = (
        f"{subject}: a new Cluster is Strict, and the CRD that is installed has no spec.security: "
        "apply the CRDs of this release (kubectl apply --server-side -f crds)"
    )
    return body, Wait("InvalidSpec", text, Severity.BLOCKED)


async def _is_new(kube: Kube, body: Object) -> bool:
    metadata = body["metadata"]
    if (metadata.get("annotations") or {}).get(PAUSED) == "true":
        return False
    if (body.get("status") or {}).get("clusterId"):
        return False
    names = Names(metadata["name"], metadata["namespace"])
    return await kube.get("StatefulSet", names.namespace, names.broker) is None
