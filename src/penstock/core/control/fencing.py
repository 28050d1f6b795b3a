"""Operator epochs: a former operator, which may have been frozen for minutes, changes nothing.

    operator ── the Lease it holds ─▶ AcquireOperatorEpoch ─▶ stored + 1
    every change that it asks for names that epoch ─▶ another one is stored by now: refused (I35)

Operators are elected by a Lease, and a Lease is no fence: a former holder may still ask for what it
decided before it froze. So the fence is where changes are decided: a request that has waited for a
write, while a successor got its epoch, is refused.

An epoch is given for a Lease: whoever froze between renewing it and asking must not come back above
its successor. Every new holder counts the transitions of a Lease up; one that was deleted and made
again has another uid and was created later. Epoch 0 is a person's, and never fenced.
"""

from dataclasses import replace
from typing import Final

from penstock.core.control.contract import Severity
from penstock.core.control.documents import FORMAT_MOVES, OperatorEpoch, OperatorLease
from penstock.core.control.draft import Draft
from penstock.core.control.operator_contract import AcquireOperatorEpoch, OperatorEpochGiven
from penstock.core.control.requests import check_cluster_id
from penstock.errors import ClusterError, ErrorCode

_TEXT_MAX: Final = 512
"""Characters of a Lease's uid, and of its holder."""


def decide_acquire(draft: Draft, request: AcquireOperatorEpoch) -> OperatorEpochGiven:
    """Raises ClusterError STALE_OPERATOR_EPOCH or INVALID_REQUEST.

    A retry after an unknown write gets a different one; the caller only learns of the last.
    """
    check_cluster_id(draft, request.cluster_id)
    _check_lease(request.lease)
    if draft.format < FORMAT_MOVES:
        return OperatorEpochGiven(0)
    stored = draft.cluster.operator_epoch
    if stored is not None:
        _check_newer(request.lease, stored.lease)
    epoch = 1 if stored is None else stored.epoch + 1
    draft.put_cluster(
        replace(draft.cluster, operator_epoch=OperatorEpoch(epoch=epoch, lease=request.lease))
    )
    draft.decide(
        Severity.INFO,
        "operator epoch given",
        operator_epoch=epoch,
        holder=request.lease.holder,
        transitions=request.lease.transitions,
    )
    return OperatorEpochGiven(epoch)


def check_operator_epoch(draft: Draft, epoch: int) -> None:
    """Raises ClusterError(STALE_OPERATOR_EPOCH) for any but the stored one.

    Also for a higher one: then the store was restored from a backup, and the operator asks again.
    """
    if epoch == 0 or draft.format < FORMAT_MOVES:
        return
    stored = draft.cluster.operator_epoch
    current = 0 if stored is None else stored.epoch
    if epoch != current:
        holder = "no operator" if stored is None else f"operator {stored.lease.holder!r}"
        raise ClusterError(
            f"the request names operator epoch {epoch}, but {current} of {holder} counts: another "
            "operator has taken over; nothing was changed",
            ErrorCode.STALE_OPERATOR_EPOCH,
        )


def _check_lease(lease: OperatorLease) -> None:
    for name, text in (("uid", lease.uid), ("holder", lease.holder)):
        if not 0 < len(text) <= _TEXT_MAX or not text.isprintable():
            raise ClusterError(
                f"the operator's Lease has {name} {text[:40]!r} of {len(text)} characters; it must "
                f"have 1 to {_TEXT_MAX}, all printable",
                ErrorCode.INVALID_REQUEST,
            )


def _check_newer(lease: OperatorLease, known: OperatorLease) -> None:
    """Two holders at the same count, or two Leases of the same second, cannot be put in order."""
    if lease.uid == known.uid:
        same_holder = lease.holder == known.holder
        if lease.transitions > known.transitions or (
            lease.transitions == known.transitions and same_holder
        ):
            return
        why = f"it has {lease.transitions} transitions, and {known.transitions} were seen"
    elif lease.created_s > known.created_s:
        return
    else:
        why = f"Lease {known.uid}, which was seen, is as new or newer"
    raise ClusterError(
        f"operator {lease.holder!r} gets no epoch for Lease {lease.uid}: {why}, with operator "
        f"{known.holder!r}. If that one is gone for ever, delete the Lease of this one: it is made "
        "again",
        ErrorCode.STALE_OPERATOR_EPOCH,
    )
