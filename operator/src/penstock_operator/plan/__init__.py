"""What to do next for a Cluster: pure, from the desired and the observed state.

    storage  ─▶ objects ─▶ scale ─▶ racks ─▶ roll        tracks, in the order of their urgency

Belongs here: every decision of the operator. Tracks are planned independently, so that one that is
stuck never delays another (I28); only `roll` takes a broker down, one at a time and only if the
brokers confirm that it is safe (I25). Volumes and brokers are removed only when proven empty (I26).
The plan for a Cluster that matches its spec is empty (I27). Never here: await, calls, clocks.
"""

from penstock_operator.plan.cluster import plan_cluster

__all__ = ["plan_cluster"]
