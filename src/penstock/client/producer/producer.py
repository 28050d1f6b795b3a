"""The async producer: the methods that users call; the parts it combines do the work.

    send ──▶ TopicBuffer.append ──▶ Delivery            (accumulator.py: batches)
                                        Sender          (sender.py: order, retries, leaders)

**What a delivery's outcome means.** Success: stored as `acks` and `sync` request. DeliveryError
with `unknown_outcome` False: not in the log, and never will be. With True: an attempt was sent, but
its answer never came; the records are in the log once or not at all. If you send them again as new
records, they may be duplicated.

**Order.** Records that one task or thread sends to one partition are stored in that order. With
`idempotent` (the default), retries neither duplicate nor reorder (see lane.py).

**Transactions.** With a `transactional_id`, records can be sent only inside `transaction()`, and
become visible together or not at all (penstock.client.transaction).

A producer belongs to the event loop in which it is first used; `send_nowait` is safe in other
threads (the sync facade uses that). After a fork, the child must create its own.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Final, Self, TypeVar, Unpack

from penstock.client.cluster.cluster import Cluster
from penstock.client.config import ProducerConfig, ProducerOptions, parse_bootstrap
from penstock.client.documented import with_settings
from penstock.client.process import ProcessGuard
from penstock.client.producer.accumulator import Accumulator, PartitionQueue, PendingBatch
from penstock.client.producer.delivery import (
    ColumnsDelivery,
    Delivery,
    Outcome,
    running_loop,
)
from penstock.client.producer.sender import Sender
from penstock.client.producer.shards import Shard, shard_columns
from penstock.client.producer.topic_buffer import TopicBuffer, given_headers
from penstock.client.tasks import BackgroundTasks, why_ended
from penstock.client.transaction.branches import AsyncBranches
from penstock.client.transaction.handle import AsyncTransaction
from penstock.client.transaction.manager import TransactionManager
from penstock.core.columns import Header
from penstock.core.compression import compress
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError

Added = TypeVar("Added")
INTERRUPTED_FLUSH_S: Final = 2.0

_log = logging.getLogger("penstock.client")


@with_settings(ProducerConfig)
class AsyncProducer:
    """Sends records to topics, batched, in order, without duplicates.

    Use it with `async with`, or call `close` when done: it sends the remaining records.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ProducerConfig | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Connects on first use.

        Args:
            bootstrap: Addresses of any brokers of the cluster, "host:port,host:port".
            config: All settings, or None to give them by keyword; not both.

        Raises MisuseError for invalid settings, or a codec that is not installed.
        """
        if config is not None and options:
            raise MisuseError("give a config or keyword options, not both")
        self.config = config or ProducerConfig(**options)  # type: ignore[arg-type]  # names become members there
        self._bootstrap = parse_bootstrap(bootstrap)
        compress(self.config.codec, b"")
        self._guard = ProcessGuard("producer", self._forked)
        self._accumulator = Accumulator(self.config, self._wake)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Lock = asyncio.Lock()
        self._tasks = BackgroundTasks("producer", self._crashed)
        self._cluster: Cluster | None = None
        self._sender: Sender | None = None
        self._topics: dict[str, TopicBuffer] = {}
        """Those in the metadata now; `_buffers` keeps all, because deleted topics may come back."""
        self._buffers: dict[str, TopicBuffer] = {}
        self._room = asyncio.Event()
        self._ended: PenstockError | None = None
        self._closing = asyncio.Lock()
        self._closed = False
        self._manager: TransactionManager | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.close(exit_flush_s(kind))

    async def start(self) -> None:
        """Starts the background tasks in this event loop; the first `send` also does this."""
        self._check_open()
        self._tasks.check_loop()
        async with self._starting:
            if self._cluster is not None:
                return
            self._loop = self._accumulator.loop = asyncio.get_running_loop()
            cluster = Cluster(self._bootstrap, self.config)
            await self._tasks.start()
            self._check_open()  # it may have been closed meanwhile
            sender = Sender(cluster, self._accumulator, self._tasks)
            sender.on_settled = self._room.set
            cluster.on_change(self._update_topics)
            self._tasks.spawn(cluster.keep_fresh(), "metadata")
            self._tasks.spawn(sender.run(), "sender")
            if self.config.transactional_id is not None:
                self._manager = TransactionManager(cluster, sender, self._accumulator, self.flush)
            self._cluster, self._sender = cluster, sender

    def transaction(self) -> AsyncTransaction:
        """A transaction that is not begun yet: `async with producer.transaction() as tx`.

        Raises MisuseError if the producer has no `transactional_id`.
        """
        if self.config.transactional_id is None:
            raise MisuseError(
                "this producer has no transactional_id; transactions need one: a name for this "
                "instance of the program that stays the same after a restart"
            )
        return AsyncTransaction(self)

    def branches(self) -> AsyncBranches:
        """For a task of a batch that many tasks write and one decision commits; the producer's
        `transactional_id` is then the application id. Raises MisuseError without one."""
        self.transaction()
        return AsyncBranches(self)

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
        """Sends a record. Waits for space in the buffer, but not for the delivery.

        Args:
            topic: Must exist.
            value: Bytes, or what the value serializer accepts; None = null (a tombstone).
            key: Likewise; decides the partition. None = any partition.
            partition: Overrides the key.
            timestamp_ms: Since 1970 UTC; None = now.
            headers: (name, value) pairs; names may repeat.

        Raises MisuseError (RECORD_TOO_LARGE with size and limit, wrong types, no such partition),
        ClusterError UNKNOWN_TOPIC, BUFFER_FULL after `max_block_ms` without space, CLOSED, or
        UnreachableError. Then nothing was sent.
        """
        headers = given_headers(headers)
        try:
            delivery = self.try_append(topic, value, key, partition, timestamp_ms, headers)
        except MisuseError as error:
            if error.code is not ErrorCode.RECORD_TOO_LARGE:
                raise
            await self._refresh_limit()
            delivery = None
        if delivery is not None:
            return delivery
        deadline = self._block_deadline()
        buffer = await self._topic(topic, partition, deadline)
        return await self._with_room(
            lambda: buffer.append(value, key, partition, timestamp_ms, headers), deadline
        )

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Delivery:
        """Like `send`, but never waits, and can be called from any thread.

        Raises ClusterError(BUFFER_FULL) where `send` would wait: there is no space, or the topic is
        used for the first time (call `await prepare(topic)` once). Then nothing was sent.
        """
        delivery = self.try_append(topic, value, key, partition, timestamp_ms, headers)
        if delivery is None:
            known = self.buffer_of(topic)
            if known is not None and known.may_lack(partition):
                known.queue(partition or 0)
            raise self._buffer_full(f"no room, or topic {topic!r} is not prepared")
        return delivery

    async def prepare(self, topic: str, partition: int | None = None) -> TopicBuffer:
        """Gets the topic's metadata, so that `send_nowait` works. Raises as `send`, but after at
        most `connect_timeout_ms`.

        `partition`: looks it up again if it is not known, because it may be new.
        """
        buffer = await self._topic(topic, partition)
        if partition is not None:
            buffer.queue(partition)
        return buffer

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
        """Sends many records at once, without an object per record.

        Args:
            topic: Must exist.
            values: An entry per record: a list of bytes (None = null), a pyarrow binary or
                string array, or a NumPy array of bytes. None with `keys` given = all null.
                No serializer is applied.
            keys: Likewise; None = no keys, and whole batches go to the partitions in turn.
            timestamps_ms: One for all, one per record (list, NumPy int64, pyarrow int64 or
                timestamp); None = now.
            partition: For all records.
            headers: Per record.

        The buffers must not change before the delivery is done. Records with the same key keep
        their order. Raises as `send`; records accepted before the error are sent.
        """
        buffer = await self._topic(topic, partition, self._block_deadline())
        parts: list[tuple[Outcome, int]] = []
        for shard in shard_columns(
            buffer, values, keys, timestamps_ms=timestamps_ms, partition=partition, headers=headers
        ):
            if not buffer.fits(shard.record_bytes):
                await self.check_shard(buffer, shard)
            batch = await self.add_shard(buffer, shard)
            parts.append((batch.outcome, batch.record_count))
        return ColumnsDelivery(parts)

    async def check_shard(self, buffer: TopicBuffer, shard: Shard) -> None:
        """Internal: raises as `send` for a record that does not fit by the topic's limit of now."""
        await self._refresh_limit()
        buffer.check_record_size(shard.record_bytes or 0)

    async def add_shard(self, buffer: TopicBuffer, shard: Shard) -> PendingBatch:
        """Internal: queues one piece, waiting for space."""
        return await self._with_room(
            lambda: buffer.add_columns(shard.columns, shard.partition), self._block_deadline()
        )

    async def flush(self, timeout_s: float | None = None) -> None:
        """Sends lingering records and waits until everything sent so far is settled, successfully
        or not.

        Raises TimeoutError naming how much is left; that is still being sent.
        """
        self._guard.check()
        if self._cluster is None:
            return
        try:
            with self._flushing():
                async with asyncio.timeout(timeout_s):
                    for batch in list(self._accumulator.unsettled):
                        await batch.outcome.wait_async()
        except TimeoutError:
            left = sum(batch.record_count for batch in list(self._accumulator.unsettled))
            raise TimeoutError(f"{left} records are not settled after {timeout_s} s") from None

    async def close(self, timeout_s: float | None = None) -> int:
        """Flushes, then ends the producer; can be called repeatedly: later calls wait for the
        first. Never raises for records that cannot be delivered.

        Args:
            timeout_s: How long to flush; None = as long as deliveries can take.

        Returns how many records of this producer, since it was created, were not delivered or have
        an unknown outcome; each failure was logged, and its Delivery has it.
        """
        self._guard.check()
        if self._ended is None:
            self._tasks.check_loop()
        async with self._closing:
            if not self._closed:
                self._closed = True
                crashed = self._ended is not None
                self._end(_closed())
                if not crashed:
                    await self._close(timeout_s)
        return 0 if self._sender is None else self._sender.failed_records

    async def _close(self, timeout_s: float | None) -> None:
        sender, cluster = self._sender, self._cluster
        if sender is None or cluster is None:
            await self._tasks.aclose()  # of a start that was cancelled
            return
        try:
            await self._abort_open(timeout_s)
            await self.flush(timeout_s)
        except TimeoutError as error:
            _log.warning("producer closed before everything was delivered: %s", error)
        finally:
            sender.abandon(ErrorCode.CLOSED, "the producer was closed before it was delivered")
            await self._tasks.aclose()
            await cluster.aclose()

    async def _abort_open(self, timeout_s: float | None) -> None:
        manager = self._manager
        if manager is None:
            return
        limit_s = INTERRUPTED_FLUSH_S if timeout_s is None else timeout_s
        await manager.rests(limit_s)  # after Ctrl-C at the end of a block, its abort is on its way
        if not manager.in_transaction:
            return
        _log.warning("producer closed with an open transaction: aborting it")
        try:
            await manager.abort(limit_s)
        except PenstockError as error:
            _log.warning("transaction not aborted; its timeout will: %s", error)

    # -- used by transactions and the sync facade ------------------------------------------------

    async def transactions(self) -> TransactionManager:
        """Internal: the manager of a producer with a transactional id; starts the producer."""
        await self.start()
        assert self._manager is not None, "asked transaction()?"
        return self._manager

    @property
    def unsettled_records(self) -> int:
        """Records accepted and neither delivered nor given up."""
        with self._accumulator.lock:
            return sum(batch.record_count for batch in self._accumulator.unsettled)

    def buffer_of(self, topic: str) -> TopicBuffer | None:
        """Internal: the topic's buffer if it was prepared. Raises what `send` raises at the end."""
        if self._ended is not None:
            raise self._ended
        return self._topics.get(topic)

    def try_append(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header] | None,
    ) -> Delivery | None:
        """Internal, from any thread: appends if that is possible without waiting, or None."""
        if self._ended is not None:
            raise self._ended
        buffer = self._topics.get(topic)
        if buffer is None or (partition is not None and buffer.may_lack(partition)):
            return None
        return buffer.append(value, key, partition, timestamp_ms, headers)

    # -- inside ------------------------------------------------------------------------------

    def _block_deadline(self) -> float:
        return monotonic() + self.config.max_block_ms / 1000

    async def _topic(
        self, name: str, partition: int | None = None, limit: float = math.inf
    ) -> TopicBuffer:
        """The topic, if possible with this partition: a new one is looked for for a while."""
        deadline = min(limit, monotonic() + self.config.unknown_topic_timeout_ms / 1000)
        buffer = await self._buffer(name, limit)
        while buffer.may_lack(partition) and monotonic() < deadline:
            assert self._cluster is not None
            await self._cluster.refresh(limit - monotonic())
            buffer = await self._buffer(name, limit)
            if buffer.may_lack(partition):
                await asyncio.sleep(self.config.retry_backoff_ms / 1000)
        return buffer

    async def _buffer(self, name: str, limit: float) -> TopicBuffer:
        await self.start()
        buffer = self._topics.get(name)
        if buffer is None:
            assert self._cluster is not None
            description = await self._cluster.topic(name, limit - monotonic())
            buffer = self._buffers.get(name)
            if buffer is None:
                buffer = self._buffers[name] = TopicBuffer(description, self._accumulator)
            else:
                buffer.update(description)
            self._topics[name] = buffer
        return buffer

    async def _refresh_limit(self) -> None:
        """A record is above the topic's limit, which may have been raised."""
        assert self._cluster is not None
        with suppress(PenstockError):
            await self._cluster.refresh(self.config.unknown_topic_timeout_ms / 1000)

    async def _with_room(self, add: Callable[[], Added | None], deadline: float) -> Added:
        """Calls `add` until there is space; woken whenever a batch is settled."""
        self._tasks.check_loop()
        while True:
            if self._ended is not None:
                raise self._ended
            self._room.clear()
            added = add()
            if added is not None:
                return added
            try:
                # What lingers has to go, or there may be no space before the linger time is over.
                with self._flushing():
                    async with asyncio.timeout(deadline - monotonic()):
                        await self._room.wait()
            except TimeoutError:
                raise self._buffer_full(
                    f"no room for {self.config.max_block_ms} ms (max_block_ms)"
                ) from None

    @contextmanager
    def _flushing(self) -> Iterator[None]:
        """Meanwhile nothing lingers."""
        self._accumulator.flushing += 1
        self._wake()
        try:
            yield
        finally:
            self._accumulator.flushing -= 1

    def _buffer_full(self, what: str) -> ClusterError:
        return ClusterError(
            f"{what}: {self._accumulator.used_bytes} of {self.config.buffer_bytes} bytes "
            "(buffer_bytes) wait for the cluster; send less, or later",
            ErrorCode.BUFFER_FULL,
        )

    def _update_topics(self) -> None:
        assert self._cluster is not None
        for name, buffer in list(self._topics.items()):
            description = self._cluster.view.topics.get(name)
            if description is None:
                # Deleted, or without an answer: the next send asks again and reports it. The buffer
                # stays, and with it the sequences: the same topic may come back.
                del self._topics[name]
            else:
                buffer.update(description)

    def _wake(self, queue: PartitionQueue | None = None) -> None:
        loop, sender = self._loop, self._sender
        if loop is None or sender is None or loop.is_closed():
            return
        if loop is running_loop():
            sender.wake(queue)
        else:
            loop.call_soon_threadsafe(sender.wake, queue)

    def _end(self, error: PenstockError) -> None:
        """No record is accepted any more."""
        self._ended = self._ended or error
        self._accumulator.end(error)

    def _crashed(self, cause: BaseException) -> None:
        error = why_ended("producer", cause)
        self._end(error)
        self._room.set()
        if self._sender is not None:
            self._sender.abandon(error.code, error.message)

    def _forked(self, error: MisuseError) -> None:
        self._ended = error

    def _check_open(self) -> None:
        self._guard.check()
        if self._ended is not None:
            raise self._ended


def exit_flush_s(kind: type[BaseException] | None) -> float | None:
    """How long the end of a with block may flush: briefly if the program is being interrupted."""
    interrupted = kind is not None and issubclass(kind, asyncio.CancelledError | KeyboardInterrupt)
    return INTERRUPTED_FLUSH_S if interrupted else None


def _closed() -> ClusterError:
    return ClusterError("the producer is closed", ErrorCode.CLOSED)
