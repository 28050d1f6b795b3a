"""ConsumerGroup resources: watched, reset once per request, scaled by lag, deleted on request.

    shell.py: which groups are due ─▶ look.py: one look ─▶ observe.py ─▶ plan.py, scale.py (pure)
                                                       └─▶ carry.py ─▶ report.py (pure): status

Belongs here: everything that the operator does for a ConsumerGroup, in one task per Cluster beside
its worker. A group comes into being when members join; a resource adopts it by naming it. Never
here: anything on the path of a record, lag per partition (metrics and the command line have it),
groups that no resource names, a task or timer per group.
"""

from penstock_operator.groups.model import View
from penstock_operator.groups.shell import Groups

__all__ = ["Groups", "View"]
