"""What a new Cluster gets that its author left open: written into its spec, for everybody to see.

    spec.security absent ── brokers were there before ─▶ as it is: plaintext, as before
                         ├─ an orphaned StatefulSet is there ─▶ its mode, as it is
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
    wanted = SecurityMode.STRICT
    try:
        if "security" in (body.get("spec") or {}):
            return body, None
        wanted = await _mode(kube, body)
        if wanted is SecurityMode.DISABLED:
            return body, None
        mode = {"mode": wanted.value}
        # Refused if somebody has changed the Cluster meanwhile: the mode may be what they set.
        version = {"resourceVersion": metadata["resourceVersion"]}
        change: Object = {"metadata": version, "spec": {"security": mode}}
        found = await kube.merge("Cluster", metadata["namespace"], metadata["name"], change)
    except KubernetesError as error:
        if error.status != _INVALID:
            text = f"{subject}: it is not known whether it is new, and so Strict: {error}"
            return body, Wait("NotRead", text)
        text = f"{subject}: {_why(wanted)}: {error}; or set spec.security.mode to Disabled"
        return body, Wait("InvalidSpec", text, Severity.BLOCKED)
    if (found["spec"].get("security") or {}).get("mode") == mode["mode"]:
        return found, None
    # The API server has left out what it does not know: without this, it would be plaintext.
    text = (
        f"{subject}: {_why(wanted)}, and the CRD that is installed has no spec.security: "
        "apply the CRDs of this release (kubectl apply --server-side -f crds)"
    )
    return body, Wait("InvalidSpec", text, Severity.BLOCKED)


async def _mode(kube: Kube, body: Object) -> SecurityMode:
    """What the Cluster has without a word. Its StatefulSet is there before it has a status if
    another Cluster of its name was deleted with `--cascade=orphan`. Raises KubernetesError."""
    metadata = body["metadata"]
    if (metadata.get("annotations") or {}).get(PAUSED) == "true":
        return SecurityMode.DISABLED
    if (body.get("status") or {}).get("clusterId"):
        return SecurityMode.DISABLED
    names = Names(metadata["name"], metadata["namespace"])
    live = await kube.get("StatefulSet", names.namespace, names.broker)
    mode = None if live is None else SecurityMode.of_pod(live["spec"]["template"])
    return mode or SecurityMode.STRICT


def _why(mode: SecurityMode) -> str:
    if mode is SecurityMode.STRICT:
        return "a new Cluster is Strict"
    return f"its StatefulSet has mode {mode.value}"
