"""What to do next for a Cluster: pure, from what is wanted and what is seen.

    storage  ─▶ objects ─▶ scale ─▶ racks ─▶ roll        tracks, in the order of their urgency

Belongs here: every decision of the operator. Tracks are planned apart from each other, so that
one that cannot go on never starves another (I28); only `roll` takes a broker away, one at a time
and only on the brokers' own word (I25). Volumes and brokers go only when proven empty (I26). The
plan for a Cluster that is as it should be is empty (I27). Never here: awaiting, calling, clocks.
"""

from penstock_operator.plan.cluster import plan_cluster

__all__ = ["plan_cluster"]
