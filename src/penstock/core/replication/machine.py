"""The machine of one partition replica: adopts the controller's state, acts as leader or follower.

    event ──▶ handle ──▶ LocalLog (outcomes of writes) ──▶ Leader | Follower | None ───▶ Ready

A new role starts in three steps: the old role ends at once (waiting produces fail with an unknown
outcome, feeds stop); then writes in flight finish, because a leader's epoch starts, and a look-up
begins, at a certain log end; then the new role begins, and its epoch is made durable. Kept here: I1
(epochs never fall; an epoch that a former run of this broker may have led is not led again: it
could have assigned offsets that were lost since). A broken invariant, or any other defect, stops
the partition for good: `error` says why (`core.defect`).
"""

from __future__ import annotations

from itertools import count
from typing import Final, assert_never

from penstock.core.defect import Unanswered, stopped_by
from penstock.core.replication.contract import (
    Assigned,
    Checkpoint,
    Event,
    LogDamaged,
    LogMended,
    MarkersSwept,
    Marks,
    Message,
    PeerLost,
    Persisted,
    PersistFailed,
    ProducerEntry,
    Ready,
    RecoveredLog,
    ReplicaConfig,
    Tick,
    Truncated,
)
from penstock.core.replication.contract_follower import (
    BatchesReceived,
    EpochAnswered,
    PeerConnected,
    PeerRefused,
    SendFollowStop,
)
from penstock.core.replication.contract_leader import (
    EndRequested,
    EpochQueried,
    FollowerAcked,
    FollowStarted,
    IsrAnswered,
    IsrProposal,
    Joined,
    LogStartMoved,
    ProduceReply,
    ProduceRequested,
    SendRefusal,
)
from penstock.core.replication.follower import BrokenLogError, Follower, UnreadableLogError
from penstock.core.replication.leader import Leader
from penstock.core.replication.local_log import Bounds, LocalLog
from penstock.core.replication.outbox import Outbox
from penstock.core.replication.refusals import not_leader, refusal
from penstock.core.replication.traffic import Traffic, traffic_to
from penstock.core.types import NO_LEADER, BrokerId, Offset, PartitionState
from penstock.errors import ErrorCode, NotLeaderError, PenstockError

_CHECKPOINT_RETRY_MS: Final = 1_000


class ReplicaMachine:
    """One replica of one partition. Not thread-safe; `now_ms` never falls, on any steady clock."""

    def __init__(self, local: BrokerId, log: RecoveredLog) -> None:
        """`log` is what the store recovered, `UNPROMISED` if it lost writes."""
        self._local = local
        self._log = LocalLog(log)
        self._state: PartitionState | None = None
        self._member_version = 0
        self._config = ReplicaConfig()
        self._role: Leader | Follower | None = None
        self._role_due = False
        # Epochs up to here may have been led, or followed, by a former run.
        self._former_epoch = log.checkpoint.leader_epoch
        self._early_queries: dict[BrokerId, EpochQueried] = {}
        self._isr_asked: IsrProposal | None = None
        self._damage: PenstockError | None = None
        self._joins = count(1)
        self._checkpoint_due_ms: int | None = None
        self._unanswered = Unanswered()
        self._error: PenstockError | None = None
        self._marks: Marks | None = None

    # ------------------------------------------------------------ what the shell may look at

    @property
    def marks(self) -> Marks:
        """The replica's marks; the same object until the next event."""
        if self._marks is None:
            self._marks = self.look()
        return self._marks

    @property
    def log_start_offset(self) -> Offset:
        """As in `marks`, which are computed again after every event."""
        return self._log.log_start_offset if self._error is None else self.marks.log_start_offset

    @property
    def sync_through(self) -> Offset:
        """As in `marks`."""
        role = self._role
        return role.sync_through if isinstance(role, Leader) else Offset(0)

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        """For a snapshot that is stored with the newest write returned (or later)."""
        return self._log.producers.snapshot()

    @property
    def open_transactions(self) -> tuple[ProducerEntry, ...]:
        """Producers with an open transaction here, in the order in which these began."""
        return self._log.producers.open_entries()

    @property
    def checkpoint(self) -> Checkpoint:
        """The current state, to be stored with the newest write returned (or later).

        `Ready.checkpoint` has every change that must be stored; a newer high watermark may be
        stored with other writes now and then.
        """
        return self._log.checkpoint()

    @property
    def wants_tick(self) -> bool:
        """Whether it needs ticks. Idle partitions that are in sync do not."""
        if self._error is not None:
            return False
        return self._checkpoint_due_ms is not None or (
            self._role is not None and self._role.wants_tick
        )

    @property
    def member_version(self) -> int:
        """The newest known version with this broker as a replica, or becoming one; 0: none is."""
        return self._member_version

    @property
    def error(self) -> PenstockError | None:
        """Why this partition was stopped; None if it was not."""
        return self._error

    def traffic_to(self, broker: BrokerId) -> Traffic:
        """The class of what the leader of this partition sends to `broker`, as known here."""
        state, role = self._state, self._role
        if isinstance(role, Leader):
            return traffic_to(broker, role.isr.state, role.isr.maximal)
        return traffic_to(broker, state, () if state is None else state.isr)

    def written_by(self, broker: BrokerId) -> Offset:
        """Up to where a follower has said, in this epoch, that it has the log; 0: it has not."""
        return self._role.written_by(broker) if isinstance(self._role, Leader) else Offset(0)

    def followers_written(self) -> list[tuple[BrokerId, Offset]]:
        """Of every follower, up to where it has the log; for other threads, as `look`."""
        return self._role.followers_written() if isinstance(self._role, Leader) else []

    @property
    def copied_to(self) -> Offset | None:
        """Up to where the slowest of those that the partition moves to have the log for certain:
        fsynced, as they said in this epoch. None: it moves to nobody.

        Who does not lead is not told, and may lead before the copy has ended: 0, as a new leader.
        """
        if isinstance(self._role, Leader):
            return self._role.copied_to
        return Offset(0) if self._state is not None and self._state.adding else None

    def look(self) -> Marks:
        """As `marks`, for other threads: possibly in the middle of an event, and not cached."""
        if self._error is not None:
            return self.marks
        role = self._role
        return _glance(self._state, self._log.bounds(), role if isinstance(role, Leader) else None)

    # ------------------------------------------------------------ events

    def handle(self, event: Event, now_ms: int) -> Ready:
        """Decides what follows from `event`; the shell carries it out before the next write.

        Raises nothing: any exception stops the replica, see `core.defect`.
        """
        if self._error is not None:
            return refusal(event, self._error)
        # Not `marks`: computing these costs as much as some events.
        before, self._marks = (self._state, self._log.bounds()), None
        try:
            out = Outbox()
            self._dispatch(event, out, now_ms)
            ready = out.ready()
        except BrokenLogError as broken:
            return self._stop(broken, event, before)
        except Exception as defect:  # noqa: BLE001 - half of the event may be done
            error = stopped_by(defect, "this replica", event, ErrorCode.STORAGE_FAILED)
            return self._stop(error, event, before)
        if ready.replies:
            self._unanswered.settle(ready.replies)
        return ready

    def _dispatch(self, event: Event, out: Outbox, now_ms: int) -> None:
        match event:  # events of every batch come first
            case FollowerAcked() | FollowStarted() | EpochQueried():
                self._from_follower(event, out, now_ms)
            case ProduceRequested() | EndRequested() | Joined():
                self._from_client(event, out, now_ms)
            case Persisted() | PersistFailed() | Truncated() | MarkersSwept() | LogStartMoved():
                self._log_event(event, out, now_ms)
            case LogDamaged() | LogMended():
                self._readability(event)
            case Assigned():
                self._assigned(event.state, event.config, out, now_ms)
            case EpochAnswered() | BatchesReceived() | PeerRefused() | PeerConnected():
                self._from_leader(event, out, now_ms)
            case PeerLost():
                self._peer_lost(event.peer, out, now_ms)
            case IsrAnswered():
                self._isr_answered(event, out, now_ms)
            case Tick():
                self._tick(out, now_ms)
            case _:
                assert_never(event)

    # ------------------------------------------------------------ roles

    def _assigned(
        self, state: PartitionState, config: ReplicaConfig, out: Outbox, now_ms: int
    ) -> None:
        self._config = config
        self._learn(state, out, now_ms)

    def _learn(self, state: PartitionState, out: Outbox, now_ms: int) -> None:
        """Adopts newer state, of the same leadership or another. Older state is ignored (I1)."""
        known = self._state
        if state.leader_epoch < self._log.leader_epoch:
            return
        if known is not None and state.version < known.version:
            return
        self._state = state
        if self._is_member(state):
            self._member_version = state.version
        same_leadership = (
            known is not None
            and known.leader_epoch == state.leader_epoch
            and known.leader == state.leader
            and self._is_member(known) == self._is_member(state)
        )
        if not same_leadership:
            self._leave_role(out)
            self._role_due = True
            self._take_role(out, now_ms)
        elif isinstance(self._role, Leader):
            self._role.learn(state, self._config, out, now_ms)
            self._change_isr(out, now_ms)
        elif self._role is not None:
            self._role.copies = self._local in state.adding

    def _is_member(self, state: PartitionState) -> bool:
        return self._local in state.replicas or self._local in state.adding

    def _leave_role(self, out: Outbox) -> None:
        if isinstance(self._role, Leader):
            self._role.resign(out, self._not_leader("the leadership ended"))
        elif self._role is not None:
            self._role.stop(out)
        if self._role is not None:
            out.role_changed = True
        self._role = None

    def _take_role(self, out: Outbox, now_ms: int) -> None:
        """Begins the role of the newest state, once the log is at rest."""
        state = self._state
        if not self._role_due or state is None or not self._log.is_still:
            return
        self._role_due = False
        former_epoch = self._log.leader_epoch
        newer = state.leader_epoch > former_epoch
        self._log.leader_epoch = state.leader_epoch
        if not self._is_member(state) or state.leader == NO_LEADER:
            pass
        elif state.leader == self._local:
            self._lead(state, out, now_ms)
        else:
            self._check_readable()
            # The epoch of a leader that wrote nothing is removed.
            self._log.epochs = self._log.epochs.cut(self._log.log_end)
            follower = Follower(self._log, state.leader, state.leader_epoch, former_epoch)
            follower.copies = self._local in state.adding
            self._role = follower
            follower.ask(out, now_ms)
        out.role_changed = True
        if newer:
            self._write_checkpoint(out, now_ms)
        self._answer_early_queries(out)

    def _readability(self, event: LogDamaged | LogMended) -> None:
        if isinstance(event, LogMended):
            self._damage = None
            return
        self._damage = self._damage or event.error
        if event.unopened or isinstance(self._role, Follower):
            self._check_readable()

    def _check_readable(self) -> None:
        """Raises UnreadableLogError, which stops this replica, if it may not follow."""
        if self._damage is not None:
            raise UnreadableLogError(
                "this replica stopped, because it cannot read all of its log: "
                f"{self._damage}; it follows again once the log is mended, or copied again"
            )

    def _lead(self, state: PartitionState, out: Outbox, now_ms: int) -> None:
        if state.leader_epoch <= self._former_epoch:
            return  # The controller will start a new epoch for this run of the broker.
        self._former_epoch = state.leader_epoch
        self._log.begin_epoch(state.leader_epoch)
        self._role = Leader(self._local, self._log, state, self._config, now_ms, self._joins)
        self._role.begin(out)

    def _write_checkpoint(self, out: Outbox, now_ms: int) -> None:
        """Makes a new epoch durable, so that it never falls (I1)."""
        self._checkpoint_due_ms = None
        out.store(self._log.checkpointed(now_ms), self._log.checkpoint(), sync=True)

    def _stop(
        self, error: PenstockError, event: Event, before: tuple[PartitionState | None, Bounds]
    ) -> Ready:
        """Ends with what is certain: the waiting requests, and the marks before this event."""
        self._error = error
        self._role = None
        self._marks = _glance(*before, None)
        if isinstance(event, ProduceRequested | EndRequested):
            self._unanswered.take(event.request_id)
        replies = [
            ProduceReply(request_id=request_id, base_offset=Offset(-1), error=error)
            for request_id in self._unanswered.give_up()
        ]
        messages: list[Message] = [*refusal(event, error).messages]
        messages += [SendRefusal(follower, error) for follower in self._early_queries]
        if self._marks.leader not in (NO_LEADER, self._local):
            messages.append(SendFollowStop(self._marks.leader))
        return Ready(
            messages=tuple(messages),
            replies=tuple(replies),
            role_changed=True,
            stopped=error,
        )

    def _not_leader(self, why: str = "") -> NotLeaderError:
        why = why or f"broker {self._local} does not lead this partition"
        return not_leader(self._state, why)

    # ------------------------------------------------------------ clients

    def _from_client(
        self, event: ProduceRequested | EndRequested | Joined, out: Outbox, now_ms: int
    ) -> None:
        if not isinstance(event, Joined):
            self._unanswered.take(event.request_id)
        role = self._role
        if not isinstance(role, Leader):
            refused = refusal(event, self._not_leader())
            out.replies += refused.replies
            return
        match event:
            case ProduceRequested():
                role.produce(event, out, now_ms)
            case EndRequested():
                role.end(event, out, now_ms)
            case Joined():
                role.joined(event, out, now_ms)
        if out.append and self._checkpoint_due_ms is not None:
            # The write with this epoch failed. No batch of it may be on disk without it: after a
            # restart, the batch would be taken for one of the epoch before (KIP-279).
            self._checkpoint_due_ms = None
            out.store(out.persist_id, self._log.checkpoint(), sync=True)

    # ------------------------------------------------------------ own log

    def _log_event(
        self,
        event: Persisted | PersistFailed | Truncated | MarkersSwept | LogStartMoved,
        out: Outbox,
        now_ms: int,
    ) -> None:
        match event:
            case Persisted():
                self._persisted(event, out, now_ms)
            case PersistFailed():
                self._persist_failed(event, out, now_ms)
            case Truncated():
                self._log.truncated(event.log, now_ms)
                if isinstance(self._role, Follower):
                    self._role.settled(out, now_ms)
            case MarkersSwept():
                self._log.swept_end = max(self._log.swept_end, event.swept_end)
                if isinstance(self._role, Leader):
                    self._role.markers_swept(out)
            case LogStartMoved():
                if isinstance(self._role, Leader) and self._log.raise_log_start(
                    event.log_start_offset
                ):
                    persist_id = self._log.checkpointed(now_ms)
                    out.store(persist_id, self._log.checkpoint(), sync=False)
        self._take_role(out, now_ms)

    def _persisted(self, event: Persisted, out: Outbox, now_ms: int) -> None:
        role = self._role
        if isinstance(role, Leader):
            role.before_persisted(now_ms)
        self._log.persisted(event.persist_id, synced=event.synced)
        if isinstance(role, Leader):
            role.persisted(out)
        elif role is not None:
            role.persisted(out, now_ms)

    def _persist_failed(self, event: PersistFailed, out: Outbox, now_ms: int) -> None:
        self._checkpoint_due_ms = now_ms + _CHECKPOINT_RETRY_MS
        self._log.failed(event.persist_id)
        match self._role:
            case Leader() as leader:
                leader.persist_failed(event.persist_id, event.error, out)
            case Follower() as follower:
                follower.persist_failed(out, now_ms)
            case None:
                pass

    # ------------------------------------------------------------ peers

    def _from_follower(
        self, event: EpochQueried | FollowStarted | FollowerAcked, out: Outbox, now_ms: int
    ) -> None:
        role = self._role
        if not isinstance(role, Leader) or event.leader_epoch > role.epoch:
            self._from_follower_too_early(event, out)
            return
        match event:
            case EpochQueried():
                role.epoch_queried(event, out)
            case FollowStarted():
                role.follow_started(event, out)
            case FollowerAcked():
                role.acked(event, out, now_ms)
                if event.follower not in role.isr.committed:
                    # A member's ack adds none to the ISR; ticks find lagging ones.
                    self._change_isr(out, now_ms)

    def _from_follower_too_early(
        self, event: EpochQueried | FollowStarted | FollowerAcked, out: Outbox
    ) -> None:
        """The follower may know of this leadership before its leader: keeps its query."""
        if isinstance(event, FollowerAcked):
            return
        soon = self._role_due or event.leader_epoch > self._log.leader_epoch
        if isinstance(event, EpochQueried) and soon:
            self._early_queries[event.follower] = event
        else:
            error = self._not_leader()
            out.messages.append(SendRefusal(event.follower, error))

    def _answer_early_queries(self, out: Outbox) -> None:
        queries, self._early_queries = self._early_queries, {}
        for query in queries.values():
            if isinstance(self._role, Leader) and query.leader_epoch <= self._role.epoch:
                self._role.epoch_queried(query, out)
            else:
                self._from_follower_too_early(query, out)

    def _from_leader(
        self,
        event: EpochAnswered | BatchesReceived | PeerRefused | PeerConnected,
        out: Outbox,
        now_ms: int,
    ) -> None:
        role = self._role
        if not isinstance(role, Follower):
            return
        match event:
            case EpochAnswered():
                role.answered(event, out, now_ms)
            case BatchesReceived():
                role.batches(event, out, now_ms)
            case PeerRefused(peer) if peer == role.leader:
                role.pause(out, now_ms)
            case PeerConnected(peer) if peer == role.leader:
                role.connected(out, now_ms)
            case _:
                pass

    def _peer_lost(self, peer: BrokerId, out: Outbox, now_ms: int) -> None:
        self._early_queries.pop(peer, None)
        match self._role:
            case Leader() as leader:
                leader.peer_lost(peer, out)
                self._change_isr(out, now_ms)
            case Follower() as follower if follower.leader == peer:
                follower.lost()
            case _:
                pass

    # ------------------------------------------------------------ controller, time

    def _change_isr(self, out: Outbox, now_ms: int) -> None:
        """At most one change of this replica is in flight, over all leaderships."""
        if self._isr_asked is None and isinstance(self._role, Leader):
            self._isr_asked = out.isr_change = self._role.isr_proposal(now_ms)

    def _isr_answered(self, event: IsrAnswered, out: Outbox, now_ms: int) -> None:
        """One answer comes per proposal; newer state may have decided it already."""
        asked, self._isr_asked = self._isr_asked, None
        role = self._role
        if isinstance(role, Leader) and asked is not None:
            isr, answer = role.isr, event.state
            waits = event.error is not None and event.error.code is ErrorCode.MOVE_WAITS
            if waits and asked.leader_epoch == role.epoch:
                isr.move_waits(now_ms)
            undecided = (asked.leader_epoch, asked.version) == (role.epoch, isr.state.version)
            if undecided and answer is not None and answer.version == asked.version:
                isr.refused(now_ms)
            elif undecided and (answer is None or answer.version < asked.version):
                isr.unanswered(now_ms)
        if event.state is not None:
            self._learn(event.state, out, now_ms)
        self._change_isr(out, now_ms)

    def _tick(self, out: Outbox, now_ms: int) -> None:
        role = self._role
        if role is not None:
            role.tick(out, now_ms)
        self._change_isr(out, now_ms)
        due_ms = self._checkpoint_due_ms
        if due_ms is not None and now_ms >= due_ms and self._log.is_still:
            self._write_checkpoint(out, now_ms)


def _glance(state: PartitionState | None, bounds: Bounds, leading: Leader | None) -> Marks:
    """A replica's marks; `leading` is its leadership, if it leads."""
    leader_epoch, log_start, stable, high_watermark, written_end, log_end = bounds
    return Marks(
        is_leader=leading is not None,
        leader=state.leader if state is not None else NO_LEADER,
        leader_epoch=state.leader_epoch if state is not None else leader_epoch,
        log_start_offset=log_start,
        last_stable_offset=stable,
        high_watermark=high_watermark,
        written_end=written_end,
        log_end_offset=log_end,
        sync_through=leading.sync_through if leading is not None else Offset(0),
        isr=state.isr if state is not None else (),
        epoch_start_offset=leading.epoch_start if leading is not None else Offset(0),
    )
