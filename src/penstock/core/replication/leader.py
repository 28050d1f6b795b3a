"""A leader: appends, counts acknowledgements, moves the high watermark, asks for ISR changes.

    ProduceRequested ─▶ Transactions, Appending ─▶ own written_end ──────┐
    FollowerAcked (this epoch only) ────────▶ FollowerProgress ──────────┼─▶ HW ─▶ replies
    IsrAnswered, Assigned ──────────────────▶ InSyncReplicas ────────────┘

One object per leadership: acknowledgements of an earlier epoch cannot be counted here
(I5). Kept here: I2 (the HW never falls), I5, I7 (no reply before what `acks` and `sync` require),
I8, I9. A leader never truncates (I4). Whether it leads: `roles`.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.replication.appending import Appending, failed
from penstock.core.replication.contract import ReplicaConfig
from penstock.core.replication.contract_leader import (
    EndRequested,
    EpochQueried,
    Feed,
    FollowerAcked,
    FollowStarted,
    IsrProposal,
    Joined,
    ProduceRequested,
    SendEpochAnswer,
    SendRefusal,
)
from penstock.core.replication.followers import Followers
from penstock.core.replication.isr import FollowerProgress, InSyncReplicas
from penstock.core.replication.local_log import LocalLog
from penstock.core.replication.outbox import Outbox
from penstock.core.replication.pending import Progress
from penstock.core.replication.transactions import Transactions
from penstock.core.types import (
    TRANSACTIONAL_PRODUCER_BIT,
    Acks,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionState,
    Sync,
)
from penstock.errors import (
    ClusterError,
    CurrentLeader,
    ErrorCode,
    NotLeaderError,
    OffsetOutOfRangeError,
    OffsetRange,
    OverloadedError,
    PenstockError,
)


class Leader:
    """One leadership of one partition, from `begin` to `resign`."""

    def __init__(
        self,
        local: BrokerId,
        log: LocalLog,
        state: PartitionState,
        config: ReplicaConfig,
        now_ms: int,
        joins: Iterator[int],
    ) -> None:
        """`joins` numbers the joins of this replica, over all its leaderships."""
        self.epoch = state.leader_epoch
        self.config = config
        self.epoch_start = log.log_end
        self.isr = InSyncReplicas(state)
        self._appending = Appending(log, self.epoch)
        self.pending = self._appending.pending
        self._transactions = Transactions(log, self._appending, self._shortage, joins)
        self._local = local
        self._log = log
        self.followers = Followers(local, self.epoch, log, self.isr, now_ms)
        self._disk_acked = Offset(0)
        self._join_sync = Offset(0)

    @property
    def min_isr(self) -> int:
        """min.insync.replicas, but at most the number of replicas."""
        return min(self.config.min_insync_replicas, len(self.isr.state.replicas))

    @property
    def sync_through(self) -> Offset:
        """A request waits for followers to sync up to here; 0 = none does."""
        return max(self.pending.disk_end(), self._join_sync)

    @property
    def wants_tick(self) -> bool:
        """Something here depends on time."""
        if len(self.pending) or self._transactions.waiting or self.isr.unsettled:
            return True
        end, maximal = self._log.written_end, self.isr.maximal
        for broker, progress in self.followers.items():
            if broker in maximal and not progress.has_all(end):
                return True
        return False

    # ------------------------------------------------------------ life cycle

    def begin(self, out: Outbox) -> None:
        """First check: alone in the ISR, everything here is committed."""
        self._progress(out)

    def resign(self, out: Outbox, error: PenstockError) -> None:
        """Ends this leadership: waiting requests have an unknown outcome, feeds stop."""
        out.replies += self.pending.fail_from(0, error)
        self._transactions.resign(error, out)
        for broker, progress in self.followers.items():
            if progress.started:
                out.feeds.append(Feed(broker, self.epoch, None))

    def learn(self, state: PartitionState, config: ReplicaConfig, out: Outbox, now_ms: int) -> None:
        """Newer state of the same leadership: a changed ISR, replicas or settings."""
        self.config = config
        known = self.isr.state.version
        if state.version > known:
            self.isr.learn(state)
            self.followers.learn(known, out, now_ms)
        self._progress(out)

    # ------------------------------------------------------------ produce

    def produce(self, request: ProduceRequested, out: Outbox, now_ms: int) -> None:
        """Appends, or answers with an error; see `contract_leader.ProduceRequested`."""
        refusal: ClusterError | None = self._other_epoch(request.expected_epoch)
        header, done = request.batch.header, False
        if refusal is None:
            plain = header.producer_id < TRANSACTIONAL_PRODUCER_BIT and not header.flags
            if not plain or request.transactional_id:
                done = self._transactions.produce(request, out, now_ms)
            elif (refusal := self._shortage(request.acks)) is None:
                done = self._appending.land(request, out, now_ms)
        if refusal is not None:
            out.replies.append(failed(request, refusal))
        if done:
            self._progress(out)

    def joined(self, answer: Joined, out: Outbox, now_ms: int) -> None:
        """A coordinator's answer about a transaction that wants to begin here."""
        if self._transactions.joined(answer, out, now_ms):
            self._progress(out)

    def end(self, request: EndRequested, out: Outbox, now_ms: int) -> None:
        """Ends a transaction here, or answers with an error."""
        refusal = self._other_epoch(request.expected_epoch)
        if refusal is not None:
            out.replies.append(failed(request, refusal))
        elif self._transactions.end(request, out, now_ms):
            self._progress(out)

    def _shortage(self, acks: Acks, spare: int = 0) -> ClusterError | None:
        """Why nothing can be appended now: too few replicas for `acks`, too many waiting.

        `spare` is extra capacity beyond the limit.
        """
        if acks is Acks.ALL and len(self.isr.committed) < self.min_isr:
            return ClusterError(
                f"{len(self.isr.committed)} replicas are in sync ({self.isr.committed}), but "
                f"min.insync.replicas is {self.min_isr}: nothing was appended; try again when "
                "the other brokers are back",
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )
        waiting = len(self.pending) + self._transactions.waiting
        if waiting >= self.config.max_pending_produces + spare:
            return OverloadedError(
                f"{waiting} requests already wait on this partition, which is the limit: nothing "
                "was appended; slow down"
            )
        return None

    def _other_epoch(self, expected: LeaderEpoch) -> NotLeaderError | None:
        return None if expected in (0, self.epoch) else self.epoch_error(expected)

    def epoch_error(self, epoch: LeaderEpoch) -> NotLeaderError:
        """For a request that names another epoch than this leadership's."""
        older = epoch < self.epoch
        return NotLeaderError(
            (
                f"the request names leader epoch {epoch}, but this broker leads in epoch "
                f"{self.epoch}: "
            )
            + (
                "refresh the metadata"
                if older
                else ("it has not learned of the newer epoch yet; try again")
            ),
            ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            CurrentLeader(self._local, self.epoch),
        )

    # ------------------------------------------------------------ own log

    def before_persisted(self, now_ms: int) -> None:
        """The written end is about to move: followers that have all of it are caught up until
        now."""
        for progress in self.followers.values():
            progress.leader_advances(self._log.written_end, now_ms)

    def persisted(self, out: Outbox) -> None:
        """The log on disk got longer, or was synced."""
        self._progress(out)

    def persist_failed(self, persist_id: int, error: PenstockError, out: Outbox) -> None:
        """The log was rolled back: fails what was to be written, and continues to serve."""
        out.replies += self.pending.fail_from(persist_id, error)

    # ------------------------------------------------------------ followers

    def epoch_queried(self, query: EpochQueried, out: Outbox) -> None:
        """Answers where the follower's last epoch ends here (KIP-101, KIP-279).

        The feed stops first: in the stream, nothing of an older feed comes after the answer.
        """
        progress = self._known(query.follower, query.leader_epoch, out)
        if progress is None:
            return
        self.followers.stop_feed(query.follower, progress, out)
        if progress.told_swept_end is None:
            progress.told_swept_end = self._log.swept_end
        end = self._log.epochs.end_of(query.last_epoch, self._log.written_end)
        out.messages.append(
            SendEpochAnswer(
                follower=query.follower,
                leader_epoch=self.epoch,
                epoch=end.epoch,
                end_offset=end.end_offset,
                log_start_offset=self._log.log_start_offset,
                swept_end=self._log.swept_end,
            )
        )

    def follow_started(self, start: FollowStarted, out: Outbox) -> None:
        """Feeds the follower from its log end; what it has counts from its first ack on."""
        progress = self._known(start.follower, start.leader_epoch, out)
        if progress is None:
            return
        if not self.followers.knows_enough(start.follower, progress, start.version, out):
            return
        log = self._log
        told_swept_end, progress.told_swept_end = progress.told_swept_end, None
        if not log.log_start_offset <= start.from_offset <= log.log_end:
            self.followers.stop_feed(start.follower, progress, out)
            out.messages.append(
                SendRefusal(
                    start.follower,
                    OffsetOutOfRangeError(
                        f"broker {start.follower} wants to follow from offset "
                        f"{start.from_offset}, but the log has {log.log_start_offset} to "
                        f"{log.log_end}: look up the divergence again",
                        OffsetRange(log.log_start_offset, log.log_end),
                    ),
                )
            )
            return
        if start.from_offset < log.swept_end != told_swept_end:
            # Markers were removed since the answer: it does not know that it may wait in vain.
            self._ask_again(start.follower, start.from_offset, out)
            return
        progress.start()
        out.feeds.append(Feed(start.follower, self.epoch, start.from_offset))

    def acked(self, ack: FollowerAcked, out: Outbox, now_ms: int) -> None:
        """Counts what a follower has persisted in this epoch; anything else is ignored (I5)."""
        progress = self.followers.get(ack.follower)
        if ack.leader_epoch != self.epoch or progress is None or not progress.started:
            return
        if ack.written_end > self._log.written_end:
            return  # It has data that this leader never wrote: not a follower of this log.
        progress.acked(ack.written_end, ack.synced_end, self._log.written_end, now_ms)
        self._progress(out)

    def markers_swept(self, out: Outbox) -> None:
        """Makes followers ask again that may wait in vain for a marker they lack."""
        for follower, progress in self.followers.items():
            if progress.started and progress.written_end < self._log.swept_end:
                self.followers.stop_feed(follower, progress, out)
                self._ask_again(follower, progress.written_end, out)

    def _ask_again(self, follower: BrokerId, written_end: Offset, out: Outbox) -> None:
        refusal = OffsetOutOfRangeError(
            f"transaction markers below offset {self._log.swept_end} have been removed, but "
            f"broker {follower} has written only up to {written_end}: look up the divergence "
            "again",
            OffsetRange(self._log.log_start_offset, self._log.log_end),
        )
        out.messages.append(SendRefusal(follower, refusal))

    def peer_lost(self, peer: BrokerId, out: Outbox) -> None:
        """The follower's stream broke. It stays in the ISR until it lags for too long."""
        progress = self.followers.get(peer)
        if progress is not None:
            self.followers.stop_feed(peer, progress, out)

    def _known(
        self, follower: BrokerId, epoch: LeaderEpoch, out: Outbox
    ) -> FollowerProgress | None:
        """The follower's progress, if it may follow, and does in this epoch; else refuses."""
        if epoch != self.epoch:
            out.messages.append(SendRefusal(follower, self.epoch_error(epoch)))
            return None
        progress = self.followers.get(follower)
        if progress is None:
            refusal = ClusterError(
                f"broker {follower} is not one of the replicas {self.isr.followers}",
                ErrorCode.INELIGIBLE_REPLICA,
            )
            out.messages.append(SendRefusal(follower, refusal))
        return progress

    # ------------------------------------------------------------ ISR, time

    def isr_proposal(self, now_ms: int) -> IsrProposal | None:
        """The ISR that fits now, if it differs from the stored one."""
        return self.isr.propose(self._lagging(now_ms), self._joining(now_ms), now_ms)

    def tick(self, out: Outbox, now_ms: int) -> None:
        """Checks deadlines. (The machine checks for an ISR change afterwards.)"""
        out.replies += self.pending.expire(now_ms)
        self._transactions.expire(out, now_ms)

    def _lagging(self, now_ms: int) -> list[BrokerId]:
        end, lag_max_ms = self._log.written_end, self.config.replica_lag_time_max_ms
        return [
            broker
            for broker in self.isr.committed
            if broker != self._local
            and (progress := self.followers.get(broker)) is not None
            and progress.is_lagging(end, now_ms, lag_max_ms)
        ]

    def _joining(self, now_ms: int) -> list[BrokerId]:
        """Followers that may enter the ISR; those that only lack a sync are asked for one.

        Those in `adding` enter together, or none of them does.
        """
        self._join_sync = Offset(0)
        committed, adding = self.isr.committed, self.isr.state.adding
        later = self.isr.state.damaged
        if not self.isr.move_is_due(now_ms):
            later += adding
        joining = [
            broker
            for broker, progress in self.followers.items()
            if broker not in committed and broker not in later and self._may_join(progress)
        ]
        if all(broker in joining for broker in adding):
            return joining
        return [broker for broker in joining if broker not in adding]

    def _may_join(self, progress: FollowerProgress) -> bool:
        floor = max(self._log.high_watermark, self.epoch_start)
        if not progress.started or progress.written_end < floor:
            return False
        if progress.sync_floor is None:
            progress.sync_floor = floor
        sync_floor = max(progress.sync_floor, self._disk_acked)
        if progress.synced_end >= sync_floor:
            return True
        self._join_sync = max(self._join_sync, sync_floor)
        return False

    # ------------------------------------------------------------ commit

    def _progress(self, out: Outbox) -> None:
        """Moves the HW as far as I5 allows and answers requests that are complete."""
        enough = len(self.isr.committed) >= self.min_isr
        written = synced = Offset(0)
        if enough:
            written, synced = self._everywhere()
            out.commit(self._log, written)
        if not self.pending:
            return
        committed = self._log.high_watermark
        progress = Progress(
            leader_written=self._log.written_end,
            leader_synced=self._log.synced_end,
            committed=committed,
            committed_synced=min(committed, synced),
        )
        for waiting in self.pending.settle(progress):
            out.replies.append(waiting.reply(self.epoch))
            if waiting.acks is Acks.ALL and waiting.sync is Sync.DISK:
                self._disk_acked = max(self._disk_acked, waiting.end_offset)

    def _everywhere(self) -> tuple[Offset, Offset]:
        """The offsets that every broker that may be in the ISR has written, and has synced."""
        written, synced = self._log.written_end, self._log.synced_end
        for broker in self.isr.maximal:
            if broker == self._local:
                continue
            progress = self.followers.get(broker)
            if progress is None:
                return Offset(0), Offset(0)
            written = min(written, progress.written_end)
            synced = min(synced, progress.synced_end)
        return written, synced
