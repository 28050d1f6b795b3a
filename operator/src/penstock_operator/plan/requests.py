"""What is said of requests, by annotations of a Cluster, that are for no broker. Pure.

Otherwise such a request would wait in silence until there is a broker of that id.
"""

from penstock_operator.model import Observed, Severity, Wait
from penstock_operator.names import FORCE_ROLL, FORGET_BROKER
from penstock_operator.objects import DesiredCluster, Section
from penstock_operator.plan.gates import broker_ids
from penstock_operator.plan.reach import POD


def plan_requests(desired: DesiredCluster, observed: Observed) -> tuple[Wait, ...]:
    """A broker that was let go may still be named to be forgotten."""
    wrong = []
    if rolled := _no_broker(desired, observed):
        last = broker_ids(desired, observed)[-1]
        wrong.append(
            f"annotation {FORCE_ROLL} is {rolled!r}; it must be the id of a broker, from 0 to "
            f"{last}; no broker is restarted for it"
        )
    if forgotten := desired.no_ids.get(FORGET_BROKER):
        wrong.append(
            f"annotation {FORGET_BROKER} is {forgotten!r}; it must be the id of a broker; none is "
            "forgotten for it"
        )
    return tuple(Wait("InvalidRequest", text, Severity.BLOCKED) for text in wrong)


def _no_broker(desired: DesiredCluster, observed: Observed) -> str:
    """What asks for a restart of no broker; empty: nothing does, or not known."""
    if not (desired.knows(Section.BROKERS) and observed.knows(POD, "StatefulSet")):
        return ""
    if text := desired.no_ids.get(FORCE_ROLL):
        return text
    # One that is bound to a pod was for a broker; it is taken back when the pod is gone.
    asked = None if desired.force_roll_pod else desired.force_roll
    return "" if asked is None or asked in broker_ids(desired, observed) else str(asked)
