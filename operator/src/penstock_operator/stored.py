"""Which brokers have replicas by the stored metadata, while the brokers themselves cannot say it.

    ConfigMaps of topics ─▶ replicas of each partition ─▶ brokers that must be started

Without a majority of the registered brokers no controller takes over, so how many there are has to
be known before any of them answers: a Cluster that was deleted and kept its data may be made again
with fewer brokers than it had. Only read: the controllers write these documents.
"""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

from penstock.core.control.documents import decode_topic
from penstock.errors import PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import CLUSTER_LABEL, METADATA_LABEL
from penstock.logs import EventLog
from penstock_operator.kube import Kube
from penstock_operator.model import Object
from penstock_operator.names import Names

LOOK_S: Final = 10.0
"""Between two looks. Brokers may be down for days, and a pass comes every second then."""
_log = EventLog("penstock_operator.stored")


class Stored:
    """What was read last. `now_s`: a clock that never goes back."""

    def __init__(self, kube: Kube, now_s: Callable[[], float] = monotonic) -> None:
        self._kube, self._now_s = kube, now_s
        self._looked_s: float | None = None
        self._found: frozenset[int] = frozenset()

    async def read(self, names: Names) -> frozenset[int]:
        """The brokers that stored partitions have as replicas, as far as documents can be read.

        Does not raise KubernetesError: what cannot be read now is as it was read before.
        """
        now_s = self._now_s()
        if self._looked_s is not None and now_s - self._looked_s < LOOK_S:
            return self._found
        selector = f"{CLUSTER_LABEL}={names.cluster},{METADATA_LABEL}=topic"
        try:
            objects = await self._kube.list("ConfigMap", names.namespace, selector)
        except KubernetesError as error:
            _log.warning("metadata not read", cluster=names.cluster, error=error.message)
        else:
            self._found = frozenset(one for each in objects for one in _replicas(each))
        self._looked_s = now_s
        return self._found


def _replicas(config_map: Object) -> Iterator[int]:
    """Of the partitions of one topic; of a document that cannot be read, none."""
    name = config_map["metadata"]["name"]
    try:
        document = decode_topic((config_map.get("data") or {}).get("document", ""), name)
    except PenstockError as error:
        _log.warning("metadata not understood", error=error.message)
        return
    for partition in document.partitions:
        yield from partition.state.replicas
