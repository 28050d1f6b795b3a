"""`kubectl penstock upgrade`: shows what the operator would give a Cluster's pods, and approves it.

The operator computes the plan and puts it into the Cluster's status; approving is an annotation
with the plan's id, so what is carried out is what was shown.
"""

from penstock.cli.kube.snapshot import full_name, is_paused
from penstock.errors import MisuseError
from penstock.kubernetes.api import Api
from penstock.kubernetes.names import APPROVE
from penstock.kubernetes.resources import Json, path_of


def plan_of(cluster: Json) -> Json:
    """What would be done. `plan` empty: nothing."""
    shown: Json = (cluster.get("status") or {}).get("upgrade") or {}
    return {
        "cluster": full_name(cluster),
        "plan": shown.get("plan", ""),
        "from": shown.get("from", ""),
        "to": shown.get("to", ""),
        "changes": list(shown.get("changes") or ()),
        "steps": list(shown.get("steps") or ()),
        "minutes": shown.get("minutes"),
        "order": _order(shown),
        "format": shown.get("format"),
        "newest_format": shown.get("newestFormat"),
        "way_back": _way_back(shown),
    }


def approve(api: Api, cluster: Json, plan: str) -> None:
    """Raises MisuseError if it cannot be carried out now, KubernetesError."""
    if is_paused(cluster):
        raise MisuseError(
            f"{full_name(cluster)} is paused; resume it first: `kubectl penstock resume`"
        )
    metadata = cluster["metadata"]
    path = path_of("Cluster", metadata["namespace"], metadata["name"])
    api.merge(path, {"metadata": {"annotations": {APPROVE: plan}}})


def _way_back(shown: Json) -> str:
    """Until when one can return to what the pods have now; empty if nobody says what is stored."""
    stored, newest = shown.get("format"), shown.get("newestFormat")
    if stored is None or newest is None:
        return ""
    if stored < newest:
        return f"until `kubectl penstock cluster finalize` stores format {newest}"
    return f"at any time: this release stores format {stored}, too"


def _order(shown: Json) -> str:
    """`steps` are brokers that restart together."""
    steps, minutes = shown.get("steps") or (), shown.get("minutes")
    brokers = "one broker or one group after the other"
    if steps:
        brokers = f"brokers {'; '.join(steps)}"
    text = f"controllers first, then {brokers}, each once all replicas are in sync"
    return text if minutes is None else f"{text}; about {minutes} min"
