"""In-sync replicas: progress of followers, and one ISR change at a time.

    committed ISR ──propose──▶ committed ∪ proposed ──a newer version is known──▶ committed ISR
                                 counts for the HW

While a change is in flight the controller may already have stored it, so the high watermark waits
for the union of both (I5; "maximal ISR" in KAFKA-12614 and KIP-497). The union stays until a *newer
version* is known, or the only proposal ever sent on this version was refused: a request whose
answer was lost may still be in flight, and succeed, after a later one was refused.

To be added, a follower must have everything that may be acknowledged: it has written up to max(HW,
start of the leader's epoch) and synced up to where that was when it got there, and up to the last
offset acknowledged with sync=DISK. So every ISR member has what was acknowledged, each in its
class, and what was long on disk elsewhere is on disk there too. Removing members is safe at any
time; it happens when a follower has not caught up for `replica_lag_time_max_ms`.

Brokers in `adding` copy the partition and are no replicas yet: they enter all at once, which makes
them replicas (ADR 65), and never count before that is proposed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from penstock.core.replication.contract_leader import IsrProposal
from penstock.core.types import BrokerId, LeaderEpoch, Offset, PartitionState

RETRY_MS: Final = 500
"""Pause after an unknown or refused ISR change."""
MOVE_RETRY_MS: Final = 5_000
"""Pause after the controller has stored the rest of a change without those in `adding`."""


@dataclass(slots=True, kw_only=True)
class FollowerProgress:
    """A leader's state of one follower, in its own epoch only (I5).

    `started`: it follows on a live stream. `caught_up_ms`: when it last had the whole log.
    `seen_end` / `seen_ms`: the log end it must reach to have been caught up at that time.
    `told_swept_end`: markers below it may be missing, by the first answer to its look-up. It asks
    again when that is late, and acts on the answer that comes first. None: it has not asked.
    `sync_floor`: what it must sync for a seat in the ISR: where the floor for what is written was
    when it first reached that. None: it has not.
    `since`: it may have deleted its data before this version of the partition, and say so only now:
    it has to know this version as it starts to follow (KIP-903, for one replica).
    """

    caught_up_ms: int
    seen_end: Offset
    seen_ms: int
    started: bool = False
    written_end: Offset = Offset(0)
    synced_end: Offset = Offset(0)
    told_swept_end: Offset | None = None
    sync_floor: Offset | None = None
    since: int = 0

    def start(self) -> None:
        """It starts to follow; what it has is unknown before its first ack."""
        self.started = True
        self.written_end = Offset(0)
        self.synced_end = Offset(0)
        self.sync_floor = None

    def acked(
        self, written_end: Offset, synced_end: Offset, leader_end: Offset, now_ms: int
    ) -> None:
        """Counts an ack; `leader_end` is the leader's written end now."""
        self.written_end = written_end
        self.synced_end = synced_end
        if written_end >= leader_end:
            self.caught_up_ms = now_ms
        elif written_end >= self.seen_end:
            self.caught_up_ms = max(self.caught_up_ms, self.seen_ms)
        else:
            return
        self.seen_end, self.seen_ms = leader_end, now_ms

    def leader_advances(self, leader_end: Offset, now_ms: int) -> None:
        """The leader's written end is about to move past `leader_end`."""
        if self.started and self.written_end >= leader_end:
            self.caught_up_ms = now_ms

    def has_all(self, leader_end: Offset) -> bool:
        """Follows, and lacks nothing."""
        return self.started and self.written_end >= leader_end

    def is_lagging(self, leader_end: Offset, now_ms: int, lag_max_ms: int) -> bool:
        """Has not had the whole log for longer than `lag_max_ms`."""
        return not self.has_all(leader_end) and now_ms - self.caught_up_ms > lag_max_ms


class InSyncReplicas:
    """The ISR of one leadership and the change in flight. Mutable, owned by the leader."""

    def __init__(self, state: PartitionState) -> None:
        self.state = state
        self._proposed: frozenset[BrokerId] = frozenset()
        self._uncertain = False
        self._retry_ms = 0
        self._move_due_ms = 0

    @property
    def followers(self) -> tuple[BrokerId, ...]:
        """Who may follow, the leader among them: the replicas, and who is to become one."""
        return self.state.replicas + self.state.adding

    @property
    def committed(self) -> tuple[BrokerId, ...]:
        """The ISR the controller has stored, as far as known here."""
        return self.state.isr

    @property
    def maximal(self) -> Collection[BrokerId]:
        """Every broker that may be in the stored ISR now."""
        return self._proposed.union(self.state.isr) if self._proposed else self.state.isr

    @property
    def unsettled(self) -> bool:
        """A change waits for an answer or a retry."""
        return (
            bool(self._proposed) or self._uncertain or self._retry_ms > 0 or self._move_due_ms > 0
        )

    def learn(self, state: PartitionState) -> None:
        """A newer version is known: all proposals on an older one are decided."""
        assert state.version > self.state.version
        if state.adding != self.state.adding:
            self._move_due_ms = 0
        self.state = state
        self._proposed = frozenset()
        self._uncertain = False
        self._retry_ms = 0

    def refused(self, now_ms: int) -> None:
        """The controller has checked the proposal and kept the version."""
        if not self._uncertain:
            self._proposed = frozenset()
        self._retry_ms = now_ms + RETRY_MS

    def unanswered(self, now_ms: int) -> None:
        """The proposal may have been stored, may still be, or not."""
        self._uncertain = True
        self._retry_ms = now_ms + RETRY_MS

    def move_waits(self, now_ms: int) -> None:
        """The controller cannot make those in `adding` replicas yet."""
        self._move_due_ms = now_ms + MOVE_RETRY_MS

    def move_is_due(self, now_ms: int) -> bool:
        """Whether those in `adding` may be proposed (again)."""
        if now_ms < self._move_due_ms:
            return False
        self._move_due_ms = 0
        return True

    def propose(
        self, lagging: Collection[BrokerId], joining: Collection[BrokerId], now_ms: int
    ) -> IsrProposal | None:
        """The change to request now, None if there is none or it is not due yet.

        After an uncertain proposal, the current ISR is proposed again if nothing else is to change:
        a new version ends the uncertainty.
        """
        if now_ms < self._retry_ms:
            return None
        self._retry_ms = 0
        if not (lagging or joining or self._uncertain):
            return None
        target = (set(self.state.isr) - set(lagging)) | set(joining)
        if target == set(self.state.isr) and not self._uncertain:
            return None
        self._proposed |= target
        isr = tuple(broker for broker in self.followers if broker in target)
        return IsrProposal(LeaderEpoch(self.state.leader_epoch), self.state.version, isr)
