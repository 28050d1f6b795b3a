"""The racks of nodes that have brokers' pods, by a label of theirs.

Nodes are read for pods that have no rack yet, because a broker keeps the rack that it began with,
and the name may be another node's by now. For other pods what was read is remembered. A node
without the label is read again soon: a cloud's controller labels it a while after it came.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from penstock.kubernetes.errors import KubernetesError
from penstock_operator.kube import Kube
from penstock_operator.model import PodState

KNOWN_S: Final = 300.0
UNKNOWN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Read:
    rack: str
    until_s: float


class Racks:
    """Of one Cluster. `now_s`: a clock that never goes back."""

    def __init__(self, kube: Kube, now_s: Callable[[], float] = monotonic) -> None:
        self._kube, self._now_s = kube, now_s
        self._read: dict[tuple[str, str], _Read] = {}

    async def read(self, key: str, pods: Iterable[PodState]) -> dict[str, str]:
        """By node, of those that have the label `key`, as far as nodes can be read."""
        before, self._read = self._read, {}
        placed = [pod for pod in pods if pod.node]
        unmarked = {pod.node for pod in placed if not pod.rack}
        for node in sorted({pod.node for pod in placed}):
            found = before.get((key, node))
            doubted = found is not None and found.rack and node in unmarked
            if found is None or doubted or found.until_s <= self._now_s():
                found = await self._look(key, node)
            self._read[key, node] = found
        return {node: found.rack for (_, node), found in self._read.items() if found.rack}

    async def _look(self, key: str, node: str) -> _Read:
        """What cannot be read is not known: its pods are marked in a later pass."""
        try:
            found = await self._kube.get("Node", None, node)
        except KubernetesError:
            found = None
        labels = (found or {}).get("metadata", {}).get("labels") or {}
        rack = str(labels.get(key) or "")
        return _Read(rack, self._now_s() + (KNOWN_S if rack else UNKNOWN_S))
