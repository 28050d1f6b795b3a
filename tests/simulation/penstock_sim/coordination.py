"""What a broker coordinates under simulation: the object that ships, and desks before it.

    clients ─▶ group service, desks (`coordinator`, `transactions`) ─▶ hosts ─▶ replicas
    hosts here ─ joins, Ends ─▶ links ─▶ `here`, or SimTransport ─▶ the other broker's peer service

As in `broker.process`. Only histories with groups or transactions have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.proto.v1.group_pb2_grpc import add_GroupServiceServicer_to_server
from penstock.proto.v1.transaction_peer_pb2_grpc import (
    add_TransactionPeerServiceServicer_to_server,
)
from penstock.rpc.transport import Transport
from penstock_broker.broker.coordination import Coordination, Foundation, Kinds
from penstock_broker.config import Settings
from penstock_broker.services.locate import Locator
from penstock_sim.coordinator import GroupDesk, WatchedGroups
from penstock_sim.hosts import group_metrics, transaction_metrics
from penstock_sim.transactions import LatePeers, TransactionDesk, WatchedTransactions

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker


class SimCoordination:
    """Of one run of a broker."""

    def __init__(self, broker: SimBroker, transport: Transport, settings: Settings) -> None:
        shell = broker.shell
        assert shell is not None
        self._broker = broker
        self._parts = Coordination(
            Foundation(
                around=shell.around,
                session=shell.membership.session,
                transport=transport,
                metrics=group_metrics(),
                transaction_metrics=transaction_metrics(),
                settings=settings,
                refusal=lambda: None,
                observe=lambda _method, _seconds: None,
            ),
            Locator(shell.around.view, shell.around.replicas),
            shell.producer_ids,
            Kinds(groups=WatchedGroups, transactions=WatchedTransactions, peers=LatePeers),
        )
        groups, transactions = self._parts.groups, self._parts.transactions
        assert isinstance(groups, WatchedGroups)
        assert isinstance(transactions, WatchedTransactions)
        groups.watch(broker)
        transactions.watch(broker)
        self.groups = GroupDesk(broker, groups)
        self.transactions = TransactionDesk(broker, transactions)

    def add_to(self, server: Any) -> None:
        """What other brokers and members call."""
        add_TransactionPeerServiceServicer_to_server(self._parts.peer_service, server)
        add_GroupServiceServicer_to_server(self._parts.group_service, server)

    def start(self) -> None:
        """With the process."""
        for part in self._parts.parts():
            self._broker.start_task(part)
