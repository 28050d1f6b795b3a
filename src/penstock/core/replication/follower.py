"""A follower: finds where its log diverges from the leader's, truncates it there, then copies.

    ASKING ──answer──▶ (cut) ──▶ FOLLOWING ──batches──▶ written ──▶ ack
       ▲  ▲               │          │
       │  └─ epochs differ┘          │ gap, failed write, refusal, stream lost and back
       └──────── PAUSED ◀────────────┘

Nothing is copied before the divergence look-up of this epoch is complete (KIP-101, KIP-279,
KIP-320), the look-up is fenced by the epoch, and nothing below the high watermark is ever truncated
(I4). Only written data is acknowledged. One object per (leader, epoch); every new stream to the
leader starts again with the look-up.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from penstock.core.batch import Batch
from penstock.core.replication.contract_follower import (
    BatchesReceived,
    EpochAnswered,
    SendAck,
    SendEpochQuery,
    SendFollowStart,
    SendFollowStop,
)
from penstock.core.replication.local_log import LocalLog
from penstock.core.replication.outbox import Outbox
from penstock.core.types import NO_EPOCH, BrokerId, LeaderEpoch, Offset
from penstock.errors import ClusterError, ErrorCode

ANSWER_TIMEOUT_MS: Final = 2_000
"""A look-up without an answer is repeated: the leader may not have known its epoch yet."""
PAUSE_MS: Final = 100
"""Pause before the next attempt after a refusal or a failed write."""
PAUSE_MAX_MS: Final = 3_200
"""Pauses double up to here while the log gets no further: a leader that cannot read a batch refuses
every attempt, and each costs it a look-up and a read."""


class BrokenLogError(ClusterError):
    """The two logs contradict what replication guarantees. The partition stops here."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.DATA_CORRUPTED)


class UnreadableLogError(BrokenLogError):
    """A batch of this log cannot be read, so that it follows nobody."""


class _Phase(Enum):
    LOST = auto()
    """No stream to the leader."""
    PAUSED = auto()
    """Asks when the pause is over and the log is at rest."""
    ASKING = auto()
    CUTTING = auto()
    """The truncation is in progress, or the write that lets others rely on this log."""
    FOLLOWING = auto()


class Follower:
    """Follows one leader in one epoch."""

    def __init__(
        self, log: LocalLog, leader: BrokerId, epoch: LeaderEpoch, former_epoch: LeaderEpoch
    ) -> None:
        """`former_epoch`: the newest that this replica knew before.

        Takes back what the log promises if it is a part of a compacted one, of another epoch.
        """
        self.leader = leader
        self.epoch = epoch
        self.copies = False
        """It is in `adding`: no other replica relies on its log, whatever is in it."""
        self.follows_unclean = False
        """As in `ReplicaConfig`."""
        self.version = 0
        """Of the newest state that is known here."""
        self._start_epoch = former_epoch
        self._copied_in: LeaderEpoch | None = None
        """The last leader of this epoch, or an earlier one, had all that superseded records of this
        log, which ends before that: does this leader have it, too? None: it need not."""
        self._checks_copy = False
        self._log = log
        self._phase = _Phase.PAUSED
        self._due_ms = 0
        self._agreed = False
        self._held: EpochAnswered | None = None
        self._leader_high_watermark = Offset(0)
        self._leader_log_start = Offset(0)
        self._restart_at = Offset(0)
        self._swept_end = Offset(0)
        self._sync_asked = log.synced_end
        self._paused_at = Offset(-1)
        self._pause_ms = PAUSE_MS
        if log.is_part and log.is_promised and former_epoch < epoch:
            self._copied_in = former_epoch
            log.take_back()

    @property
    def wants_tick(self) -> bool:
        """In a pause, or waiting for an answer that may not come."""
        return self._phase in (_Phase.PAUSED, _Phase.ASKING)

    @property
    def is_answered(self) -> bool:
        """The leader has answered the look-up, and with that forgotten older acknowledgements."""
        return self._phase in (_Phase.CUTTING, _Phase.FOLLOWING)

    # ------------------------------------------------------------ look-up

    def ask(self, out: Outbox, now_ms: int) -> None:
        """Starts (again) with the look-up, as soon as the log is at rest."""
        self._held, self._checks_copy = None, False
        if self._log.is_still:
            self._query(self._last_epoch(), out, now_ms)
        else:
            self._phase, self._due_ms = _Phase.PAUSED, now_ms

    def _query(self, epoch: LeaderEpoch, out: Outbox, now_ms: int) -> None:
        self._phase, self._due_ms = _Phase.ASKING, now_ms + ANSWER_TIMEOUT_MS
        out.messages.append(SendEpochQuery(self.leader, self.epoch, epoch))

    def _last_epoch(self) -> LeaderEpoch:
        """The newest epoch of a record in this log, or of the start of an empty log."""
        epochs = self._log.epochs
        if epochs.last_epoch == NO_EPOCH and self._log.log_end > 0:
            return self._start_epoch
        return epochs.last_epoch

    def answered(self, answer: EpochAnswered, out: Outbox, now_ms: int) -> None:
        """Truncates the log where it diverges from the leader's, or restarts it.

        Raises BrokenLogError if that is below the HW, unless no other replica relies on this log,
        or an unclean leader is followed.
        """
        if self._phase is not _Phase.ASKING or not self._is_mine(
            answer.leader, answer.leader_epoch
        ):
            return
        log = self._log
        if not log.is_still:
            self._held = answer
            return
        self._restart_at, self._swept_end = answer.log_start_offset, answer.swept_end
        if self._checks_copy:
            self._copy_checked(answer, out, now_ms)
            return
        target, self._agreed = self._divergence(answer)
        if target < log.high_watermark and log.is_promised:
            self._contradicted(target)
        start = answer.log_start_offset
        is_behind = target < max(start, log.high_watermark)
        if self._lacks_superseded(target):
            log.take_back()
            self._begin_anew(start, out, now_ms)
        elif is_behind or self._shares_nothing(answer):
            self._begin_anew(start, out, now_ms)
        elif target < log.log_end:
            persist_id, checkpoint = log.truncate(target, now_ms)
            self._cut(target, out)
            out.store(persist_id, checkpoint, sync=False)
        elif self._agreed:
            self._check_copy(out, now_ms)
        else:
            self.ask(out, now_ms)

    def _check_copy(self, out: Outbox, now_ms: int) -> None:
        """Follows; before that, asks whether the leader has the rest of what is copied here."""
        if self._copied_in is None or self._log.is_promised:
            self._follow(out, now_ms)
        else:
            self._checks_copy = True
            self._query(self._copied_in, out, now_ms)

    def _copy_checked(self, answer: EpochAnswered, out: Outbox, now_ms: int) -> None:
        """A leader that has the rest ends that epoch no earlier: all of it was committed in it, or
        before. One that lost some of it has begun an epoch of its own there."""
        if answer.end_offset < self._log.compacted_end:
            self._begin_anew(answer.log_start_offset, out, now_ms)
        else:
            self._follow(out, now_ms)

    def _contradicted(self, target: Offset) -> None:
        """The leader shares this log only up to `target`, below the HW."""
        if self.copies or self.follows_unclean:
            self._log.take_back()
            return
        raise BrokenLogError(
            f"leader {self.leader} (epoch {self.epoch}) shares this log only up to offset "
            f"{target}, but offsets below {self._log.high_watermark} were committed: one of the "
            "two logs lost acknowledged records; nothing was truncated; compare the logs "
            "before you continue"
        )

    def _divergence(self, answer: EpochAnswered) -> tuple[Offset, bool]:
        """Where to truncate, and whether the logs certainly agree below that (KIP-279).

        If this log has the epoch that the leader named, both end it at the smaller of their ends.
        If not, this log's records of larger epochs are wrong, and the look-up continues with the
        next smaller epoch; if they began before the log start, nothing is left to agree on, and
        what was committed up to there is not in the leader's. An empty log's start was committed in
        the requested epoch, or before.
        """
        log = self._log
        if NO_EPOCH in (log.epochs.last_epoch, answer.epoch):
            return min(answer.end_offset, log.log_end), True
        own = log.epochs.end_of(answer.epoch, log.log_end)
        if own.epoch != answer.epoch:
            return own.end_offset, False
        return min(own.end_offset, answer.end_offset), True

    def _lacks_superseded(self, target: Offset) -> bool:
        """What is to be truncated, or was not copied yet, may have superseded records below
        `target`, which compaction has removed, here or where this was copied from.

        Only what was committed supersedes anything, and nobody with a seat lacks any of that. So
        this log lost writes, or its leader did; or it is a part of one, which goes on if its leader
        has the rest.
        """
        log = self._log
        if target >= log.compacted_end:
            return False
        return target < log.log_end or not (log.is_promised or self._copied_in is not None)

    def _shares_nothing(self, answer: EpochAnswered) -> bool:
        """Nothing of this log is known to be in the leader's, which begins after its HW.

        The leader only has records of later epochs, from its log start on: it no longer knows which
        epoch wrote the offsets before it. They may differ from those here, and a batch here may
        extend beyond that offset.
        """
        nothing = answer.epoch == NO_EPOCH != self._log.epochs.last_epoch
        return nothing and answer.log_start_offset > self._log.high_watermark

    def _cut(self, target: Offset, out: Outbox) -> None:
        self._phase = _Phase.CUTTING
        self._sync_asked = min(self._sync_asked, target)
        out.truncate_to = target

    def _begin_anew(self, start: Offset, out: Outbox, now_ms: int) -> None:
        self._agreed, self._start_epoch = True, self.epoch
        persist_id, checkpoint = self._log.reset(start, now_ms)
        self._cut(min(start, self._log.log_start_offset), out)
        out.store(persist_id, checkpoint, sync=False)

    def _follow(self, out: Outbox, now_ms: int) -> None:
        log = self._log
        if log.log_end < self._swept_end and log.producers.open_entries():
            # Its marker may never come: this replica was offline until compaction had removed it.
            # So it is not in ISR or ELR, whose members have everything below the leader's HW.
            log.take_back()
            self._begin_anew(self._restart_at, out, now_ms)
            return
        if not log.is_promised:
            # On disk before this replica can be in the ISR: the next run of a broker that is killed
            # then would rely on nothing here, or take an empty log for a missing one.
            self._phase = _Phase.CUTTING
            out.store(*log.promise(now_ms), sync=False)
            return
        if log.log_end < self._swept_end:
            # Copied data lacks these markers too: a replica that copies it from here must know.
            log.swept_end = max(log.swept_end, self._swept_end)
            out.store(log.checkpointed(now_ms), log.checkpoint(), sync=False)
            out.swept_end = log.swept_end
        self._phase, self._sync_asked = _Phase.FOLLOWING, min(self._sync_asked, log.log_end)
        start = SendFollowStart(self.leader, self.epoch, log.log_end, self.version)
        out.messages.append(start)
        out.messages.append(SendAck(self.leader, self.epoch, log.written_end, log.synced_end))

    # ------------------------------------------------------------ copying

    def batches(self, received: BatchesReceived, out: Outbox, now_ms: int) -> None:
        """Appends what continues the log; anything else restarts the look-up."""
        if self._phase is not _Phase.FOLLOWING or not self._is_mine(
            received.leader, received.leader_epoch
        ):
            return
        if not self._continues(received.batches):
            self.pause(out, now_ms)
            return
        log = self._log
        self._leader_high_watermark = received.high_watermark
        self._leader_log_start = received.log_start_offset
        start_moved = self._follow_marks(out)
        epochs_before, end_before = log.epochs, log.log_end
        end = received.batches[-1].next_offset if received.batches else end_before
        sync = min(received.sync_through, end) > self._sync_asked
        if not (received.batches or start_moved or sync):
            return
        compacted = [batch.next_offset for batch in received.batches if batch.header.is_compacted]
        if compacted:
            # What is gone there was superseded below what its leader knew to be committed, which
            # is nothing until it has followers again, if it has lost writes.
            out.compacted_end = max(received.high_watermark, compacted[-1])
            log.compacted_end = max(log.compacted_end, out.compacted_end)
        appended = log.append(received.batches, now_ms)
        out.write(appended, received.batches, sync=sync)
        if start_moved or log.epochs is not epochs_before or not received.batches:
            out.store(out.persist_id, log.checkpoint(), sync=sync)
        if sync:
            self._sync_asked = end

    def _continues(self, batches: tuple[Batch, ...]) -> bool:
        """Offsets without a gap from the log end; epochs neither fall nor exceed the leader's."""
        expected, epoch = self._log.log_end, self._log.epochs.last_epoch
        for batch in batches:
            if not self._log.fits(batch, expected):
                return False
            if not epoch <= batch.header.leader_epoch <= self.epoch:
                return False
            expected, epoch = batch.next_offset, batch.header.leader_epoch
        return True

    def _follow_marks(self, out: Outbox) -> bool:
        """The leader's high watermark and log start, as far as this log is written (I2).

        True if the log start moved: that must be stored.
        """
        log = self._log
        out.commit(log, min(self._leader_high_watermark, log.written_end))
        return log.raise_log_start(self._leader_log_start)

    def persisted(self, out: Outbox, now_ms: int) -> None:
        """Acknowledges, or continues with what waited for a log at rest."""
        log = self._log
        if self._phase is _Phase.FOLLOWING:
            if self._follow_marks(out):
                out.store(log.checkpointed(now_ms), log.checkpoint(), sync=False)
            out.messages.append(SendAck(self.leader, self.epoch, log.written_end, log.synced_end))
        else:
            self.settled(out, now_ms)

    def settled(self, out: Outbox, now_ms: int) -> None:
        """The log may be at rest now."""
        if not self._log.is_still:
            return
        match self._phase:
            case _Phase.CUTTING if self._agreed:
                self._follow(out, now_ms)
            case _Phase.CUTTING:
                self.ask(out, now_ms)
            case _Phase.PAUSED if now_ms >= self._due_ms:
                self.ask(out, now_ms)
            case _Phase.ASKING if self._held is not None:
                held, self._held = self._held, None
                self.answered(held, out, now_ms)
            case _:
                pass

    def persist_failed(self, out: Outbox, now_ms: int) -> None:
        """The log was rolled back: what the leader sends next no longer fits."""
        self._sync_asked = self._log.synced_end
        if self._phase is not _Phase.LOST:
            self.pause(out, now_ms)

    # ------------------------------------------------------------ stream, time

    def connected(self, out: Outbox, now_ms: int) -> None:
        """A new stream: requests and feeds on an older one are void."""
        self._pause_ms = PAUSE_MS
        if self._phase is _Phase.CUTTING:
            self._agreed = False
        else:
            self.ask(out, now_ms)

    def lost(self) -> None:
        """Nothing to do until the stream is back; a truncation continues."""
        if self._phase is _Phase.CUTTING:
            self._agreed = False
        else:
            self._phase = _Phase.LOST

    def pause(self, out: Outbox, now_ms: int) -> None:
        """Stops copying and looks up again a little later."""
        if self._phase is _Phase.FOLLOWING:
            out.messages.append(SendFollowStop(self.leader))
        if self._phase is not _Phase.CUTTING or self._log.is_still:
            if self._log.log_end != self._paused_at:
                self._paused_at, self._pause_ms = self._log.log_end, PAUSE_MS
            self._phase, self._due_ms = _Phase.PAUSED, now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)

    def tick(self, out: Outbox, now_ms: int) -> None:
        """Ends pauses; repeats a look-up without an answer."""
        if self.wants_tick and now_ms >= self._due_ms:
            self.ask(out, now_ms)

    def stop(self, out: Outbox) -> None:
        """The replica gets another leader or epoch."""
        out.messages.append(SendFollowStop(self.leader))

    def _is_mine(self, leader: BrokerId, epoch: LeaderEpoch) -> bool:
        return leader == self.leader and epoch == self.epoch
