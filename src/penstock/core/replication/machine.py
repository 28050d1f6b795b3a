"""The machine of one partition replica: adopts the controller's state, acts as leader or follower.

    event ──▶ handle ──▶ LocalLog (outcomes of writes) ──▶ Leader | Follower | None ───▶ Ready

When it takes which role: `roles`. A broken invariant, or any other defect, stops the partition for
good: `error` says why (`core.defect`).
"""

from __future__ import annotations

from typing import assert_never

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
    ProducersExpired,
    Ready,
    RecoveredLog,
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
from penstock.core.replication.follower import BrokenLogError, Follower
from penstock.core.replication.leader import Leader
from penstock.core.replication.local_log import Bounds, LocalLog
from penstock.core.replication.outbox import Outbox
from penstock.core.replication.refusals import refusal, stopped_here
from penstock.core.replication.roles import Roles
from penstock.core.replication.traffic import Traffic, traffic_to
from penstock.core.types import NO_LEADER, BrokerId, Offset, PartitionState
from penstock.errors import ErrorCode, PenstockError


class ReplicaMachine:
    """One replica of one partition. Not thread-safe; `now_ms` never falls, on any steady clock."""

    def __init__(self, local: BrokerId, log: RecoveredLog, now_ms: int) -> None:
        """`log` is what the store recovered, `UNPROMISED` if it lost writes."""
        self._local = local
        self._log = LocalLog(log, now_ms)
        self._roles = Roles(local, self._log, log)
        self._isr_asked: IsrProposal | None = None
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
        role = self._roles.current
        return role.sync_through if isinstance(role, Leader) else Offset(0)

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        """For a snapshot that is stored with the newest write returned (or later)."""
        return self._log.producers.snapshot()

    @property
    def producer_count(self) -> int:
        """How many of them there are."""
        return len(self._log.producers)

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
        return self._roles.wants_tick

    @property
    def member_version(self) -> int:
        """The newest known version with this broker as a replica, or becoming one; 0: none is."""
        return self._roles.member_version

    @property
    def error(self) -> PenstockError | None:
        """Why this partition was stopped; None if it was not."""
        return self._error

    @property
    def client_error(self) -> PenstockError | None:
        """What a client is told if this partition was stopped; None if it was not."""
        if self._error is None:
            return None
        return stopped_here(self._error, self._roles.state, self._local)

    @property
    def others_are_sound(self) -> bool:
        """Whether somebody else in sync is not known as damaged, so leads soon or gives batches."""
        state = self._roles.state
        return state is not None and any(
            one not in {self._local, *state.damaged} for one in state.isr
        )

    @property
    def is_answered(self) -> bool:
        """No leader counts what this broker has acknowledged before this log was opened: it leads
        itself, or its leader has answered its look-up (`Follower`). False: not so, for all that is
        known."""
        role = self._roles.current
        return role.is_answered if isinstance(role, Follower) else isinstance(role, Leader)

    def traffic_to(self, broker: BrokerId) -> Traffic:
        """The class of what the leader of this partition sends to `broker`, as known here."""
        state, role = self._roles.state, self._roles.current
        if isinstance(role, Leader):
            return traffic_to(broker, role.isr.state, role.isr.maximal)
        return traffic_to(broker, state, () if state is None else state.isr)

    def written_by(self, broker: BrokerId) -> Offset:
        """Up to where a follower has said, in this epoch, that it has the log; 0: it has not."""
        role = self._roles.current
        return role.followers.written_by(broker) if isinstance(role, Leader) else Offset(0)

    def followers_written(self) -> list[tuple[BrokerId, Offset]]:
        """Of every follower, up to where it has the log; for other threads, as `look`."""
        role = self._roles.current
        return role.followers.written() if isinstance(role, Leader) else []

    @property
    def copied_to(self) -> Offset | None:
        """Up to where the slowest of those that the partition moves to have the log for certain:
        fsynced, as they said in this epoch. None: it moves to nobody.

        Who does not lead is not told, and may lead before the copy has ended: 0, as a new leader.
        """
        state, role = self._roles.state, self._roles.current
        if isinstance(role, Leader):
            return role.followers.copied_to
        return Offset(0) if state is not None and state.adding else None

    def look(self) -> Marks:
        """As `marks`, for other threads: possibly in the middle of an event, and not cached."""
        if self._error is not None:
            return self.marks
        state, role = self._roles.state, self._roles.current
        return _glance(state, self._log.bounds(), role if isinstance(role, Leader) else None)

    # ------------------------------------------------------------ events

    def handle(self, event: Event, now_ms: int) -> Ready:
        """Decides what follows from `event`; the shell carries it out before the next write.

        Raises nothing: any exception stops the replica, see `core.defect`.
        """
        if self._error is not None:
            return self._refuse(event, self._error)
        # Not `marks`: computing these costs as much as some events.
        before, self._marks = (self._roles.state, self._log.bounds()), None
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
            case LogDamaged() | LogMended() | ProducersExpired():
                self._looked_after(event, now_ms)
            case Assigned():
                self._assigned(event, out, now_ms)
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

    def _stop(
        self, error: PenstockError, event: Event, before: tuple[PartitionState | None, Bounds]
    ) -> Ready:
        """Ends with what is certain: the waiting requests, and the marks before this event."""
        self._error = error
        self._roles.current = None
        self._marks = _glance(*before, None)
        if isinstance(event, ProduceRequested | EndRequested):
            self._unanswered.take(event.request_id)
        told = self.client_error
        replies = [
            ProduceReply(request_id=request_id, base_offset=Offset(-1), error=told)
            for request_id in self._unanswered.give_up()
        ]
        messages: list[Message] = [*refusal(event, error).messages]
        messages += [SendRefusal(follower, error) for follower in self._roles.early_queries]
        if self._marks.leader not in (NO_LEADER, self._local):
            messages.append(SendFollowStop(self._marks.leader))
        return Ready(
            messages=tuple(messages),
            replies=tuple(replies),
            role_changed=True,
            stopped=error,
        )

    def _refuse(self, event: Event, error: PenstockError) -> Ready:
        """Of a replica that stopped: clients are sent to whoever leads meanwhile."""
        if isinstance(event, Assigned):
            self._roles.note(event.state)
        elif isinstance(event, ProduceRequested | EndRequested):
            error = self.client_error or error
        return refusal(event, error)

    # ------------------------------------------------------------ clients

    def _from_client(
        self, event: ProduceRequested | EndRequested | Joined, out: Outbox, now_ms: int
    ) -> None:
        if not isinstance(event, Joined):
            self._unanswered.take(event.request_id)
        role = self._roles.current
        if not isinstance(role, Leader):
            refused = refusal(event, self._roles.not_leader())
            out.replies += refused.replies
            return
        match event:
            case ProduceRequested():
                role.produce(event, out, now_ms)
            case EndRequested():
                role.end(event, out, now_ms)
            case Joined():
                role.joined(event, out, now_ms)
        if out.append:
            self._roles.appended(out)

    # ------------------------------------------------------------ own log

    def _looked_after(self, event: LogDamaged | LogMended | ProducersExpired, now_ms: int) -> None:
        """What the broker found when it looked at its logs."""
        if isinstance(event, ProducersExpired):
            self._log.producers.forget_idle(now_ms, event.expiry_ms, event.limit)
        else:
            self._roles.readable(event)

    def _log_event(
        self,
        event: Persisted | PersistFailed | Truncated | MarkersSwept | LogStartMoved,
        out: Outbox,
        now_ms: int,
    ) -> None:
        role = self._roles.current
        match event:
            case Persisted():
                self._persisted(event, out, now_ms)
            case PersistFailed():
                self._persist_failed(event, out, now_ms)
            case Truncated():
                self._log.truncated(event.log, now_ms)
                if isinstance(role, Follower):
                    role.settled(out, now_ms)
            case MarkersSwept() if event.swept_end > self._log.swept_end:
                # Not again for each chunk of a pass, with which it comes.
                self._log.swept_end = event.swept_end
                if isinstance(role, Leader):
                    role.markers_swept(out)
            case LogStartMoved():
                moved = isinstance(role, Leader) and self._log.raise_log_start(
                    event.log_start_offset
                )
                if moved:
                    persist_id = self._log.checkpointed(now_ms)
                    out.store(persist_id, self._log.checkpoint(), sync=False)
        self._roles.take(out, now_ms)

    def _persisted(self, event: Persisted, out: Outbox, now_ms: int) -> None:
        role = self._roles.current
        if isinstance(role, Leader):
            role.before_persisted(now_ms)
        self._log.persisted(event.persist_id, synced=event.synced)
        if isinstance(role, Leader):
            role.persisted(out)
        elif role is not None:
            role.persisted(out, now_ms)

    def _persist_failed(self, event: PersistFailed, out: Outbox, now_ms: int) -> None:
        self._roles.write_failed(now_ms)
        self._log.failed(event.persist_id)
        match self._roles.current:
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
        role = self._roles.current
        if not isinstance(role, Leader) or event.leader_epoch > role.epoch:
            self._roles.too_early(event, out)
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

    def _from_leader(
        self,
        event: EpochAnswered | BatchesReceived | PeerRefused | PeerConnected,
        out: Outbox,
        now_ms: int,
    ) -> None:
        role = self._roles.current
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
        self._roles.early_queries.pop(peer, None)
        match self._roles.current:
            case Leader() as leader:
                leader.peer_lost(peer, out)
                self._change_isr(out, now_ms)
            case Follower() as follower if follower.leader == peer:
                follower.lost()
            case _:
                pass

    # ------------------------------------------------------------ controller, time

    def _assigned(self, event: Assigned, out: Outbox, now_ms: int) -> None:
        self._roles.configure(event.config)
        if self._roles.learn(event.state, out, now_ms):
            self._change_isr(out, now_ms)

    def _change_isr(self, out: Outbox, now_ms: int) -> None:
        """At most one change of this replica is in flight, over all leaderships."""
        role = self._roles.current
        if self._isr_asked is None and isinstance(role, Leader):
            self._isr_asked = out.isr_change = role.isr_proposal(now_ms)

    def _isr_answered(self, event: IsrAnswered, out: Outbox, now_ms: int) -> None:
        """One answer comes per proposal; newer state may have decided it already."""
        asked, self._isr_asked = self._isr_asked, None
        role = self._roles.current
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
            self._roles.learn(event.state, out, now_ms)
        self._change_isr(out, now_ms)

    def _tick(self, out: Outbox, now_ms: int) -> None:
        role = self._roles.current
        if role is not None:
            role.tick(out, now_ms)
        self._change_isr(out, now_ms)
        self._roles.retry_checkpoint(out, now_ms)


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
