"""A broker's shell under simulation: obeys its machines as the production shell does.

It keeps the contract of `penstock.core.replication.contract`: one write at a time with what piled
up behind it, later writes of a replica dropped when one failed, streams replaced not mixed, one
answer per ISR proposal. It adds chance only where the contract leaves room. `kill` forgets all
but the disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from penstock.core.aborted import AbortedTransaction
from penstock.core.batch import Batch
from penstock.core.compaction.plan import Cleaned
from penstock.core.compaction.rewrite import trimmed
from penstock.core.defect import raise_defect
from penstock.core.replication import contract as rc
from penstock.core.replication import contract_follower as fc
from penstock.core.replication import contract_leader as lc
from penstock.core.replication.machine import ReplicaMachine
from penstock.core.transactions.contract import End
from penstock.core.types import BrokerId, Offset, ReplicaKey, TopicId
from penstock.errors import ClusterError, ErrorCode, PenstockError
from penstock_broker.store.interface import PartitionWrite, Rewrite, Slot
from penstock_broker.store.losses import promise_nothing
from penstock_sim.compaction import Compactor
from penstock_sim.coordinator import OFFSETS_KEY, Coordinators
from penstock_sim.disk import SimDisk
from penstock_sim.group_participants import GroupLink
from penstock_sim.journal import JournalKeeper
from penstock_sim.network import Stream
from penstock_sim.producer_ids import ProducerIds
from penstock_sim.session import Session
from penstock_sim.transactions import TRANSACTIONS_KEY, Joining, TransactionHosts, end_event

if TYPE_CHECKING:
    from penstock_sim.world import World

TICK_MS: Final = 40
ISR_TIMEOUT_MS: Final = 250
CRASH_AGAIN_EVERY: Final = 7
"""In one of so many histories with a blackout brokers are killed as soon as they registered."""
_CRASHES: Final = 6
_next_offset = attrgetter("next_offset")


@dataclass(slots=True, eq=False)
class FeedState:
    """What was pushed to one follower on one stream."""

    stream: Stream
    position: Offset
    marks: rc.Marks | None = None
    busy: bool = False


@dataclass(slots=True, eq=False)
class Replica:
    """One machine and what waits for it."""

    key: ReplicaKey
    slot: Slot
    machine: ReplicaMachine
    feeds: dict[int, FeedState] = field(default_factory=dict)
    replies: dict[int, Any] = field(default_factory=dict)
    isr_asked: int = 0
    truncations: int = 0


@dataclass(slots=True)
class _Pending:
    """What a replica has to write next."""

    replica: Replica
    truncate_to: Offset | None = None
    batches: list[Batch] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    checkpoint: rc.Checkpoint | None = None
    producers: Any = None
    swept_end: Offset | None = None
    rewrites: list[Rewrite] = field(default_factory=list)
    cleaned: Cleaned | None = None
    rewriting: list[Callable[[bool], None]] = field(default_factory=list)
    persist_ids: list[int] = field(default_factory=list)

    def rewritten(self, *, done: bool) -> None:
        """Tells compaction what became of its rewrites; those not done are left out."""
        waiting, self.rewriting = self.rewriting, []
        self.rewrites, self.cleaned = [], None
        for tell in waiting:
            tell(done)


class SimBroker:
    """One broker id: its disk for ever, its process while `up`."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.id = BrokerId(broker_id)
        self.name = f"b{broker_id}"
        self.disk = SimDisk(world.scheduler)
        self.up = False
        self.intact = True
        """What the next registration says of the data; a loss that was accepted is said once."""
        self.lost_writes = False
        """Ever."""
        self.incarnation = 0
        self.session = Session(self)
        self.keeper = JournalKeeper(world, self.id)
        self.coordinators: Coordinators | None = None
        self.transactions: TransactionHosts | None = None
        self.group_link = GroupLink(self)
        self.producer_ids = ProducerIds(self)
        self.replicas: dict[ReplicaKey, Replica] = {}
        self.links: dict[int, Stream] = {}
        self.inbound: dict[int, Stream] = {}
        self.known_runs: dict[int, str] = {}
        self._connecting: set[int] = set()
        self._pending: dict[Slot, _Pending] = {}
        self._sync = False
        self._writing: tuple[list[PartitionWrite], bool] | None = None
        self._next_request = 0

    # ------------------------------------------------------------ process

    def start(self) -> None:
        """A new process on the same disk."""
        assert not self.up
        self.up = True
        self.incarnation += 1
        if not self.intact:
            promise_nothing(self.disk)
        self.replicas, self.links, self.inbound, self.known_runs = {}, {}, {}, {}
        self._connecting, self._pending = set(), {}
        self._sync, self._writing = False, None
        self.world.scheduler.note(self.name, "start", f"intact={self.intact}")
        self.session.start()
        self.producer_ids = ProducerIds(self)
        if self.world.groups is not None:
            self.coordinators = Coordinators(self)
        if self.world.transactions is not None:
            self.transactions = TransactionHosts(self)
        if self.world.compacts:
            Compactor(self).start()
        self.world.scheduler.after(TICK_MS, self._tick, self.incarnation)

    def kill(self, *, power: bool) -> None:
        """kill -9, or the machine loses power (and what was not synced)."""
        assert self.up
        self.up = False
        self.world.scheduler.note(self.name, "power loss" if power else "kill")
        if self.coordinators is not None:
            self.coordinators.kill()
        if self.transactions is not None:
            self.transactions.kill()
        if self._writing is not None and self.world.scheduler.chance(0.5):
            writes, sync = self._writing
            self._write_to_disk(writes, sync=sync)
        if power:
            self.lose_writes()
        for stream in self.world.net.streams:
            if self.id in (stream.opener, stream.acceptor):
                stream.break_off(silent_for=self.id)
        self.world.checks.broker_down(self)

    def lose_writes(self) -> None:
        """Of a machine without power."""
        self.disk.lose_power()
        self.intact, self.lost_writes = False, True

    def accepted(self) -> None:
        """A controller knows of this run, and of what it lost. In some histories it dies then."""
        self.intact = True
        world = self.world
        doomed = world.seed % CRASH_AGAIN_EVERY == CRASH_AGAIN_EVERY - 2 and world.blackout
        doomed = doomed and self.lost_writes and self.incarnation < _CRASHES
        if doomed and world.scheduler.chance(0.6):
            delay_ms = world.scheduler.between(0, 10)
            world.scheduler.after(delay_ms, self._crash, self.incarnation)

    def _crash(self, incarnation: int) -> None:
        if self.up and incarnation == self.incarnation:
            self.kill(power=False)
            self.world.scheduler.after(20, lambda: self.up or self.start())

    def _tick(self, incarnation: int) -> None:
        if not self.up or incarnation != self.incarnation:
            return
        for replica in tuple(self.replicas.values()):
            if replica.machine.wants_tick:
                self.handle(replica, rc.Tick())
        self.world.scheduler.after(TICK_MS, self._tick, incarnation)

    # ------------------------------------------------------------ machines

    def assign(self, key: ReplicaKey, state: Any, config: rc.ReplicaConfig) -> None:
        """What an image says of a partition."""
        replica = self.replicas.get(key)
        if replica is None:
            if self.id not in state.replicas:
                return
            slot = self.disk.open_slot(key)
            recovered = self.disk.recover(slot)
            machine = ReplicaMachine(self.id, recovered)
            replica = self.replicas[key] = Replica(key, slot, machine)
        self.handle(replica, rc.Assigned(state, config))

    def drop_topics(self, topic_ids: Iterable[TopicId]) -> None:
        """The controller says that they were deleted: their data goes."""
        for key, replica in tuple(self.replicas.items()):
            if key.topic_id in topic_ids:
                del self.replicas[key]
                self._pending.pop(replica.slot, None)
                self.disk.drop(replica.slot)
                error = ClusterError("its topic was deleted", ErrorCode.UNKNOWN_TOPIC)
                for request_id, respond in replica.replies.items():
                    respond(lc.ProduceReply(request_id=request_id, base_offset=-1, error=error))

    def handle(self, replica: Replica, event: rc.Event) -> None:
        """Event in, `Ready` out, obeyed."""
        before = replica.machine.marks
        ready = replica.machine.handle(event, self.world.scheduler.now_ms)
        raise_defect(ready.stopped)
        if ready.stopped is not None:
            self._pending.pop(replica.slot, None)
        after = replica.machine.marks
        if self.world.scheduler.traced:
            self._trace(replica, event, ready)
        self.world.checks.handled(self, replica, before, after, ready)
        if ready is not rc.NOTHING:
            self._obey(replica, ready)
        if before != after:
            for follower in tuple(replica.feeds):
                self._pump(replica, follower)
            if self.coordinators is not None and replica.key == OFFSETS_KEY:
                self.coordinators.wake(replica)
            if self.transactions is not None and replica.key == TRANSACTIONS_KEY:
                self.transactions.wake(replica)

    def _trace(self, replica: Replica, event: rc.Event, ready: rc.Ready) -> None:
        shown = [] if ready is rc.NOTHING else [f"-> {_shorten(ready)}"]
        self.world.scheduler.note(self.name, f"p{replica.key.partition}", event, *shown)

    def _obey(self, replica: Replica, ready: rc.Ready) -> None:
        if ready.persist_id:
            self._enqueue(replica, ready)
        for message in ready.messages:
            self._send(replica, message)
        for feed in ready.feeds:
            self._feed(replica, feed)
        if ready.isr_change is not None:
            self._propose(replica, ready.isr_change)
        for join in ready.joins:
            Joining(self, replica, join)
        for reply in ready.replies:
            respond = replica.replies.pop(reply.request_id)
            respond(reply)

    # ------------------------------------------------------------ disk

    def _enqueue(self, replica: Replica, ready: rc.Ready) -> None:
        pending = self._pending.get(replica.slot)
        if pending is None:
            pending = self._pending[replica.slot] = _Pending(replica)
        if ready.truncate_to is not None:
            assert not pending.batches, "a truncation must find the log still"
            replica.truncations += 1
            pending.rewritten(done=False)
            pending.truncate_to = ready.truncate_to
            assert ready.checkpoint is not None
            if ready.checkpoint.log_start_offset != replica.machine.marks.log_start_offset:
                pending.producers = replica.machine.producers
        pending.batches.extend(ready.append)
        pending.aborted.extend(ready.aborted)
        pending.swept_end = ready.swept_end or pending.swept_end
        pending.checkpoint = ready.checkpoint or pending.checkpoint
        pending.persist_ids.append(ready.persist_id)
        self._sync = self._sync or ready.persist_sync
        self._write_next()

    def _write_next(self) -> None:
        """Starts a write of all that is pending, unless one is running."""
        if self._writing is not None or not self._pending:
            return
        entries, sync = list(self._pending.values()), self._sync
        self._pending, self._sync = {}, False
        writes = [self._partition_write(entry) for entry in entries]
        self._writing = (writes, sync)
        latency_ms = self.disk.latency_ms(sync=sync)
        self.world.scheduler.after(latency_ms, self._written, self.incarnation, entries, sync)

    def _partition_write(self, entry: _Pending) -> PartitionWrite:
        machine, scheduler = entry.replica.machine, self.world.scheduler
        checkpoint, producers = entry.checkpoint, entry.producers
        if entry.truncate_to is None:
            if checkpoint is None and scheduler.chance(0.3):
                checkpoint = machine.checkpoint
            if scheduler.chance(0.2):
                producers = machine.producers
        return PartitionWrite(
            entry.replica.slot,
            batches=tuple(entry.batches),
            aborted=tuple(entry.aborted),
            checkpoint=checkpoint,
            truncate_to=entry.truncate_to,
            log_start_offset=checkpoint.log_start_offset if checkpoint is not None else None,
            producers=producers,
            swept_end=entry.swept_end,
            rewrites=tuple(entry.rewrites),
            cleaned=entry.cleaned,
        )

    def rewrite(
        self,
        replica: Replica,
        rewrite: Rewrite | None,
        cleaned: Cleaned | None,
        done: Callable[[bool], None],
    ) -> None:
        """Replaces batches with the next write, or stores what a pass did (`LogWriter.rewrite`)."""
        pending = self._pending.get(replica.slot)
        if pending is None:
            pending = self._pending[replica.slot] = _Pending(replica)
        if pending.truncate_to is not None:
            done(False)
            return
        if rewrite is not None:
            pending.rewrites.append(rewrite)
        pending.cleaned = cleaned or pending.cleaned
        pending.rewriting.append(done)
        self._write_next()

    def _write_to_disk(self, writes: list[PartitionWrite], *, sync: bool) -> ClusterError | None:
        slots = set(self.disk.slots().values())
        writes = [write for write in writes if write.slot in slots]
        try:
            self.disk.write(writes, sync=sync)
        except ClusterError as error:
            return error
        self.world.checks.written(self, writes)
        return None

    def _written(self, incarnation: int, entries: list[_Pending], sync: bool) -> None:
        if not self.up or incarnation != self.incarnation or self._writing is None:
            return
        writes, _ = self._writing
        error = self._write_to_disk(writes, sync=sync)
        entries = [one for one in entries if self.replicas.get(one.replica.key) is one.replica]
        if error is None:
            self._writing = None
            for entry in entries:
                if entry.truncate_to is not None:
                    log = self.disk.recover(entry.replica.slot)
                    self.handle(entry.replica, rc.Truncated(log))
                entry.rewritten(done=True)
                if entry.persist_ids:
                    self.handle(entry.replica, rc.Persisted(entry.persist_ids[-1], sync))
        else:
            # What piled up was built on what failed: gone, before anything new is written.
            for entry in entries:
                self._pending.pop(entry.replica.slot, None)
            self._writing = None
            for entry in entries:
                entry.rewritten(done=False)
                if entry.persist_ids:
                    self.handle(entry.replica, rc.PersistFailed(entry.persist_ids[0], error))
        self._write_next()

    # ------------------------------------------------------------ streams to leaders

    def _send(self, replica: Replica, message: rc.Message) -> None:
        match message:
            case lc.SendEpochAnswer() | lc.SendRefusal():
                stream = self.inbound.get(message.follower)
                if stream is not None:
                    stream.send(self.id, (replica.key, message))
            case _:
                link = self.links.get(message.leader)
                if link is not None:
                    link.send(self.id, (replica.key, message))
                else:
                    self._connect_soon(message.leader)

    def _connect_soon(self, leader: int) -> None:
        if leader not in self._connecting:
            self._connecting.add(leader)
            delay_ms = self.world.scheduler.between(1, 30)
            self.world.scheduler.after(delay_ms, self._connect, self.incarnation, leader)

    def _connect(self, incarnation: int, leader: int) -> None:
        if not self.up or incarnation != self.incarnation:
            return
        self._connecting.discard(leader)
        followers = [
            replica for replica in self.replicas.values() if self._follows(replica, leader)
        ]
        if leader in self.links or not followers:
            return
        target = self.world.brokers[leader]
        ends = {int(self.id): self, leader: target}
        stream = self.world.net.connect(self.id, leader, ends) if target.up else None
        if stream is None:
            self._connect_soon(leader)
            return
        stream.incarnation = self.run
        self.links[leader] = stream
        target.accept(stream)
        for replica in followers:
            self.handle(replica, fc.PeerConnected(BrokerId(leader)))

    def _follows(self, replica: Replica, leader: int) -> bool:
        marks = replica.machine.marks
        return bool(marks.leader == leader and leader != self.id)

    @property
    def run(self) -> str:
        """Names this run of the process."""
        return f"{self.id}.{self.incarnation}"

    def runs_changed(self, runs: dict[int, str]) -> None:
        """An image: streams of other runs end before anything else of it is applied."""
        self.known_runs = runs
        for follower, stream in tuple(self.inbound.items()):
            if runs.get(follower) != stream.incarnation:
                stream.break_off(silent_for=self.id)
                self.stream_broken(stream)

    def accept(self, stream: Stream) -> None:
        """A follower connected: its older stream, if any, is over."""
        if self.known_runs.get(stream.opener) != stream.incarnation:
            stream.break_off(silent_for=self.id)
            return
        older = self.inbound.get(stream.opener)
        if older is not None:
            self.stream_broken(older)
        self.inbound[stream.opener] = stream

    def stream_broken(self, stream: Stream) -> None:
        """Hears that a stream is gone."""
        if not self.up:
            return
        if stream is self.session.stream:
            self.session.broken()
        elif self.links.get(stream.acceptor) is stream:
            del self.links[stream.acceptor]
            for replica in tuple(self.replicas.values()):
                if self._follows(replica, stream.acceptor):
                    self.handle(replica, rc.PeerLost(BrokerId(stream.acceptor)))
                    self._connect_soon(stream.acceptor)
        elif self.inbound.get(stream.opener) is stream:
            del self.inbound[stream.opener]
            for replica in tuple(self.replicas.values()):
                replica.feeds.pop(stream.opener, None)
                if replica.machine.marks.is_leader:
                    self.handle(replica, rc.PeerLost(BrokerId(stream.opener)))

    def receive(self, stream: Stream, message: Any) -> None:
        """Hears from a leader, a follower, or the controller."""
        if not self.up:
            return
        if stream is self.session.stream:
            self.session.receive(message)
            return
        newest = self.links.get(stream.acceptor), self.inbound.get(stream.opener)
        if stream not in newest:
            return
        key, content = message
        replica = self.replicas.get(key)
        if replica is not None:
            event = _to_event(content, stream.opener, stream.acceptor)
            if event is not None:
                self.handle(replica, event)
        elif isinstance(content, fc.SendEpochQuery):
            refusal = lc.SendRefusal(BrokerId(stream.opener), ClusterError("not here yet"))
            stream.send(self.id, (key, refusal))

    # ------------------------------------------------------------ feeding followers

    def _feed(self, replica: Replica, feed: lc.Feed) -> None:
        replica.feeds.pop(feed.follower, None)
        stream = self.inbound.get(feed.follower)
        if feed.from_offset is not None and stream is not None:
            replica.feeds[feed.follower] = FeedState(stream, feed.from_offset)
            self._pump(replica, feed.follower)

    def _pump(self, replica: Replica, follower: int) -> None:
        feed = replica.feeds.get(follower)
        if feed is not None and not feed.busy:
            feed.busy = True
            delay_ms = self.world.scheduler.between(0.05, 1)
            self.world.scheduler.after(delay_ms, self._push, replica, follower, feed)

    def _push(self, replica: Replica, follower: int, feed: FeedState) -> None:
        feed.busy = False
        current = self.replicas.get(replica.key) is replica and replica.feeds.get(follower) is feed
        marks = replica.machine.marks
        if not self.up or not current or marks == feed.marks or not marks.is_leader:
            return
        batches = self.read(replica, feed.position, marks.written_end, 4)
        if batches and batches[0].base_offset < feed.position:
            batches[0] = trimmed(batches[0], feed.position)
        if batches:
            feed.position = batches[-1].next_offset
        feed.marks = marks
        received = fc.BatchesReceived(
            leader=self.id,
            leader_epoch=marks.leader_epoch,
            batches=tuple(batches),
            high_watermark=marks.high_watermark,
            log_start_offset=marks.log_start_offset,
            sync_through=marks.sync_through,
        )
        feed.stream.send(self.id, (replica.key, received))
        if feed.position < marks.written_end:
            feed.marks = None
            self._pump(replica, follower)

    def read(self, replica: Replica, offset: Offset, end: Offset, count: int) -> list[Batch]:
        """Up to `count` batches from the one that holds `offset` on, below `end`."""
        batches = self.disk.batches(replica.slot)
        first = bisect_right(batches, offset, key=_next_offset)
        found = []
        for batch in batches[first : first + count]:
            if batch.next_offset > end:
                break
            found.append(batch)
        return found

    # ------------------------------------------------------------ controller, clients

    def _propose(self, replica: Replica, proposal: lc.IsrProposal) -> None:
        replica.isr_asked += 1
        number, scheduler = replica.isr_asked, self.world.scheduler

        def answer(state: Any, error: PenstockError | None) -> None:
            alive = self.up and self.replicas.get(replica.key) is replica
            if alive and replica.isr_asked == number:
                replica.isr_asked += 1
                self.handle(replica, lc.IsrAnswered(state, error))

        self.session.propose(replica.key, proposal, answer)
        scheduler.after(ISR_TIMEOUT_MS, answer, None, None)

    def produce(self, key: ReplicaKey, request: dict[str, Any], respond: Any) -> None:
        """A client's request; `respond(ProduceReply)` is called at most once."""
        replica = self.replicas.get(key) if self.up else None
        if replica is None:
            return
        self._next_request += 1
        replica.replies[self._next_request] = respond
        deadline_ms = self.world.scheduler.now_ms + request["timeout_ms"]
        event = lc.ProduceRequested(
            request_id=self._next_request,
            batch=request["batch"],
            acks=request["acks"],
            sync=request["sync"],
            deadline_ms=deadline_ms,
            expected_epoch=request["expected_epoch"],
            transactional_id=request.get("transactional_id", ""),
        )
        self.handle(replica, event)

    def end_transaction(self, key: ReplicaKey, end: End, respond: Any) -> None:
        """A coordinator tells how a transaction ended; `respond(ProduceReply)`, once at most."""
        replica = self.replicas.get(key) if self.up else None
        if replica is None:
            return
        self._next_request += 1
        replica.replies[self._next_request] = respond
        self.handle(replica, end_event(self._next_request, end, self.world.scheduler.now_ms))


def _to_event(message: Any, follower: int, leader: int) -> rc.Event | None:
    """What one side sent, as the other side's machine hears it."""
    peer = BrokerId(follower)
    match message:
        case fc.SendEpochQuery():
            return lc.EpochQueried(peer, message.leader_epoch, message.last_epoch)
        case fc.SendFollowStart():
            return lc.FollowStarted(peer, message.leader_epoch, message.from_offset)
        case fc.SendAck():
            return lc.FollowerAcked(
                peer, message.leader_epoch, message.written_end, message.synced_end
            )
        case lc.SendEpochAnswer():
            return fc.EpochAnswered(
                leader=BrokerId(leader),
                leader_epoch=message.leader_epoch,
                epoch=message.epoch,
                end_offset=message.end_offset,
                log_start_offset=message.log_start_offset,
                swept_end=message.swept_end,
            )
        case lc.SendRefusal():
            return fc.PeerRefused(BrokerId(leader), message.error)
        case fc.BatchesReceived():
            return message
        case _:
            return None


def _shorten(ready: rc.Ready) -> str:
    """Only the fields that say something."""
    shown = []
    for name in ready.__slots__:
        value = getattr(ready, name)
        if value not in (None, (), 0, False):
            shown.append(f"{name}={value}")
    return ", ".join(shown)
