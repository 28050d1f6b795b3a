"""The calls to a transactional id's coordinator.

    call ──▶ any question to it, again until it is answered
    init ──▶ InitProducer: takes the id over, again until it is answered
    end  ──▶ EndTransaction, on a stream if the broker knows it: one attempt; whether to repeat it
             is `machine.py`'s decision

Both can be repeated: an instance that has the id gets the same epoch, and a decided End is answered
with its outcome.
"""

from collections.abc import Callable
from typing import Any, Final

from penstock.client.cluster.answer_stream import AnswerStream
from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.coordinator import PATIENCE_S, CoordinatorCalls
from penstock.client.config import ProducerConfig
from penstock.client.transaction.contract import End, EndAnswered
from penstock.core.types import NO_PRODUCER, ProducerId, ProducerIdentity
from penstock.errors import OverloadedError, PenstockError, ThrottledError, UnknownCallError
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1 import transaction_pb2 as pb
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.rpc.errors import error_from_wire

FIND_S: Final = 5.0
"""Timeout for finding the coordinator, within one attempt at EndTransaction."""


Method = Callable[[TransactionServiceStub], Any]
"""Picks a call of the service."""


class TransactionalIdCalls(CoordinatorCalls):
    """Of one transactional id."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        super().__init__(cluster, f"transactional id {transactional_id!r}")
        self._id = transactional_id

    async def _find(self, connection: Connection, timeout_s: float) -> str:
        request = pb.FindTransactionCoordinatorRequest(
            cluster_id=self._cluster.view.cluster_id, transactional_id=self._id
        )
        method = connection.transactions.FindTransactionCoordinator
        found = await connection.call(method, request, timeout_s)
        return f"{found.host}:{found.port}"

    async def call(self, method: Method, request: Any, timeout_s: float) -> Any:
        """See `until_answered`."""

        async def attempt(connection: Connection, attempt_s: float) -> Any:
            return await connection.call(method(connection.transactions), request, attempt_s)

        return await self.until_answered(attempt, timeout_s)


class TransactionCalls(TransactionalIdCalls):
    """Of one producer."""

    def __init__(self, cluster: Cluster, config: ProducerConfig, transactional_id: str) -> None:
        super().__init__(cluster, transactional_id)
        self._config = config
        self._ends: AnswerStream[pb.EndTransactionRequest, pb.EndTransactionResponse] = (
            AnswerStream(
                lambda to: to.transactions.EndTransactionStream, "the end of a transaction"
            )
        )
        self._without_stream: Connection | None = None
        """To a broker of an earlier release, or one that takes no more streams from here."""

    async def init(self, instance_id: str, timeout_s: float) -> ProducerIdentity:
        """Takes over the id for this instance; the previous owner is fenced.

        Raises an error that a retry cannot cure (PRODUCER_FENCED: the instance has lost the id;
        INVALID_REQUEST: the timeout is above the cluster's limit), or the last error after
        `timeout_s`.
        """

        async def attempt(connection: Connection, attempt_s: float) -> ProducerIdentity:
            request = broker_pb2.InitProducerRequest(
                cluster_id=self._cluster.view.cluster_id,
                producer_id=NO_PRODUCER,
                producer_epoch=-1,
                transactional_id=self._id,
                transaction_timeout_ms=self._config.transaction_timeout_ms,
                instance_id=instance_id,
                client_id=self._config.client_id,
            )
            answer = await connection.call(connection.broker.InitProducer, request, attempt_s)
            if answer.HasField("error"):
                raise error_from_wire(answer.error)
            return ProducerIdentity(ProducerId(answer.producer_id), answer.producer_epoch)

        return await self.until_answered(attempt, timeout_s)

    async def end(self, end: End, timeout_s: float) -> EndAnswered:
        """One attempt; waits at most `timeout_s`. Raises PenstockError."""
        request = pb.EndTransactionRequest(
            transactional_id=self._id,
            producer_id=end.identity.producer_id,
            producer_epoch=end.identity.epoch,
            commit=end.commit,
            wait_visible_ms=end.wait_visible_ms,
        )
        try:
            connection = await self.connection(min(timeout_s, FIND_S))
            request.cluster_id = self._cluster.view.cluster_id
            patience_s = min(timeout_s, PATIENCE_S + end.wait_visible_ms / 1000)
            answer = await self._ask_to_end(connection, request, patience_s)
        except PenstockError as error:
            self.failed(error)
            raise
        return EndAnswered(
            next=ProducerIdentity(ProducerId(answer.next_producer_id), answer.next_producer_epoch),
            error=error_from_wire(answer.error) if answer.HasField("error") else None,
            visible=answer.visible,
        )

    async def _ask_to_end(
        self, connection: Connection, request: pb.EndTransactionRequest, timeout_s: float
    ) -> pb.EndTransactionResponse:
        if connection is not self._without_stream:
            try:
                return await self._ends.ask(connection, request, timeout_s)
            except ThrottledError:
                raise  # of the request, not of the stream
            except (UnknownCallError, OverloadedError):  # nothing was done
                self._without_stream = connection
        method = connection.transactions.EndTransaction
        return await connection.call(method, request, timeout_s)
