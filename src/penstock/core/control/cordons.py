"""Cordons: brokers that get no new replicas, or lead only what nobody else can; and fresh ones.

A cordon is a decision about a data directory (L9): it goes when another one registers under the
broker's id, or when the broker is unregistered. It outlives restarts and controllers.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from penstock.core.control.contract import Severity
from penstock.core.control.documents import ClusterDocument, Cordon
from penstock.core.control.draft import Draft
from penstock.core.control.formats import check_moves
from penstock.core.control.move_contract import AlterBrokers, BrokerChange
from penstock.core.control.requests import check_cluster_id
from penstock.core.types import BrokerId
from penstock.core.words import listed
from penstock.errors import ClusterError, ErrorCode

_TEXT_MAX: Final = 256
"""Characters of `why`, and of `by`."""


def decide_alter_brokers(draft: Draft, request: AlterBrokers) -> None:
    """Raises ClusterError FORMAT_TOO_OLD or INVALID_REQUEST; then nothing has changed."""
    check_cluster_id(draft, request.cluster_id)
    check_moves(draft)
    cluster = draft.cluster
    for change in request.changes:
        cluster = _changed(cluster, change)
    if request.validate_only or cluster == draft.cluster:
        return
    draft.put_cluster(cluster)
    draft.decide(
        Severity.INFO,
        "brokers altered",
        brokers=[change.broker_id for change in request.changes],
        cordoned=sorted(cluster.cordons),
    )


def without_cordon(cluster: ClusterDocument, broker_id: BrokerId) -> ClusterDocument:
    """The same object if there is none."""
    if broker_id not in cluster.cordons:
        return cluster
    cordons = {key: cordon for key, cordon in cluster.cordons.items() if key != broker_id}
    return replace(cluster, cordons=cordons)


def end_spread(draft: Draft, ids: Iterable[BrokerId]) -> None:
    """Who cancels a spread onto these does not want it again: they are no longer fresh."""
    cluster = _no_longer_fresh(draft.cluster, ids)
    if cluster is not draft.cluster:
        draft.put_cluster(cluster)


def _no_longer_fresh(cluster: ClusterDocument, ids: Iterable[BrokerId]) -> ClusterDocument:
    """These have got their share, or shall not get it; the same object if none was fresh."""
    fresh = [one for one in ids if one in cluster.brokers and cluster.brokers[one].fresh]
    if not fresh:
        return cluster
    changed = {one: replace(cluster.brokers[one], fresh=False) for one in fresh}
    return replace(cluster, brokers={**cluster.brokers, **changed})


def _changed(cluster: ClusterDocument, change: BrokerChange) -> ClusterDocument:
    broker_id = change.broker_id
    broker = cluster.brokers.get(broker_id)
    if broker is None:
        raise ClusterError(
            f"broker {broker_id} is not registered; registered are "
            f"{listed(sorted(cluster.brokers))}",
            ErrorCode.INVALID_REQUEST,
        )
    if change.directory_id not in {"", broker.directory_id}:
        raise ClusterError(
            f"broker {broker_id} has data directory {broker.directory_id}, not "
            f"{change.directory_id}: it was replaced; look at it again",
            ErrorCode.INVALID_REQUEST,
        )
    for name, text in (("why", change.why), ("by", change.by)):
        if len(text) > _TEXT_MAX or not text.isprintable():
            raise ClusterError(
                f"the cordon of broker {broker_id} has {name} {text[:40]!r} of {len(text)} "
                f"characters; it must have at most {_TEXT_MAX}, all printable",
                ErrorCode.INVALID_REQUEST,
            )
    if change.spread:
        return _no_longer_fresh(cluster, (broker_id,))
    if not (change.placement or change.leadership):
        return without_cordon(cluster, broker_id)
    cordon = Cordon(
        directory_id=broker.directory_id,
        placement=change.placement,
        leadership=change.leadership,
        why=change.why,
        by=change.by,
    )
    return replace(cluster, cordons={**cluster.cordons, broker_id: cordon})
