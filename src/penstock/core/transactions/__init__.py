"""Transactions as a pure machine: who has a transactional id, what is open, how it ended.

Belongs here: the coordinator of one partition of `__transactions` (`machine`: producers and their
epochs, branches and the ledger of batch engines, telling participants how a transaction ended),
and the records that its state is kept in (`records`). `contract` says what goes in and out and what
the shell owes.

Never here: clocks, calls, stores, wire types, logging (decisions are data). The shell is
`penstock_broker.transactions`; the simulator is another one.
"""

from penstock.core.transactions.config import TransactionConfig
from penstock.core.transactions.machine import TransactionCoordinator

__all__ = ["TransactionConfig", "TransactionCoordinator"]
