"""Connects what this broker coordinates: groups, transactions, the calls between brokers.

    replicas ── joins ─▶ links ─▶ coordinators of transactions, here or elsewhere
    coordinators here ─ ends ─▶ links ─▶ partitions and groups, here or elsewhere
    other brokers ─────▶ peer service ─▶ `transactions.here`

Each part knows the next one by a protocol; they are connected here. The simulator creates the same
object, with seams of its own, and watches its parts (`Kinds`).
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from penstock.core.groups import GroupConfig
from penstock.core.transactions import TransactionConfig
from penstock.errors import PenstockError
from penstock.rpc.transport import Transport
from penstock_broker.config import Settings
from penstock_broker.groups.coordinators import Coordinators as GroupCoordinators
from penstock_broker.logged.hosts import Surroundings
from penstock_broker.logged.topic import Session
from penstock_broker.metrics import Metrics
from penstock_broker.services.groups import GroupService
from penstock_broker.services.locate import Locator
from penstock_broker.services.metadata import ProducerIds
from penstock_broker.services.transaction_peer import TransactionPeerService
from penstock_broker.services.transactions import Transactions, TransactionService
from penstock_broker.transactions.coordinators import Coordinators as TransactionCoordinators
from penstock_broker.transactions.here import Here
from penstock_broker.transactions.links import GroupLink, TransactionLinks
from penstock_broker.transactions.metrics import TransactionMetrics
from penstock_broker.transactions.orphans import OrphanSweep
from penstock_broker.transactions.partitions import Markers, PartitionJoins
from penstock_broker.transactions.transport import RemotePeers


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """What coordinators need. `refusal`: why this broker accepts no writes now, or None."""

    around: Surroundings
    session: Session
    transport: Transport
    metrics: Metrics
    transaction_metrics: TransactionMetrics
    settings: Settings
    refusal: Callable[[], PenstockError | None]
    observe: Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """Classes that the simulator replaces."""

    groups: type[GroupCoordinators] = GroupCoordinators
    transactions: type[TransactionCoordinators] = TransactionCoordinators
    peers: type[RemotePeers] = RemotePeers


class Coordination:
    """See the module."""

    def __init__(
        self,
        base: Foundation,
        locator: Locator,
        producer_ids: ProducerIds,
        kinds: Kinds = Kinds(),
    ) -> None:
        around = base.around
        broker_id = around.replicas.broker_id
        self._peers = kinds.peers(broker_id, around.view, base.transport)
        self._links = TransactionLinks(broker_id, around.view, self._peers, around.clock)
        self.groups = kinds.groups(
            around,
            base.session,
            base.metrics,
            GroupConfig(offsets_retention_ms=base.settings.offsets_retention_minutes * 60_000),
            GroupLink(self._links),
        )
        self.transactions = kinds.transactions(
            around,
            base.session,
            _transaction_config(base.settings),
            self._links,
            base.transaction_metrics,
        )
        markers = Markers(around.replicas, around.clock)
        here = Here(self.transactions, self.groups, markers, base.refusal)
        self._links.serve(here, self.transactions.finder, self.groups.finder)
        grace_ms = base.settings.transaction_orphan_grace_ms
        self._orphans = OrphanSweep(
            here,
            self._links,
            around.clock,
            age_ms=base.settings.transaction_max_timeout_ms + grace_ms,
            grace_ms=grace_ms,
        )
        around.replicas.joins = PartitionJoins(self._links, around.replicas)
        self.calls = Transactions(self.transactions, producer_ids.take, base.refusal)
        self.group_service = GroupService(around.view, self.groups, base.refusal, base.observe)
        self.transaction_service = TransactionService(self.calls, locator, base.observe)
        self.peer_service = TransactionPeerService(here)

    def parts(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The coroutines to run until they are cancelled."""
        return (
            self._links.run(),
            self.groups.run(),
            self.transactions.run(),
            self._orphans.run(),
        )

    async def close(self) -> None:
        """Closes connections to other brokers, once nothing runs any more."""
        await self._peers.close()


def _transaction_config(settings: Settings) -> TransactionConfig:
    return TransactionConfig(
        max_timeout_ms=settings.transaction_max_timeout_ms,
        id_expiration_ms=settings.transactional_id_expiration_ms,
        ledger_expiration_ms=settings.ledger_expiration_ms,
        topic_partitions=settings.transactions_partitions,
    )
