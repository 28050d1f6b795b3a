"""Consumer groups as a pure machine: who owns which partition, and which offsets are committed.

Belongs here: the coordinator of one partition of `__consumer_offsets` (`machine`: membership,
reconciliation, offsets, upkeep), the assignors, subscriptions by pattern, the records that a
group's state is kept in (`records`). `contract` says what goes in and out and what the shell owes.

Never here: clocks, streams, stores, wire types, logging (decisions are data). The shell is
`penstock_broker.groups`; the simulator is another one.
"""

from penstock.core.groups.config import GroupConfig
from penstock.core.groups.machine import GroupCoordinator

__all__ = ["GroupConfig", "GroupCoordinator"]
