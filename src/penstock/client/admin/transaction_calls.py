"""The admin's calls about transactions, and its two ways to intervene.

    list, ledgers ─────────────▶ every broker that is alive: each knows what it coordinates
    describe, abort, forget ───▶ the id's coordinator, found again with every attempt
    partition ─────────────────▶ the partition's leader
    blocking ──────────────────▶ all leaders, then every broker

Everything can be repeated; a repeated abort answers that nothing was open.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from penstock.client.admin.asking import Asking
from penstock.client.admin.topic_calls import describe_topics
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
from penstock.client.cluster.connections import Connection
from penstock.client.cluster.every_broker import ask_every_broker
from penstock.client.cluster.leaders import Answers, ask_leaders
from penstock.client.transaction.coordinator import Method, TransactionalIdCalls
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError, PenstockError
from penstock.proto.v1 import transaction_pb2 as pb
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceStub
from penstock.rpc.errors import error_from_wire

REQUEST_BYTES_MAX: Final = 12 * 1024
"""Of the partitions in a DescribePartitionTransactions; brokers accept 16 KiB."""
PARTITION_BYTES_MAX: Final = 16
"""On the wire, beside the topic's name."""


async def list_transactions(
    asking: Asking,
    states: Iterable[TransactionState] = (),
    *,
    older_than_ms: int = 0,
    producer_id: int = 0,
) -> list[TransactionListing]:
    """See `AsyncAdmin.list_transactions`."""
    request = pb.ListTransactionsRequest(
        cluster_id=await asking.cluster_id(),
        states=[STATES_TO_WIRE[state] for state in states],
        older_than_ms=older_than_ms,
        producer_id=producer_id,
    )
    answers = await _every_broker(asking, lambda stub: stub.ListTransactions, request)
    found = [listing_from_wire(one) for answer in answers for one in answer.transactions]
    return sorted(found, key=lambda one: (one.transactional_id, one.branch))


async def describe_transaction(asking: Asking, transactional_id: str) -> TransactionDescription:
    """See `AsyncAdmin.describe_transaction`."""
    _check_id(transactional_id)
    request = pb.DescribeTransactionsRequest(
        cluster_id=await asking.cluster_id(), transactional_ids=[transactional_id]
    )

    def checked(stub: TransactionServiceStub) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, *, timeout: float, metadata: Any) -> Any:  # noqa: ASYNC109 - as stubs
            answer = await stub.DescribeTransactions(  # type: ignore[misc]  # the stub is of an async channel
                request, timeout=timeout, metadata=metadata
            )
            if answer.transactions[0].HasField("error"):
                raise error_from_wire(answer.transactions[0].error)
            return answer

        return call

    answer = await _coordinator(asking, transactional_id, checked, request)
    (seen,) = answer.transactions
    return description_from_wire(seen, await _topic_names(asking, topic_ids(seen)))


async def abort_transaction(
    asking: Asking, transactional_id: str, *, producer_epoch: int = -1, reason: str = ""
) -> int:
    """See `AsyncAdmin.abort_transaction`."""
    _check_id(transactional_id)
    request = pb.AbortTransactionRequest(
        cluster_id=await asking.cluster_id(),
        transactional_id=transactional_id,
        producer_epoch=producer_epoch,
        reason=reason,
    )
    answer = await _coordinator(
        asking, transactional_id, lambda stub: stub.AbortTransaction, request
    )
    return int(answer.aborted)


async def partition_transactions(asking: Asking, where: TopicPartition) -> PartitionTransactions:
    """See `AsyncAdmin.partition_transactions`."""
    return (await _partitions(asking, [where]))[where]


async def blocking_transactions(
    asking: Asking, *, older_than_ms: int = 0
) -> list[BlockingTransaction]:
    """See `AsyncAdmin.blocking_transactions`."""
    topics = await describe_topics(asking)
    places = [
        TopicPartition(name, one.partition)
        for name, topic in topics.items()
        for one in topic.partitions
        if one.leader >= 0
    ]
    seen = (await _partitions(asking, places)).values()
    if not any(one.open for one in seen):
        return []
    found = blocking(seen, await list_transactions(asking, older_than_ms=1))
    known = [one for one in found if one.age_ms is not None and one.age_ms >= older_than_ms]
    return sorted(
        [*known, *await _still_there(asking, [one for one in found if one.age_ms is None])],
        key=lambda one: one.where,
    )


async def _still_there(
    asking: Asking, found: list[BlockingTransaction]
) -> list[BlockingTransaction]:
    """Orphaned transactions may have ended between the two lookups: the log decides."""
    now = await _partitions(asking, [one.where for one in found]) if found else {}
    return [
        one
        for one in found
        if (one.producer_id, one.producer_epoch)
        in {(each.producer_id, each.producer_epoch) for each in now[one.where].open}
    ]


async def _partitions(
    asking: Asking, places: Iterable[TopicPartition]
) -> dict[TopicPartition, PartitionTransactions]:
    """As the leaders have them. A topic that is deleted in the meantime raises UNKNOWN_TOPIC."""
    await asking.cluster_id()

    async def call(
        connection: Connection, part: Mapping[TopicPartition, None], timeout_s: float
    ) -> Answers[PartitionTransactions]:
        answers: dict[TopicPartition, PartitionTransactions | PenstockError] = {}
        method = connection.transactions.DescribePartitionTransactions
        for few in _in_requests(part):
            request = pb.DescribePartitionTransactionsRequest(
                cluster_id=asking.cluster.view.cluster_id,
                partitions=[
                    pb.TopicPartitionName(topic=one.topic, partition=one.partition) for one in few
                ],
            )
            for seen in (await connection.call(method, request, timeout_s)).partitions:
                answers[TopicPartition(seen.topic, seen.partition)] = (
                    error_from_wire(seen.error)
                    if seen.HasField("error")
                    else partition_from_wire(seen)
                )
        return answers

    return await ask_leaders(asking.cluster, dict.fromkeys(places), call, asking.timeout_s)


def _in_requests(places: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    """Parts that fit in one request each, whose limit brokers of every release have."""
    part: list[TopicPartition] = []
    left = REQUEST_BYTES_MAX
    for one in places:
        size = len(one.topic.encode()) + PARTITION_BYTES_MAX
        if size > left and part:
            yield part
            part, left = [], REQUEST_BYTES_MAX
        part.append(one)
        left -= size
    if part:
        yield part


async def list_ledgers(asking: Asking) -> list[LedgerListing]:
    """See `AsyncAdmin.list_ledgers`."""
    request = pb.ListLedgersRequest(cluster_id=await asking.cluster_id())
    answers = await _every_broker(asking, lambda stub: stub.ListLedgers, request)
    found = [ledger_from_wire(one) for answer in answers for one in answer.ledgers]
    return sorted(found, key=lambda one: one.application_id)


async def forget_ledger(asking: Asking, application_id: str) -> bool:
    """See `AsyncAdmin.forget_ledger`."""
    _check_id(application_id)
    request = pb.ForgetLedgerRequest(
        cluster_id=await asking.cluster_id(), application_id=application_id
    )
    answer = await _coordinator(asking, application_id, lambda stub: stub.ForgetLedger, request)
    return bool(answer.forgotten)


async def _coordinator(asking: Asking, name: str, method: Method, request: Any) -> Any:
    """The answer of the broker that coordinates this id; retried while that may help."""
    return await TransactionalIdCalls(asking.cluster, name).call(method, request, asking.timeout_s)


async def _every_broker(asking: Asking, method: Method, request: Any) -> list[Any]:
    async def ask(connection: Connection, timeout_s: float) -> Any:
        return await connection.call(method(connection.transactions), request, timeout_s)

    return await ask_every_broker(asking.cluster, ask, asking.timeout_s)


async def _topic_names(asking: Asking, ids: set[str]) -> dict[str, str]:
    """Names of the topics that exist, by id."""
    if not ids:
        return {}
    topics = await describe_topics(asking)
    return {topic.topic_id: name for name, topic in topics.items()}


def _check_id(name: str) -> None:
    if not name:
        raise MisuseError("the transactional id is empty; name one", ErrorCode.INVALID_REQUEST)
