"""How fast partitions move, for the whole cluster and at run time.

It is in the cluster's document and in every image. Without it each broker's own
`replica.copy.bytes.per.second` counts.
"""

from dataclasses import replace

from penstock.core.control.contract import Severity
from penstock.core.control.draft import Draft
from penstock.core.control.formats import check_moves
from penstock.core.control.move_contract import AlterThrottle
from penstock.core.control.requests import check_cluster_id
from penstock.core.limits import COPY_RATE_MAX
from penstock.errors import ClusterError, ErrorCode


def decide_alter_throttle(draft: Draft, request: AlterThrottle) -> None:
    """Raises ClusterError FORMAT_TOO_OLD or INVALID_REQUEST; then nothing has changed."""
    check_cluster_id(draft, request.cluster_id)
    check_moves(draft)
    rate, before = request.copy_rate, draft.cluster.copy_rate
    if rate is not None and not 0 <= rate <= COPY_RATE_MAX:
        raise ClusterError(
            f"a copy rate of {rate} bytes per second is impossible; give 0 (no limit) to "
            f"{COPY_RATE_MAX}",
            ErrorCode.INVALID_REQUEST,
        )
    if request.validate_only or rate == before:
        return
    draft.put_cluster(replace(draft.cluster, copy_rate=rate))
    draft.decide(Severity.INFO, "copy rate altered", before=before, after=rate)
