"""The roles of one replica: leader, follower or none, one after the other.

    newer state ─▶ learn ─┬─ same leadership ─▶ the role learns it
                          └─ another ─▶ leave ─▶ (writes in flight finish) ─▶ take

A new role starts in three steps: the old role ends at once (waiting produces fail with an unknown
outcome, feeds stop); then writes in flight finish, because a leader's epoch starts, and a look-up
begins, at a certain log end; then the new role begins, and its epoch is made durable. Kept here: I1
(epochs never fall; an epoch that a former run of this broker may have led is not led again: it
could have assigned offsets that were lost since).
"""

from __future__ import annotations

from itertools import count
from typing import Final

from penstock.core.replication.contract import LogDamaged, LogMended, RecoveredLog, ReplicaConfig
from penstock.core.replication.contract_leader import (
    EpochQueried,
    FollowerAcked,
    FollowStarted,
    SendRefusal,
)
from penstock.core.replication.follower import Follower, UnreadableLogError
from penstock.core.replication.leader import Leader
from penstock.core.replication.local_log import LocalLog
from penstock.core.replication.outbox import Outbox
from penstock.core.replication.refusals import not_leader
from penstock.core.types import NO_LEADER, BrokerId, Offset, PartitionState
from penstock.errors import NotLeaderError, PenstockError

_CHECKPOINT_RETRY_MS: Final = 1_000


class Roles:
    """Mutable, owned by the machine.

    Attributes:
        current: the role now; None: it has none, or the next one waits for the log.
        state: the newest of the partition; None: the controller has not spoken yet.
        member_version: the newest known version with this broker as a replica, or becoming one.
        early_queries: of followers that know of a leadership before this replica, which may be its.
    """

    def __init__(self, local: BrokerId, log: LocalLog, recovered: RecoveredLog) -> None:
        self.current: Leader | Follower | None = None
        self.state: PartitionState | None = None
        self.member_version = 0
        self.early_queries: dict[BrokerId, EpochQueried] = {}
        self._local = local
        self._log = log
        self._config = ReplicaConfig()
        self._due = False
        # Epochs up to here may have been led, or followed, by a former run.
        self._former_epoch = recovered.checkpoint.leader_epoch
        self._damage: PenstockError | None = None
        self._joins = count(1)
        self._checkpoint_due_ms: int | None = None

    @property
    def wants_tick(self) -> bool:
        """The role has a deadline, or its epoch is not durable."""
        return self._checkpoint_due_ms is not None or (
            self.current is not None and self.current.wants_tick
        )

    def not_leader(self, why: str = "") -> NotLeaderError:
        """Why a client or a follower is refused, with the leader that is known here."""
        why = why or f"broker {self._local} does not lead this partition"
        return not_leader(self.state, why)

    # ------------------------------------------------------------ from one role to the next

    def configure(self, config: ReplicaConfig) -> None:
        """For what is learned from now on."""
        self._config = config

    def note(self, state: PartitionState) -> bool:
        """Keeps state if it is not older than what is known; all that a stopped replica does."""
        known = self.state
        older = known is not None and state.version < known.version
        if older or state.leader_epoch < self._log.leader_epoch:
            return False
        self.state = state
        return True

    def learn(self, state: PartitionState, out: Outbox, now_ms: int) -> bool:
        """Adopts newer state, of the same leadership or another. Older state is ignored (I1).

        Returns whether this replica led before, and has learned of its own leadership.
        """
        known = self.state
        if not self.note(state):
            return False
        if self._is_member(state):
            self.member_version = state.version
        same_leadership = (
            known is not None
            and known.leader_epoch == state.leader_epoch
            and known.leader == state.leader
            and self._is_member(known) == self._is_member(state)
        )
        if not same_leadership:
            self._leave(out)
            self._due = True
            self.take(out, now_ms)
        elif isinstance(self.current, Leader):
            self.current.learn(state, self._config, out, now_ms)
            return True
        elif self.current is not None:
            self._inform(self.current, state)
        return False

    def _inform(self, follower: Follower, state: PartitionState) -> None:
        follower.copies = self._local in state.adding
        follower.version = state.version
        follower.follows_unclean = self._config.follows_unclean

    def _is_member(self, state: PartitionState) -> bool:
        return self._local in state.replicas or self._local in state.adding

    def _leave(self, out: Outbox) -> None:
        if isinstance(self.current, Leader):
            self.current.resign(out, self.not_leader("the leadership ended"))
        elif self.current is not None:
            self.current.stop(out)
        if self.current is not None:
            out.role_changed = True
        self.current = None

    def take(self, out: Outbox, now_ms: int) -> None:
        """Begins the role of the newest state if one is due, once the log is at rest."""
        state = self.state
        if not self._due or state is None or not self._log.is_still:
            return
        self._due = False
        former_epoch = self._log.leader_epoch
        newer = state.leader_epoch > former_epoch
        self._log.leader_epoch = state.leader_epoch
        if newer:
            # Who was to copy more of a swept log copies another now, or leads: markers from here on
            # are all there, and a member of its ISR need not begin again.
            self._log.swept_end = min(self._log.swept_end, self._log.log_end)
        if not self._is_member(state) or state.leader == NO_LEADER:
            pass
        elif state.leader == self._local:
            self._lead(state, out, now_ms)
        else:
            self._check_readable()
            # The epoch of a leader that wrote nothing is removed.
            self._log.epochs = self._log.epochs.cut(self._log.log_end)
            follower = Follower(self._log, state.leader, state.leader_epoch, former_epoch)
            self._inform(follower, state)
            self.current = follower
            follower.ask(out, now_ms)
        out.role_changed = True
        if newer:
            self._write_checkpoint(out, now_ms)
        self._answer_early_queries(out)

    def _lead(self, state: PartitionState, out: Outbox, now_ms: int) -> None:
        if state.leader_epoch <= self._former_epoch:
            return  # The controller will start a new epoch for this run of the broker.
        self._former_epoch = state.leader_epoch
        self._log.begin_epoch(state.leader_epoch)
        self.current = Leader(self._local, self._log, state, self._config, now_ms, self._joins)
        self.current.begin(out)

    # ------------------------------------------------------------ followers that are early

    def too_early(self, event: EpochQueried | FollowStarted | FollowerAcked, out: Outbox) -> None:
        """The follower may know of this leadership before its leader: keeps its query."""
        if isinstance(event, FollowerAcked):
            return
        soon = self._due or event.leader_epoch > self._log.leader_epoch
        if isinstance(event, EpochQueried) and soon:
            self.early_queries[event.follower] = event
        else:
            error = self.not_leader()
            out.messages.append(SendRefusal(event.follower, error))

    def _answer_early_queries(self, out: Outbox) -> None:
        queries, self.early_queries = self.early_queries, {}
        for query in queries.values():
            if isinstance(self.current, Leader) and query.leader_epoch <= self.current.epoch:
                self.current.epoch_queried(query, out)
            else:
                self.too_early(query, out)

    # ------------------------------------------------------------ a log that cannot be read

    def readable(self, event: LogDamaged | LogMended) -> None:
        """Whether all of it is. If not, a leader goes on. Raises UnreadableLogError."""
        if isinstance(event, LogMended):
            self._damage = None
            return
        self._damage = self._damage or event.error
        if event.unopened or isinstance(self.current, Follower):
            self._check_readable()

    def _check_readable(self) -> None:
        """Raises UnreadableLogError, which stops this replica, if it may not follow."""
        if self._damage is not None:
            raise UnreadableLogError(
                "this replica stopped, because it cannot read all of its log: "
                f"{self._damage}; it follows again once the log is mended, or copied again"
            )

    # ------------------------------------------------------------ a durable epoch

    def _write_checkpoint(self, out: Outbox, now_ms: int) -> None:
        """Makes a new epoch durable, so that it never falls (I1)."""
        self._store_epoch(self._log.checkpointed(now_ms), out)

    def _store_epoch(self, persist_id: int, out: Outbox) -> None:
        self._checkpoint_due_ms = None
        out.store(persist_id, self._log.checkpoint(), sync=True)
        out.swept_end = self._log.swept_end
        if isinstance(self.current, Leader):
            out.compacted_end = Offset(0)

    def write_failed(self, now_ms: int) -> None:
        """A write failed, perhaps the one with this epoch: it is due again."""
        self._checkpoint_due_ms = now_ms + _CHECKPOINT_RETRY_MS

    def appended(self, out: Outbox) -> None:
        """The leader has put batches into the write of this event."""
        if self._checkpoint_due_ms is not None:
            # The write with this epoch failed. No batch of it may be on disk without it: after a
            # restart, the batch would be taken for one of the epoch before (KIP-279).
            self._store_epoch(out.persist_id, out)

    def retry_checkpoint(self, out: Outbox, now_ms: int) -> None:
        """Writes the epoch again, if that is due."""
        due_ms = self._checkpoint_due_ms
        if due_ms is not None and now_ms >= due_ms and self._log.is_still:
            self._write_checkpoint(out, now_ms)
