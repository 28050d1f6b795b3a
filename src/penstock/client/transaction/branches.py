"""One batch written by many tasks: the calls of each task, and of the program that drives them.

    task:   begin ─▶ Branch ─▶ send_columns… ─▶ hand_over ─▶ (branch, rows) ──────────┐
            begin ─▶ None: the batch is committed, write nothing                      │
    driver: commit(all branches, rows) ─▶ one decision: all of them, or none ◀────────┘

A branch is a transaction of this producer with its own identity, which the coordinator gives to
this one attempt of the task. It ends with the batch: after the handover, it waits for the driver's
commit, which aborts every branch it does not name (I11). A branch whose task died is also aborted
by that commit, by the batch's next run, or at its timeout. All calls here can be repeated.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.client.cluster.connections import Connection
from penstock.client.cluster.coordinator import PATIENCE_S
from penstock.client.producer.delivery import ColumnsDelivery
from penstock.client.producer.sending_in import SendingIn
from penstock.client.transaction.branch_model import BatchOutcome, BatchRun, Branch
from penstock.client.transaction.manager import TransactionManager
from penstock.core.columns import Header
from penstock.core.types import ProducerId, ProducerIdentity
from penstock.errors import MisuseError
from penstock.proto.v1 import transaction_pb2 as pb

if TYPE_CHECKING:
    from penstock.client.producer.producer import AsyncProducer

VISIBLE_WAIT_MAX_MS: Final = 60_000


class _NamesBatch(Protocol):
    """A request about a batch."""

    cluster_id: str
    application_id: str
    checkpoint: str
    run: str
    batch: int


class AsyncBranches:
    """Of one producer, whose transactional id is the application id; one branch at a time."""

    def __init__(self, producer: "AsyncProducer") -> None:
        """Made by `AsyncProducer.branches`."""
        self._producer = producer
        self._number = 0

    async def begin(self, run: BatchRun, task: int, attempt: int) -> Branch | None:
        """Opens a branch for this attempt; records sent from now on belong to it.

        Returns None if the batch is committed: write nothing. Raises ClusterError: LEDGER_MISMATCH,
        PRODUCER_FENCED (a newer run of the batch has begun), TRANSACTION_ABORTED (this attempt has
        ended), TRANSACTION_TOO_LARGE, INVALID_REQUEST (`transaction_timeout_ms` is above the
        cluster's limit), or the last error after `max_block_ms`.
        """
        manager = await self._manager(run)
        begun: list[Branch] = []

        async def take(timeout_s: float) -> ProducerIdentity | None:
            answer = await self._begin_branch(manager, run, (task, attempt), timeout_s)
            if answer.already_committed:
                return None
            begun.append(Branch(answer.branch, answer.producer_epoch))
            return ProducerIdentity(ProducerId(answer.producer_id), answer.producer_epoch)

        if not await manager.begin_as(take):
            return None
        self._number = manager.number
        return begun[0]

    async def send_columns(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        timestamps_ms: Any = None,
        partition: int | None = None,
        headers: Sequence[Sequence[Header] | None] | None = None,
    ) -> ColumnsDelivery:
        """Like `AsyncProducer.send_columns`, in the branch; a failed delivery fails the branch."""
        with self.sending():
            return await self._producer.send_columns(
                topic,
                values,
                keys,
                timestamps_ms=timestamps_ms,
                partition=partition,
                headers=headers,
            )

    def sending(self) -> SendingIn:
        """Internal: records sent inside belong to the branch begun here, or are refused if it has
        ended."""
        return SendingIn(self._number)

    async def hand_over(self, timeout_s: float | None = None) -> None:
        """Waits until everything sent is stored; then the batch may commit the branch.

        `timeout_s` None = `delivery_timeout_ms`. Raises TransactionError: a record was given up,
        and the branch with it; abort it, and let the task begin a new one.
        """
        await (await self._producer.transactions()).hand_over(timeout_s)

    async def abort(self, timeout_s: float | None = None) -> None:
        """Aborts the branch. Raises TransactionError if that is not confirmed in time: then the end
        of its batch, or its timeout, aborts it."""
        await (await self._producer.transactions()).abort(timeout_s)

    async def commit_batch(
        self,
        run: BatchRun,
        rows: int,
        branches: Sequence[Branch],
        *,
        digest: int = 0,
        wait_visible_ms: int = 0,
        timeout_s: float | None = None,
    ) -> BatchOutcome:
        """Decides: the named branches commit, all others of the application abort; the ledger
            records the batch as committed.

        Args:
            rows: How many rows the branches have; stored, to be compared if the batch is repeated.
            digest: Of the rows, whatever their order, 64 bits; stored, and answered if the batch is
                repeated after a later one. 0 = unknown.
            branches: Handed over by this run's tasks. None: nothing is recorded.
            wait_visible_ms: How long to wait, after the decision, for readers to see it.
            timeout_s: None = `delivery_timeout_ms`.

        Raises ClusterError: TRANSACTION_ABORTED (a branch had ended, nothing was committed),
        PRODUCER_FENCED (a newer run has begun), LEDGER_MISMATCH, or the last error after
        `timeout_s`: then it may have been committed; call again to find out.
        """
        wait_ms = min(wait_visible_ms, VISIBLE_WAIT_MAX_MS)
        manager = await self._manager(run)
        request = pb.CommitBatchRequest(
            rows=rows,
            digest=digest,
            branches=[
                pb.BranchEpoch(branch=branch.number, producer_epoch=branch.epoch)
                for branch in branches
            ],
            wait_visible_ms=wait_ms,
        )

        async def attempt(connection: Connection, attempt_s: float) -> pb.CommitBatchResponse:
            self._name(request, run, manager)
            patience_s = max(attempt_s, PATIENCE_S + wait_ms / 1000)
            return await connection.call(connection.transactions.CommitBatch, request, patience_s)

        answer = await manager.coordinator.until_answered(attempt, self._limit_s(timeout_s))
        return BatchOutcome(
            answer.already_committed, answer.rows_then, answer.visible, answer.digest_then
        )

    async def abort_batch(self, run: BatchRun, *, timeout_s: float | None = None) -> bool:
        """Aborts the open branches of the run, and accepts no more of it. False: the batch is
        committed, and nothing was done. Raises ClusterError, the last one after `timeout_s`."""
        manager = await self._manager(run)
        request = pb.AbortBatchRequest()

        async def attempt(connection: Connection, attempt_s: float) -> pb.AbortBatchResponse:
            self._name(request, run, manager)
            return await connection.call(connection.transactions.AbortBatch, request, attempt_s)

        answer = await manager.coordinator.until_answered(attempt, self._limit_s(timeout_s))
        return not answer.already_committed

    # -- inside ------------------------------------------------------------------------------

    async def _begin_branch(
        self, manager: TransactionManager, run: BatchRun, who: tuple[int, int], timeout_s: float
    ) -> pb.BeginBranchResponse:
        config = self._producer.config
        request = pb.BeginBranchRequest(
            task=who[0],
            attempt=who[1],
            transaction_timeout_ms=config.transaction_timeout_ms,
            client_id=config.client_id,
        )

        async def attempt(connection: Connection, attempt_s: float) -> pb.BeginBranchResponse:
            self._name(request, run, manager)
            return await connection.call(connection.transactions.BeginBranch, request, attempt_s)

        return await manager.coordinator.until_answered(attempt, timeout_s)

    async def _manager(self, run: BatchRun) -> TransactionManager:
        if run.application_id != self._producer.config.transactional_id:
            raise MisuseError(
                f"application {run.application_id!r} is not this producer's transactional_id, "
                f"{self._producer.config.transactional_id!r}"
            )
        return await self._producer.transactions()

    def _name(self, request: _NamesBatch, run: BatchRun, manager: TransactionManager) -> None:
        request.cluster_id = manager.cluster_id  # known now: the coordinator was found
        request.application_id, request.checkpoint = run.application_id, run.checkpoint
        request.run, request.batch = run.run, run.batch

    def _limit_s(self, timeout_s: float | None) -> float:
        return self._producer.config.delivery_timeout_ms / 1000 if timeout_s is None else timeout_s
