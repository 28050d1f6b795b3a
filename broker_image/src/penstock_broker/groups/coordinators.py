"""The group coordinators of a broker: hosts on `__consumer_offsets`, and their metrics.

Which partitions have one, loading and the end: `logged.hosts`; where a group is: `logged.finding`.
This module has what groups add: the catalog of topics that they may read, and metrics.
"""

from collections import Counter
from typing import Final

from penstock.core.groups import GroupConfig
from penstock.core.groups.catalog import Catalog
from penstock.core.groups.config import (
    OFFSETS_PARTITIONS,
    OFFSETS_REPLICATION,
    OFFSETS_TOPIC,
    check_group_id,
    coordinator_partition,
)
from penstock.core.groups.contract import Ready
from penstock.core.groups.contract_views import GroupState
from penstock_broker.groups.catalog import catalog_of, is_same
from penstock_broker.groups.coordinator import Coordinator
from penstock_broker.groups.transactions import TransactionLink
from penstock_broker.logged.finding import Finder
from penstock_broker.logged.hosts import Hosts, Surroundings
from penstock_broker.logged.log import PartitionLog
from penstock_broker.logged.topic import InternalTopic, Session
from penstock_broker.metrics import GroupTotals, Metrics
from penstock_broker.observability import EventLog

OFFSETS: Final = InternalTopic(
    name=OFFSETS_TOPIC,
    partitions=OFFSETS_PARTITIONS,
    replication=OFFSETS_REPLICATION,
    keeps="group",
    find_call="FindCoordinator",
    what_waits="group changes and commits",
    check_key=check_group_id,
    place=coordinator_partition,
)


class Coordinators(Hosts[Coordinator]):
    """See the module."""

    def __init__(
        self,
        around: Surroundings,
        session: Session,
        metrics: Metrics,
        config: GroupConfig,
        transactions: TransactionLink,
    ) -> None:
        finder = Finder(OFFSETS, around.view, session, around.clock)
        super().__init__(around, finder, EventLog("groups"))
        self._metrics = metrics
        self._config = config
        self._transactions = transactions
        self._catalog = Catalog()
        self.totals = GroupTotals()

    def make(self, log: PartitionLog) -> Coordinator:
        """Creates the coordinator of one offsets partition."""
        return Coordinator(
            log,
            self._clock,
            self._config,
            lambda: self._catalog,
            self._count_ready,
            self._transactions,
        )

    def image_applied(self) -> None:
        """Tells groups of topics that were added, removed or extended."""
        if not is_same(self._catalog, self._view):
            self._catalog = catalog_of(self._view)
            for coordinator in self.led:
                coordinator.topics_changed(self._catalog)

    def load_took(self, seconds: float) -> None:
        """One coordinator was loaded."""
        self._metrics.group_load_seconds.observe(seconds)

    def _count_ready(self, ready: Ready) -> None:
        if ready.commits:
            self._metrics.group_commits.inc(ready.commits)
        if ready.rebalances:
            self._metrics.group_rebalances.inc(ready.rebalances)

    def count(self) -> None:
        """Counts groups by state, members, and coordinators that do not serve yet."""
        states: Counter[GroupState] = Counter()
        members = loading = 0
        for coordinator in self.led:
            if coordinator.serving:
                census = coordinator.machine.census
                states += census.states
                members += census.members
            else:
                loading += 1
        self.totals = GroupTotals(
            {state.value: states[state] for state in GroupState}, members, loading
        )
