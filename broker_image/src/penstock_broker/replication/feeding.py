"""Leader side of replication: one stream per follower broker, fed as batches are written.

    Replica.notify ─▶ live lane ─▶ read from memory ──────────▶ LeaderMessage (≤ ~2 MiB)
                   └▶ bulk lane ─▶ read ahead, also from disk ─▶ LeaderMessage (≤ ~512 KiB)
    FollowerAck ─▶ machine, and space in the window

A follower says once where it starts in each partition; from then on batches are pushed as soon as
they are written here, but never further ahead of its acknowledgements than its window (I23). Marks
without batches (the high watermark moved) may be delayed a few ms to be sent with batches, so that
neither an idle nor a busy partition costs a message of its own. The values sent are read from the
machine at that moment.

Partitions for which the high watermark waits are live, all others bulk (`core.replication.traffic`,
ADR 66). Bulk has a part of the window, and its next message is read beside the stream, so that no
disk delays live batches. It is sent when no live partition has news, and once per 50 ms whatever
is live: a live batch waits for at most one bulk message, and bulk never starves (I32).
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from penstock.core.batch import Batch
from penstock.core.compaction.rewrite import trimmed
from penstock.core.replication.contract_leader import Feed, SendEpochAnswer, SendRefusal
from penstock.core.replication.traffic import Traffic
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey
from penstock.errors import OffsetOutOfRangeError, OffsetRange, PenstockError
from penstock.proto.v1 import replication_pb2 as pb
from penstock.rpc.errors import error_to_wire
from penstock.rpc.splice import leader_message
from penstock_broker.observability import EventLog
from penstock_broker.replication.copies import CopyAllowance, CopyThrottle
from penstock_broker.replication.lanes import Feeding, Lane
from penstock_broker.replication.reads import LogReader
from penstock_broker.replication.replica import Replica

BULK_MESSAGE_BYTES: Final = 512 * 1024
"""Of batches in a bulk message, about: what a live batch may have to wait for."""
BULK_WINDOW_PART: Final = 4
"""Bulk has this part of the window beside the live one's whole."""
_BULK_EVERY_S: Final = 0.05
_MARKS_DELAY_S: Final = 0.01
_events = EventLog("feeding")


class FollowerStream:
    """What is sent to one follower broker; lives as long as its stream."""

    def __init__(
        self,
        hello: pb.FollowerHello,
        message_bytes: int,
        reader: LogReader,
        throttle: CopyThrottle,
        on_sent: Callable[[int], None],
    ) -> None:
        self.follower = BrokerId(hello.broker_id)
        self.incarnation = hello.incarnation
        self.closed = False
        self._live = Lane(max(hello.window_bytes, 1))
        self._bulk = Lane(max(hello.window_bytes // BULK_WINDOW_PART, 1))
        self._message_bytes = message_bytes
        self._reader = reader
        self._on_sent = on_sent
        self._feeding: dict[ReplicaKey, Feeding] = {}
        self._lazy: dict[ReplicaKey, None] = {}
        """Only marks moved: they wait briefly for batches; batches do not wait for them."""
        self._lazy_planned = self._lazy_is_due = False
        self._answers: list[pb.EpochAnswer] = []
        self._errors: list[pb.ReplicaError] = []
        self._ahead: list[tuple[Feeding, Offset, list[Batch]]] = []
        """The next bulk message: batches, and the offset that each partition was at."""
        self._bulk_due_s = 0.0
        """From then on the next bulk message waits for no live partition."""
        self._bulk_planned = False
        self._wake = asyncio.Event()
        self._bulk_wake = asyncio.Event()
        self._copies = CopyAllowance(throttle, self._bulk_wake.set)

    def close(self) -> None:
        """Sends and accepts nothing more: a newer stream took over, or this one broke."""
        self.closed = True
        self._wake.set()
        self._bulk_wake.set()

    @property
    def replicas(self) -> list[Replica]:
        """The replicas that are fed now."""
        return [feeding.replica for feeding in self._feeding.values()]

    # ------------------------------------------------------------ replica.FollowerOutlet

    def feed(self, replica: Replica, feed: Feed) -> None:
        """Starts, restarts or stops a partition."""
        self._end(replica.key)
        if feed.from_offset is not None:
            self._feeding[replica.key] = Feeding(
                replica, self.follower, feed.leader_epoch, feed.from_offset
            )
            self._mark(replica.key)
        self._wake.set()

    def _end(self, key: ReplicaKey) -> None:
        """Stops feeding a partition; its bytes in flight no longer count in the window."""
        old = self._feeding.pop(key, None)
        if old is not None:
            old.end()

    def _mark(self, key: ReplicaKey) -> None:
        """A partition has news: queues it in the lane of its class, and in no other."""
        feeding = self._feeding.get(key)
        lane, other = self._live, self._bulk
        if feeding is not None and feeding.traffic is not Traffic.LIVE:
            lane, other = other, lane
            self._bulk_wake.set()
        lane.dirty[key] = None
        other.dirty.pop(key, None)

    def notify(self, replica: Replica, *, urgent: bool) -> None:
        """Marks of a partition moved; `urgent`: there are batches, or an fsync is waited for."""
        if urgent:
            self._mark(replica.key)
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
        had_room = self._live.has_room
        feeding.acked(written_end)
        if self._ahead or (not had_room and self._live.has_room):
            self._wake.set()

    def credited(self, copy_credit: int) -> None:
        """The follower lets copies go up to this many bytes since the stream began."""
        self._copies.credited(copy_credit)
        self._bulk_wake.set()

    # ------------------------------------------------------------ the writing half

    async def next_messages(self) -> list[bytes]:
        """Waits until there is something to send: serialized LeaderMessages, in order."""
        await self._anything()
        messages: list[bytes] = []
        if self._answers or self._errors:
            answers = pb.LeaderMessage(epoch_answers=self._answers, errors=self._errors)
            messages.append(answers.SerializeToString())
            self._answers, self._errors = [], []
        appends = self._send_ahead() if self._bulk_is_next else await self._collect()
        spent = self._copies.newly_spent()
        if appends or spent:
            messages.append(leader_message(appends, copy_spent=spent))
        return messages

    async def _anything(self) -> None:
        while not self._is_urgent:
            self._wake.clear()
            if self._bulk_fits and not self._bulk_planned:
                self._bulk_planned = True
                asyncio.get_running_loop().call_at(self._bulk_due_s, self._bulk_is_due)
            await self._wake.wait()
        for key in self._lazy:
            self._mark(key)
        self._lazy.clear()
        self._lazy_is_due = False

    def _bulk_is_due(self) -> None:
        """Bulk has waited long enough for live partitions."""
        self._bulk_planned = False
        self._wake.set()

    @property
    def _is_urgent(self) -> bool:
        return bool(
            self.closed
            or self._answers
            or self._errors
            or self._lazy_is_due
            or (self._live.dirty and self._live.has_room)
            or self._bulk_is_next
        )

    @property
    def _bulk_fits(self) -> bool:
        """A bulk message is ready, and fits into its window."""
        ahead = self._ahead
        return bool(ahead) and self._bulk.fits(sum([_size(batches) for _, _, batches in ahead]))

    @property
    def _bulk_is_next(self) -> bool:
        """A bulk message is ready, fits, and goes before what is live now."""
        if not self._bulk_fits:
            return False
        return not self._live.dirty or asyncio.get_running_loop().time() >= self._bulk_due_s

    async def _collect(self) -> list[tuple[pb.AppendBatches, list[Batch]]]:
        """Appends of live partitions up to one message's size; the rest stays dirty."""
        appends: list[tuple[pb.AppendBatches, list[Batch]]] = []
        budget = self._message_bytes
        for feeding in self._taken(self._live):
            offset, room = feeding.next_offset, min(budget, self._live.room_bytes)
            batches = await self._read(feeding, room) if room > 0 else []
            append, sent = self._append(feeding, offset, batches, self._live)
            budget -= _size(sent)
            if append is not None:
                appends.append((append, sent))
            if budget <= 0:
                break
        return appends

    def _taken(self, lane: Lane) -> Iterator[Feeding]:
        """Partitions of a lane that have news, each taken out of it before the next is asked for.

        Those that change lanes meanwhile, as the caller may wait for a read, are left out.
        """
        for key in list(lane.dirty):
            if key in lane.dirty:
                del lane.dirty[key]
                feeding = self._feeding.get(key)
                if feeding is not None:
                    yield feeding

    def _send_ahead(self) -> list[tuple[pb.AppendBatches, list[Batch]]]:
        """The bulk message that was read ahead, as far as it still is what comes next."""
        ahead, self._ahead = self._ahead, []
        self._bulk_due_s = asyncio.get_running_loop().time() + _BULK_EVERY_S
        self._bulk_wake.set()
        appends: list[tuple[pb.AppendBatches, list[Batch]]] = []
        for feeding, offset, batches in ahead:
            append, sent = self._append(feeding, offset, batches, self._bulk)
            if append is not None:
                appends.append((append, sent))
        return appends

    def _append(
        self, feeding: Feeding, offset: Offset, batches: list[Batch], lane: Lane
    ) -> tuple[pb.AppendBatches | None, list[Batch]]:
        """The batches read at `offset` if they still fit, and marks; None if nothing is new.

        The read may have waited: only the current state counts.
        """
        replica = feeding.replica
        if self._feeding.get(replica.key) is not feeding or feeding.next_offset != offset:
            return None, []
        marks = replica.marks
        if not marks.is_leader or marks.leader_epoch != feeding.leader_epoch:
            return None, []
        size = _size(batches)
        if not lane.fits(size):
            lane.held_back = True
            batches = []
        if batches:
            feeding.sent(batches, size, lane)
            self._on_sent(size)
        if feeding.has_more and (batches or not lane.has_room):
            # The message or the window is full: the partition continues when there is space again.
            self._mark(replica.key)
        return feeding.append(marks, with_batches=bool(batches)), batches

    # ------------------------------------------------------------ reading

    async def read_ahead(self) -> None:
        """Reads for bulk partitions, one message ahead; runs beside `next_messages` until closed.

        What it reads is sent, or found to be out of date, before it reads again.
        """
        while not self.closed:
            await self._bulk_wake.wait()
            self._bulk_wake.clear()
            if not self._ahead:
                self._ahead = await self._read_bulk()
                if self._ahead:
                    self._wake.set()

    async def _read_bulk(self) -> list[tuple[Feeding, Offset, list[Batch]]]:
        """Batches of bulk partitions up to one message's size; the rest stays dirty."""
        ahead: list[tuple[Feeding, Offset, list[Batch]]] = []
        budget = min(self._message_bytes, BULK_MESSAGE_BYTES)
        for feeding in self._taken(self._bulk):
            copies = feeding.traffic is Traffic.COPY
            if copies and not self._may_copy(feeding):
                self._bulk.dirty[feeding.replica.key] = None
                continue
            offset = feeding.next_offset
            batches = await self._read(feeding, budget, bulk=True)
            budget -= _size(batches)
            if copies:
                self._copies.pay(_size(batches))
            ahead.append((feeding, offset, batches))
            if budget <= 0:
                break
        return ahead

    def copies_wait_for(self, key: ReplicaKey) -> str:
        """What keeps the copy of a partition from being faster at the moment; "": nothing."""
        if key not in self._feeding:
            return f"broker {self.follower}, which has not begun"
        if self._copies.waits_here:
            return "the copy rate of the leader"
        if self._copies.lacks_credit:
            return f"the copy rate of broker {self.follower}"
        return f"broker {self.follower} to write" if self._ahead and not self._bulk_fits else ""

    def _may_copy(self, feeding: Feeding) -> bool:
        """Whether the throttles let it go on; if not, something will wake `read_ahead`."""
        self._copies.grew(feeding.grown())
        return not feeding.has_more or self._copies.may_go()  # or only marks

    async def _read(self, feeding: Feeding, max_bytes: int, *, bulk: bool = False) -> list[Batch]:
        """What comes next in a partition; nothing if it was all sent, or cannot be read."""
        replica, offset = feeding.replica, feeding.next_offset
        end = replica.marks.written_end
        if offset >= end:
            return []
        try:
            read = self._reader.read_bulk if bulk else self._reader.read
            batches = await read(replica, offset, max_bytes, end)
            if batches and batches[0].base_offset < offset:
                # A batch can begin before `offset`: compaction merged batches, or the log begins
                # inside it.
                return [trimmed(batches[0], offset), *batches[1:]]
        except PenstockError as error:
            if self._feeding.get(replica.key) is not feeding:
                return []  # feeding was stopped or restarted during the read
            _events.error(
                "cannot feed a follower",
                partition=str(replica),
                follower=self.follower,
                offset=offset,
                reason=str(error),
            )
            self._end(replica.key)
            self.refuse(replica.key, error)
            return []
        if not batches and self._feeding.get(replica.key) is feeding:
            self._left_behind(feeding)
        return batches

    def _left_behind(self, feeding: Feeding) -> None:
        """Retention has removed what the follower lacks, up to the log's end: nothing would ever be
        sent, until a record is appended. It asks again, and begins at the log start."""
        replica, marks = feeding.replica, feeding.replica.marks
        if not marks.is_leader or feeding.next_offset >= marks.log_start_offset:
            return
        self._end(replica.key)
        text = (
            f"the records from offset {feeding.next_offset} on were removed, the log begins at "
            f"{marks.log_start_offset}: look up the divergence again"
        )
        known = OffsetRange(marks.log_start_offset, marks.log_end_offset)
        self.refuse(replica.key, OffsetOutOfRangeError(text, known))


def _size(batches: list[Batch]) -> int:
    return sum([batch.size_bytes for batch in batches])
