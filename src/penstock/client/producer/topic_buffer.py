"""One topic of a producer: its partitions, limits and partitioner, and `append`.

`append` runs once per record, on the user's thread: one lock, a few list appends, and no call into
the event loop except when a batch opens or fills (accumulator.py).

Sizes are upper bounds of the uncompressed message, so a batch never exceeds the topic's
max.message.bytes: per record 4 bytes each for the lengths of key and value and the number of
headers, and 8 for the timestamp.
"""

import operator
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import time_ns
from typing import Any, Final

from penstock.client.config import Partitioner
from penstock.client.model import TopicDescription
from penstock.client.producer.accumulator import (
    BATCH_OVERHEAD_BYTES,
    Accumulator,
    PartitionQueue,
    PendingBatch,
)
from penstock.client.producer.delivery import Delivery
from penstock.client.serializers import BytesSerializer, Serializer
from penstock.core.columns import Columns, Header
from penstock.core.limits import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from penstock.core.partitioner import KeyHash, partition_for_key
from penstock.core.topic import PARTITIONER, TopicConfig
from penstock.core.types import NO_LEADER, TopicPartition
from penstock.errors import ErrorCode, MisuseError

RECORD_OVERHEAD_BYTES: Final = 20
HEADER_OVERHEAD_BYTES: Final = 8
_DEFAULT_LIMIT_BYTES: Final = TopicConfig().max_message_bytes
_to_bytes: Final = BytesSerializer()


def key_hash_of(topic: TopicDescription) -> KeyHash:
    """Raises MisuseError for one that this client does not know: another partition would break the
    order of the key's records."""
    name = topic.configs.get(PARTITIONER, KeyHash.CRC32C)
    try:
        return KeyHash(name)
    except ValueError:
        raise MisuseError(
            f"topic {topic.topic!r} has the setting {PARTITIONER}={name}, which this client does "
            f"not know: it knows {' and '.join(KeyHash)}; upgrade the client",
            ErrorCode.INVALID_CONFIG,
        ) from None


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
        self._lock = accumulator.lock
        self.name = topic.topic
        self.queues: list[PartitionQueue] = []
        self._sticky: PartitionQueue | None = None
        self.topic_id = topic.topic_id
        self.update(topic)

    def update(self, topic: TopicDescription) -> None:
        """Adopts new partitions, limits and leaders from the metadata."""
        limit_bytes = topic.configs.get("max.message.bytes")
        key_hash = key_hash_of(topic)
        with self._lock:
            # Replaced as a whole: threads choose among them without the lock.
            queues = self._start_over() if topic.topic_id != self.topic_id else [*self.queues]
            for index in range(len(queues), len(topic.partitions)):
                queues.append(PartitionQueue(TopicPartition(self.name, index)))
            self.topic_id = topic.topic_id
            self.queues = queues
            self.key_hash = key_hash
            self.limit_bytes = int(limit_bytes) if limit_bytes else _DEFAULT_LIMIT_BYTES
            self.batch_bytes = min(self._accumulator.config.batch_bytes, self.limit_bytes)
            self._led = [
                queue
                for queue, partition in zip(self.queues, topic.partitions, strict=False)
                if partition.leader != NO_LEADER
            ]

    def _start_over(self) -> list[PartitionQueue]:
        """The topic was created again: waiting records stay addressed to the old one, and fail."""
        for queue in self.queues:
            self._accumulator.retire(queue)
        self._sticky = None
        return []

    def append(
        self,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Sequence[Header] | None,
    ) -> Delivery | None:
        """Adds a record; None if that has to be tried again, because there is no space for it now
        or the topic was created again meanwhile. Raises MisuseError."""
        if type(value) is not bytes or not self._plain_values:
            value = self._value_serializer(self.name, value)
        size = RECORD_OVERHEAD_BYTES + len(value or b"")
        queue = None
        if key is not None:
            key = self._key_serializer(self.name, key)
            size += len(key or b"")
        if key is not None or partition is not None or self._partitioner is not None:
            queue = self._queue_for(key, partition)
        if headers:
            headers = own_headers(headers)
            size += sum(
                HEADER_OVERHEAD_BYTES + len(name.encode()) + len(value or b"")
                for name, value in headers
            )
        if size > self.batch_bytes - BATCH_OVERHEAD_BYTES:
            self.check_record_size(size)
        if timestamp_ms is None:
            timestamp_ms = time_ns() // 1_000_000
        elif type(timestamp_ms) is not int or not (
            MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS
        ):
            timestamp_ms = checked_timestamp(self.name, timestamp_ms)
        accumulator = self._accumulator
        with self._lock:
            used_bytes = accumulator.used_bytes
            no_room = used_bytes + size > self._buffer_bytes and used_bytes > 0
            refused = (no_room or accumulator.gated) and not accumulator.admits(no_room)
            if refused or (queue is not None and queue.gone):
                return None
            at = self._sticky if queue is None else queue
            batch = None if at is None else at.open
            if batch is None or not batch.has_room(size, self.batch_bytes):
                batch = self._next_batch(queue, size)
            accumulator.used_bytes += size
            index = batch.add(value, key, timestamp_ms, headers, size)
        return Delivery(batch.outcome, index)

    def add_columns(self, columns: Columns, partition: int | None) -> PendingBatch | None:
        """Queues columns as one batch; None as for `append`."""
        if partition is None:
            with self._lock:
                queue = self.next_sticky()
        else:
            queue = self.queue(partition)
        return self._accumulator.add_columns(queue, self.topic_id, columns)

    @property
    def has_partitioner(self) -> bool:
        return self._partitioner is not None

    def fits(self, size: int | None) -> bool:
        """Whether a batch of this topic can hold a record of that size, as far as is known; None:
        it is known to fit."""
        return size is None or size <= self.limit_bytes - BATCH_OVERHEAD_BYTES

    def check_record_size(self, size: int) -> None:
        """Raises MisuseError(RECORD_TOO_LARGE) if no batch of this topic can hold the record."""
        if not self.fits(size):
            raise MisuseError(
                f"topic {self.name!r}: a record of {size} bytes (with framing) does not fit; the "
                f"limit is {self.limit_bytes} (max.message.bytes) minus {BATCH_OVERHEAD_BYTES} "
                "for the batch; send less, or raise the topic's limit",
                ErrorCode.RECORD_TOO_LARGE,
            )

    def partition_of(self, key: bytes | None) -> int | None:
        """The partition a serialized key belongs to; None = any."""
        return self._partition_of(key, len(self.queues))

    def _partition_of(self, key: bytes | None, count: int) -> int | None:
        if self._partitioner is None:
            return None if key is None else partition_for_key(key, count, self.key_hash)
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
        queues = self.queues
        chosen = self._partition_of(key, len(queues))
        return None if chosen is None else queues[chosen]

    def _next_batch(self, queue: PartitionQueue | None, size: int) -> PendingBatch:
        """The batch for a record of `size` bytes that the present one has no space for.

        Without a queue, records stay with one partition until its batch is full; then the next
        partition gets them. The caller holds the lock.
        """
        if queue is None:
            queue = self.next_sticky()
            if queue.open is not None and queue.open.has_room(size, self.batch_bytes):
                return queue.open
        return self._accumulator.open_batch(queue, self.topic_id)


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


def given_headers(headers: Iterable[Header] | None) -> Sequence[Header] | None:
    """What can be asked for again, while there is no room for the record. Raises MisuseError."""
    if headers is None or isinstance(headers, list | tuple):
        return headers
    try:
        return tuple(headers)
    except TypeError:
        raise MisuseError(
            f"headers are {headers!r}; they must be (str, bytes or None) pairs, or None"
        ) from None


def own_headers(headers: Iterable[Header]) -> tuple[Header, ...]:
    """A copy, as the record is encoded later, and the program may change its list in between.
    Raises MisuseError if they are malformed: that would fail every record of the batch."""
    return tuple(_own_header(header) for header in headers)


def _own_header(header: Header) -> Header:
    try:
        name, value = header
        name.encode()
        if value is not None and type(value) is not bytes:
            value = bytes(memoryview(value))
    except (TypeError, ValueError, AttributeError) as error:
        raise MisuseError(
            f"header {header!r} is not a (str, bytes or None) pair: {error}"
        ) from error
    return name, value
