"""Marks on volume claims that may go with their brokers (`spec.storage.whenScaledDown: Delete`).

    a broker is proven empty ─▶ its claim is marked ─▶ its pod goes ─▶ the claim goes, if marked
            wanted again, or Retain ─▶ the mark is taken off first

The mark is what remains of the proof (I34) once the broker cannot be asked any more. That a broker
is not there is none: its pod may be gone because somebody has made the StatefulSet smaller, or it
was given up by name. A mark is on the claim and names its uid, so it speaks of no other one. Pure.
"""

from collections.abc import Collection

from penstock.core.manifest.objects import WhenScaledDown
from penstock_operator.model import Observed
from penstock_operator.objects import DesiredCluster, Section
from penstock_operator.plan.gates import trusted
from penstock_operator.volume_model import ClaimState, MarkClaim


def deletes(desired: DesiredCluster) -> bool:
    """Whether volumes go with their brokers."""
    return desired.spec.when_scaled_down is WhenScaledDown.DELETE


def marks(
    desired: DesiredCluster, observed: Observed, proven: Collection[int]
) -> tuple[MarkClaim, ...]:
    """What has to be written before these brokers may be let go; empty: nothing."""
    if not deletes(desired):
        return ()
    claims = (observed.claims.get(broker_id) for broker_id in sorted(proven))
    return tuple(
        _mark(claim, emptied=True)
        for claim in claims
        if claim is not None and not claim.emptied and not claim.deleting
    )


def stale_marks(
    desired: DesiredCluster, observed: Observed, made: int, proven: Collection[int]
) -> tuple[MarkClaim, ...]:
    """Marks that say what is not true, or not wanted, any longer.

    Of brokers below `spec.brokers`; of all under Retain; and of one of the `made` brokers that
    runs, and is not `proven` empty: something may have come to it.
    """
    wanted, facts = desired.spec.brokers, trusted(observed)
    alive = set() if facts is None else {one for one, state in facts.brokers.items() if state.alive}
    runs = {one for one in alive if one < made} - set(proven)
    retains = desired.knows(Section.STORAGE) and not deletes(desired)
    return tuple(
        _mark(claim, emptied=False)
        for broker_id, claim in sorted(observed.claims.items())
        if claim.emptied and (broker_id < wanted or broker_id in runs or retains)
    )


def _mark(claim: ClaimState, *, emptied: bool) -> MarkClaim:
    return MarkClaim(claim.broker_id, claim.name, claim.uid, emptied)
