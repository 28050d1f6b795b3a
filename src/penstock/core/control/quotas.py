"""Quotas, decided on a draft: they are replaced as a whole, and kept in the cluster's document."""

from penstock.core.control.contract import AlterQuotas, Done, Severity
from penstock.core.control.draft import Draft
from penstock.core.control.requests import check_cluster_id
from penstock.core.quotas import check_quotas
from penstock.errors import ClusterError, ErrorCode


def decide_alter_quotas(draft: Draft, request: AlterQuotas) -> Done:
    """Replaces the quotas. Raises PenstockError; then nothing has changed.

    To replace them by the same ones changes nothing, whatever the request expects.
    """
    check_cluster_id(draft, request.cluster_id)
    check_quotas(request.rules)
    known = draft.cluster.quotas.rules
    if request.expected is not None and known not in (request.expected, request.rules):
        raise ClusterError(
            "the quotas are not those that the request expects: somebody has changed them; read "
            "them again",
            ErrorCode.STALE_RULES,
        )
    if not request.validate_only and known != request.rules:
        draft.put_quotas(request.rules)
        draft.decide(Severity.INFO, "quotas altered", rules=len(request.rules))
    return Done()
