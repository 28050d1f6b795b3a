"""The controller as a pure machine: who is alive, who leads, who is in the ISR, what exists.

Belongs here: the documents (`documents`), the machine and what it is made of (`machine`: sessions,
registration, election, requests, admin, placement, reload), the views others get of the outcome
(`views`), and `journal`, which keeps documents on brokers while the store is unavailable.
`contract` says what goes in and out of the machine and in which order the shell obeys.

Never here: clocks, randomness (ids come with the events), streams, stores, wire types, logging
(decisions are data). The shell is `penstock_broker.controller`; the simulator is another one.
"""

from penstock.core.control.config import ControlConfig
from penstock.core.control.machine import ControllerMachine, Phase

__all__ = ["ControlConfig", "ControllerMachine", "Phase"]
