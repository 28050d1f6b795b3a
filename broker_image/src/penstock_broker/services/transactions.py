"""The `TransactionService`, and InitProducer with a transactional id: calls become events.

    call ─▶ the id's coordinator, loaded here ─▶ `ask` ─▶ answered once it is committed

Nothing here decides; `logged.finding` finds ids, `penstock.rpc.transactions` converts wire types. A
call that needs a producer id takes one before it finds the coordinator: the machine never waits for
it, and the coordinator may change during the wait.
"""

# ruff: noqa: ARG002, N802 - gRPC fixes the names and the arguments of these methods

from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any, Final

from penstock.core.authorization import Kind, Operation
from penstock.core.transactions import contract as c
from penstock.core.transactions.contract_views import (
    Described,
    DescribeRequested,
    Ledgers,
    LedgersRequested,
    Listed,
    ListRequested,
)
from penstock.core.transactions.records import Attempt
from penstock.core.types import TRANSACTIONAL_PRODUCER_BIT, ProducerId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock.proto.v1 import broker_pb2
from penstock.proto.v1 import transaction_pb2 as pb
from penstock.proto.v1.transaction_pb2_grpc import TransactionServiceServicer
from penstock.rpc import transactions as wire
from penstock.rpc.errors import error_to_wire
from penstock_broker.services.limits import NAMES_MAX, check_count, described
from penstock_broker.services.locate import Locator
from penstock_broker.serving.listener import host_of_peer
from penstock_broker.transactions.coordinator import Coordinator
from penstock_broker.transactions.coordinators import Coordinators

_VISIBLE_MAX_MS: Final = 60_000
_TIMEOUT_MS_MAX: Final = 2**31 - 1
_CLIENT_ID_CHARS: Final = 249


class Transactions:
    """The coordinators here as two services use them, and fresh producer ids."""

    def __init__(
        self,
        coordinators: Coordinators,
        take_producer_id: Callable[[], Awaitable[int]],
        refusal: Callable[[], PenstockError | None],
    ) -> None:
        """`refusal` says why nothing can be written now (disk full, stopping), or None."""
        self.coordinators = coordinators
        self._take_producer_id = take_producer_id
        self._refusal = refusal

    def writable(self, transactional_id: str) -> Coordinator:
        """The id's coordinator, if it is here. Raises PenstockError."""
        coordinator = self.coordinators.find(transactional_id)
        self.coordinators.writable(coordinator, self._refusal())
        return coordinator

    async def fresh_producer_id(self, transactional_id: str) -> ProducerId:
        """An id never used before. Raises PenstockError, and first what `writable` raises."""
        self.writable(transactional_id)
        return ProducerId(await self._take_producer_id() | TRANSACTIONAL_PRODUCER_BIT)

    async def init(
        self, request: broker_pb2.InitProducerRequest, host: str
    ) -> broker_pb2.InitProducerResponse:
        """InitProducer with a transactional id. Raises PenstockError."""
        transactional_id = request.transactional_id
        if request.producer_id > 0:
            raise _invalid(
                f"the request has both a transactional id and producer id {request.producer_id}; "
                "the coordinator assigns the producer id, so leave it out"
            )
        fresh = await self.fresh_producer_id(transactional_id)
        answer = await self.writable(transactional_id).ask(
            lambda number: c.InitRequested(
                request_id=number,
                transactional_id=transactional_id,
                instance_id=_bounded(request.instance_id, "instance_id"),
                fresh_producer_id=fresh,
                timeout_ms=_timeout(request.transaction_timeout_ms),
                client_id=_bounded(request.client_id, "client_id"),
                client_host=host,
            )
        )
        assert isinstance(answer, c.ProducerInitialized)
        return broker_pb2.InitProducerResponse(
            producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
        )


class TransactionService(TransactionServiceServicer):
    """See the module."""

    def __init__(
        self,
        transactions: Transactions,
        locator: Locator,
        observe: Callable[[str, float], None],
    ) -> None:
        """`observe(method, seconds)` times requests on streams; the edge times unary calls."""
        self._observe = observe
        self._transactions = transactions
        self._coordinators = transactions.coordinators
        self._locator = locator

    async def FindTransactionCoordinator(
        self, request: pb.FindTransactionCoordinatorRequest, context: Any
    ) -> pb.FindTransactionCoordinatorResponse:
        """From the image; the first call has the internal topic created."""
        partition, leader = await self._coordinators.finder.locate(request.transactional_id)
        return pb.FindTransactionCoordinatorResponse(
            broker_id=leader.broker_id,
            host=leader.host,
            port=leader.port,
            partition=partition,
            leader_epoch=leader.leader_epoch,
        )

    async def EndTransaction(
        self, request: pb.EndTransactionRequest, context: Any
    ) -> pb.EndTransactionResponse:
        """Answered once the decision is stored; if requested, once it is visible."""
        wait_ms = _wait_visible(request.wait_visible_ms)
        answer = await self._transactions.writable(request.transactional_id).ask(
            lambda number: c.EndRequested(
                request_id=number,
                transactional_id=request.transactional_id,
                producer_id=ProducerId(request.producer_id),
                producer_epoch=request.producer_epoch,
                commit=request.commit,
                wait_visible_ms=wait_ms,
            ),
            patience_ms=wait_ms,
        )
        assert isinstance(answer, c.Ended)
        return pb.EndTransactionResponse(
            error=None if answer.error is None else error_to_wire(answer.error),
            next_producer_id=answer.producer_id,
            next_producer_epoch=answer.producer_epoch,
            visible=answer.visible,
        )

    async def EndTransactionStream(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.EndTransactionRequest], context: Any
    ) -> None:
        """One after the other: further requests of a client wait in the transport (I23)."""
        async for request in request_iterator:
            started = monotonic()
            try:
                answer = await self.EndTransaction(request, context)
            finally:
                self._observe("EndTransaction", monotonic() - started)
            await context.write(answer)

    # ------------------------------------------------------------ batches of many tasks

    async def BeginBranch(
        self, request: pb.BeginBranchRequest, context: Any
    ) -> pb.BeginBranchResponse:
        """Gives an attempt of a task an epoch of its own."""
        fresh = await self._transactions.fresh_producer_id(request.application_id)
        answer = await self._transactions.writable(request.application_id).ask(
            lambda number: c.BeginBranchRequested(
                request_id=number,
                application_id=request.application_id,
                checkpoint=_bounded(request.checkpoint, "checkpoint"),
                attempt=Attempt(
                    run=_bounded(request.run, "run"),
                    batch=request.batch,
                    task=request.task,
                    attempt=request.attempt,
                ),
                fresh_producer_id=fresh,
                timeout_ms=_timeout(request.transaction_timeout_ms),
                client_id=_bounded(request.client_id, "client_id"),
                client_host=host_of_peer(context.peer()),
            )
        )
        assert isinstance(answer, c.BranchBegun)
        return pb.BeginBranchResponse(
            already_committed=answer.already_committed,
            branch=answer.branch,
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
        )

    async def CommitBatch(
        self, request: pb.CommitBatchRequest, context: Any
    ) -> pb.CommitBatchResponse:
        """One decision for all branches."""
        wait_ms = _wait_visible(request.wait_visible_ms)
        answer = await self._transactions.writable(request.application_id).ask(
            lambda number: c.CommitBatchRequested(
                request_id=number,
                application_id=request.application_id,
                checkpoint=_bounded(request.checkpoint, "checkpoint"),
                run=_bounded(request.run, "run"),
                batch=request.batch,
                rows=request.rows,
                branches=tuple((one.branch, one.producer_epoch) for one in request.branches),
                wait_visible_ms=wait_ms,
                digest=request.digest,
            ),
            patience_ms=wait_ms,
        )
        assert isinstance(answer, c.BatchCommitted)
        return pb.CommitBatchResponse(
            already_committed=answer.already_committed,
            rows_then=answer.rows_then,
            visible=answer.visible,
            digest_then=answer.digest_then,
        )

    async def AbortBatch(
        self, request: pb.AbortBatchRequest, context: Any
    ) -> pb.AbortBatchResponse:
        """Aborts a batch, unless it is committed."""
        answer = await self._transactions.writable(request.application_id).ask(
            lambda number: c.AbortBatchRequested(
                request_id=number,
                application_id=request.application_id,
                checkpoint=_bounded(request.checkpoint, "checkpoint"),
                run=_bounded(request.run, "run"),
                batch=request.batch,
            )
        )
        assert isinstance(answer, c.BatchAborted)
        return pb.AbortBatchResponse(already_committed=answer.already_committed)

    # ------------------------------------------------------------ to look at, to step in

    async def ListTransactions(
        self, request: pb.ListTransactionsRequest, context: Any
    ) -> pb.ListTransactionsResponse:
        """Transactions of all coordinators here that are loaded."""
        states = wire.states_from_wire(request.states)
        producer_id = ProducerId(request.producer_id) if request.producer_id else None
        found, loading = await self._ask_all(
            lambda number: ListRequested(number, states, request.older_than_ms, producer_id)
        )
        transactions = []
        for answer in found:
            assert isinstance(answer, Listed)
            transactions += [
                wire.listing(one)
                for one in answer.transactions
                if self._may_describe(one.transactional_id)
            ]
        return pb.ListTransactionsResponse(transactions=transactions, loading_partitions=loading)

    async def DescribeTransactions(
        self, request: pb.DescribeTransactionsRequest, context: Any
    ) -> pb.DescribeTransactionsResponse:
        """Describes each id separately."""
        check_count("transactional ids", len(request.transactional_ids), NAMES_MAX)
        return pb.DescribeTransactionsResponse(
            transactions=await described(request.transactional_ids, self._describe, _not_described)
        )

    async def _describe(self, transactional_id: str) -> pb.TransactionDescription:
        try:
            self._locator.access.check(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, transactional_id)
            coordinator = self._coordinators.find(transactional_id)
            answer = await coordinator.ask(
                lambda number: DescribeRequested(number, transactional_id)
            )
        except PenstockError as error:
            return _not_described(transactional_id, error)
        assert isinstance(answer, Described)
        return wire.description(answer, coordinator.partition, coordinator.broker_id)

    async def AbortTransaction(
        self, request: pb.AbortTransactionRequest, context: Any
    ) -> pb.AbortTransactionResponse:
        """Requested by an operator, or by a group for a member that left."""
        if request.producer_epoch < -1:
            raise _invalid(
                f"producer_epoch is {request.producer_epoch}; it must be an "
                "epoch, or -1 for whatever is open"
            )
        ended_by = wire.aborter_from_wire(request.ended_by)
        answer = await self._transactions.writable(request.transactional_id).ask(
            lambda number: c.AbortRequested(
                request_id=number,
                transactional_id=request.transactional_id,
                producer_epoch=request.producer_epoch,
                reason=ended_by,
                comment=_bounded(request.reason, "reason"),
            )
        )
        assert isinstance(answer, c.Aborted)
        return pb.AbortTransactionResponse(aborted=answer.count)

    async def ListLedgers(
        self, request: pb.ListLedgersRequest, context: Any
    ) -> pb.ListLedgersResponse:
        """Ledgers of all coordinators here that are loaded."""
        found, loading = await self._ask_all(LedgersRequested)
        ledgers = []
        for answer in found:
            assert isinstance(answer, Ledgers)
            ledgers += [
                wire.ledger(name, one)
                for name, one in sorted(answer.ledgers.items())
                if self._may_describe(name)
            ]
        return pb.ListLedgersResponse(ledgers=ledgers, loading_partitions=loading)

    async def ForgetLedger(
        self, request: pb.ForgetLedgerRequest, context: Any
    ) -> pb.ForgetLedgerResponse:
        """The application's next batch is then accepted as its first."""
        answer = await self._transactions.writable(request.application_id).ask(
            lambda number: c.ForgetLedgerRequested(number, request.application_id)
        )
        assert isinstance(answer, c.LedgerForgotten)
        return pb.ForgetLedgerResponse(forgotten=answer.forgotten)

    async def DescribePartitionTransactions(
        self, request: pb.DescribePartitionTransactionsRequest, context: Any
    ) -> pb.DescribePartitionTransactionsResponse:
        """From the logs of partitions led here."""
        return pb.DescribePartitionTransactionsResponse(
            partitions=[self._partition(part) for part in request.partitions]
        )

    def _partition(self, part: pb.TopicPartitionName) -> pb.PartitionTransactions:
        try:
            replica, marks = self._locator.led(
                part.topic, "", part.partition, 0, Operation.DESCRIBE
            )
        except PenstockError as error:
            return pb.PartitionTransactions(
                topic=part.topic, partition=part.partition, error=error_to_wire(error)
            )
        return pb.PartitionTransactions(
            topic=part.topic,
            partition=part.partition,
            topic_id=replica.key.topic_id,
            last_stable_offset=marks.last_stable_offset,
            high_watermark=marks.high_watermark,
            open=[
                pb.OpenTransaction(
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                    first_offset=-1 if entry.open_offset is None else entry.open_offset,
                    last_time_ms=max(entry.last_timestamp_ms, 0),
                )
                for entry in replica.machine.open_transactions
            ],
        )

    def _may_describe(self, transactional_id: str) -> bool:
        return self._locator.access.allows(
            Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, transactional_id
        )

    async def _ask_all(self, make: Callable[[int], c.Request]) -> tuple[list[c.Answer], list[int]]:
        """The answers of all coordinators here, and the partitions of those that cannot answer."""
        answers: list[c.Answer] = []
        loading = []
        for coordinator in self._coordinators.led:
            try:
                answers.append(await coordinator.ask(make))
            except PenstockError:
                loading.append(coordinator.partition)
        return answers, loading


def _wait_visible(wait_ms: int) -> int:
    if wait_ms > _VISIBLE_MAX_MS:
        raise _invalid(f"wait_visible_ms is {wait_ms}; it must be at most {_VISIBLE_MAX_MS:,}")
    return wait_ms


def _timeout(timeout_ms: int) -> int:
    if timeout_ms > _TIMEOUT_MS_MAX:
        raise _invalid(
            f"transaction_timeout_ms is {timeout_ms}; it must be at most {_TIMEOUT_MS_MAX}"
        )
    return timeout_ms


def _not_described(transactional_id: str, error: PenstockError) -> pb.TransactionDescription:
    return pb.TransactionDescription(transactional_id=transactional_id, error=error_to_wire(error))


def _bounded(text: str, field: str) -> str:
    """Names and comments are stored in records and logs, and shown in administrators' terminals."""
    if len(text) > _CLIENT_ID_CHARS:
        raise _invalid(f"{field} has {len(text)} characters; the limit is {_CLIENT_ID_CHARS}")
    if not text.isprintable():
        raise _invalid(f"{field} is {text!r}; it must have printable characters only")
    return text


def _invalid(what: str) -> ClusterError:
    return ClusterError(what, ErrorCode.INVALID_REQUEST)
