"""The sync producer: appends on the calling thread, everything else on the loop thread.

`send` calls the same `try_append` as the async producer; the call goes through the event loop only
if it has to wait (first record of a topic, no space).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Self, Unpack

from penstock.client.config import ProducerConfig, ProducerOptions
from penstock.client.documented import facade
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.loop_thread import EXIT_FLUSH_S, LoopThread, shared_loop
from penstock.client.producer.delivery import ColumnsDelivery, Delivery, Outcome
from penstock.client.producer.producer import AsyncProducer, exit_flush_s
from penstock.client.producer.shards import shard_columns
from penstock.client.producer.topic_buffer import given_headers
from penstock.client.sync.branches import Branches
from penstock.client.sync.consumer import Consumer
from penstock.client.transaction.handle import AsyncTransaction
from penstock.core.columns import Header
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError

_log = logging.getLogger("penstock.client")


@facade(AsyncProducer, ProducerConfig)
class Producer:
    """Sends records to topics, batched, in order, without duplicates. Can be shared by threads.

    Use it in a `with` block, or call `close`: it sends the remaining records. Failed deliveries are
    logged, counted by `close`, and raised by `Delivery.result`.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ProducerConfig | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._loop = shared_loop()
        self._core = self._loop.run(_made_in_loop(bootstrap, config, options))
        self._try_append = self._core.try_append
        self._undelivered: int | None = None
        self._loop.adopt(self)

    @property
    def config(self) -> ProducerConfig:
        """All settings, checked."""
        return self._core.config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close(exit_flush_s(kind))

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Delivery:
        """Sends a record; blocks up to `max_block_ms` for space in the buffer, or for the topic's
        metadata.

        Raises as `AsyncProducer.send`. Then nothing was sent.
        """
        headers = given_headers(headers)
        try:
            delivery = self._try_append(topic, value, key, partition, timestamp_ms, headers)
        except MisuseError as error:
            if error.code is not ErrorCode.RECORD_TOO_LARGE:
                raise
            delivery = None  # the limit may have been raised: the core looks
        if delivery is not None:
            return delivery
        return self._loop.run(
            self._core.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        )

    def prepare(self, topic: str, partition: int | None = None) -> None:
        """Checks that the topic (and partition) exist, and gets what `send` needs to know of it.

        Raises as `send` if not, but after at most `connect_timeout_ms`.
        """
        self._loop.run(self._core.prepare(topic, partition))

    def send_columns(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        timestamps_ms: Any = None,
        partition: int | None = None,
        headers: Sequence[Sequence[Header] | None] | None = None,
    ) -> ColumnsDelivery:
        """Sends many records at once; see `AsyncProducer.send_columns`."""
        buffer = self._core.buffer_of(topic)
        if buffer is None or buffer.may_lack(partition):
            buffer = self._loop.run(self._core.prepare(topic, partition))
        parts: list[tuple[Outcome, int]] = []
        for shard in shard_columns(
            buffer, values, keys, timestamps_ms=timestamps_ms, partition=partition, headers=headers
        ):
            if not buffer.fits(shard.record_bytes):
                self._loop.run(self._core.check_shard(buffer, shard))
            batch = buffer.add_columns(shard.columns, shard.partition)
            if batch is None:
                batch = self._loop.run(self._core.add_shard(buffer, shard))
            parts.append((batch.outcome, batch.record_count))
        return ColumnsDelivery(parts)

    def transaction(self) -> "Transaction":
        """A transaction that is not begun yet: `with producer.transaction() as tx`."""
        return Transaction(self, self._loop, self._core.transaction())

    def branches(self) -> Branches:
        """A task's part of a batch that many tasks write; see `AsyncProducer.branches`."""
        return Branches(self.send_columns, self._loop, self._core.branches())

    def flush(self, timeout_s: float | None = None) -> None:
        """Blocks until everything sent so far is settled; raises TimeoutError."""
        self._loop.run(self._core.flush(timeout_s))

    def close(self, timeout_s: float | None = None) -> int:
        """Flushes and closes. Returns the number of records not delivered; can be called
        repeatedly."""
        if self._undelivered is None:
            self._undelivered = self._loop.run(self._core.close(timeout_s))
            self._loop.release(self)
        return self._undelivered

    def close_at_exit(self) -> None:
        """Internal: the process ends without a call of `close`."""
        left = self._core.unsettled_records
        if left:
            _log.warning(
                "a producer was not closed: flushing %d records for at most %g s; call close(), "
                "or use it in a with block",
                left,
                EXIT_FLUSH_S,
            )
        undelivered = self.close(EXIT_FLUSH_S)
        if left and undelivered:
            _log.error("%d records were not delivered before the process ended", undelivered)


@facade(AsyncTransaction)
class Transaction:
    """Records that become visible to read_committed readers as a whole, or not at all.

    Use it in a `with` block: the end of the block commits, an error aborts. Or call `begin`, then
    `commit` or `abort`. Threads can share it for sending; one thread begins and ends it.
    """

    def __init__(self, producer: Producer, loop: LoopThread, core: AsyncTransaction) -> None:
        """Made by `Producer.transaction`."""
        self._producer = producer
        self._loop = loop
        self._core = core

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException as error:
            # Ctrl-C may come a moment after it had begun: nobody else would end it.
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._loop.run(self._core.__aexit__(kind, *exc))

    def begin(self) -> None:
        """Opens the transaction."""
        self._loop.run(self._core.begin())

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Delivery:
        """Like `Producer.send`, within this transaction."""
        with self._core.sending():
            return self._producer.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )

    def send_columns(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        timestamps_ms: Any = None,
        partition: int | None = None,
        headers: Sequence[Sequence[Header] | None] | None = None,
    ) -> ColumnsDelivery:
        """Like `Producer.send_columns`, within this transaction."""
        with self._core.sending():
            return self._producer.send_columns(
                topic,
                values,
                keys,
                timestamps_ms=timestamps_ms,
                partition=partition,
                headers=headers,
            )

    def commit_offsets(
        self,
        consumer: Consumer,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    ) -> None:
        """Makes a consumer's offsets part of it; see `AsyncTransaction.commit_offsets`."""
        self._loop.run(self._core.commit_offsets(consumer.core, offsets))

    def commit(self, *, wait_visible: bool = False, timeout_s: float | None = None) -> None:
        """Commits; see `AsyncTransaction.commit`."""
        self._loop.run(self._core.commit(wait_visible=wait_visible, timeout_s=timeout_s))

    def abort(self, *, timeout_s: float | None = None) -> None:
        """Aborts; see `AsyncTransaction.abort`."""
        self._loop.run(self._core.abort(timeout_s=timeout_s))


async def _made_in_loop(
    bootstrap: str | Sequence[str], config: ProducerConfig | None, options: ProducerOptions
) -> AsyncProducer:
    producer = AsyncProducer(bootstrap, config, **options)
    await producer.start()
    return producer
