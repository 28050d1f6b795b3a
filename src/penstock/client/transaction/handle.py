"""What `producer.transaction()` returns: one transaction, as its user sees it.

    async with producer.transaction() as tx:     # begin
        await tx.send("paid", value)             # into this transaction
                                                 # leaving commits; by an error: aborts

The handle knows only whether it is the producer's present transaction; what may be done is decided
by the machine (`machine.py`), which the manager obeys (`manager.py`).
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
    """What became of a transaction that needs no call any more."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "fenced"


class AsyncTransaction:
    """Records that become visible to read_committed readers as a whole, or never.

    Use it with `async with`: leaving the block commits, leaving it by an error aborts. Or call
    `begin`, then `commit` or `abort`, by one task at a time.
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
            except PenstockError:
                if self._manager.in_transaction:
                    await self._abort_quietly(None)
                raise
        else:
            interrupted = issubclass(kind, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
            await self._abort_quietly(INTERRUPTED_ABORT_S if interrupted else None)

    @property
    def over(self) -> bool:
        """It was ended, or its producer has lost the id: no call is needed any more."""
        return self._ended is not None

    async def begin(self) -> None:
        """Opens the transaction; the producer's first one takes the transactional id.

        Raises MisuseError if this or another transaction of the producer is open;
        TransactionError if the producer has lost its id; UnreachableError and other ClusterErrors
        after `max_block_ms` without a coordinator; ClusterError(INVALID_REQUEST) if the cluster
        does not allow so long a `transaction_timeout_ms`.
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
        """As `AsyncProducer.send`, within this transaction. A delivery's success means stored, and
        visible only if the transaction commits; a delivery that fails fails the transaction."""
        with self.sending():
            return await self._producer.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )

    async def send_columns(self, topic: str, values: Any, keys: Any = None, **more: Any) -> Any:
        """As `AsyncProducer.send_columns`, within this transaction."""
        with self.sending():
            deliveries: ColumnsDelivery = await self._producer.send_columns(
                topic, values, keys, **more
            )
        return deliveries

    async def commit_offsets(
        self,
        consumer: "AsyncConsumer",
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    ) -> None:
        """Makes a consumer's progress part of the transaction: its group's offsets count if it
        commits, and never if it is aborted.

        Args:
            consumer: With a group id and `enable_auto_commit=False`, of the same cluster.
            offsets: The next offset to read per partition; None = behind everything handed out.

        Commit before polling again: partitions may leave with a poll, and others then read what
        this transaction has written about. After an abort `consumer.seek_to_committed()`
        goes back to what counts. Raises MisuseError, with nothing sent, for a consumer that cannot
        take part. Any other error fails the transaction, abort is all that is left: UNKNOWN_MEMBER,
        FENCED_INSTANCE_ID and STALE_MEMBER_EPOCH if others own the partitions now,
        OFFSET_WENT_BACK, PRODUCER_FENCED, or what lasted for the consumer's `request_timeout_ms`.
        """
        await self._begun("commit_offsets").commit_offsets(consumer, offsets)

    async def commit(self, *, wait_visible: bool = False, timeout_s: float | None = None) -> None:
        """Sends what lingers, waits until all is stored, and has the coordinator decide.

        Args:
            wait_visible: Returns only when every partition has heard, so that a read_committed
                reader that begins now sees it.
            timeout_s: None = `delivery_timeout_ms`.

        Returns when the transaction is committed: no crash undoes it. Raises TransactionError: it
        is not committed; if TRANSACTION_ABORTED, abort it, which is a success if the coordinator
        has done it. With `unknown_outcome` (REQUEST_TIMED_OUT) nobody answered in time: call commit
        again, it asks on. ClusterError(REQUEST_TIMED_OUT) with `wait_visible`: committed, but not
        visible yet.
        """
        manager = self._begun("commit")
        try:
            await manager.commit(wait_visible=wait_visible, timeout_s=timeout_s)
        except PenstockError as error:
            self._end = _end_told_by(error, manager)
            raise
        self._end = _End.COMMITTED

    async def abort(self, *, timeout_s: float | None = None) -> None:
        """Gives up what was sent; none of it will ever be visible to read_committed readers.

        Done again, or after the coordinator has aborted it by itself, it is a success: so it may
        follow whatever `commit` has raised. `timeout_s` None = `delivery_timeout_ms`. Raises
        TransactionError: nobody confirmed it in time (the next transaction asks on), or the
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
        """What is sent inside belongs to this transaction, or is refused if that has ended."""
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
        """An abort that nobody had confirmed was confirmed before the producer's next one began."""
        if self._end is None and self._manager is not None and self._manager.number > self._number:
            self._end = _End.ABORTED
        return self._end

    async def _abort_quietly(self, timeout_s: float | None) -> None:
        """The error on its way up says more than one of the abort, which time makes good."""
        try:
            await self.abort(timeout_s=timeout_s)
        except PenstockError as error:
            _log.warning("transaction not aborted yet: %s", error)


def _end_told_by(error: PenstockError, manager: TransactionManager) -> _End | None:
    """None: it needs a call yet."""
    if isinstance(error, MisuseError) or not manager.over:
        return None
    if manager.fenced:
        return _End.FENCED
    # The other error is of a commit that is not visible in time.
    return _End.ABORTED if isinstance(error, TransactionError) else _End.COMMITTED
