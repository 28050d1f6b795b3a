"""ConsumerGroup resources: watched, reset once per request, scaled by lag, forgotten on request.

    shell.py: which groups are due ─▶ look.py: one look ─▶ observe.py ─▶ plan.py, scale.py (pure)
                                                       └─▶ carry.py ─▶ report.py (pure): status

Belongs here: all that the operator does for a ConsumerGroup, in one task per Cluster beside its
worker. A group makes itself as its members join; a resource adopts it by naming it. Never here:
anything on a record's way, lag per partition (metrics and the command line have it), groups that no
resource names, a task or timer per group.
"""

from penstock_operator.groups.model import View
from penstock_operator.groups.shell import Groups

__all__ = ["Groups", "View"]
