"""The object that `producer.transaction()` returns: one transaction.

    async with producer.transaction() as tx:     # begin
        await tx.send("paid", value)             # into this transaction
                                                 # leaving commits; by an error: aborts

The handle knows only whether it is the producer's current transaction; the machine (`machine.py`)
decides what is allowed, and the manager (`manager.py`) carries it out.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.client.group.model import OffsetAndMetadata
from penstock.client.producer.delivery import ColumnsDelivery, Delivery
from penstock.client.producer.sending_in import SendingIn
from penstock.client.transaction.contract import TransactionError
from penstock.client.transaction.manager import TransactionManager
from penstock.core.columns import Header
from penstock.core.types import TopicPartition
from penstock.errors import MisuseError, PenstockError

if TYPE_CHECKING:
    from penstock.client.consumer.consumer import AsyncConsumer
    from penstock.client.producer.producer import AsyncProducer

INTERRUPTED_ABORT_S: Final = 2.0
"""Timeout of an abort while the program is exiting."""

_log = logging.getLogger("penstock.client")


class _End(Enum):
    """The outcome of a transaction that needs no further call."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "fenced"


class AsyncTransaction:
    """Records that become visible to read_committed readers as a whole, or not at all.

    Use it with `async with`: the end of the block commits, an error aborts. Or call `begin`, then
    `commit` or `abort`, from one task at a time.
    """

    def __init__(self, producer: "AsyncProducer") -> None:
        """Made by `AsyncProducer.transaction`."""
        self._producer = producer
        self._manager: TransactionManager | None = None
        self._number = 0
        self._end: _End | None = None

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self.over or self._manager is None:
            return
        if kind is None:
            try:
                await self.commit()
            except BaseException as error:  # also if it is cancelled: nobody else would abort
                if self._manager.in_transaction:
                    await self._abort_quietly(_abort_s(type(error)))
                raise
        else:
            await self._abort_quietly(_abort_s(kind))

    @property
    def over(self) -> bool:
        """It has ended, or its producer has lost the id: no further call is needed."""
        return self._ended is not None

    async def begin(self) -> None:
        """Opens the transaction; the producer's first one takes over the transactional id.

        Raises MisuseError if this or another transaction of the producer is open; TransactionError
        if the producer has lost its id; UnreachableError and other ClusterErrors after
        `max_block_ms` without a coordinator; ClusterError(INVALID_REQUEST) if
        `transaction_timeout_ms` is above the cluster's limit.
        """
        if self._manager is not None:
            raise MisuseError(
                "this transaction was already begun; call producer.transaction() again"
            )
        manager = await self._producer.transactions()
        await manager.begin()
        self._manager = manager
        self._number = manager.number

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Delivery:
        """Like `AsyncProducer.send`, within this transaction. A successful delivery means stored,
        and visible only if the transaction commits; a failed delivery fails the transaction."""
        with self.sending():
            return await self._producer.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )

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
        """Like `AsyncProducer.send_columns`, within this transaction."""
        with self.sending():
            return await self._producer.send_columns(
                topic,
                values,
                keys,
                timestamps_ms=timestamps_ms,
                partition=partition,
                headers=headers,
            )

    async def commit_offsets(
        self,
        consumer: "AsyncConsumer",
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    ) -> None:
        """Makes a consumer's offsets part of the transaction: they take effect if it commits, and
        never if it aborts.

        Args:
            consumer: With a group id and `enable_auto_commit=False`, of the same cluster.
            offsets: The next offset to read per partition; None = after everything returned so far.

        Commit before polling again: partitions may be revoked in a poll, and other members then
        read the records that this transaction has processed. After an abort,
        `consumer.seek_to_committed()` goes back to the committed offsets. Raises MisuseError, with
        nothing sent, for a consumer that cannot take part. Any other error fails the transaction,
        which can then only be aborted: UNKNOWN_MEMBER, FENCED_INSTANCE_ID and STALE_MEMBER_EPOCH if
        others own the partitions now, OFFSET_WENT_BACK, PRODUCER_FENCED, or an error that persisted
        for the consumer's `request_timeout_ms`.
        """
        await self._begun("commit_offsets").commit_offsets(consumer, offsets)

    async def commit(self, *, wait_visible: bool = False, timeout_s: float | None = None) -> None:
        """Sends lingering records, waits until everything is stored, and asks the coordinator to
        commit.

        Args:
            wait_visible: Returns only when every partition has its marker, so that a read_committed
                reader that starts now sees the transaction.
            timeout_s: None = `delivery_timeout_ms`.

        Returns when the transaction is committed: no crash undoes it. Raises TransactionError: it
        is not committed; if TRANSACTION_ABORTED, abort it, which succeeds if the coordinator has
        already done it. With `unknown_outcome` (REQUEST_TIMED_OUT), there was no answer in time:
        call commit again to ask for the outcome. ClusterError(REQUEST_TIMED_OUT) with
        `wait_visible`: committed, but not visible yet.
        """
        manager = self._begun("commit")
        try:
            await manager.commit(wait_visible=wait_visible, timeout_s=timeout_s)
        except PenstockError as error:
            self._end = _end_told_by(error, manager)
            raise
        self._end = _End.COMMITTED

    async def abort(self, *, timeout_s: float | None = None) -> None:
        """Aborts: nothing that was sent will ever be visible to read_committed readers.

        It also succeeds if repeated, or if the coordinator has already aborted: so you can call it
        after any error of `commit`. `timeout_s` None = `delivery_timeout_ms`. Raises
        TransactionError: it was not confirmed in time (the next transaction asks again), or the
        producer has lost its id; MisuseError: it is committed, or may be (`unknown_outcome`).
        """
        if self._manager is not None and self._ended is _End.ABORTED:
            return
        manager = self._manager if self._ended is _End.FENCED else self._begun("abort")
        assert manager is not None, "what has ended was begun"
        try:
            await manager.abort(timeout_s)
        except PenstockError as error:
            self._end = _end_told_by(error, manager)
            raise
        self._end = _End.ABORTED

    def sending(self) -> SendingIn:
        """Internal: records sent inside belong to this transaction, or are refused if it has
        ended."""
        self._begun("send")
        return SendingIn(self._number)

    def _begun(self, what: str) -> TransactionManager:
        if self._manager is None:
            raise MisuseError(f"{what} before begin: use `with producer.transaction() as tx`")
        if self._ended is not None:
            raise MisuseError(
                f"{what} after the end of the transaction, which is {self._ended.value}; begin a "
                "new one"
            )
        return self._manager

    @property
    def _ended(self) -> "_End | None":
        """An unconfirmed abort was confirmed before the producer's next transaction began."""
        if self._end is None and self._manager is not None and self._manager.number > self._number:
            self._end = _End.ABORTED
        return self._end

    async def _abort_quietly(self, timeout_s: float | None) -> None:
        """The propagating error says more than an error of the abort, which the timeout makes up
        for."""
        try:
            await self.abort(timeout_s=timeout_s)
        except PenstockError as error:
            _log.warning("transaction not aborted yet: %s", error)


def _abort_s(kind: type[BaseException]) -> float | None:
    """How long an abort may take after this error: only briefly if the program is exiting."""
    interrupted = issubclass(kind, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
    return INTERRUPTED_ABORT_S if interrupted else None


def _end_told_by(error: PenstockError, manager: TransactionManager) -> _End | None:
    """None: it still needs a call."""
    if isinstance(error, MisuseError) or not manager.over:
        return None
    if manager.fenced:
        return _End.FENCED
    # The other error is of a commit that is not visible in time.
    return _End.ABORTED if isinstance(error, TransactionError) else _End.COMMITTED
