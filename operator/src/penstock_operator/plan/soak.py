"""How long another image or release shows itself on one broker before the others get it.

    first broker restarts ─▶ Ready since T ─▶ T + spec.upgrade.soak ─▶ the others
                                  └▶ not ready: T begins again

T is in the pod's own condition, so another operator goes on with it, and nothing is written
meanwhile. What brokers run is compared between them, not with the template: an admission webhook
may have changed the image of all of them. Whoever goes back to what others run waits for nobody.
Pure.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from penstock_operator.model import BrokerFacts, Observed, PodState
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import is_serving

SOAKING: Final = "Soaking"


def soak(
    desired: DesiredCluster,
    observed: Observed,
    facts: BrokerFacts,
    outdated: Collection[PodState],
    updated: Collection[PodState],
) -> str:
    """What the outdated pods wait for; empty: nothing. `updated` have the newest template, and
    serve."""
    if not (desired.spec.soak_s and updated):
        return ""
    news = [_running(observed, pod) for pod in updated]
    if not any(_is_news(_running(observed, pod), news) for pod in outdated):
        return ""
    shown = [
        pod
        for pod in observed.pods.values()
        if is_serving(pod, facts) and not _is_news(_running(observed, pod), news)
    ]
    first = min(shown, key=lambda pod: (datetime.fromisoformat(pod.ready_since), pod.broker_id))
    until = datetime.fromisoformat(first.ready_since) + timedelta(seconds=desired.spec.soak_s)
    if datetime.fromisoformat(observed.at) >= until:
        return ""
    return (
        f"broker {first.broker_id} runs {first.image} since {first.ready_since}; the others follow "
        f"at {until:%Y-%m-%dT%H:%M:%SZ} if it stays ready, as spec.upgrade.soak says. Sooner: "
        "lower or remove that field"
    )


_Running = tuple[str, str]
"""Image and release; the release is empty while nobody says."""


def _running(observed: Observed, pod: PodState) -> _Running:
    placed = None if observed.moves is None else observed.moves.broker(pod.broker_id)
    return pod.image, "" if placed is None else placed.software_version


def _is_news(running: _Running, others: Collection[_Running]) -> bool:
    """Whether it is something else than each of the others runs."""
    return all(
        running[0] != image or ("" not in {running[1], release} and running[1] != release)
        for image, release in others
    )
