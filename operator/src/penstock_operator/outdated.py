"""Says that the installed CRD is older than this operator: fields of a status that it drops."""

from collections.abc import Mapping
from typing import Any, Final

from penstock_operator.compare import contains
from penstock_operator.events import Events
from penstock_operator.model import Object

CRD_OUTDATED: Final = "CrdOutdated"
"""Reason of an Event: the installed CRD does not know all that the status says."""


def dropped(status: Mapping[str, Any], stored: Mapping[str, Any]) -> frozenset[str]:
    """The keys of a status that were not stored as they were written."""
    return frozenset(key for key, value in status.items() if not contains(stored.get(key), value))


async def tell_dropped(
    events: Events, body: Object, kind: str, status: Mapping[str, Any], answer: Object
) -> None:
    """`answer`: of the API server, to a status of `body` that was written."""
    if lost := dropped(status, answer.get("status") or {}):
        text = (
            f"the CRD that is installed is older than this operator and drops "
            f"{', '.join(sorted(lost))} of the status: apply the CRDs of this release "
            "(kubectl apply --server-side -f crds)"
        )
        await events.tell(body, kind, CRD_OUTDATED, text, warning=True)
