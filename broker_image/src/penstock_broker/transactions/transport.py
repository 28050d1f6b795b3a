"""Calls about transactions to other brokers, over gRPC; a connection per broker is kept.

The broker is looked up for each call: one that restarted is found, also at a new address.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import grpc

from penstock.core.groups.contract import SendAbort
from penstock.core.transactions.contract import End, JoinRequested
from penstock.core.transactions.orphans import Answer, Transaction
from penstock.core.types import BrokerId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import transaction_pb2, transaction_peer_pb2
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.proto.v1.transaction_peer_pb2_grpc import TransactionPeerServiceStub
from penstock.rpc.cancelling import being_cancelled
from penstock.rpc.transactions import (
    end_to_wire,
    endings_from_wire,
    join_to_wire,
    names_from_wire,
    names_to_wire,
    results_from_wire,
)
from penstock.rpc.transport import Transport
from penstock_broker.metadata.image import ClusterView
from penstock_broker.metadata.peers import PeerChannels

CALL_TIMEOUT_S: Final = 10.0
"""Longer than a join may wait (5 s), and than an End may wait for replicas."""
FIND_TIMEOUT_S: Final = 60.0
"""A broker's coordinators write one after another; no client waits for this call."""
_A = TypeVar("_A")


class RemotePeers:
    """`links.Peers`. Call `close` at the end."""

    def __init__(self, broker_id: BrokerId, view: ClusterView, transport: Transport) -> None:
        self._broker_id = broker_id
        self._view = view
        self._channels = PeerChannels(view, transport)

    def peer(self, broker_id: BrokerId) -> "RemotePeer":
        """See `links.Peers`."""
        return RemotePeer(self, broker_id)

    async def join(
        self, broker_id: BrokerId, entries: Sequence[JoinRequested]
    ) -> list[PenstockError | None]:
        """One JoinTransactions. Raises PenstockError."""
        request = transaction_peer_pb2.JoinTransactionsRequest(
            cluster_id=self._view.cluster_id,
            broker_id=self._broker_id,
            joins=map(join_to_wire, entries),
        )

        async def call(channel: grpc.aio.Channel) -> Any:
            stub: Any = TransactionPeerServiceStub(channel)
            return await stub.JoinTransactions(request, timeout=CALL_TIMEOUT_S)

        answer = await self._call(broker_id, call)
        return results_from_wire(answer.results)

    async def end(self, broker_id: BrokerId, entries: Sequence[End]) -> list[PenstockError | None]:
        """One EndAtParticipants. Raises PenstockError."""
        request = transaction_peer_pb2.EndAtParticipantsRequest(
            cluster_id=self._view.cluster_id,
            broker_id=self._broker_id,
            ends=map(end_to_wire, entries),
        )

        async def call(channel: grpc.aio.Channel) -> Any:
            stub: Any = TransactionPeerServiceStub(channel)
            return await stub.EndAtParticipants(request, timeout=CALL_TIMEOUT_S)

        answer = await self._call(broker_id, call)
        return results_from_wire(answer.results)

    async def abort(self, broker_id: BrokerId, abort: SendAbort) -> None:
        """One AbortTransaction, for a member that left. Raises PenstockError."""
        request = transaction_pb2.AbortTransactionRequest(
            cluster_id=self._view.cluster_id,
            transactional_id=abort.transactional_id,
            producer_epoch=-1,
            reason=abort.reason,
            ended_by=transaction_pb2.TRANSACTION_END_REASON_MEMBER_GONE,
        )

        async def call(channel: grpc.aio.Channel) -> Any:
            stub: Any = TransactionServiceStub(channel)
            return await stub.AbortTransaction(request, timeout=CALL_TIMEOUT_S)

        await self._call(broker_id, call)

    async def find(self, broker_id: BrokerId, transactions: frozenset[Transaction]) -> Answer:
        """One FindTransactions. Raises PenstockError."""
        request = transaction_peer_pb2.FindTransactionsRequest(
            cluster_id=self._view.cluster_id,
            broker_id=self._broker_id,
            transactions=names_to_wire(transactions),
        )

        async def call(channel: grpc.aio.Channel) -> Any:
            stub: Any = TransactionPeerServiceStub(channel)
            return await stub.FindTransactions(request, timeout=FIND_TIMEOUT_S)

        answer = await self._call(broker_id, call)
        return Answer(
            frozenset(answer.partitions),
            names_from_wire(answer.known),
            endings_from_wire(answer.ended),
        )

    async def close(self) -> None:
        """Ends all connections."""
        await self._channels.close()

    async def _call(
        self, broker_id: BrokerId, act: Callable[[grpc.aio.Channel], Awaitable[_A]]
    ) -> _A:
        async with self._channels.to(broker_id) as channel:
            try:
                return await act(channel)
            except asyncio.CancelledError as error:
                if being_cancelled():
                    raise
                # Closed during the call: gRPC raises as if the caller were cancelled.
                raise ClusterError(
                    f"the connection to broker {broker_id} was closed", ErrorCode.UNREACHABLE
                ) from error


class RemotePeer:
    """One other broker (`links.Peer`)."""

    def __init__(self, peers: RemotePeers, broker_id: BrokerId) -> None:
        self._peers = peers
        self._broker_id = broker_id

    async def join(self, entries: Sequence[JoinRequested]) -> list[PenstockError | None]:
        """See `RemotePeers.join`."""
        return await self._peers.join(self._broker_id, entries)

    async def end(self, entries: Sequence[End]) -> list[PenstockError | None]:
        """See `RemotePeers.end`."""
        return await self._peers.end(self._broker_id, entries)

    async def abort(self, abort: SendAbort) -> None:
        """See `RemotePeers.abort`."""
        await self._peers.abort(self._broker_id, abort)

    async def find(self, transactions: frozenset[Transaction]) -> Answer:
        """See `RemotePeers.find`."""
        return await self._peers.find(self._broker_id, transactions)
