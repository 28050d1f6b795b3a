"""Leader side of replication: one stream per follower broker, fed as batches are written.

    Replica.notify ─▶ [ dirty partitions ] ─▶ read from memory ─▶ LeaderMessage (≤ ~2 MiB)
    FollowerAck ─▶ machine, and space in the window

A follower says once where it starts in each partition; from then on batches are pushed as soon as
they are written here, but never further ahead of its acknowledgements than its window (I23). Marks
without batches (the high watermark moved) may be delayed a few ms to be sent with batches, so that
neither an idle nor a busy partition costs a message of its own. The values sent are read from the
machine at that moment.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.core.batch import Batch
from penstock.core.compaction.rewrite import trimmed
from penstock.core.replication.contract import Marks
from penstock.core.replication.contract_leader import Feed, SendEpochAnswer, SendRefusal
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey
from penstock.errors import PenstockError
from penstock.proto.v1 import replication_pb2 as pb
from penstock.rpc.errors import error_to_wire
from penstock.rpc.splice import leader_message
from penstock_broker.observability import EventLog
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica

_MARKS_DELAY_S: Final = 0.01
_events = EventLog("feeding")


@dataclass(slots=True, eq=False)
class _Feeding:
    """How far one follower has been fed in one partition."""

    replica: Replica
    leader_epoch: LeaderEpoch
    next_offset: Offset
    sent_high_watermark: int = -1
    sent_log_start: int = -1
    sent_sync_through: int = 0
    unacked: deque[tuple[Offset, int]] = field(default_factory=deque)

    @property
    def unacked_bytes(self) -> int:
        return sum(size for _, size in self.unacked)


class FollowerStream:
    """What is sent to one follower broker; lives as long as its stream."""

    def __init__(
        self,
        hello: pb.FollowerHello,
        message_bytes: int,
        reader: LogReader,
        on_sent: Callable[[int], None],
    ) -> None:
        self.follower = BrokerId(hello.broker_id)
        self.incarnation = hello.incarnation
        self.closed = False
        self._window_bytes = max(hello.window_bytes, 1)
        self._message_bytes = message_bytes
        self._reader = reader
        self._on_sent = on_sent
        self._in_flight_bytes = 0
        self._held_back = False
        """The next batch does not fit into the rest of the window."""
        self._feeding: dict[ReplicaKey, _Feeding] = {}
        self._dirty: dict[ReplicaKey, None] = {}
        self._lazy: dict[ReplicaKey, None] = {}
        """Only marks moved: they wait briefly for batches; batches do not wait for them."""
        self._lazy_planned = self._lazy_is_due = False
        self._answers: list[pb.EpochAnswer] = []
        self._errors: list[pb.ReplicaError] = []
        self._wake = asyncio.Event()

    def close(self) -> None:
        """Sends and accepts nothing more: a newer stream took over, or this one broke."""
        self.closed = True
        self._wake.set()

    @property
    def replicas(self) -> list[Replica]:
        """The replicas that are fed now."""
        return [feeding.replica for feeding in self._feeding.values()]

    # ------------------------------------------------------------ replica.FollowerOutlet

    def feed(self, replica: Replica, feed: Feed) -> None:
        """Starts, restarts or stops a partition."""
        self._end(replica.key)
        if feed.from_offset is not None:
            self._feeding[replica.key] = _Feeding(replica, feed.leader_epoch, feed.from_offset)
            self._dirty[replica.key] = None
        self._wake.set()

    def _end(self, key: ReplicaKey) -> None:
        """Stops feeding a partition; its bytes in flight no longer count in the window."""
        old = self._feeding.pop(key, None)
        if old is not None:
            self._in_flight_bytes -= old.unacked_bytes
            self._held_back = False

    def notify(self, replica: Replica, *, urgent: bool) -> None:
        """Marks of a partition moved; `urgent`: there are batches, or an fsync is waited for."""
        if urgent:
            self._dirty[replica.key] = None
            self._wake.set()
        elif replica.key not in self._lazy:
            self._lazy[replica.key] = None
            if not self._lazy_planned:
                self._lazy_planned = True
                asyncio.get_running_loop().call_later(_MARKS_DELAY_S, self._lazy_due)

    def _lazy_due(self) -> None:
        """Marks have waited long enough for batches."""
        self._lazy_planned = False
        if self._lazy:
            self._lazy_is_due = True
            self._wake.set()

    def send(self, replica: Replica, message: SendEpochAnswer | SendRefusal) -> None:
        """Queues an answer; answers are sent before batches."""
        key = replica.key
        if isinstance(message, SendRefusal):
            self.refuse(key, message.error)
            return
        self._answers.append(
            pb.EpochAnswer(
                topic_id=key.topic_id,
                partition=key.partition,
                leader_epoch=message.leader_epoch,
                epoch=message.epoch,
                end_offset=message.end_offset,
                log_start_offset=message.log_start_offset,
                swept_end=message.swept_end,
            )
        )
        self._wake.set()

    def refuse(self, key: ReplicaKey, error: PenstockError) -> None:
        """Queues an error for a partition."""
        self._errors.append(
            pb.ReplicaError(
                topic_id=key.topic_id, partition=key.partition, error=error_to_wire(error)
            )
        )
        self._wake.set()

    def acked(self, key: ReplicaKey, leader_epoch: LeaderEpoch, written_end: Offset) -> None:
        """Frees the window's space for what the follower has written."""
        feeding = self._feeding.get(key)
        if feeding is None or feeding.leader_epoch != leader_epoch:
            return
        unacked = feeding.unacked
        had_room = self._has_room
        while unacked and unacked[0][0] <= written_end:
            self._in_flight_bytes -= unacked.popleft()[1]
            self._held_back = False
        if not had_room and self._has_room:
            self._wake.set()

    # ------------------------------------------------------------ the writing half

    async def next_messages(self) -> list[bytes]:
        """Waits until there is something to send: serialized LeaderMessages, in order."""
        await self._anything()
        messages: list[bytes] = []
        if self._answers or self._errors:
            answers = pb.LeaderMessage(epoch_answers=self._answers, errors=self._errors)
            messages.append(answers.SerializeToString())
            self._answers, self._errors = [], []
        appends = await self._collect()
        if appends:
            messages.append(leader_message(appends))
        return messages

    async def _anything(self) -> None:
        while not self._is_urgent:
            self._wake.clear()
            await self._wake.wait()
        self._dirty.update(self._lazy)
        self._lazy.clear()
        self._lazy_is_due = False

    @property
    def _is_urgent(self) -> bool:
        return bool(
            self.closed
            or self._answers
            or self._errors
            or self._lazy_is_due
            or (self._dirty and self._has_room)
        )

    @property
    def _has_room(self) -> bool:
        return self._in_flight_bytes < self._window_bytes and not self._held_back

    async def _collect(self) -> list[tuple[pb.AppendBatches, list[Batch]]]:
        """Appends of dirty partitions up to one message's size; the rest stays dirty."""
        appends: list[tuple[pb.AppendBatches, list[Batch]]] = []
        budget = self._message_bytes
        for key in list(self._dirty):
            if budget <= 0:
                break
            del self._dirty[key]
            feeding = self._feeding.get(key)
            if feeding is None:
                continue
            append, batches = await self._append(feeding, budget)
            budget -= sum(batch.size_bytes for batch in batches)
            if append is not None:
                appends.append((append, batches))
        return appends

    async def _append(
        self, feeding: _Feeding, budget: int
    ) -> tuple[pb.AppendBatches | None, list[Batch]]:
        """The next batches of one partition and its marks; None if nothing is new."""
        replica = feeding.replica
        offset, end = feeding.next_offset, replica.marks.written_end
        room = min(budget, self._window_bytes - self._in_flight_bytes)
        batches: list[Batch] = []
        if offset < end and room > 0:
            batches = await self._read(feeding, offset, room, end)
        # The read may have waited: check the current state again; use the batches only if they
        # still fit.
        if self._feeding.get(replica.key) is not feeding or feeding.next_offset != offset:
            return None, []
        marks = replica.marks
        if not marks.is_leader or marks.leader_epoch != feeding.leader_epoch:
            return None, []
        size = sum(batch.size_bytes for batch in batches)
        if self._in_flight_bytes and size > self._window_bytes - self._in_flight_bytes:
            self._held_back = True
            self._dirty[replica.key] = None
            batches = []
        if batches:
            feeding.next_offset = batches[-1].next_offset
            feeding.unacked.append((feeding.next_offset, size))
            self._in_flight_bytes += size
            self._on_sent(size)
        if feeding.next_offset < marks.written_end and (batches or room <= 0):
            # The message or the window is full: the partition continues when there is space again.
            self._dirty[replica.key] = None
        if not batches and not _marks_moved(feeding, marks):
            return None, []
        return _marks_to_wire(feeding, marks), batches

    async def _read(self, feeding: _Feeding, offset: Offset, room: int, end: Offset) -> list[Batch]:
        try:
            batches = await self._reader.read(feeding.replica, offset, room, end)
            if batches and batches[0].base_offset < offset:
                # A batch can begin before `offset`: compaction merged batches, or the log begins
                # inside it.
                return [trimmed(batches[0], offset), *batches[1:]]
        except PenstockError as error:
            if self._feeding.get(feeding.replica.key) is not feeding:
                return []  # feeding was stopped or restarted during the read
            _events.error(
                "cannot feed a follower",
                partition=str(feeding.replica),
                follower=self.follower,
                offset=offset,
                reason=str(error),
            )
            self._end(feeding.replica.key)
            self.refuse(feeding.replica.key, error)
            return []
        return batches


def _marks_moved(feeding: _Feeding, marks: Marks) -> bool:
    return (
        marks.high_watermark != feeding.sent_high_watermark
        or marks.log_start_offset != feeding.sent_log_start
        or marks.sync_through > feeding.sent_sync_through
    )


def _marks_to_wire(feeding: _Feeding, marks: Marks) -> pb.AppendBatches:
    feeding.sent_high_watermark = marks.high_watermark
    feeding.sent_log_start = marks.log_start_offset
    feeding.sent_sync_through = marks.sync_through
    key = feeding.replica.key
    return pb.AppendBatches(
        topic_id=key.topic_id,
        partition=key.partition,
        leader_epoch=feeding.leader_epoch,
        high_watermark=marks.high_watermark,
        log_start_offset=marks.log_start_offset,
        sync_through=marks.sync_through,
    )
