"""Collects records into batches. The only part of the producer that many threads use.

    user threads: append ──▶ TopicBuffer ──▶ PartitionQueue.open ─full─▶ .ready
    event loop:   next_batch ◀─ ready, or open when it has lingered or is being flushed

`append` is the hot path: one lock, three list appends, no call into the event loop except when a
batch opens or fills, and then at most one wake-up until the loop has reacted. Encoding happens
later, once per batch, on the loop. All records that wait or are in flight count against
`buffer_bytes` (I23) until the sender releases them.

Sizes are upper bounds of the uncompressed message, so a batch never exceeds the topic's
max.message.bytes: per record 4 bytes each for the lengths of key and value and the number of
headers, and 8 for the timestamp.
"""

import asyncio
import operator
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time_ns
from typing import Any, Final

from penstock.client.clock import now_ms
from penstock.client.config import Partitioner, ProducerConfig
from penstock.client.model import TopicDescription
from penstock.client.producer.delivery import Delivery, Outcome
from penstock.client.producer.sending_in import SENDING_IN
from penstock.client.serializers import BytesSerializer, Serializer
from penstock.core.columns import Columns, Header
from penstock.core.limits import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from penstock.core.partitioner import partition_for_key
from penstock.core.records import MAX_RECORDS, encode_columns
from penstock.core.records_wire import message_bytes
from penstock.core.topic import TopicConfig
from penstock.core.types import NO_LEADER, TopicPartition
from penstock.errors import ErrorCode, MisuseError, PenstockError

RECORD_OVERHEAD_BYTES: Final = 20
HEADER_OVERHEAD_BYTES: Final = 8
BATCH_OVERHEAD_BYTES: Final = 256
"""Upper estimate of the header and message framing of a batch."""

_DEFAULT_LIMIT_BYTES: Final = TopicConfig().max_message_bytes
_to_bytes: Final = BytesSerializer()


class PendingBatch:
    """Records of one partition that are sent together: rows being collected, or columns."""

    __slots__ = (
        "columns",
        "deadline_ms",
        "has_keys",
        "headers",
        "keys",
        "opened_ms",
        "outcome",
        "record_count",
        "size_bytes",
        "timestamps_ms",
        "topic_id",
        "values",
    )

    def __init__(self, outcome: Outcome, topic_id: str, opened_ms: int, deadline_ms: int) -> None:
        self.outcome = outcome
        self.topic_id = topic_id
        self.opened_ms = opened_ms
        self.deadline_ms = deadline_ms
        self.size_bytes = BATCH_OVERHEAD_BYTES
        self.record_count = 0
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.timestamps_ms: list[int] = []
        self.headers: list[Sequence[Header] | None] | None = None
        self.has_keys = False
        self.columns: Columns | None = None

    def has_room(self, size: int, limit_bytes: int) -> bool:
        return self.size_bytes + size <= limit_bytes and self.record_count < MAX_RECORDS

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        timestamp_ms: int,
        headers: Sequence[Header] | None,
        size: int,
    ) -> int:
        """Appends a row that takes at most `size` bytes; returns its index."""
        index = self.record_count
        self.record_count = index + 1
        self.size_bytes += size
        self.values.append(value)
        self.keys.append(key)
        self.timestamps_ms.append(timestamp_ms)
        if key is not None:
            self.has_keys = True
        if headers or self.headers is not None:
            if self.headers is None:
                self.headers = [None] * index
            self.headers.append(headers)
        return index

    def encoded(self) -> Columns:
        """The records as columns; called once or more, by the event loop, after closing."""
        if self.columns is None:
            self.columns = encode_columns(
                self.values,
                self.keys if self.has_keys else None,
                timestamps_ms=self.timestamps_ms,
                headers=self.headers,
            )
            self.values, self.keys, self.timestamps_ms, self.headers = [], [], [], None
        return self.columns


class PartitionQueue:
    """Batches of one partition that wait. Guarded by the accumulator's lock."""

    __slots__ = ("busy", "open", "ready", "where")

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.open: PendingBatch | None = None
        self.ready: deque[PendingBatch] = deque()
        self.busy = False


class Accumulator:
    """All topics of one producer. `wake` is called from any thread when there is something new,
    with the queue where it is."""

    def __init__(self, config: ProducerConfig, wake: Callable[[PartitionQueue], None]) -> None:
        self.config = config
        self.lock = threading.Lock()
        self.topics: dict[str, TopicBuffer] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.used_bytes = 0
        self.unsettled: dict[PendingBatch, None] = {}
        self.flushing = 0
        self.transactional = config.transactional_id is not None
        self.transaction = 0
        """The number of the last transaction that was opened; guarded by the lock."""
        self.refusal: PenstockError | None = None
        """Why records are refused at the moment: no transaction is open."""
        self._news: list[PartitionQueue] = []
        self._wake = wake
        self._awake = False

    def take_news(self) -> list[PartitionQueue]:
        """Queues that got something since the last call; the loop handles them from now on."""
        with self.lock:
            self._awake = False
            news, self._news = self._news, []
            return news

    def next_batch(self, queue: PartitionQueue, at_ms: int) -> PendingBatch | None:
        """Takes the next batch to send: full ones first, the open one when it has lingered."""
        with self.lock:
            if queue.ready:
                return queue.ready.popleft()
            batch = queue.open
            if batch is None or (not self.flushing and at_ms < self._lingers_until(batch)):
                return None
            queue.open = None
            return batch

    def next_look_ms(self, queue: PartitionQueue) -> int | None:
        """When there is something to send: 0 = now, None = nothing waits (the queue rests)."""
        with self.lock:
            if queue.ready or (queue.open is not None and self.flushing):
                return 0
            if queue.open is not None:
                return self._lingers_until(queue.open)
            queue.busy = False
            return None

    def expire(self, queue: PartitionQueue, at_ms: int) -> list[PendingBatch]:
        """Removes batches whose delivery timeout passed before they were ever sent."""
        with self.lock:
            expired = []
            while queue.ready and queue.ready[0].deadline_ms <= at_ms:
                expired.append(queue.ready.popleft())
            if queue.open is not None and queue.open.deadline_ms <= at_ms:
                expired.append(queue.open)
                queue.open = None
            return expired

    def take_all(self, queue: PartitionQueue) -> list[PendingBatch]:
        """Empties a queue whose batches can no longer be sent."""
        with self.lock:
            batches = list(queue.ready)
            queue.ready.clear()
            if queue.open is not None:
                batches.append(queue.open)
                queue.open = None
            return batches

    def release(self, batch: PendingBatch) -> None:
        """The batch is settled: its bytes are free."""
        with self.lock:
            self.used_bytes -= batch.size_bytes
            self.unsettled.pop(batch, None)

    def add_columns(
        self, queue: PartitionQueue, topic_id: str, columns: Columns
    ) -> PendingBatch | None:
        """Queues columns as a separate batch; None if there is no space."""
        size = message_bytes(columns) + BATCH_OVERHEAD_BYTES
        with self.lock:
            no_room = self.used_bytes + size > self.config.buffer_bytes and self.used_bytes > 0
            if (no_room or self.transactional) and not self.admits(no_room):
                return None
            if queue.open is not None:
                queue.ready.append(queue.open)
                queue.open = None
            batch = self._new_batch(topic_id)
            batch.columns = columns
            batch.record_count = columns.record_count
            batch.size_bytes = size
            self.used_bytes += size
            queue.ready.append(batch)
            self._tell(queue)
            return batch

    def admits(self, no_room: bool) -> bool:
        """Whether a record is accepted now; False if there is no space. Raises any other reason,
        also for a record of a transaction that has ended, even if the next one is open. The caller
        holds the lock."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)  # raised again and again
        if self.transactional and SENDING_IN.get() != self.transaction:
            raise MisuseError(
                "a producer with a transactional_id can only send in an open transaction: "
                "tx.send(…), with tx from `transaction()`"
            )
        return not no_room

    def open_batch(self, queue: PartitionQueue, topic_id: str) -> PendingBatch:
        """Starts a batch, closing the previous one. The caller holds the lock."""
        if queue.open is not None:
            queue.ready.append(queue.open)
        queue.open = batch = self._new_batch(topic_id)
        self.used_bytes += batch.size_bytes
        self._tell(queue)
        return batch

    def _new_batch(self, topic_id: str) -> PendingBatch:
        opened_ms = now_ms()
        deadline_ms = opened_ms + self.config.delivery_timeout_ms
        batch = PendingBatch(Outcome(self.loop), topic_id, opened_ms, deadline_ms)
        self.unsettled[batch] = None
        return batch

    def _lingers_until(self, batch: PendingBatch) -> int:
        return batch.opened_ms + self.config.linger_ms

    def _tell(self, queue: PartitionQueue) -> None:
        if not queue.busy:
            queue.busy = True
            self._news.append(queue)
        if not self._awake:
            self._awake = True
            self._wake(queue)


class TopicBuffer:
    """One topic of the producer: its partitions, limits and partitioner."""

    def __init__(self, topic: TopicDescription, accumulator: Accumulator) -> None:
        config = accumulator.config
        self._accumulator = accumulator
        self._buffer_bytes = config.buffer_bytes
        self._partitioner: Partitioner | None = config.partitioner
        self._key_serializer: Serializer = config.key_serializer or _to_bytes
        self._value_serializer: Serializer = config.value_serializer or _to_bytes
        self._plain_values = config.value_serializer is None
        self.name = topic.topic
        self.queues: list[PartitionQueue] = []
        self._sticky: PartitionQueue | None = None
        self.topic_id = topic.topic_id
        self.update(topic)

    def update(self, topic: TopicDescription) -> None:
        """Adopts new partitions, limits and leaders from the metadata."""
        limit_bytes = topic.configs.get("max.message.bytes")
        with self._accumulator.lock:
            if topic.topic_id != self.topic_id:
                self._start_over()
            for index in range(len(self.queues), len(topic.partitions)):
                self.queues.append(PartitionQueue(TopicPartition(self.name, index)))
            self.topic_id = topic.topic_id
            self.limit_bytes = int(limit_bytes) if limit_bytes else _DEFAULT_LIMIT_BYTES
            self.batch_bytes = min(self._accumulator.config.batch_bytes, self.limit_bytes)
            self._led = [
                queue
                for queue, partition in zip(self.queues, topic.partitions, strict=False)
                if partition.leader != NO_LEADER
            ]

    def _start_over(self) -> None:
        """The topic was created again: waiting records stay addressed to the old one, and fail."""
        for queue in self.queues:
            if queue.open is not None:
                queue.ready.append(queue.open)
                queue.open = None
        self.queues = []
        self._sticky = None

    def append(
        self,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header] | None,
    ) -> Delivery | None:
        """Adds a record; None if there is no space for it now. Raises MisuseError."""
        if type(value) is not bytes or not self._plain_values:
            value = self._value_serializer(self.name, value)
        if key is not None:
            key = self._key_serializer(self.name, key)
        size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
        if headers:
            size += headers_bytes(headers)
        if size > self.batch_bytes - BATCH_OVERHEAD_BYTES:
            self.check_record_size(size)
        if timestamp_ms is None:
            timestamp_ms = time_ns() // 1_000_000
        elif type(timestamp_ms) is not int or not (
            MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS
        ):
            timestamp_ms = checked_timestamp(self.name, timestamp_ms)
        queue = self._queue_for(key, partition)
        accumulator = self._accumulator
        with accumulator.lock:
            used_bytes = accumulator.used_bytes
            no_room = used_bytes + size > self._buffer_bytes and used_bytes > 0
            if (no_room or accumulator.transactional) and not accumulator.admits(no_room):
                return None
            if queue is None:
                queue = self._sticky_queue(size)
            batch = queue.open
            if batch is None or not batch.has_room(size, self.batch_bytes):
                batch = accumulator.open_batch(queue, self.topic_id)
            accumulator.used_bytes += size
            index = batch.add(value, key, timestamp_ms, headers, size)
        return Delivery(batch.outcome, index)

    def add_columns(self, columns: Columns, partition: int | None) -> PendingBatch | None:
        """Queues columns as one batch; None if there is no space for it now."""
        if partition is None:
            with self._accumulator.lock:
                queue = self.next_sticky()
        else:
            queue = self.queue(partition)
        return self._accumulator.add_columns(queue, self.topic_id, columns)

    @property
    def has_partitioner(self) -> bool:
        return self._partitioner is not None

    def check_record_size(self, size: int) -> None:
        """Raises MisuseError(RECORD_TOO_LARGE) if no batch of this topic can hold the record."""
        if size > self.limit_bytes - BATCH_OVERHEAD_BYTES:
            raise MisuseError(
                f"topic {self.name!r}: a record of {size} bytes (with framing) does not fit; the "
                f"limit is {self.limit_bytes} (max.message.bytes) minus {BATCH_OVERHEAD_BYTES} "
                "for the batch; send less, or raise the topic's limit",
                ErrorCode.RECORD_TOO_LARGE,
            )

    def partition_of(self, key: bytes | None) -> int | None:
        """The partition a serialized key belongs to; None = any."""
        count = len(self.queues)
        if self._partitioner is None:
            return None if key is None else partition_for_key(key, count)
        chosen = self._partitioner(self.name, key, count)
        if not isinstance(chosen, int) or not 0 <= chosen < count:
            raise MisuseError(
                f"topic {self.name!r}: the partitioner returned {chosen!r}; "
                f"it must return 0 to {count - 1}"
            )
        return chosen

    def may_lack(self, partition: int | None) -> bool:
        """Whether the metadata may lack this unknown partition; it may have been added since."""
        return isinstance(partition, int) and partition >= len(self.queues)

    def queue(self, partition: int) -> PartitionQueue:
        """The queue of a partition given by the user; raises MisuseError if there is none."""
        if not isinstance(partition, int) or not 0 <= partition < len(self.queues):
            raise MisuseError(
                f"topic {self.name!r} has partitions 0 to {len(self.queues) - 1}, "
                f"not {partition!r}",
                ErrorCode.UNKNOWN_PARTITION,
            )
        return self.queues[partition]

    def next_sticky(self) -> PartitionQueue:
        """Moves to the next partition that has a leader. The caller holds the lock."""
        led = self._led or self.queues
        if self._sticky is None:
            self._sticky = led[time_ns() % len(led)]
        else:
            index = self._sticky.where.partition
            self._sticky = next((queue for queue in led if queue.where.partition > index), led[0])
        return self._sticky

    def _queue_for(self, key: bytes | None, partition: int | None) -> PartitionQueue | None:
        if partition is not None:
            return self.queue(partition)
        if key is None and self._partitioner is None:
            return None
        chosen = self.partition_of(key)
        return None if chosen is None else self.queues[chosen]

    def _sticky_queue(self, size: int) -> PartitionQueue:
        """Stays while the batch has space, so that batches are full; then the next partition."""
        queue = self._sticky
        if queue is not None:
            batch = queue.open
            if batch is not None and batch.has_room(size, self.batch_bytes):
                return queue
        return self.next_sticky()


def checked_timestamp(topic: str, given: Any) -> int:
    """Other whole numbers (NumPy's) as int. Raises MisuseError(INVALID_TIMESTAMP).

    One bad timestamp would fail every record of its batch.
    """
    timestamp_ms: int | None = None
    with suppress(TypeError):
        timestamp_ms = operator.index(given)
    if timestamp_ms is None or not MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise MisuseError(
            f"topic {topic!r}: timestamp_ms is {given!r}; it must be a whole number of "
            f"milliseconds since 1970 UTC, {MIN_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS}, or None "
            "for now",
            ErrorCode.INVALID_TIMESTAMP,
        )
    return timestamp_ms


def headers_bytes(headers: Sequence[Header]) -> int:
    """Upper bound of what a record's headers take. Raises MisuseError if they are malformed."""
    size = 0
    for header in headers:
        try:
            name, value = header
            size += HEADER_OVERHEAD_BYTES + len(name.encode())
            size += 0 if value is None else len(memoryview(value))
        except (TypeError, ValueError, AttributeError) as error:
            raise MisuseError(
                f"header {header!r} is not a (str, bytes or None) pair: {error}"
            ) from error
    return size
