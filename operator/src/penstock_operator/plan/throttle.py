"""Makes the cluster's copy rate that of `spec.balance.throttle`.

While the spec has one, the controller refuses what others ask for, and names the field to them.
Once it has none, each broker's own setting counts again, or what a person sets. Pure.
"""

from penstock.core.control.documents import FORMAT_MOVES
from penstock.core.manifest.upkeep import THROTTLE
from penstock_operator.model import Action, Observed, Severity, Wait
from penstock_operator.move_model import SetThrottle
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import trusted

Track = tuple[tuple[Action, ...], tuple[Wait, ...]]


def plan_throttle(desired: DesiredCluster, observed: Observed) -> Track:
    """A controller that does not say what manages the rate does not remember it either."""
    if trusted(observed) is None or observed.moves is None or observed.moves.moving.paused:
        return (), ()
    wanted, known = desired.spec.copy_rate, observed.moves.moving
    by = f"{THROTTLE} of Cluster {desired.names.namespace}/{desired.names.cluster}"
    if wanted is None:
        return ((SetThrottle(None, by),) if known.copy_rate_by else ()), ()
    if wanted == known.copy_rate and known.copy_rate_by in {None, by}:
        return (), ()
    if known.format < FORMAT_MOVES:
        text = (
            f"{THROTTLE} has no effect before the stored metadata has format {FORMAT_MOVES}; once "
            "every broker and controller runs this release: penstock cluster finalize"
        )
        return (), (Wait("ThrottleWaits", text, Severity.BLOCKED),)
    return (SetThrottle(wanted, by),), ()
