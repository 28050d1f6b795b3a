"""The batches of a producer until they are settled, by partition.

    user threads: TopicBuffer.append ──▶ PartitionQueue.open ─full─▶ .ready   (topic_buffer.py)
    event loop:   next_batch ◀─ ready, or open when it has lingered or is being flushed

User threads call into the event loop only when a batch opens or fills, and then at most once until
the loop has reacted. Encoding happens later, once per batch, on the loop. All records that wait or
are in flight count against `buffer_bytes` (I23) until the sender releases them.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from penstock.client.clock import now_ms
from penstock.client.config import ProducerConfig
from penstock.client.producer.delivery import Outcome
from penstock.client.producer.sending_in import SENDING_IN
from penstock.core.columns import Columns, Header
from penstock.core.records import MAX_RECORDS, encode_columns
from penstock.core.records_wire import message_bytes
from penstock.core.types import TopicPartition
from penstock.errors import MisuseError, PenstockError

BATCH_OVERHEAD_BYTES: Final = 256
"""Upper estimate of the header and message framing of a batch."""


class PendingBatch:
    """Records of one partition that are sent together: rows being collected, or columns."""

    __slots__ = (
        "columns",
        "deadline_ms",
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
        self.keys: list[bytes | None] | None = None
        self.timestamps_ms: list[int] = []
        self.headers: list[Sequence[Header] | None] | None = None
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
        """Appends a row that takes at most `size` bytes; returns its index.

        Keys and headers get a list with the first row that has any.
        """
        index = self.record_count
        self.record_count = index + 1
        self.size_bytes += size
        self.values.append(value)
        self.timestamps_ms.append(timestamp_ms)
        if key is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * index
            self.keys.append(key)
        if headers or self.headers is not None:
            if self.headers is None:
                self.headers = [None] * index
            self.headers.append(headers)
        return index

    def encoded(self) -> Columns:
        """The records as columns; called once or more, by the event loop, after closing."""
        if self.columns is None:
            self.columns = encode_columns(
                self.values, self.keys, timestamps_ms=self.timestamps_ms, headers=self.headers
            )
            self.values, self.keys, self.timestamps_ms, self.headers = [], None, [], None
        return self.columns


class PartitionQueue:
    """Batches of one partition that wait. Guarded by the accumulator's lock."""

    __slots__ = ("busy", "gone", "open", "ready", "where")

    def __init__(self, where: TopicPartition) -> None:
        self.where = where
        self.open: PendingBatch | None = None
        self.ready: deque[PendingBatch] = deque()
        self.busy = False
        self.gone = False
        """Its topic was created again and has other queues: nothing more is added, and nothing is
        kept of it once it rests."""


class Accumulator:
    """All batches of one producer. `wake` is called from any thread when there is something new,
    with the queue where it is."""

    def __init__(self, config: ProducerConfig, wake: Callable[[PartitionQueue], None]) -> None:
        self.config = config
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.used_bytes = 0
        self.unsettled: dict[PendingBatch, None] = {}
        self.flushing = 0
        """How many wait for what lingers to be sent: calls of flush, and sends without space."""
        self.transactional = config.transactional_id is not None
        self.gated = self.transactional
        """Whether `admits` is to be asked about every record, not only when there is no space."""
        self.transaction = 0
        """The number of the last transaction that was opened; guarded by the lock."""
        self.refusal: PenstockError | None = None
        """Why records are refused at the moment: no transaction is open."""
        self._ended: PenstockError | None = None
        self._news: list[PartitionQueue] = []
        self._wake = wake
        self._awake = False

    def take_news(self) -> list[PartitionQueue]:
        """Queues that got something since the last call; the loop handles them from now on."""
        with self.lock:
            self._awake = False
            news, self._news = self._news, []
            return news

    def first(self, queue: PartitionQueue) -> PendingBatch | None:
        """The batch that is sent next, now or later."""
        with self.lock:
            return queue.ready[0] if queue.ready else queue.open

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

    def split(self, batch: PendingBatch) -> tuple[PendingBatch, PendingBatch]:
        """Two halves in place of a batch of more than one record, whose outcomes become its own."""
        columns = batch.encoded()
        middle = batch.record_count // 2
        keys, values, headers = columns.keys(), columns.values(), columns.headers()
        timestamps_ms = columns.timestamps()
        halves = []
        for lo, hi in ((0, middle), (middle, batch.record_count)):
            half = PendingBatch(
                Outcome(self.loop), batch.topic_id, batch.opened_ms, batch.deadline_ms
            )
            half.record_count = hi - lo
            half.columns = encode_columns(
                values[lo:hi],
                None if columns.key_lengths is None else keys[lo:hi],
                timestamps_ms=timestamps_ms[lo:hi],
                headers=headers[lo:hi],
            )
            halves.append(half)
        first, second = halves
        first.size_bytes = batch.size_bytes // 2
        second.size_bytes = batch.size_bytes - first.size_bytes
        batch.outcome.split([(half.outcome, half.record_count) for half in halves])
        with self.lock:
            self.unsettled.pop(batch, None)
            self.unsettled.update({first: None, second: None})
        return first, second

    def release(self, batch: PendingBatch) -> None:
        """The batch is settled: its bytes are free."""
        with self.lock:
            self.used_bytes -= batch.size_bytes
            self.unsettled.pop(batch, None)

    def end(self, error: PenstockError) -> None:
        """From now on every record is refused with the first such error, also that of a thread
        which is about to append."""
        with self.lock:
            self._ended = self._ended or error
            self.gated = True

    def add_columns(
        self, queue: PartitionQueue, topic_id: str, columns: Columns
    ) -> PendingBatch | None:
        """Queues columns as a separate batch; None if there is no space, or if the topic was
        created again and has another queue."""
        size = message_bytes(columns) + BATCH_OVERHEAD_BYTES
        with self.lock:
            no_room = self.used_bytes + size > self.config.buffer_bytes and self.used_bytes > 0
            if (no_room or self.gated) and not self.admits(no_room):
                return None
            if queue.gone:
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
        if self._ended is not None:
            raise self._ended.with_traceback(None)
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

    def retire(self, queue: PartitionQueue) -> None:
        """The topic was created again: what waits is still sent. The caller holds the lock."""
        if queue.open is not None:
            queue.ready.append(queue.open)
            queue.open = None
        queue.gone = True
        self._tell(queue)

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
