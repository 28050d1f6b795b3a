"""How fast partitions move, for the whole cluster and at run time.

It is in the cluster's document and in every image. Without it each broker's own
`replica.copy.bytes.per.second` counts. A rate may name what manages it, a field of a spec: then
only that changes it, because whatever a person sets would be undone within a minute.
"""

from dataclasses import replace
from typing import Final

from penstock.core.control.contract import Severity
from penstock.core.control.draft import Draft
from penstock.core.control.formats import check_moves
from penstock.core.control.move_contract import AlterThrottle
from penstock.core.control.requests import check_cluster_id
from penstock.core.limits import COPY_RATE_MAX
from penstock.errors import ClusterError, ErrorCode

_BY_MAX: Final = 512
"""Characters."""


def decide_alter_throttle(draft: Draft, request: AlterThrottle) -> None:
    """Raises ClusterError FORMAT_TOO_OLD or INVALID_REQUEST; then nothing has changed."""
    check_cluster_id(draft, request.cluster_id)
    check_moves(draft)
    _check_by(draft.cluster.copy_rate_by, request.by)
    rate, before = request.copy_rate, draft.cluster.copy_rate
    by = "" if rate is None else request.by
    if rate is not None and not 0 <= rate <= COPY_RATE_MAX:
        raise ClusterError(
            f"a copy rate of {rate} bytes per second is impossible; give 0 (no limit) to "
            f"{COPY_RATE_MAX}",
            ErrorCode.INVALID_REQUEST,
        )
    if request.validate_only or (rate, by) == (before, draft.cluster.copy_rate_by):
        return
    draft.put_cluster(replace(draft.cluster, copy_rate=rate, copy_rate_by=by))
    draft.decide(Severity.INFO, "copy rate altered", before=before, after=rate, by=by)


def _check_by(managed_by: str, by: str) -> None:
    if len(by) > _BY_MAX or not by.isprintable():
        raise ClusterError(
            f"the copy rate is set by {by[:40]!r} of {len(by)} characters; it must be at most "
            f"{_BY_MAX}, all printable",
            ErrorCode.INVALID_REQUEST,
        )
    if managed_by and not by:
        raise ClusterError(
            f"the copy rate is set by {managed_by}: change it there, or remove it there first",
            ErrorCode.INVALID_REQUEST,
        )
