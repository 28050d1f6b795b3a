"""Produce requests that were appended and wait for what their `acks` and `sync` require.

    acks=LEADER  sync=OS    own written_end >= end
                 sync=DISK  own synced_end >= end
    acks=ALL     sync=OS    HW >= end
                 sync=DISK  HW >= end, and synced_end >= end on every member of a large enough ISR

One heap per class, ordered by the offset waited for, so that progress costs only what it settles.
Every request leaves exactly once: settled, failed, or timed out (I8).
"""

from __future__ import annotations

from heapq import heappop, heappush

from penstock.core.replication.contract_leader import ProduceReply
from penstock.core.types import Acks, LeaderEpoch, Offset, Sync
from penstock.core.value import value
from penstock.errors import ClusterError, ErrorCode, PenstockError


@value(frozen=True, slots=True)
class Progress:
    """How far each class of requests may be acknowledged (offsets, exclusive)."""

    leader_written: Offset
    leader_synced: Offset
    committed: Offset
    committed_synced: Offset


@value(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One appended request. `end_offset` is what it waits for; the rest is for its reply.

    `persist_id` names the write that must succeed first (0: already written).
    """

    request_id: int
    end_offset: Offset
    acks: Acks
    sync: Sync
    deadline_ms: int
    base_offset: Offset
    append_time_ms: int
    persist_id: int
    duplicate: bool = False

    def reply(self, leader_epoch: LeaderEpoch) -> ProduceReply:
        """The successful reply."""
        return ProduceReply(
            request_id=self.request_id,
            base_offset=self.base_offset,
            append_time_ms=self.append_time_ms,
            leader_epoch=leader_epoch,
            acks=self.acks,
            sync=self.sync,
            duplicate=self.duplicate,
        )

    def failure(self, error: PenstockError) -> ProduceReply:
        """The reply with an error; its code says whether the outcome is known."""
        return ProduceReply(request_id=self.request_id, base_offset=Offset(-1), error=error)


class PendingProduces:
    """All waiting requests of one leadership."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._heaps: dict[tuple[Acks, Sync], list[tuple[Offset, int]]] = {}
        self._first_deadline_ms = 0
        self._disk_end = Offset(0)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting) -> None:
        """Adds a request; request ids are never reused."""
        if not self._waiting or waiting.deadline_ms < self._first_deadline_ms:
            self._first_deadline_ms = waiting.deadline_ms
        self._waiting[waiting.request_id] = waiting
        heap = self._heaps.setdefault((waiting.acks, waiting.sync), [])
        heappush(heap, (waiting.end_offset, waiting.request_id))
        if waiting.acks is Acks.ALL and waiting.sync is Sync.DISK:
            self._disk_end = max(self._disk_end, waiting.end_offset)

    def settle(self, progress: Progress) -> list[Waiting]:
        """Removes and returns completed requests, in offset order within each class."""
        settled: list[Waiting] = []
        for (acks, sync), heap in self._heaps.items():
            if not heap:
                continue
            limit = _limit(progress, acks, sync)
            while heap and heap[0][0] <= limit:
                settled.append(self._waiting.pop(heappop(heap)[1]))
        return settled

    def disk_end(self) -> Offset:
        """The highest offset that requests want on every ISR member's disk; 0 = none."""
        if self._disk_end and self._heaps.get((Acks.ALL, Sync.DISK)):
            return self._disk_end
        return Offset(0)

    def expire(self, now_ms: int) -> list[ProduceReply]:
        """Removes and fails requests past their deadlines; the outcome is unknown."""
        if not self._waiting or now_ms < self._first_deadline_ms:
            return []
        late = [waiting for waiting in self._waiting.values() if waiting.deadline_ms <= now_ms]
        for waiting in late:
            del self._waiting[waiting.request_id]
        self._rebuild()
        return [
            waiting.failure(
                ClusterError(
                    f"appended at offset {waiting.base_offset}, but acks={waiting.acks.name} "
                    f"sync={waiting.sync.name} was not reached in time; it may still be reached: "
                    "retry with the same sequence",
                    ErrorCode.REQUEST_TIMED_OUT,
                )
            )
            for waiting in late
        ]

    def fail_from(self, persist_id: int, error: PenstockError) -> list[ProduceReply]:
        """Removes and fails requests that wait for the write `persist_id` or a later one."""
        lost = [waiting for waiting in self._waiting.values() if waiting.persist_id >= persist_id]
        for waiting in lost:
            del self._waiting[waiting.request_id]
        self._rebuild()
        return [waiting.failure(error) for waiting in lost]

    def _rebuild(self) -> None:
        kept = list(self._waiting.values())
        self._waiting.clear()
        self._heaps.clear()
        self._disk_end = Offset(0)
        for waiting in kept:
            self.add(waiting)


def _limit(progress: Progress, acks: Acks, sync: Sync) -> Offset:
    if acks is Acks.ALL:
        return progress.committed if sync is Sync.OS else progress.committed_synced
    return progress.leader_written if sync is Sync.OS else progress.leader_synced
