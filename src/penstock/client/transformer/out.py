"""What a handler may do with its transaction: send, and nothing else.

A failure of the cluster is not the handler's failure: such a send returns a failed delivery, and
the transformer does the whole transaction again. Exceptions are errors of the caller.
"""

from collections.abc import Sequence
from typing import Any, Final

from penstock.client.producer.delivery import ColumnsDelivery, Delivery, DeliveryError, Outcome
from penstock.client.producer.producer import AsyncProducer
from penstock.client.transaction.handle import AsyncTransaction
from penstock.core.columns import Header
from penstock.errors import ClusterError, ErrorCode, MisuseError

Arguments = tuple[Any, Any, int | None, int | None, Any]
"""value, key, partition, timestamp_ms, headers"""
_REFUSED_FOR_GOOD: Final = frozenset(
    {
        ErrorCode.RECORD_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_CODEC,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.MISUSE,
    }
)
"""Errors of records: the same records would be refused again."""


class AsyncOut:
    """Sends in the transaction that commits the source offsets."""

    def __init__(self, producer: AsyncProducer, transaction: AsyncTransaction) -> None:
        """Made by a transformer."""
        self._producer = producer
        self._transaction = transaction
        self.failure: ClusterError | None = None
        """Why the transaction cannot be committed."""
        self.unknown_topic: ClusterError | None = None
        """Retrying does not help: the program names a topic that does not exist."""

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
        """Sends a record, like `AsyncProducer.send`; it is visible when the transaction commits.

        You do not have to await the delivery: nothing commits before all records are stored. Raises
        MisuseError for invalid records, and ClusterError(UNKNOWN_TOPIC), which ends the loop. Any
        other error fails the delivery, and the transaction is done again.
        """
        try:
            return await self._transaction.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        except ClusterError as error:
            return Delivery(self._given_up(topic, error), 0)

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
        """Sends many records at once, like `AsyncProducer.send_columns`. Raises as `send`."""
        try:
            deliveries = await self._transaction.send_columns(
                topic,
                values,
                keys,
                timestamps_ms=timestamps_ms,
                partition=partition,
                headers=headers,
            )
        except ClusterError as error:
            return ColumnsDelivery([(self._given_up(topic, error), 1)])
        return deliveries

    def try_send(self, topic: str, arguments: Arguments) -> Delivery | None:
        """Internal, from any thread: sends if that is possible without waiting, otherwise None:
        also if the topic's limit would have to be looked up again, as it may have been raised."""
        try:
            with self._transaction.sending():
                return self._producer.try_append(topic, *arguments)
        except MisuseError as error:
            if error.code is not ErrorCode.RECORD_TOO_LARGE:
                raise
            return None
        except ClusterError as error:
            return Delivery(self._given_up(topic, error), 0)

    def _given_up(self, topic: str, error: ClusterError) -> Outcome:
        if error.code is ErrorCode.UNKNOWN_TOPIC:
            self.unknown_topic = error
            raise error
        self.failure = error
        outcome = Outcome(None)
        outcome.fail(
            DeliveryError(
                error.message, error.code, topic=topic, partition=-1, unknown_outcome=False
            )
        )
        return outcome


def refused_for_good(error: BaseException) -> ClusterError | None:
    """The error that ends the loop if a transaction has failed because of records that the topic
    refuses: a repetition would fail again, for ever."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, DeliveryError) and behind.code in _REFUSED_FOR_GOOD:
            return ClusterError(
                f"{behind.message}; the topic refuses what the handler sends, so the program has "
                "stopped and has not committed the source records. Fix the handler or the "
                "topic's settings; to send such records to the dead_letter_topic instead, wait "
                "in the handler until its output is stored: out.send(...).result()",
                behind.code,
            )
        behind = behind.__cause__
    return None


def is_too_large(error: BaseException) -> bool:
    """The transaction has too many partitions; with fewer source records it may have fewer."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, ClusterError) and behind.code is ErrorCode.TRANSACTION_TOO_LARGE:
            return True
        behind = behind.__cause__
    return False


def is_behind(error: BaseException, other: BaseException) -> bool:
    """`error` is `other`, or was raised because of it, or while it was handled."""
    behind: BaseException | None = error
    while behind is not None and behind is not other:
        behind = behind.__cause__ or behind.__context__
    return behind is other
