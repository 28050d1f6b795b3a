"""Transactions as a pure machine: owners of transactional ids, open transactions, outcomes.

Belongs here: the coordinator of one partition of `__transactions` (`machine`: producers and their
epochs, branches and the ledger of batch engines, notifying participants of how a transaction
ended), and the records that its state is stored in (`records`). `contract` describes inputs,
outputs and the shell's duties.

Never here: clocks, calls, stores, wire types, logging (decisions are data). The shell is
`penstock_broker.transactions`; the simulator is another one.
"""

from penstock.core.transactions.config import TransactionConfig
from penstock.core.transactions.machine import TransactionCoordinator

__all__ = ["TransactionConfig", "TransactionCoordinator"]
