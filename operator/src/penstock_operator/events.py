"""Events: what was done and why, in plain words, beside the object it concerns.

Best effort: an Event that cannot be written is logged and dropped. The same message about the same
object is written once in ten minutes.
"""

import uuid
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.names import API_VERSION
from penstock.logs import EventLog
from penstock_operator.clock import now_micros
from penstock_operator.kube import Kube
from penstock_operator.names import FIELD_MANAGER

_QUIET_S: Final = 600.0
_NOTE_MAX: Final = 1_000
_REMEMBERED: Final = 20_000
"""More than one pass tells of: a Cluster may have thousands of Topics, all with the same fault."""
_log = EventLog("penstock_operator.events")


class Events:
    """Writes Events of one operator process. `reporter` is its pod's name."""

    def __init__(self, kube: Kube, reporter: str) -> None:
        self._kube, self._reporter = kube, reporter
        self._told: dict[tuple[str, str, str], float] = {}

    async def tell(
        self, body: Mapping[str, Any], kind: str, reason: str, note: str, *, warning: bool = False
    ) -> None:
        """`reason`: one CamelCase word. `body`: the object, with uid and namespace."""
        metadata = body["metadata"]
        key = (metadata["uid"], reason, note)
        now_s = monotonic()
        if now_s - self._told.get(key, -_QUIET_S) < _QUIET_S:
            return
        self._told.pop(key, None)  # so that the oldest is the first
        self._told[key] = now_s
        if len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]
        _log.info(reason, kind=kind, name=metadata["name"], note=note)
        namespace: str = metadata["namespace"]
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}"},
            "eventTime": now_micros(),
            "reportingController": FIELD_MANAGER,
            "reportingInstance": self._reporter[:128],
            "action": reason,
            "reason": reason,
            "type": "Warning" if warning else "Normal",
            "note": note[:_NOTE_MAX],
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": kind,
                "name": metadata["name"],
                "namespace": namespace,
                "uid": metadata["uid"],
            },
        }
        try:
            await self._kube.create("Event", namespace, event)
        except KubernetesError as error:
            _log.warning("event not written", reason=reason, error=str(error))
