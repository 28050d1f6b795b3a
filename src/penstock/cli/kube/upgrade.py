"""Plans that wait for a person.

    kubectl penstock upgrade ── what the operator would give a Cluster's pods
    kubectl penstock approve ── how replicas would spread onto new brokers

The operator computes a plan and puts it into the Cluster's status; approving is an annotation with
the plan's id, so what is carried out is what was shown.
"""

from penstock.cli.kube.snapshot import full_name, is_paused
from penstock.core.manifest.upkeep import BalanceMode
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
        "order": _order(shown, _soak(cluster, shown)),
        "format": shown.get("format"),
        "newest_format": shown.get("newestFormat"),
        "way_back": _way_back(shown),
    }


def spread_of(cluster: Json, wanted: str | None) -> Json:
    """The spread that could begin. `plan` empty: there is none.

    `automatic`: it begins without anybody's word. Raises MisuseError if it is not `wanted`.
    """
    shown: Json = (cluster.get("status") or {}).get("plan") or {}
    plan = shown.get("id", "")
    if wanted is not None and wanted != plan:
        there = f"the one that waits is {plan!r}: {shown.get('text', '')}" if plan else "none waits"
        raise MisuseError(f"{full_name(cluster)} has no plan {wanted!r}; {there}")
    mode = ((cluster.get("spec") or {}).get("balance") or {}).get("mode")
    return {
        "cluster": full_name(cluster),
        "plan": plan,
        "text": shown.get("text", ""),
        "moves": shown.get("moves"),
        "bytes": shown.get("bytes"),
        "minutes": shown.get("minutes"),
        "automatic": mode != BalanceMode.MANUAL.value,
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


def upgrade_text(plan: Json) -> str:
    """What `plan_of` has found, for people."""
    if not plan["plan"]:
        return f"Cluster {plan['cluster']} has all that its operator would give it"
    image = f"image: {plan['from']} becomes {plan['to']}"
    way_back = plan["way_back"] or "not known, as the brokers have not said what is stored"
    stored = [] if plan["format"] is None else [f"metadata: format {plan['format']}, as it is"]
    return "\n".join(
        (
            f"Cluster {plan['cluster']}, plan {plan['plan']}",
            image if plan["from"] != plan["to"] else f"image: {plan['to']}, as it is",
            *plan["changes"],
            f"order: {plan['order']}",
            *stored,
            f"way back: {way_back}",
        )
    )


def spread_text(plan: Json) -> str:
    """What `spread_of` has found, for people."""
    if not plan["plan"]:
        return f"Cluster {plan['cluster']} has no plan that waits: no broker is without its share"
    begins = "; it begins by itself, as spec.balance.mode is not Manual"
    text = f"Cluster {plan['cluster']}, plan {plan['plan']}\n{plan['text']}"
    return text + begins if plan["automatic"] else text


def _way_back(shown: Json) -> str:
    """Until when one can return to what the pods have now; empty if nobody says what is stored."""
    stored, newest = shown.get("format"), shown.get("newestFormat")
    if stored is None or newest is None:
        return ""
    if stored < newest:
        return f"until `kubectl penstock cluster finalize` stores format {newest}"
    return f"at any time: this release stores format {stored}, too"


def _soak(cluster: Json, shown: Json) -> str:
    """How long the first broker shows another image; empty: it does not."""
    upgrade = (cluster.get("spec") or {}).get("upgrade") or {}
    return str(upgrade.get("soak") or "") if shown.get("from") != shown.get("to") else ""


def _order(shown: Json, soak: str) -> str:
    """`steps` are brokers that restart together."""
    steps, minutes = shown.get("steps") or (), shown.get("minutes")
    brokers = "one broker or one group after the other"
    if steps:
        brokers = f"brokers {'; '.join(steps)}"
    text = f"controllers first, then {brokers}, each once all replicas are in sync"
    if soak:
        text = f"{text}, and all but the first once that one was ready for {soak}"
    return text if minutes is None else f"{text}; about {minutes} min"
