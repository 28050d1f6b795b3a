"""The controller as a pure machine: live brokers, leaders, ISRs, topics.

Belongs here: the documents (`documents`, `partition`), the machine and its parts (`machine`:
sessions and their streams, registration, election, requests, admin, placement, moves, copies,
cordons, formats, reload), the views that others get of the result (`views`, `move_views`), and
`journal`, which keeps documents on brokers while the store is unavailable. `contract` and
`move_contract` describe inputs and outputs of the machine, and the order in which the shell carries
them out.

Never here: clocks, randomness (ids come with the events), streams, stores, wire types, logging
(decisions are data). The shell is `penstock_broker.controller`.
"""

from penstock.core.control.config import ControlConfig
from penstock.core.control.machine import ControllerMachine, Phase

__all__ = ["ControlConfig", "ControllerMachine", "Phase"]
