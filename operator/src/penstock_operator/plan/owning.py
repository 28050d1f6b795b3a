"""What volume claims are deleted with: the Cluster (`deletionPolicy: Delete`), or nothing.

A claim that names the Cluster among its owners is removed by the garbage collector once the Cluster
is gone, also while no operator runs. It is never owned by its StatefulSet: that can be deleted on
its own, and is made again. Pure.
"""

from penstock_operator.model import Observed
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import broker_ids
from penstock_operator.volume_model import ClaimState, OwnClaim


def plan_owners(desired: DesiredCluster, observed: Observed) -> tuple[OwnClaim, ...]:
    """Claims whose owners are not those that the policy wants."""
    steps = []
    for _, claim in sorted(observed.claims.items()):
        owners = claim.owners
        is_owned = any(each.get("uid") == desired.uid for each in owners)
        if desired.keeps_data:
            owners = tuple(each for each in owners if each.get("uid") != desired.uid)
        elif not is_owned and _is_ours(desired, observed, claim):
            owners = (*owners, desired.claim_owner())
        if owners != claim.owners and not claim.deleting:
            where = (claim.broker_id, claim.name, claim.uid, claim.version)
            steps.append(OwnClaim(*where, owners))
    return tuple(steps)


def _is_ours(desired: DesiredCluster, observed: Observed, claim: ClaimState) -> bool:
    """Whether a broker of this Cluster has it, or had: one that a former Cluster of this name has
    left behind stays, or goes with that one."""
    kinds = {(each.get("kind"), each.get("name")) for each in claim.owners}
    if any(kind == "Cluster" for kind, _ in kinds):
        return False
    # Earlier releases let the StatefulSet own the claims of all brokers that it ever made.
    was_of_set = ("StatefulSet", desired.names.broker) in kinds
    return claim.broker_id in broker_ids(desired, observed) or was_of_set
