"""The replicas of this broker: every event goes to its machine, every `Ready` is carried out here.

    handle(replica, event) ─▶ machine ─▶ Ready ─▶ truncate, append ──▶ LogWriter
                                              ├─▶ messages, feeds ──▶ streams to peers
                                              ├─▶ isr_change ───────▶ IsrChanges
                                              ├─▶ joins ────────────▶ coordinators of transactions
                                              ├─▶ replies ──────────▶ produce requests
                                              └─▶ high watermark ───▶ waiting fetches, feeders

`handle` never awaits: nothing else runs between an event and its consequences, and the order of a
`Ready` (contract.py) is the order of the statements in `_obey`. Nothing here decides. A machine
that stops itself (`core.defect`) stays in the set: its partition answers with the reason, and is
not read, written or fed until it is opened again (`mending`), or the broker restarts. The rest of
the broker continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final, assert_never
from weakref import WeakValueDictionary

from penstock.core.aborted import AbortedIndex
from penstock.core.batch import Batch, BatchHeader
from penstock.core.compaction.plan import Cleaned
from penstock.core.replication.contract import (
    NOTHING,
    UNPROMISED,
    Assigned,
    Checkpoint,
    Event,
    LogDamaged,
    LogMended,
    Message,
    PeerLost,
    Ready,
    RecoveredLog,
    ReplicaConfig,
    Tick,
)
from penstock.core.replication.contract_follower import (
    PeerConnected,
    SendAck,
    SendEpochQuery,
    SendFollowStart,
    SendFollowStop,
)
from penstock.core.replication.contract_leader import Feed, SendEpochAnswer, SendRefusal
from penstock.core.replication.machine import ReplicaMachine
from penstock.core.replication.traffic import Traffic
from penstock.core.types import (
    NO_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionState,
    ReplicaKey,
    TopicId,
)
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.counts import Flow, IsrCounts
from penstock_broker.metadata.image import Topic
from penstock_broker.observability import EventLog
from penstock_broker.replication.recent import RecentCache
from penstock_broker.replication.replica import (
    FollowerOutlet,
    IsrOutlet,
    JoinOutlet,
    LeaderOutlet,
    Replica,
    ReportOutlet,
    note,
)
from penstock_broker.replication.writer import LogWriter
from penstock_broker.store.interface import PartitionWrite, Rewrite, Slot

TICK_S: Final = 0.1
_UNKNOWN_LOG: Final = RecoveredLog(
    log_end_offset=Offset(0), checkpoint=Checkpoint(NO_EPOCH, UNPROMISED, Offset(0), ())
)
_events = EventLog("replicas")


class ReplicaSet:
    """All replicas of a broker and the streams they use."""

    def __init__(
        self,
        broker_id: BrokerId,
        writer: LogWriter,
        cache: RecentCache,
        clock: Clock,
        *,
        snapshot_bytes: int,
    ) -> None:
        self.snapshot_bytes = snapshot_bytes
        self.broker_id = broker_id
        self.by_key: dict[ReplicaKey, Replica] = {}
        self.followers: dict[BrokerId, FollowerOutlet] = {}
        self.leaders: dict[BrokerId, LeaderOutlet] = {}
        self.isr: IsrOutlet | None = None
        self.reports: ReportOutlet | None = None
        self.mending: ReportOutlet | None = None
        self.dropped: dict[ReplicaKey, int] = {}
        """Partitions of which nothing is here any more, because this version asks for that."""
        self.sound: dict[ReplicaKey, None] = {}
        """Replicas marked as damaged whose whole log this run has read (`verifying`)."""
        self.damaged: dict[ReplicaKey, None] = {}
        """Replicas that cannot serve all that they once acknowledged, or have stopped."""
        self.missing: dict[ReplicaKey, LeaderEpoch] = {}
        """Those of them that had a seat in this epoch, and nothing of the log: lost, or never
        stored, if the former run of the broker ended before that."""
        self.marked: dict[ReplicaKey, Replica] = {}
        """Replicas that the newest image has as damaged."""
        self._copies: dict[ReplicaKey, Replica] = {}
        """Those of partitions that move to this broker, by the newest image."""
        self.given_up: set[ReplicaKey] = set()
        """Damaged replicas whose logs cannot be mended."""
        self.confirmed: dict[ReplicaKey, int] = {}
        """The metadata version in which a controller has stored that they are damaged, since they
        were given up: an older mark may be one that has been taken away since."""
        self.changing = asyncio.Lock()
        """Held by who opens or removes replicas, because that takes awaits."""
        self.joins: JoinOutlet | None = None
        self.flows: WeakValueDictionary[str, Flow] = WeakValueDictionary()
        """By topic, while there are replicas of it."""
        self.isr_counts = IsrCounts()
        self.removals = 0
        """Log starts moved and replicas dropped so far: each frees space on disk."""
        self._writer = writer
        self._cache = cache
        self._clock = clock
        self._ticking: dict[ReplicaKey, Replica] = {}
        self._orphans: dict[ReplicaKey, Slot] = writer.slots()

    @property
    def orphans(self) -> Mapping[ReplicaKey, Slot]:
        """Logs that belong to no replica, by the newest full image: they are kept (I22)."""
        return self._orphans

    def now_ms(self) -> int:
        """The machines' clock."""
        return self._clock.now_ms()

    def now_s(self) -> float:
        """The clock of what is timed."""
        return self._clock.now_s()

    # ------------------------------------------------------------ events

    def handle(self, replica: Replica, event: Event) -> None:
        """Lets the machine decide and carries out what it decided."""
        if self.by_key.get(replica.key) is not replica:
            return  # removed before its event arrived
        ready = replica.machine.handle(event, self.now_ms())
        if ready.stopped is not None:
            self._stop_broken(replica, event, ready.stopped)
        if ready is not NOTHING:
            self._obey(replica, ready)
        if replica.feeders:
            self._ask_for_sync(replica)
        wants_tick = replica.machine.wants_tick
        if wants_tick != replica.ticks:
            self._tick_or_not(replica, ticks=wants_tick)

    def _tick_or_not(self, replica: Replica, *, ticks: bool) -> None:
        replica.ticks = ticks
        if ticks:
            self._ticking[replica.key] = replica
        else:
            del self._ticking[replica.key]

    def _obey(self, replica: Replica, ready: Ready) -> None:
        if ready.truncate_to is not None:
            self._truncate(replica, ready.truncate_to, ready.checkpoint)
        if ready.persist_id:
            self._write(replica, ready)
        self._remove_before_log_start(replica)
        for message in ready.messages:
            self._send(replica, message)
        for feed in ready.feeds:
            self._feed(replica, feed)
        self._ask_others(replica, ready)
        for reply in ready.replies:
            replica.answer(reply)
        self._tell_readers(replica, ready)

    def _write(self, replica: Replica, ready: Ready) -> None:
        live = replica.machine.traffic_to(self.broker_id) is Traffic.LIVE
        if ready.append:
            if live:
                replica.recent.extend(ready.append)
            else:
                # Nobody reads it soon; what is in memory must reach the log's end, or is forgotten.
                replica.recent.clear()
            replica.aborted.extend(ready.aborted)
            if replica.probe is not None and not replica.probe.persist_id:
                replica.probe.persist_id = ready.persist_id
        self._writer.append(
            replica,
            ready.persist_id,
            ready.append,
            ready.checkpoint,
            sync=ready.persist_sync,
            aborted=ready.aborted,
            swept_end=ready.swept_end,
            bulk=not live,
        )

    @staticmethod
    def _tell_readers(replica: Replica, ready: Ready) -> None:
        """Notifies followers of the high watermark, and consumers of what they can read now."""
        if ready.high_watermark is not None:
            replica.marks_dirty = True
            replica.notify_feeders(urgent=False)
        if ready.role_changed:
            replica.wake()
            return
        if ready.high_watermark is not None:
            replica.wake_uncommitted()
        if ready.stable_offset is not None:
            replica.wake_committed()

    def _ask_others(self, replica: Replica, ready: Ready) -> None:
        """Asks for what the controller, or a transaction's coordinator, must agree to."""
        if ready.isr_change is not None and self.isr is not None:
            self.isr.propose(replica, ready.isr_change)
            # The high watermark waits for those who may join now: what they lack becomes live.
            replica.notify_feeders(urgent=True)
        if self.joins is not None:
            for join in ready.joins:
                self.joins.join(replica, join)

    @staticmethod
    def _ask_for_sync(replica: Replica) -> None:
        """Something waits for followers to sync further: a produce, or an ISR that could grow.

        The follower is notified even if nothing else moves: a partition that takes no writes
        because its ISR is too small sends it nothing else.
        """
        before, replica.sync_asked = replica.sync_asked, replica.machine.sync_through
        if replica.sync_asked > before:
            replica.notify_feeders(urgent=True)

    def _truncate(self, replica: Replica, offset: Offset, checkpoint: Checkpoint | None) -> None:
        replica.recent.clear()
        replica.truncations += 1
        # An empty log that restarts at another offset: its known producers are void (I9).
        known_start = replica.marks.log_start_offset
        restarts = checkpoint is not None and checkpoint.log_start_offset != known_start
        producers = replica.machine.producers if restarts else None
        self._writer.truncate(replica, offset, producers)

    def _remove_before_log_start(self, replica: Replica) -> None:
        """The log start moved, here or at the leader: the next tick removes the batches before
        it."""
        log_start = replica.machine.log_start_offset
        if log_start > replica.removed_before:
            replica.removed_before = log_start
            self._writer.move_log_start(replica, log_start)
            self.removals += 1
            replica.notify_feeders(urgent=False)

    def _send(self, replica: Replica, message: Message) -> None:
        match message:
            case SendEpochQuery() | SendFollowStart() | SendFollowStop() | SendAck():
                leader = self.leaders.get(message.leader)
                if leader is not None:
                    leader.send(replica.key, message)
            case SendEpochAnswer() | SendRefusal():
                follower = self.followers.get(message.follower)
                if follower is not None:
                    follower.send(replica, message)
            case _:
                assert_never(message)

    def _feed(self, replica: Replica, feed: Feed) -> None:
        follower = self.followers.get(feed.follower)
        if feed.from_offset is None or follower is None:
            replica.feeders.pop(feed.follower, None)
        else:
            replica.feeders[feed.follower] = follower
        if follower is not None:
            follower.feed(replica, feed)

    def _stop_broken(self, replica: Replica, event: Event, error: PenstockError) -> None:
        """Logs the reason, and ends what runs beside the machine; its `Ready` has the rest."""
        _events.defect(
            "replica stopped",
            error.__cause__ or error,
            replica=replica,
            after=type(event).__name__,
            reason=str(error),
        )
        self._disconnect(replica)
        self._note_damage(replica.key)

    def found_sound(self, replica: Replica) -> None:
        """All of the replica's log can be read; ignored if anything else is wrong with it."""
        if self.by_key.get(replica.key) is replica and replica.key not in self.damaged:
            self.sound[replica.key] = None
            if self.reports is not None:
                self.reports.changed()

    def _note_damage(self, key: ReplicaKey) -> None:
        self.sound.pop(key, None)
        self.missing.pop(key, None)
        self.damaged[key] = None
        if self.reports is not None:
            self.reports.changed()
        if self.mending is not None:
            self.mending.changed()

    def begins_anew(self, key: ReplicaKey) -> None:
        """Nobody relies on the missing log of this replica any more."""
        if self.missing.pop(key, None) is not None:
            del self.damaged[key]

    def unreadable(self, replica: Replica, error: PenstockError) -> None:
        """A batch in the replica's log could not be read, as `error` says; anything but damage is
        ignored."""
        known = replica.key in self.damaged or self.by_key.get(replica.key) is not replica
        if known or error.code is not ErrorCode.DATA_CORRUPTED:
            return
        self._found_damaged(replica, LogDamaged(error))

    def _found_damaged(self, replica: Replica, damage: LogDamaged) -> None:
        _events.error("replica damaged", replica=replica, reason=str(damage.error))
        self._note_damage(replica.key)
        self.handle(replica, damage)

    def give_up(self, replica: Replica) -> None:
        """Nobody can mend its log: once a controller has confirmed the mark, it is copied again."""
        if replica.key not in self.given_up:
            self.given_up.add(replica.key)
            self.confirmed.pop(replica.key, None)
            if self.reports is not None:
                self.reports.changed()

    def mended(self, replica: Replica) -> None:
        """All of the log of a replica whose machine runs can be read again, and was."""
        if self.by_key.get(replica.key) is replica and replica.machine.error is None:
            self.damaged.pop(replica.key, None)
            self.given_up.discard(replica.key)
            self.handle(replica, LogMended())
            self.found_sound(replica)

    async def mend(self, replica: Replica, batch: Batch) -> None:
        """Writes the bytes of a damaged batch of its log once more, fsynced."""
        await self._writer.repair(PartitionWrite(replica.slot, mended=(batch,)))

    async def accept_loss(self, replica: Replica, lost: Sequence[BatchHeader]) -> None:
        """Has batches of its log emptied that nobody has (`core.replication.losses`), fsynced."""
        await self._writer.repair(PartitionWrite(replica.slot, lost=lost))

    async def reopen(self, replica: Replica, topic: Topic, *, empty: bool) -> None:
        """Replaces a replica that has stopped by one on what is stored of its log, as a start does.

        `empty`: nothing of it is kept; the new one copies the log from the leader. Call it under
        `changing`.
        """
        if empty:
            await self._writer.drop(replica.slot)
            self.removals += 1
        else:
            self._orphans[replica.key] = replica.slot
        again = ClusterError(f"{replica} is opened again; try again", ErrorCode.NOT_LEADER)
        self._remove(replica, again)
        await self.assign([topic])

    def _disconnect(self, replica: Replica) -> None:
        """Neither writes nor feeds it any more."""
        self._writer.forget(replica)
        for follower, outlet in list(replica.feeders.items()):
            outlet.feed(replica, Feed(follower, replica.marks.leader_epoch, None))
        replica.feeders.clear()
        replica.recent.clear()

    async def rewrite(
        self, replica: Replica, rewrite: Rewrite | None, cleaned: Cleaned | None, truncations: int
    ) -> bool:
        """Has batches rewritten, or a pass's result stored; False if the log has changed meanwhile.

        `truncations` is the replica's count when the pass began to read.
        """
        if self.by_key.get(replica.key) is not replica or replica.truncations != truncations:
            return False
        if replica.machine.error is not None:
            return False
        return await self._writer.rewrite(replica, rewrite, cleaned)

    # ------------------------------------------------------------ peers

    def peer_connected(self, leader: BrokerId) -> None:
        """The stream to a leader is connected: replicas here that follow it start over."""
        for replica in self._led_by(leader):
            self.handle(replica, PeerConnected(leader))

    def peer_lost(self, peer: BrokerId, replicas: Iterable[Replica] | None = None) -> None:
        """A stream broke; `replicas` None: every replica that follows this leader."""
        for replica in self._led_by(peer) if replicas is None else tuple(replicas):
            self.handle(replica, PeerLost(peer))

    def peer_restarted(self, peer: BrokerId) -> None:
        """A broker runs again: leaders here forget what its former run had acknowledged."""
        self.peer_lost(peer, [r for r in self.by_key.values() if r.marks.is_leader])

    def leaders_wanted(self) -> set[BrokerId]:
        """Brokers that lead a replica kept here."""
        leaders = {replica.marks.leader for replica in self.by_key.values()}
        return {leader for leader in leaders if leader >= 0 and leader != self.broker_id}

    def copied_from(self) -> set[BrokerId]:
        """Brokers that lead a partition that moves to this one."""
        copies = self._copies.values()
        wanting = [r for r in copies if r.machine.traffic_to(self.broker_id) is Traffic.COPY]
        return {replica.marks.leader for replica in wanting}

    def _led_by(self, leader: BrokerId) -> list[Replica]:
        return [r for r in self.by_key.values() if r.marks.leader == leader]

    # ------------------------------------------------------------ the controller's word

    async def assign(self, topics: Iterable[Topic]) -> None:
        """Opens replicas that are new here and gives every machine its partition's state."""
        wanted: list[tuple[Topic, ReplicaKey, PartitionState]] = []
        for topic in topics:
            for index, state in enumerate(topic.partitions):
                key = ReplicaKey(topic.topic_id, index)
                member = self.broker_id in state.replicas or self.broker_id in state.adding
                if member or key in self.by_key:
                    wanted.append((topic, key, state))
        missing = [key for _, key, _ in wanted if key not in self.by_key]
        opened = await self._writer.open(missing) if missing else {}
        lost = {
            opened[key][0]: state.leader_epoch
            for _, key, state in wanted
            if key in opened and self._is_lost(state, opened[key][1])
        }
        voided = await self._writer.void(lost) if lost else {}
        for topic, key, state in wanted:
            replica = self.by_key.get(key)
            if replica is None:
                slot, log = opened[key]
                replica = self._add(key, topic.name, slot, voided.get(slot, log))
                if isinstance(log, ClusterError):
                    self._found_damaged(replica, LogDamaged(log, unopened=True))
                if slot in voided:
                    _events.error("the log of a replica is missing", replica=replica)
                    self._note_damage(key)
                    self.missing[key] = state.leader_epoch
            replica.config = topic.config
            if state.leader == self.broker_id:
                self.isr_counts.learned(replica.isr, state.isr)
            replica.isr = state.isr
            note(self.marked, replica, holds=self.broker_id in state.damaged)
            note(self._copies, replica, holds=self.broker_id in state.adding)
            self.handle(replica, Assigned(state, self.config_of(topic)))

    def _is_lost(self, state: PartitionState, log: RecoveredLog | ClusterError) -> bool:
        """The log has never stored anything, but a member of the ISR must have: it was lost (I22).

        In its first epoch a partition is new.
        """
        if not isinstance(log, RecoveredLog):
            return False
        seated = self.broker_id in state.isr and state.leader_epoch > 1
        return seated and log.checkpoint.leader_epoch == NO_EPOCH

    def _add(
        self, key: ReplicaKey, topic: str, slot: Slot, log: RecoveredLog | ClusterError
    ) -> Replica:
        self._orphans.pop(key, None)
        is_opened = isinstance(log, RecoveredLog)
        if not isinstance(log, RecoveredLog):
            log = _UNKNOWN_LOG  # of a machine that is stopped before it can do anything
        machine = self.machine_on(log)
        replica = Replica(key, topic, slot, machine, self._cache.new(), self)
        replica.is_opened = is_opened
        replica.flow = self.flows.setdefault(topic, replica.flow)
        replica.aborted = AbortedIndex(log.aborted)
        replica.removed_before = log.checkpoint.log_start_offset
        self.by_key[key] = replica
        return replica

    def machine_on(self, log: RecoveredLog) -> ReplicaMachine:
        """The machine that decides for a replica; the simulator overrides this to watch it."""
        return ReplicaMachine(self.broker_id, log)

    def config_of(self, topic: Topic) -> ReplicaConfig:
        """The topic settings that the machine gets; the simulator overrides this to shorten
        limits."""
        return ReplicaConfig(min_insync_replicas=topic.config.min_insync_replicas)

    async def drop_topics(self, topic_ids: Iterable[TopicId]) -> None:
        """Removes replicas of topics that the controller says were deleted, with their data."""
        doomed = frozenset(topic_ids)
        self.dropped = {k: v for k, v in self.dropped.items() if k.topic_id not in doomed}
        for replica in [r for r in self.by_key.values() if r.key.topic_id in doomed]:
            error = ClusterError(f"topic {replica.topic!r} was deleted", ErrorCode.UNKNOWN_TOPIC)
            self._remove(replica, error)
            self._orphans[replica.key] = replica.slot
        slots = await self._drop([key for key in self._orphans if key.topic_id in doomed])
        if slots:
            _events.info("replicas dropped: topics deleted", topics=sorted(doomed), slots=slots)

    async def drop_former(self, topics: Iterable[Topic]) -> None:
        """Removes replicas that the controller says are to go from here, with their data.

        The version of the image must be stored: no image before it is applied again, in which this
        broker had the partition. So `member_version` is enough to tell an old wish from a new one.
        """
        gone: dict[ReplicaKey, int] = {}
        for topic in topics:
            for index, state in enumerate(topic.partitions):
                key = ReplicaKey(topic.topic_id, index)
                self.dropped.pop(key, None)
                replica = self.by_key.get(key)
                known = 0 if replica is None else replica.machine.member_version
                if self.broker_id not in state.dropping or state.version <= known:
                    continue
                gone[key] = state.version
                if replica is not None:
                    where = f"{replica} is on the brokers {list(state.replicas)} now"
                    self._remove(replica, ClusterError(where, ErrorCode.NOT_LEADER))
                    self._orphans[key] = replica.slot
        slots = await self._drop(gone)
        self.dropped |= gone
        if slots:
            _events.info("replicas dropped: not wanted here", count=len(slots), slots=slots)

    async def _drop(self, keys: Iterable[ReplicaKey]) -> list[Slot]:
        """Deletes logs that belong to no replica any more; returns those that were there.

        Raises what the store raises, for example if the disk is full: what is not deleted then
        stays an orphan, and is deleted when the next full image asks for it again.
        """
        slots = []
        for key in keys:
            slot = self._orphans.get(key)
            if slot is not None:
                await self._writer.drop(slot)
                del self._orphans[key]
                self.removals += 1
                slots.append(slot)
        return slots

    def _remove(self, replica: Replica, error: ClusterError) -> None:
        self.by_key.pop(replica.key, None)
        self.damaged.pop(replica.key, None)
        self.given_up.discard(replica.key)
        self.confirmed.pop(replica.key, None)
        self.missing.pop(replica.key, None)
        self.sound.pop(replica.key, None)
        self.marked.pop(replica.key, None)
        self._copies.pop(replica.key, None)
        if replica.ticks:
            self._tick_or_not(replica, ticks=False)
        self._disconnect(replica)
        replica.fail_pending(error)
        replica.wake()

    def retire_unknown(self, known: Container[TopicId]) -> None:
        """Stops replicas of topics that are not in a full image; their data stays (I22)."""
        for replica in [r for r in self.by_key.values() if r.key.topic_id not in known]:
            self._orphans[replica.key] = replica.slot
            error = ClusterError(
                f"topic {replica.topic!r} is not in the cluster's metadata any more",
                ErrorCode.UNKNOWN_TOPIC,
            )
            self._remove(replica, error)

    def report_orphans(self) -> None:
        """Logs partitions whose data is here but unknown to the cluster: kept, never deleted
        (I22)."""
        if self._orphans:
            _events.warning(
                "data of unknown partitions is kept; delete the topic to remove it",
                count=len(self._orphans),
                first=[str(key) for key in list(self._orphans)[:5]],
            )

    # ------------------------------------------------------------ life cycle

    def save_all(self) -> None:
        """Has all lazily written state written, before a clean stop."""
        for replica in self.by_key.values():
            self._writer.save(replica)

    async def run_ticks(self) -> None:
        """Sends time events to the machines that want them; idle ones cost nothing."""
        while True:
            await asyncio.sleep(TICK_S)
            for replica in tuple(self._ticking.values()):
                self.handle(replica, Tick())
