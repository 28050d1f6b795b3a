"""The transaction coordinators of a broker: hosts on `__transactions`, and their images.

Which partitions have one, loading and the end: `logged.hosts`; where an id is: `logged.finding`.
This module has what transactions add: every coordinator gets images, because Ends go to leaders.
"""

from dataclasses import replace
from typing import Final

from penstock.core.transactions import TransactionConfig
from penstock.core.transactions.config import (
    TRANSACTIONS_PARTITIONS,
    TRANSACTIONS_REPLICATION,
    TRANSACTIONS_TOPIC,
    check_transactional_id,
    coordinator_partition,
)
from penstock.core.transactions.views import Census
from penstock_broker.logged.finding import Finder
from penstock_broker.logged.hosts import Hosts, Surroundings
from penstock_broker.logged.log import PartitionLog
from penstock_broker.logged.topic import InternalTopic, Session
from penstock_broker.observability import EventLog
from penstock_broker.transactions.coordinator import Coordinator, Ends
from penstock_broker.transactions.metrics import TransactionMetrics

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
        metrics: TransactionMetrics,
    ) -> None:
        topic = replace(TRANSACTIONS, partitions=config.topic_partitions)
        finder = Finder(topic, around.view, session, around.clock)
        super().__init__(around, finder, EventLog("transactions"))
        self._config = config
        self._ends = ends
        self._metrics = metrics
        self._seen: dict[int, tuple[Census, float]] = {}
        """By partition led here: what its coordinator said last while it served, and when."""

    def make(self, log: PartitionLog) -> Coordinator:
        """Creates the coordinator of one partition's transactional ids."""
        return Coordinator(log, self._clock, self._config, self._ends, self._metrics)

    def image_applied(self) -> None:
        """Ends that wait for a leader may find one now."""
        topic_ids = frozenset(self._view.topics)
        for coordinator in self.led:
            coordinator.image_changed(topic_ids, self._view.deleted)

    def began(self, host: Coordinator) -> None:
        """A coordinator was loaded: gives it its first image."""
        host.image_changed(frozenset(self._view.topics), self._view.deleted)

    def load_took(self, seconds: float) -> None:
        """One coordinator was loaded."""
        self._metrics.load_took(seconds)

    def count(self) -> None:
        """Counts open transactions, and ends that participants have not stored yet."""
        now_s = self._clock.now_s()
        serving = {host.partition: (host.census, now_s) for host in self.led if host.serving}
        led = {host.partition for host in self.led}
        # Where none serves, nothing ends: what was open goes on ageing.
        self._seen = {at: one for at, one in self._seen.items() if at in led} | serving
        census = [one.later(int((now_s - seen_s) * 1000)) for one, seen_s in self._seen.values()]
        self._metrics.count(census, len(led) - len(serving))
