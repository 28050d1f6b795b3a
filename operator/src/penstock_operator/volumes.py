"""Whether brokers' volumes went with their nodes. Asked only while a pod cannot be scheduled.

    claim ─▶ PersistentVolume ─▶ usable on one hostname ──┐
    claim without a volume ─▶ the node that was selected ─┴▶ is that Node there?

A volume of a zone, or of a disk that can be attached elsewhere, is not lost with a node, and is not
looked for. What cannot be read is unknown, which is not absent. What is remembered is only since
when a node is gone: another operator sees it for itself, and is five minutes later.
"""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.quantity import quantity
from penstock_operator.kube import Kube
from penstock_operator.model import Object, PodState
from penstock_operator.names import EMPTIED
from penstock_operator.volume_model import BoundNode, ClaimState, NodeState

GONE_S: Final = 300.0
"""Without its Node object, a node is lost: longer than a cloud takes to register a machine again
that it has restarted."""
LOOK_S: Final = 10.0
"""Between two looks. A pod may wait for days, and a pass comes every second then."""
HOSTNAME: Final = "kubernetes.io/hostname"
_SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"


class Volumes:
    """Since when each node is gone. `now_s`: a clock that never goes back."""

    def __init__(self, kube: Kube, now_s: Callable[[], float] = monotonic) -> None:
        self._kube, self._now_s = kube, now_s
        self._since: dict[tuple[str, str], float] = {}
        self._looked_s = 0.0
        self._looked_for: frozenset[str] = frozenset()
        self._found: dict[int, BoundNode] = {}

    async def read(
        self, pods: Mapping[int, PodState], claims: Mapping[int, ClaimState]
    ) -> Mapping[int, BoundNode]:
        """By broker: those whose pod cannot be scheduled, and whose volume is bound to one node.

        Does not raise KubernetesError: see `NodeState.UNKNOWN`.
        """
        stranded = {
            broker_id: claims[broker_id]
            for broker_id, pod in pods.items()
            if pod.unschedulable and broker_id in claims
        }
        wanted = frozenset(claim.uid for claim in stranded.values())
        now_s = self._now_s()
        if wanted != self._looked_for or now_s - self._looked_s >= LOOK_S:
            seen = {at: await look(self._kube, claim) for at, claim in stranded.items()}
            self._found = self._judged({at: one for at, one in seen.items() if one}, now_s)
            self._looked_s, self._looked_for = now_s, wanted
        return self._found

    def _judged(self, seen: Mapping[int, BoundNode], now_s: float) -> dict[int, BoundNode]:
        """Those that were gone all the time are lost."""
        gone = [(one.claim_uid, one.node) for one in seen.values() if one.state is NodeState.GONE]
        self._since = {key: self._since.get(key, now_s) for key in gone}
        lost = {key for key, since_s in self._since.items() if now_s - since_s >= GONE_S}
        return {
            broker_id: BoundNode(one.claim_uid, one.node, NodeState.LOST)
            if (one.claim_uid, one.node) in lost
            else one
            for broker_id, one in seen.items()
        }


async def look(kube: Kube, claim: ClaimState) -> BoundNode | None:
    """The one node that its volume is bound to, as it is now: LOST is for others to say. None: it
    is not bound to one. Does not raise KubernetesError: see `NodeState.UNKNOWN`."""
    node = ""
    try:
        if claim.volume:
            found = await kube.get("PersistentVolume", None, claim.volume)
            node = "" if found is None else only_hostname(found)
        else:
            node = claim.selected_node
        if not node:
            return None
        is_there = await _is_there(kube, node)
    except KubernetesError as error:
        return BoundNode(claim.uid, node, NodeState.UNKNOWN, error.message)
    return BoundNode(claim.uid, node, NodeState.THERE if is_there else NodeState.GONE)


async def _is_there(kube: Kube, node: str) -> bool:
    """By its name or its hostname: on some clouds they differ."""
    if await kube.get("Node", None, node) is not None:
        return True
    return bool(await kube.list("Node", None, f"{HOSTNAME}={node}"))


def only_hostname(volume: Object) -> str:
    """The one host where a PersistentVolume can be used; empty: it is not bound to one.

    Its terms are alternatives: each has to name this host, and no other.
    """
    affinity = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
    hosts = [_host(term) for term in affinity.get("nodeSelectorTerms") or ()]
    return hosts[0] if hosts and len(set(hosts)) == 1 else ""


def _host(term: Mapping[str, Any]) -> str:
    for each in term.get("matchExpressions") or ():
        values: Sequence[str] = each.get("values") or ()
        if each["key"] == HOSTNAME and each["operator"] == "In" and len(values) == 1:
            return values[0]
    return ""


def claim_state(broker_id: int, claim: Object, *, expandable: bool) -> ClaimState:
    """A broker's claim as the plan sees it."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    capacity = (status.get("capacity") or {}).get("storage")
    resizing = [
        str(each.get("message") or each["type"])
        for each in status.get("conditions") or ()
        if each["status"] == "True"
    ]
    return ClaimState(
        broker_id=broker_id,
        name=metadata["name"],
        uid=metadata["uid"],
        requested=int(quantity(claim["spec"]["resources"]["requests"]["storage"]) or 0),
        capacity=int(quantity(capacity) or 0) if capacity else 0,
        expandable=expandable,
        resizing="; ".join(resizing),
        volume=claim["spec"].get("volumeName") or "",
        selected_node=annotations.get(_SELECTED_NODE, ""),
        deleting="deletionTimestamp" in metadata,
        emptied=annotations.get(EMPTIED) == metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        owners=tuple(metadata.get("ownerReferences") or ()),
    )
