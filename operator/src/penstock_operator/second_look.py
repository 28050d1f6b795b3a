"""What was seen, as it is now: looked at once more, right before what cannot be taken back.

A pass of a big cluster takes a while, and a process that was frozen does not notice: what a broker
may be stopped by has to be true when it is stopped.
"""

from dataclasses import replace

from penstock.core.manifest.containers import BROKER
from penstock.kubernetes.names import CLUSTER_LABEL, COMPONENT_LABEL
from penstock_operator.brokers import Brokers
from penstock_operator.kube import Kube
from penstock_operator.model import Observed, PodState
from penstock_operator.names import Names
from penstock_operator.objects import DesiredCluster
from penstock_operator.observe import broker_pods


async def look_again(
    kube: Kube, brokers: Brokers, desired: DesiredCluster, observed: Observed
) -> Observed:
    """With the brokers' pods and their answers of this moment. Raises KubernetesError."""
    pods = await pods_now(kube, desired.names)
    facts, moves = await brokers.replicas(desired)
    known = observed.moves
    if moves is not None:  # what was proven over several passes is not looked at here
        moves = None if known is None else replace(known, moving=moves.moving)
    return replace(observed, pods=pods, brokers=facts, moves=moves)


async def pods_now(kube: Kube, names: Names) -> dict[int, PodState]:
    """The brokers' pods. They may be listed, and not read one by one. Raises KubernetesError."""
    selector = f"{CLUSTER_LABEL}={names.cluster},{COMPONENT_LABEL}={BROKER}"
    return broker_pods(names, await kube.list("Pod", names.namespace, selector))
