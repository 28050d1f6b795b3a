"""ConsumerGroup resources, before there are consumer groups: they say so, and nothing is done.

Their schema is fixed already, so that manifests written now stay good. A resource that waited
without a word would look as if it worked.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock_operator.clock import now_text
from penstock_operator.kube import Kube
from penstock_operator.model import Object, Severity, Wait
from penstock_operator.status import conditions

_NOT_YET: Final = Wait(
    "NotSupportedYet",
    "this version of Penstock has no consumer groups; the resource is kept and does nothing",
    Severity.BLOCKED,
)


async def reconcile_groups(kube: Kube, namespace: str, bodies: Sequence[Object]) -> None:
    """Writes the status where it is not there. Raises KubeError."""
    for body in bodies:
        metadata = body["metadata"]
        before: Mapping[str, Any] = body.get("status") or {}
        generation = metadata.get("generation", 1)
        known = before.get("conditions") or ()
        status: Object = {
            "observedGeneration": generation,
            "conditions": conditions(_NOT_YET, [_NOT_YET], generation, known, now_text()),
        }
        if status != {key: before.get(key) for key in status}:
            await kube.merge(
                "ConsumerGroup", namespace, metadata["name"], {"status": status}, status=True
            )
