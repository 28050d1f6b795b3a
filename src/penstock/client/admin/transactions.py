"""The admin's questions about transactions, and its two ways to step in.

    list, ledgers ─────────────▶ every broker that is alive: each knows what it coordinates
    describe, abort, forget ───▶ the id's coordinator, found anew with every attempt
    partition ─────────────────▶ the partition's leader
    blocking ──────────────────▶ all leaders, then every broker

Everything may be repeated; an abort that is told again answers that nothing was open.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from penstock.client.admin.transaction_model import (
    BlockingTransaction,
    LedgerListing,
    PartitionTransactions,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from penstock.client.admin.transaction_wire import (
    STATES_TO_WIRE,
    blocking,
    description_from_wire,
    ledger_from_wire,
    listing_from_wire,
    partition_from_wire,
    topic_ids,
)
from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.every_broker import ask_every_broker
from penstock.client.cluster.leaders import Answers, ask_leaders
from penstock.client.config import ClientConfig
from penstock.client.model import TopicDescription
from penstock.client.transaction.coordinator import IdCoordinator, Method
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError
from penstock.proto.v1 import transaction_pb2 as pb
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.rpc.errors import error_from_wire


class TransactionAdministration:
    """The part of AsyncAdmin that is about transactions."""

    config: ClientConfig
    _cluster: Cluster
    _timeout_s: float

    async def _cluster_id(self) -> str:
        raise NotImplementedError

    async def describe_topics(
        self, topics: Iterable[str] | None = None
    ) -> dict[str, TopicDescription]:
        raise NotImplementedError

    async def list_transactions(
        self,
        states: Iterable[TransactionState] = (),
        *,
        older_than_ms: int = 0,
        producer_id: int = 0,
    ) -> list[TransactionListing]:
        """Of the whole cluster, by id and branch.

        Args:
            states: Only these; none = all.
            older_than_ms: Only what is open, or waits for somebody to hear of its end, so long.
            producer_id: Only this one's; 0 = all.

        Raises COORDINATOR_LOADING, UnreachableError: a list with gaps would pass for all.
        """
        request = pb.ListTransactionsRequest(
            cluster_id=await self._cluster_id(),
            states=[STATES_TO_WIRE[state] for state in states],
            older_than_ms=older_than_ms,
            producer_id=producer_id,
        )
        answers = await self._every_broker(lambda stub: stub.ListTransactions, request)
        found = [listing_from_wire(one) for answer in answers for one in answer.transactions]
        return sorted(found, key=lambda one: (one.transactional_id, one.branch))

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Owner, participants, and how the last ones ended. Raises UNKNOWN_TRANSACTIONAL_ID."""
        _check_id(transactional_id)
        request = pb.DescribeTransactionsRequest(
            cluster_id=await self._cluster_id(), transactional_ids=[transactional_id]
        )

        def checked(stub: TransactionServiceStub) -> Callable[..., Awaitable[Any]]:
            async def call(request: Any, *, timeout: float) -> Any:  # noqa: ASYNC109 - as stubs
                answer = await stub.DescribeTransactions(request, timeout=timeout)  # type: ignore[misc]  # the stub is of an async channel
                if answer.transactions[0].HasField("error"):
                    raise error_from_wire(answer.transactions[0].error)
                return answer

            return call

        answer = await self._coordinator(transactional_id, checked, request)
        (seen,) = answer.transactions
        return description_from_wire(seen, await self._topic_names(topic_ids(seen)))

    async def abort_transaction(
        self, transactional_id: str, *, producer_epoch: int = -1, reason: str = ""
    ) -> int:
        """Ends what is open of it; how many transactions that were, 0 = nothing was open.

        Its producer hears TRANSACTION_ABORTED. `producer_epoch`: only while this is its epoch;
        -1 = whatever is open. Raises UNKNOWN_TRANSACTIONAL_ID.
        """
        _check_id(transactional_id)
        request = pb.AbortTransactionRequest(
            cluster_id=await self._cluster_id(),
            transactional_id=transactional_id,
            producer_epoch=producer_epoch,
            reason=reason,
        )
        answer = await self._coordinator(
            transactional_id, lambda stub: stub.AbortTransaction, request
        )
        return int(answer.aborted)

    async def partition_transactions(self, where: TopicPartition) -> PartitionTransactions:
        """What is open in a partition, as its leader has it. Raises UNKNOWN_TOPIC and the like."""
        return (await self._partitions([where]))[where]

    async def blocking_transactions(self, *, older_than_ms: int = 0) -> list[BlockingTransaction]:
        """What holds up read_committed readers, by partition; [] = nothing does.

        Args:
            older_than_ms: Only what is open, or waits for a partition to store its end, so long;
                also what no coordinator knows of, whose age nobody can tell.

        Partitions without a leader, which nobody can read, are left out. Raises as
        `list_transactions`, or what the leaders answer: a gap would pass for "nothing".
        """
        topics = await self.describe_topics()
        places = [
            TopicPartition(name, one.partition)
            for name, topic in topics.items()
            for one in topic.partitions
            if one.leader >= 0
        ]
        seen = (await self._partitions(places)).values()
        if not any(one.open for one in seen):
            return []
        found = blocking(seen, await self.list_transactions(older_than_ms=1))
        known = [one for one in found if one.age_ms is not None and one.age_ms >= older_than_ms]
        return sorted(
            [*known, *await self._still_there([one for one in found if one.age_ms is None])],
            key=lambda one: one.where,
        )

    async def _still_there(self, found: list[BlockingTransaction]) -> list[BlockingTransaction]:
        """Those nobody knew of may have ended between the two looks: the log has the last word."""
        now = await self._partitions([one.where for one in found]) if found else {}
        return [
            one
            for one in found
            if (one.producer_id, one.producer_epoch)
            in {(each.producer_id, each.producer_epoch) for each in now[one.where].open}
        ]

    async def _partitions(
        self, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, PartitionTransactions]:
        """As the leaders have them. A topic that is deleted meanwhile raises UNKNOWN_TOPIC."""
        await self._cluster_id()

        async def call(
            connection: Connection, part: Mapping[TopicPartition, None], timeout_s: float
        ) -> Answers[PartitionTransactions]:
            request = pb.DescribePartitionTransactionsRequest(
                cluster_id=self._cluster.view.cluster_id,
                partitions=[
                    pb.TopicPartitionName(topic=one.topic, partition=one.partition) for one in part
                ],
            )
            method = connection.transactions.DescribePartitionTransactions
            answer = await connection.call(method, request, timeout_s)
            return {
                TopicPartition(seen.topic, seen.partition): (
                    error_from_wire(seen.error)
                    if seen.HasField("error")
                    else partition_from_wire(seen)
                )
                for seen in answer.partitions
            }

        return await ask_leaders(self._cluster, dict.fromkeys(places), call, self._timeout_s)

    async def list_ledgers(self) -> list[LedgerListing]:
        """What application ids have committed last, by id; raises as `list_transactions`."""
        request = pb.ListLedgersRequest(cluster_id=await self._cluster_id())
        answers = await self._every_broker(lambda stub: stub.ListLedgers, request)
        found = [ledger_from_wire(one) for answer in answers for one in answer.ledgers]
        return sorted(found, key=lambda one: one.application_id)

    async def forget_ledger(self, application_id: str) -> bool:
        """Its next batch is taken as the first; False = there was none."""
        _check_id(application_id)
        request = pb.ForgetLedgerRequest(
            cluster_id=await self._cluster_id(), application_id=application_id
        )
        answer = await self._coordinator(application_id, lambda stub: stub.ForgetLedger, request)
        return bool(answer.forgotten)

    # ------------------------------------------------------------ who is asked

    async def _coordinator(self, name: str, method: Method, request: Any) -> Any:
        """The answer of the broker that coordinates this id; tried again while that may help."""
        return await IdCoordinator(self._cluster, name).call(method, request, self._timeout_s)

    async def _every_broker(self, method: Method, request: Any) -> list[Any]:
        async def ask(connection: Connection, timeout_s: float) -> Any:
            return await connection.call(method(connection.transactions), request, timeout_s)

        return await ask_every_broker(self._cluster, ask, self._timeout_s)

    async def _topic_names(self, ids: set[str]) -> dict[str, str]:
        """Names of the topics that exist, by id."""
        if not ids:
            return {}
        topics = await self.describe_topics()
        return {topic.topic_id: name for name, topic in topics.items()}


def _check_id(name: str) -> None:
    if not name:
        raise MisuseError("the transactional id is empty; name one", ErrorCode.INVALID_REQUEST)
