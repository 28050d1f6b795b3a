"""What a follower's stream still has to send, per class of traffic, and how much is in flight.

    Lane LIVE ── the whole window ──┐
    Lane BULK ── a part of it ──────┴─▶ FollowerStream

A partition is in at most one lane's queue, and changes lanes when its follower joins or leaves the
ISR. Bytes in flight count in the lane in which they were sent until they are acknowledged, or until
feeding ends: each says which one that is.
"""

from collections import deque
from dataclasses import dataclass, field

from penstock.core.batch import Batch
from penstock.core.replication.contract import Marks
from penstock.core.replication.traffic import Traffic
from penstock.core.types import BrokerId, LeaderEpoch, Offset, ReplicaKey
from penstock.proto.v1 import replication_pb2 as pb
from penstock_broker.replication.replica import Replica


class Lane:
    """One class of traffic to one follower: partitions that have news, and bytes in flight."""

    __slots__ = ("dirty", "held_back", "in_flight_bytes", "window_bytes")

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.dirty: dict[ReplicaKey, None] = {}
        self.in_flight_bytes = 0
        self.held_back = False
        """What was read next does not fit into the rest of the window."""

    @property
    def room_bytes(self) -> int:
        return self.window_bytes - self.in_flight_bytes

    @property
    def has_room(self) -> bool:
        return self.room_bytes > 0 and not self.held_back

    def fits(self, size: int) -> bool:
        """Whether `size` bytes may be sent now. Anything may if nothing is in flight."""
        return not self.in_flight_bytes or size <= self.room_bytes

    def freed(self, size: int) -> None:
        """Bytes that were sent here were acknowledged, or will never be."""
        self.in_flight_bytes -= size
        self.held_back = False


@dataclass(slots=True, eq=False)
class Feeding:
    """How far one follower has been fed in one partition."""

    replica: Replica
    follower: BrokerId
    leader_epoch: LeaderEpoch
    next_offset: Offset
    sent_high_watermark: int = -1
    sent_log_start: int = -1
    sent_sync_through: int = 0
    unacked: deque[tuple[Offset, int, Lane]] = field(default_factory=deque)
    """Where each of what was sent ends, its bytes, and where these count."""
    seen_bytes: int = field(init=False)
    """`Replica.written_bytes` when `grown` last looked."""

    def __post_init__(self) -> None:
        self.seen_bytes = self.replica.written_bytes

    @property
    def traffic(self) -> Traffic:
        return self.replica.machine.traffic_to(self.follower)

    @property
    def has_more(self) -> bool:
        """Batches are written that were not sent."""
        return self.next_offset < self.replica.marks.written_end

    def grown(self) -> int:
        """By how much the partition grew since this was last asked, in bytes."""
        before, self.seen_bytes = self.seen_bytes, self.replica.written_bytes
        return self.seen_bytes - before

    def sent(self, batches: list[Batch], size: int, lane: Lane) -> None:
        """Batches were sent in a lane."""
        self.next_offset = batches[-1].next_offset
        self.unacked.append((self.next_offset, size, lane))
        lane.in_flight_bytes += size

    def acked(self, written_end: Offset) -> None:
        """The follower has written up to there."""
        unacked = self.unacked
        while unacked and unacked[0][0] <= written_end:
            _, size, lane = unacked.popleft()
            lane.freed(size)

    def end(self) -> None:
        """Nothing of it is in flight any more."""
        for _, size, lane in self.unacked:
            lane.freed(size)
        self.unacked.clear()

    def append(self, marks: Marks, *, with_batches: bool) -> pb.AppendBatches | None:
        """The marks to send now, with or without batches; None if there is nothing new."""
        if not (
            with_batches
            or marks.high_watermark != self.sent_high_watermark
            or marks.log_start_offset != self.sent_log_start
            or marks.sync_through > self.sent_sync_through
        ):
            return None
        self.sent_high_watermark = marks.high_watermark
        self.sent_log_start = marks.log_start_offset
        self.sent_sync_through = marks.sync_through
        key = self.replica.key
        return pb.AppendBatches(
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=self.leader_epoch,
            high_watermark=marks.high_watermark,
            log_start_offset=marks.log_start_offset,
            sync_through=marks.sync_through,
        )
