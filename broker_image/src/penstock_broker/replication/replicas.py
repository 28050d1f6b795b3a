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

Which replicas there are: `assignment`. What is known of damage to them: `damage`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
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
from penstock.core.types import NO_EPOCH, BrokerId, Offset, PartitionState, ReplicaKey
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.clock import Clock
from penstock_broker.counts import Flow, IsrCounts
from penstock_broker.metadata.image import Topic
from penstock_broker.observability import EventLog
from penstock_broker.replication.damage import Damage
from penstock_broker.replication.recent import RecentCache
from penstock_broker.replication.replica import (
    FollowerOutlet,
    IsrOutlet,
    JoinOutlet,
    LeaderOutlet,
    Replica,
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
        self.orphans: dict[ReplicaKey, Slot] = writer.slots()
        """Logs that belong to no replica, by the newest full image: they are kept (I22)."""
        self.followers: dict[BrokerId, FollowerOutlet] = {}
        self.leaders: dict[BrokerId, LeaderOutlet] = {}
        self.isr: IsrOutlet | None = None
        self.damage = Damage()
        self._copies: dict[ReplicaKey, Replica] = {}
        """Replicas of partitions that move to this broker, by the newest image."""
        self.joins: JoinOutlet | None = None
        self.flows: WeakValueDictionary[str, Flow] = WeakValueDictionary()
        """By topic, while there are replicas of it."""
        self.isr_counts = IsrCounts()
        self.removals = 0
        """Log starts moved and replicas dropped so far: each frees space on disk."""
        self._refused_removals: dict[ReplicaKey, Replica] = {}
        """Replicas whose batches before the log start a full disk could not remove."""
        self._writer = writer
        self._cache = cache
        self._clock = clock
        self._ticking: dict[ReplicaKey, Replica] = {}

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
        if replica.key in self.damage.rebuilt and replica.machine.is_answered:
            self.found_sound(replica)
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
            compacted_end=ready.compacted_end,
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

    def removal_refused(self, replica: Replica) -> None:
        """Has it removed with the next `remove_again`."""
        self._refused_removals[replica.key] = replica

    def remove_again(self) -> None:
        """Asks again for what a full disk could not remove: the log start may never move again."""
        refused, self._refused_removals = self._refused_removals, {}
        for key, replica in refused.items():
            if self.by_key.get(key) is replica and replica.machine.error is None:
                replica.removed_before = Offset(0)
                self._remove_before_log_start(replica)

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
        self.damage.note(replica.key)

    def found_sound(self, replica: Replica) -> None:
        """All of the replica's log can be read; ignored if anything else is wrong with it."""
        if self.by_key.get(replica.key) is replica:
            self.damage.note_sound(replica.key)

    def unreadable(self, replica: Replica, error: PenstockError) -> None:
        """A batch in the replica's log could not be read, as `error` says; anything but damage is
        ignored."""
        known = replica.key in self.damage.found or self.by_key.get(replica.key) is not replica
        if known or error.code is not ErrorCode.DATA_CORRUPTED:
            return
        self.found_damaged(replica, LogDamaged(error))

    def found_damaged(self, replica: Replica, damage: LogDamaged) -> None:
        """Notes the damage, and lets its machine decide what follows."""
        _events.error("replica damaged", replica=replica, reason=str(damage.error))
        self.damage.note(replica.key)
        self.handle(replica, damage)

    def mended(self, replica: Replica) -> None:
        """All of the log of a replica whose machine runs can be read again, and was."""
        if self.by_key.get(replica.key) is replica and replica.machine.error is None:
            self.damage.mended(replica.key)
            self.handle(replica, LogMended())
            self.found_sound(replica)

    async def mend(self, replica: Replica, batch: Batch) -> None:
        """Writes the bytes of a damaged batch of its log once more, fsynced."""
        await self._writer.repair(PartitionWrite(replica.slot, mended=(batch,)))

    async def trim(self, replica: Replica) -> None:
        """Removes what is before its log start, fsynced: a stopped machine has that done no more.

        Raises ClusterError, with DATA_CORRUPTED if the log is damaged where it must be read for it.
        """
        log_start = replica.marks.log_start_offset
        await self._writer.repair(PartitionWrite(replica.slot, log_start_offset=log_start))

    async def accept_loss(self, replica: Replica, lost: Sequence[BatchHeader]) -> None:
        """Has batches of its log emptied that nobody has (`core.replication.losses`), fsynced."""
        await self._writer.repair(PartitionWrite(replica.slot, lost=lost))

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

    # ------------------------------------------------------------ as `assignment` says

    def add(
        self, key: ReplicaKey, topic: str, slot: Slot, log: RecoveredLog | ClusterError
    ) -> Replica:
        """A replica on what is stored of its log, or on a log that could not be read."""
        self.orphans.pop(key, None)
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

    def assigned(self, replica: Replica, topic: Topic, state: PartitionState) -> None:
        """Gives its machine the partition's state in the newest image."""
        replica.config = topic.config
        if state.leader == self.broker_id:
            self.isr_counts.learned(replica.isr, state.isr, state.replicas)
        replica.isr = state.isr
        note(self.damage.marked, replica, holds=self.broker_id in state.damaged)
        note(self._copies, replica, holds=self.broker_id in state.adding)
        self.handle(replica, Assigned(state, self.config_of(topic)))

    def machine_on(self, log: RecoveredLog) -> ReplicaMachine:
        """The machine that decides for a replica; the simulator overrides this to watch it."""
        return ReplicaMachine(self.broker_id, log, self.now_ms())

    def config_of(self, topic: Topic) -> ReplicaConfig:
        """The topic settings that the machine gets; the simulator overrides this to shorten
        limits."""
        return ReplicaConfig(
            min_insync_replicas=topic.config.min_insync_replicas,
            follows_unclean=topic.config.unclean_leader_election,
        )

    def remove(self, replica: Replica, error: ClusterError, *, keeps_log: bool = True) -> None:
        """Ends a replica: `error` is the answer to who waits for it. Its log, unless it was deleted
        before, is an orphan from now on."""
        self.by_key.pop(replica.key, None)
        if keeps_log:
            self.orphans[replica.key] = replica.slot
        self.damage.forget(replica.key)
        self._copies.pop(replica.key, None)
        if replica.ticks:
            self._tick_or_not(replica, ticks=False)
        self._disconnect(replica)
        replica.fail_pending(error)
        replica.wake()

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
