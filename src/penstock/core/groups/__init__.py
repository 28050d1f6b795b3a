"""Consumer groups as a pure machine: partition ownership and committed offsets.

Belongs here: the coordinator of one partition of `__consumer_offsets` (`machine`: membership,
reconciliation, offsets, upkeep), the assignors, subscriptions by pattern, the records that a
group's state is stored in (`records`). `contract` describes inputs, outputs and the shell's duties.

Never here: clocks, streams, stores, wire types, logging (decisions are data). The shell is
`penstock_broker.groups`; the simulator is another one.
"""

from penstock.core.groups.config import GroupConfig
from penstock.core.groups.machine import GroupCoordinator

__all__ = ["GroupConfig", "GroupCoordinator"]
