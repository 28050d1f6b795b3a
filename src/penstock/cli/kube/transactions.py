"""Transactions that block readers, for `kubectl penstock why`: from the brokers themselves.

    broker pods ──port-forward──▶ Admin.blocking_transactions ──▶ Snapshot.blocking

Kubernetes knows nothing of transactions. Brokers that cannot be asked are a gap, like anything else
that could not be read. `penstock.views.blocking` makes findings of what they say.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.cli.kube.snapshot import Snapshot
from penstock.cli.kube.status import is_pod_ready
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.kubernetes.api import Api

BLOCKING_MS: Final = 30_000
"""Longer than a default transaction takes, shorter than users wait before they ask."""
TIMEOUT_MS: Final = 5_000


def look(api: "Api", snapshot: Snapshot) -> Snapshot:
    """The snapshot with its brokers' answers about transactions; unchanged if none is ready."""
    from penstock.cli.kube.reach import open_admin  # noqa: PLC0415 - grpc only when it is needed

    if not any(is_pod_ready(pod) for pod in snapshot.pods_of("broker")):
        return snapshot
    told: list[str] = []
    try:
        with open_admin(
            api, snapshot.cluster, told.append, only_look=True, timeout_ms=TIMEOUT_MS
        ) as admin:
            found = admin.blocking_transactions(older_than_ms=BLOCKING_MS)
    except PenstockError as error:
        gap = f"transactions, which only brokers know: {(*told, error.message)[0]}"
        return replace(snapshot, gaps=(*snapshot.gaps, gap))
    return replace(snapshot, blocking=tuple(found))
