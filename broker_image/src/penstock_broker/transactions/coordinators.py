"""The transaction coordinators of a broker: hosts on `__transactions`, and what they are told.

Which partitions have one, loading and the end: `logged.hosts`; where an id is: `logged.finding`.
Here is what transactions add: every coordinator hears of images, because Ends go to leaders.
"""

from collections.abc import Callable
from typing import Final

from penstock.core.transactions import TransactionConfig
from penstock.core.transactions.config import (
    TRANSACTIONS_PARTITIONS,
    TRANSACTIONS_REPLICATION,
    TRANSACTIONS_TOPIC,
    check_transactional_id,
    coordinator_partition,
)
from penstock.core.transactions.contract import Ready
from penstock_broker.logged.finding import Finder
from penstock_broker.logged.hosts import Hosts, Surroundings
from penstock_broker.logged.log import PartitionLog
from penstock_broker.logged.topic import InternalTopic, Session
from penstock_broker.observability import EventLog
from penstock_broker.transactions.coordinator import Coordinator, Ends

TRANSACTIONS: Final = InternalTopic(
    name=TRANSACTIONS_TOPIC,
    partitions=TRANSACTIONS_PARTITIONS,
    replication=TRANSACTIONS_REPLICATION,
    keeps="transactional id",
    find_call="FindTransactionCoordinator",
    what_waits="transactions",
    check_key=check_transactional_id,
    place=coordinator_partition,
)


class Coordinators(Hosts[Coordinator]):
    """See the module."""

    def __init__(
        self,
        around: Surroundings,
        session: Session,
        config: TransactionConfig,
        ends: Ends,
        on_ready: Callable[[Ready], None] = lambda _: None,
    ) -> None:
        """`on_ready` hears of every Ready of every coordinator here."""
        finder = Finder(TRANSACTIONS, around.view, session, around.clock)
        super().__init__(around, finder, EventLog("transactions"))
        self._config = config
        self._ends = ends
        self._on_ready = on_ready

    def make(self, log: PartitionLog) -> Coordinator:
        """One partition's transactional ids."""
        return Coordinator(log, self._clock, self._config, self._ends, self._on_ready)

    def image_applied(self) -> None:
        """Ends that wait may find their leader now."""
        topic_ids = frozenset(self._view.topics)
        for coordinator in self.led:
            coordinator.image_changed(topic_ids, self._view.deleted)

    def began(self, host: Coordinator) -> None:
        """It was loaded, and knows no image yet."""
        host.image_changed(frozenset(self._view.topics), self._view.deleted)

    def load_took(self, seconds: float) -> None:
        """Not measured."""

    def count(self) -> None:
        """Nothing is counted yet."""
