"""The invariants of guarantees.md §1, checked while it happens (I1-I9).

`Canon` is what was ever committed: the log below the highest watermark any leader has had. Every
replica that the *stored* ISR or ELR names must hold it, batch for batch; nothing in it may change.
A broker that lost unsynced writes is excused until the controller has taken its seats. When all
holders lost their unsynced writes and the controller elected one of them as the last replica
standing, only what was acknowledged with sync=DISK must still be there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from penstock.core.batch import Batch
from penstock.core.control.documents import (
    CLUSTER_KEY,
    ClusterDocument,
    TopicDocument,
    decode_cluster,
    decode_topic,
)
from penstock.core.control.journal.contract import Journal
from penstock.core.control.partition import PartitionDocument
from penstock.core.replication import contract as rc
from penstock.core.replication import contract_leader as lc
from penstock.core.types import (
    NO_LEADER,
    Acks,
    BrokerId,
    PartitionState,
    ReplicaKey,
    Sync,
)
from penstock_broker.store.interface import PartitionWrite
from penstock_sim.canon import Canon
from penstock_sim.coordinator import OFFSETS_KEY
from penstock_sim.deletion import KEY as SHORT_LIVED_KEY
from penstock_sim.deletion import TOPIC as SHORT_LIVED_TOPIC
from penstock_sim.disk_checks import DiskChecks
from penstock_sim.journal import JournalCounts
from penstock_sim.moving_checks import MovingChecks
from penstock_sim.rebirth import NAME as REBORN
from penstock_sim.rebirth import is_reborn
from penstock_sim.scheduler import RuleError
from penstock_sim.unclean import UncleanElections

if TYPE_CHECKING:
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

_next_offset = attrgetter("next_offset")
_K = TypeVar("_K")


class Checks:
    """Sees every event and write, raises `RuleError`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.canons: dict[ReplicaKey, Canon] = {}
        self.stored: dict[ReplicaKey, PartitionDocument] = {}
        self.lost: set[tuple[int, ReplicaKey]] = set()
        self.lossy: set[ReplicaKey] = set()
        self.commits = 0
        self.elections = 0
        self.truncations = 0
        self.journals = 0
        self._leaders: dict[tuple[ReplicaKey, int], tuple[int, int]] = {}
        self._epochs: dict[tuple[int, ReplicaKey], int] = {}
        self._before: dict[ReplicaKey, set[int]] = {}
        self._dealt_with: dict[tuple[int, ReplicaKey], int] = {}
        """By broker: the version of the state that took its last loss into account. A journal may
        follow an older one, which did not."""
        self.learning: int | None = None
        """What changes now comes from a journal of this controller epoch: it replaces what a write
        without an answer may have stored, and what a former controller stored beside the take-over,
        if no broker was told of it."""
        self._told: dict[ReplicaKey, PartitionDocument] = {}
        """The newest that a broker was told of: no journal undoes it."""
        self._adopted: dict[tuple[int, ReplicaKey], PartitionDocument] = {}
        """The newest that the controller of this epoch knows to be durable: no journal of its own
        undoes it. One that was kept unheard may be replaced by the next."""
        self._documents: dict[tuple[ReplicaKey, PartitionState], PartitionDocument] = {}
        self._versions: dict[str, int] = {}
        self._journals = JournalCounts()
        self._journaled = False
        self.moving = MovingChecks(world)
        self.disk = DiskChecks(world)
        self.unclean = UncleanElections(world)

    def canon(self, key: ReplicaKey) -> Canon:
        known = self.canons.get(key)
        if known is None:
            known = self.canons[key] = Canon()
        return known

    def min_isr(self, key: ReplicaKey) -> int:
        """So many must have a record before it is committed."""
        return min(self.world.layout.min_isr, len(self.stored[key].state.replicas))

    def missing(self, key: ReplicaKey) -> set[int]:
        """Members, or who is to be one, that lost data, and the controller does not know it yet."""
        state = self.stored[key].state
        members = {*state.replicas, *state.adding}
        return {member for member, lost in self.lost if lost == key and member in members}

    # ------------------------------------------------------------ brokers

    def handled(
        self,
        broker: SimBroker,
        replica: Replica,
        before: rc.Marks,
        after: rc.Marks,
        ready: rc.Ready,
    ) -> None:
        """After every event of every machine."""
        if self.world.is_deleted(replica.key):
            return
        if not (
            after.log_start_offset
            <= after.high_watermark
            <= after.written_end
            <= after.log_end_offset
        ):
            raise RuleError(f"I2: {_who(broker, replica)} has {after}")
        if replica.machine.error is not None and not self.may_stop(broker, replica.key):
            raise RuleError(f"I4: {_who(broker, replica)} stopped: {replica.machine.error}")
        if ready.role_changed:
            self._role_changed(broker, replica, after)
        if ready.truncate_to is not None:
            self._truncating(broker, replica, before, ready)
        if after.is_leader:
            same = before.is_leader and before.leader_epoch == after.leader_epoch
            if same and after.high_watermark < before.high_watermark:
                raise RuleError(
                    f"I2: {_who(broker, replica)} lowered its high watermark: {before} to {after}"
                )
            if not same:
                self._took_over(broker, replica, after)
            if not same or after.high_watermark > before.high_watermark:
                self._committed(broker, replica, after, takes_over=not same)
        self.world.transaction_checks.handled(broker, replica, after)
        self.moving.handled(broker, replica, ready, after)

    def _lacks(self, member: int, key: ReplicaKey) -> bool:
        """It has lost data of this log, or all of it, and no controller has dealt with that."""
        return (int(member), key) in self.lost or self._is_gone(member, key)

    def _is_gone(self, member: int, key: ReplicaKey) -> bool:
        damage = self.world.damage
        return damage is not None and (int(member), key) in damage.gone

    def forget_epochs(self, broker: SimBroker, key: ReplicaKey) -> None:
        """Its log is gone, and with it what it knew."""
        self._epochs.pop((int(broker.id), key), None)

    def may_stop(self, broker: SimBroker, key: ReplicaKey) -> bool:
        """Only one that kept everything, beside a leader that did not, waits for a person."""
        if self.world.damage is not None and self.world.damage.may_stop(broker, key):
            return True
        return key in self.lossy and not broker.lost_writes and not self.world.may_elect_anyone(key)

    def _role_changed(self, broker: SimBroker, replica: Replica, after: rc.Marks) -> None:
        place = (int(broker.id), replica.key)
        if not replica.is_opened:
            return  # its log cannot be read, and it does nothing
        if after.leader_epoch < self._epochs.get(place, -1):
            raise RuleError(
                f"I1: {broker.name} p{replica.key.partition} went back to epoch "
                f"{after.leader_epoch} from {self._epochs[place]}"
            )
        self._epochs[place] = after.leader_epoch

    def _truncating(
        self, broker: SimBroker, replica: Replica, before: rc.Marks, ready: rc.Ready
    ) -> None:
        self.truncations += 1
        target, checkpoint = ready.truncate_to, ready.checkpoint
        assert target is not None
        assert checkpoint is not None
        counts = broker.id in self.stored[replica.key].state.replicas
        if not counts or self.unclean.cuts(broker, replica.key, before):
            # Nothing is guaranteed of a copy. One that begins at the log's start and leads later
            # does not know producers that were silent since before that.
            if checkpoint.log_start_offset != before.log_start_offset:
                self.world.resets.add(replica.key)
            return
        who = f"{broker.name} p{replica.key.partition}"
        reset = checkpoint.log_start_offset != before.log_start_offset
        begins = not checkpoint.epochs and target <= before.log_start_offset
        if begins and (self.world.compacts or self.unclean.was_elected(replica.key)):
            # Markers that it lacks were swept while it was down: no seat counts on it. Or what is
            # committed here is not in the log of an unclean leader.
            reset = True
            # Unless retention has removed all that it had.
            again = max(target, checkpoint.log_start_offset) < before.high_watermark
            if again and self._is_holder(broker, replica.key):
                raise RuleError(f"I4: {who} holds a seat and starts again at {checkpoint}")
        if reset:
            self.world.resets.add(replica.key)
        if reset and self._is_holder(broker, replica.key) and target < before.log_start_offset:
            raise RuleError(f"I4: {who} holds a seat and goes back to {checkpoint}")
        if reset and checkpoint.log_start_offset > self.canon(replica.key).end:
            raise RuleError(f"I20: {who} resets to {checkpoint}, past everything committed")
        if not reset and target < before.high_watermark:
            raise RuleError(f"I4: {who} truncates to {target}, its marks are {before}")
        held = min(self.canon(replica.key).end, before.written_end)
        if not reset and target < held and self._is_holder(broker, replica.key):
            raise RuleError(
                f"I4: {who} holds a seat and truncates to {target}, {held} is committed"
            )

    def _took_over(self, broker: SimBroker, replica: Replica, marks: rc.Marks) -> None:
        self.elections += 1
        who = f"{broker.name} p{replica.key.partition}"
        life = (int(broker.id), broker.incarnation)
        other = self._leaders.setdefault((replica.key, marks.leader_epoch), life)
        if other != life:
            raise RuleError(f"I1: {who} leads epoch {marks.leader_epoch}, so did {other}")
        if (int(broker.id), replica.key) in self.lost:
            raise RuleError(f"I7: {who} lost data and leads before the controller knows")
        document = self.stored.get(replica.key)
        if document is not None and document.state.leader_epoch > marks.leader_epoch:
            # A slow disk kept it from leading until another had been elected: what that one has
            # committed since need not be here, and this one commits nothing more.
            return
        self._check_holds(broker, replica.key, f"I7: new leader {who}")

    def _committed(
        self, broker: SimBroker, replica: Replica, marks: rc.Marks, *, takes_over: bool
    ) -> None:
        """The leader says that everything below its high watermark is committed.

        One that takes over may know of more than an unclean leader before it, whose log it shares.
        """
        canon, key = self.canon(replica.key), replica.key
        if marks.high_watermark <= canon.end or self.unclean.is_deposed(key, marks):
            return
        if key in self.lossy and marks.high_watermark == marks.log_start_offset:
            # It was started from what another had left; this one has its log start from before.
            canon.skip_to(marks.high_watermark, broker.disk.batches(replica.slot))
            return
        who = f"{broker.name} p{key.partition}"
        least = self._least_in_sync(replica)
        knows_more = takes_over and self.unclean.was_elected(key)
        if len(marks.isr) < least and not knows_more:
            raise RuleError(f"I5: {who} commits with ISR {marks.isr}, min is {least}")
        self.commits += 1
        batches = self.world.brokers[broker.id].disk.batches(replica.slot)
        fresh = _between(batches, canon.end, marks.high_watermark)
        for batch in fresh:
            if batch.base_offset != canon.end:
                raise RuleError(f"I6: {who} commits {batch.header} at {canon.end}")
            canon.extend(batch, who, marks.log_start_offset)
            self._tell(key, batch, who)
        if canon.end != marks.high_watermark:
            raise RuleError(f"I2: {who} has {marks}, but its log ends at {canon.end}")
        document = self.stored[key]
        for member in (*document.state.isr, *document.elr):
            if not self._lacks(member, key):
                self._compare(self.world.brokers[member], key, fresh, f"I3: b{member}")

    def _tell(self, key: ReplicaKey, batch: Batch, who: str) -> None:
        """The other checks, of a batch that is committed."""
        if self.world.rebirth is not None and is_reborn(key):
            self.world.rebirth.committed(key, batch)
        if key == OFFSETS_KEY:
            self.world.group_checks.committed(batch)
        self.world.transaction_checks.committed(key, batch, who)

    def _least_in_sync(self, replica: Replica) -> int:
        """So many must be, by the settings that its broker knows."""
        members = len(_known(replica).replicas)
        least = min(self.world.layout.min_isr, members)
        if self.world.changes is None:
            return least
        return max(least, replica.config.effective_min_insync_replicas(members))

    def written(self, broker: SimBroker, writes: Sequence[PartitionWrite]) -> None:
        """After every write to a broker's disk."""
        keys = {slot: key for key, slot in broker.disk.slots().items()}
        for write in writes:
            key = keys[write.slot]
            if self.world.is_deleted(key):
                continue
            batches = broker.disk.batches(write.slot)
            last = batches[-len(write.batches) - 1 :] if write.batches else []
            for one, two in pairwise(last):
                if one.next_offset != two.base_offset:
                    raise RuleError(
                        f"I3: {broker.name} {key} wrote a gap: {one.header} {two.header}"
                    )
            self.moving.wrote(broker, key)
            if not self._is_holder(broker, key):
                continue
            canon = self.canon(key)
            for batch in write.batches:
                known = canon.by_base.get(batch.base_offset)
                differs = known is not batch and known != batch
                if batch.base_offset < canon.end and differs and not self.world.compacts:
                    raise RuleError(f"I6: {broker.name} {key} wrote {batch.header} over {known}")
            if write.truncate_to is not None and not self.unclean.has_cut(broker, key):
                self._check_holds(broker, key, f"I4: {broker.name} after truncation")
            if self.world.compacts and key in self.world.keys:
                self.world.compaction_checks.check_log(broker, key)

    def broker_down(self, broker: SimBroker, *, restored: bool = False) -> None:
        """After a crash; a broker that is not intact is excused where it held a seat.

        `restored`: nor is what its volume has now, though it says so.
        """
        self.moving.down(broker)
        if self.world.hibernation is not None:
            self.world.hibernation.checks.down(broker)
        if restored:
            self.moving.restored(broker)
        if restored or not broker.intact:
            self.lost |= {(int(broker.id), key) for key in self.stored}

    # ------------------------------------------------------------ controller

    def registrations_changed(self, cluster: ClusterDocument) -> None:
        """After every change of the cluster document: a new run's losses are dealt with.

        Topics are written before: a broker that lost data has no seat left, unless it was
        elected as the last replica standing. A topic whose id the document names as deleted keeps
        its seats: nothing brings it back.
        """
        if not self._is_news("", cluster.metadata_version):
            return
        if self.world.operator_pods is not None:
            self.world.operator_pods.stored(cluster)
        if self.world.hibernation is not None:
            self.world.hibernation.checks.stored(cluster)
        if self.learning is not None:
            self._forget_unknown_runs(cluster)
        deleted = {tombstone.topic_id for tombstone in cluster.tombstones}
        lost = sorted(self.lost)
        for member, key in lost:
            broker = self.world.brokers[member]
            registration = cluster.brokers[broker.id]
            if not broker.up or registration.incarnation != broker.run:
                continue
            self.lost.discard((member, key))
            document = self.stored[key]
            self._dealt_with[member, key] = document.state.version
            seats = {int(one) for one in (*document.state.isr, *document.elr)}
            if member not in seats or key.topic_id in deleted:
                continue
            others = {one for one in self._before.get(key, seats) if (one, key) not in lost}
            if self.unclean.was_elected(key):
                continue
            if document.state.isr != (broker.id,) or others:
                raise RuleError(f"I7: b{member} lost data, has a seat in {document}, not {others}")
            self._last_replica_standing(broker, key)

    def journal_kept(self, broker: BrokerId, journal: Journal) -> None:
        """A broker keeps it. Once a majority does, its documents are what is."""
        if not self._journals.kept(broker, journal, len(self.world.brokers)):
            return
        self.journals += 1
        cluster = journal.documents.get(CLUSTER_KEY)
        registered = None if cluster is None else decode_cluster(cluster, CLUSTER_KEY)
        self.learning = int(journal.controller_epoch)
        if registered is not None:
            self._forget_unknown_runs(registered)
        self._journaled = True
        for key, text in journal.documents.items():
            if key != CLUSTER_KEY:
                self.metadata_changed(decode_topic(text, key))
        self._journaled = False
        if registered is not None:
            self.registrations_changed(registered)
        self.learning = None

    def _forget_unknown_runs(self, cluster: ClusterDocument) -> None:
        """A registration that a late write had stored is not known any more."""
        for broker in self.world.brokers.values():
            known = cluster.brokers.get(broker.id)
            if known is not None and known.incarnation != broker.run:
                self.broker_down(broker)

    def told(self, key: ReplicaKey, state: PartitionState) -> None:
        """A broker was told this state."""
        _keep_newest(self._told, key, self._documents.get((key, state), PartitionDocument(state)))

    def newest_told(self, key: ReplicaKey) -> PartitionDocument:
        """The newest that a broker was told; what is stored if none was told anything."""
        return self._told.get(key) or self.stored[key]

    def adopted(self, controller_epoch: int, topics: Iterable[TopicDocument]) -> None:
        """A controller knows that these are durable, and decides on them from now on.

        A topic that is not among them may be deleted in a journal only: the store does not know.
        """
        topics = tuple(topics)
        if self.world.rebirth is not None:
            self.world.rebirth.adopted(controller_epoch, topics)
        deletion = self.world.deletion
        was_there = deletion is not None and SHORT_LIVED_KEY in self.stored
        if was_there and all(topic.name != SHORT_LIVED_TOPIC for topic in topics):
            self.topic_removed(SHORT_LIVED_TOPIC)
        for topic in topics:
            for index, document in enumerate(topic.partitions):
                key = ReplicaKey(topic.topic_id, index)
                _keep_newest(self._adopted, (controller_epoch, key), document)

    def _certain(self, controller_epoch: int, key: ReplicaKey) -> PartitionDocument | None:
        """What a journal of this epoch must build on."""
        known = (self._told.get(key), self._adopted.get((controller_epoch, key)))
        found = [document for document in known if document is not None]
        return max(found, key=lambda document: document.state.version, default=None)

    def _is_news(self, name: str, metadata_version: int) -> bool:
        known = self._versions.get(name, -1)
        self._versions[name] = max(known, metadata_version)
        return metadata_version > known

    def metadata_changed(self, topic: TopicDocument) -> None:
        """After every change of a stored topic, or of a journal that counts.

        An older version lands in the store when a write comes late while the journal already has
        a newer one: whoever takes over learns that one first.
        """
        deletion = self.world.deletion
        is_gone = deletion is not None and deletion.is_done and topic.name == SHORT_LIVED_TOPIC
        is_gone = is_gone or self.world.is_deleted(ReplicaKey(topic.topic_id, 0))
        if is_gone or not self._is_news(topic.name, topic.metadata_version):
            return
        if self.world.rebirth is not None and topic.name == REBORN:
            self.world.rebirth.stored(topic)
        for index, document in enumerate(topic.partitions):
            key = ReplicaKey(topic.topic_id, index)
            self._documents[key, document.state] = document
            base = self.stored.get(key)
            if self.learning is not None:
                base = self._certain(self.learning, key) or document
            self._partition_changed(key, base, document)
            self.moving.changed(key, base, document, topic, journaled=self._journaled)
            if self.world.damage is not None:
                self.world.damage.changed(key, base, document)
            if self.world.hibernation is not None:
                self.world.hibernation.checks.changed(key, base, document, topic.metadata_version)

    def topic_removed(self, name: str) -> None:
        """It is deleted: nothing is asked of what brokers still have of it.

        The store says so, and before it, maybe, a controller whose brokers keep a journal.
        """
        deletion = self.world.deletion
        if self.world.rebirth is not None and name == REBORN:
            self.world.rebirth.removed()
            return
        if deletion is None or name != SHORT_LIVED_TOPIC:
            raise RuleError(f"I22: nobody has deleted {name}")
        if deletion.is_done:
            return
        deletion.is_done = True
        self.world.scheduler.note("checks", "deleted", name)
        self.forget([SHORT_LIVED_KEY])

    def forget(self, keys: Collection[ReplicaKey]) -> None:
        """Their topic was deleted."""
        for key in keys:
            del self.stored[key]
        self.lost = {place for place in self.lost if place[1] not in keys}

    def _partition_changed(
        self, key: ReplicaKey, before: PartitionDocument | None, after: PartitionDocument
    ) -> None:
        state = after.state
        self.stored[key] = after
        seats = {int(broker) for broker in (*state.isr, *after.elr)}
        if state.leader != NO_LEADER and state.leader not in state.isr:
            raise RuleError(f"I1: leader {state.leader} of {key} is not in the ISR {state.isr}")
        if before is not None:
            old = before.state
            if state.version < old.version or state.leader_epoch < old.leader_epoch:
                raise RuleError(f"I21: {key} went from {before} to {after}")
            if state.leader != old.leader and state.leader_epoch == old.leader_epoch:
                raise RuleError(
                    f"I1: {key} changed its leader within an epoch: {before} to {after}"
                )
            self._before[key] = {
                int(member)
                for member in (*old.isr, *before.elr)
                if self._dealt_with.get((int(member), key), -1) <= old.version
            }
            self._lossy_leader(key, before, after, seats)
        for member in seats:
            if before is None or member not in (*before.state.isr, *before.elr):
                broker = self.world.brokers[member]
                self._check_holds(broker, key, f"I5: b{member} joined the ISR or ELR")

    def _lossy_leader(
        self,
        key: ReplicaKey,
        before: PartitionDocument,
        after: PartitionDocument,
        seats: set[int],
    ) -> None:
        """Notices a leader that may lack what was committed: that is all there is from now on."""
        state = after.state
        others = {one for one in self._before[key] if (one, key) not in self.lost}
        if self.unclean.changed(key, before, after, others):
            return
        switched = set(before.state.replicas) != set(state.replicas)
        leader = state.leader
        if leader == NO_LEADER and len(seats) == 1:
            [leader] = map(BrokerId, seats)  # its run has ended in the same write
        if leader in before.lossy and not others & seats and not switched:
            # It lost its seat earlier, and every other holder has lost data since: no leader
            # took it into the ISR again before it was elected, in the same write.
            if not others:
                self._last_replica_standing(self.world.brokers[leader], key)
            elif self.canon(key).end:
                raise RuleError(f"I7: {leader} lost data and leads {key}, not {others}")
            # else they died before they had heard of the partition: their logs are missing

    def _last_replica_standing(self, broker: SimBroker, key: ReplicaKey) -> None:
        """Every holder lost unsynced writes: only sync=DISK is promised from here on.

        And that nothing which retention removed comes back.
        """
        canon = self.canon(key)
        self.lossy.add(key)
        slot = broker.disk.open_slot(key)
        log_start = broker.disk.store.recover(slot).checkpoint.log_start_offset
        self.world.scheduler.note("checks", "loss beyond the promise", key, canon.disk_end)
        self.moving.rewound(key)
        end, log = max(canon.disk_end, min(log_start, canon.end)), broker.disk.batches(slot)
        if self.world.compacts and key in self.world.keys:
            self.disk.check(key, log, log_start, f"{broker.name}, the last replica standing,")
            # What it has lacks what newer records superseded, and these are in it, too.
            end = max(end, min(canon.end, broker.disk.log_end(slot)))
            self.world.compaction_checks.rewound(key)
        canon.rewind_to(end, log)
        self.world.forgive(key)

    # ------------------------------------------------------------ clients

    def acknowledged(
        self, broker: SimBroker, replica: Replica, batch: Batch, reply: lc.ProduceReply
    ) -> None:
        """At the moment a leader answers success."""
        canon, key = self.canon(replica.key), replica.key
        who = f"{broker.name} p{key.partition}"
        if self.world.is_deleted(key) or self.unclean.is_deposed(key, replica.machine.marks):
            return
        if reply.acks is Acks.ALL and not self._is_merged(key, reply):
            at = canon.by_base.get(reply.base_offset)
            if reply.base_offset >= 0 and (at is None or at.payload != batch.payload):
                raise RuleError(f"I7: {who} acknowledged {reply}, committed there is {at}")
            if batch.payload not in canon.payloads:
                raise RuleError(f"I7: {who} acknowledged {reply}, which is not committed")
            if reply.sync is Sync.DISK and at is not None:
                self._acknowledged_on_disk(at, key, who)
        elif reply.acks is Acks.LEADER and reply.base_offset >= 0:
            durable = reply.sync is Sync.DISK
            log = broker.disk.batches(replica.slot, durable=durable)
            first = bisect_right(log, reply.base_offset, key=_next_offset)
            found = log[first : first + 1]
            if self.world.compacts:
                return
            if not found or found[0].payload != batch.payload:
                log_start = replica.machine.marks.log_start_offset
                if reply.base_offset >= log_start:
                    raise RuleError(f"I7: {who} acknowledged {reply}, its log has {found}")

    def _is_merged(self, key: ReplicaKey, reply: lc.ProduceReply) -> bool:
        """A duplicate in what an unclean leader has: compaction may have merged it with others."""
        compacted = self.world.compacts and self.unclean.was_elected(key)
        return compacted and reply.base_offset < 0

    def _acknowledged_on_disk(self, batch: Batch, key: ReplicaKey, who: str) -> None:
        self.canon(key).disk_end = max(self.canon(key).disk_end, batch.next_offset)
        if self.world.compacts:
            self.disk.acknowledged(key, batch)
            return
        holders = set()
        for broker in self.world.brokers.values():
            slot = broker.disk.slot(key)
            if slot is None:
                continue
            found = _between(
                broker.disk.batches(slot, durable=True), batch.base_offset, batch.next_offset
            )
            if found and found[0] == batch:
                holders.add(int(broker.id))
        lost = self.missing(key) & {*map(int, self.stored[key].state.replicas)}
        if self.world.damage is not None:
            lost |= self.world.damage.losses(key)
        required = {int(member) for member in self.stored[key].state.isr} - lost
        trimmed = any(
            replica.machine.marks.log_start_offset > batch.base_offset
            for broker in self.world.brokers.values()
            if (replica := broker.replicas.get(key)) is not None
        )
        enough = required <= holders and len(holders | lost) >= self.min_isr(key)
        if not trimmed and not enough:
            raise RuleError(f"I7: {who} acknowledged {batch.header}, on disk at {holders}")

    def consumed(self, key: ReplicaKey, batches: Iterable[Batch], who: str) -> None:
        """What a consumer was given."""
        canon = self.canon(key)
        for batch in batches:
            known = canon.by_base.get(batch.base_offset)
            if known is not batch and known != batch:
                if self.world.compacts:
                    self.world.compaction_checks.check(key, batch, who)
                    continue
                raise RuleError(f"I6: {who} served {batch.header}, committed is {known}")

    # ------------------------------------------------------------ helpers

    def _is_holder(self, broker: SimBroker, key: ReplicaKey) -> bool:
        document = self.stored.get(key)
        if document is None or self._lacks(broker.id, key):
            return False
        return broker.id in document.state.isr or broker.id in document.elr

    def _check_holds(self, broker: SimBroker, key: ReplicaKey, rule: str) -> None:
        """All that is committed is in this broker's log, from its log start on."""
        canon = self.canon(key)
        slot = broker.disk.slot(key)
        if (int(broker.id), key) in self.lost or (slot is None and canon.end == 0):
            return
        log_end = 0 if slot is None else broker.disk.log_end(slot)
        if log_end < canon.end:
            raise RuleError(f"{rule}: log ends at {log_end}, committed is {canon.end} of {key}")
        self._compare(broker, key, canon.batches, rule)

    def _compare(self, broker: SimBroker, key: ReplicaKey, batches: list[Batch], rule: str) -> None:
        """The broker's log has these batches, but for what retention removed from its front."""
        if self.world.compacts and key in self.world.keys:
            self.world.compaction_checks.check_log(broker, key)
            return
        if not batches:
            return
        slot = broker.disk.slot(key)
        own = [] if slot is None else broker.disk.batches(slot)
        start = own[0].base_offset if own else (0 if slot is None else broker.disk.log_end(slot))
        first = bisect_right(own, batches[0].base_offset, key=_next_offset)
        mine = own[first : first + len(batches)]
        wanted = [batch for batch in batches if batch.base_offset >= start]
        if len(mine) < len(wanted):
            raise RuleError(f"{rule} lacks committed {wanted[len(mine)].header} of {key}")
        for one, two in zip(mine, wanted, strict=False):
            if one is not two and one != two:
                raise RuleError(f"{rule} has {one.header}, committed is {two.header} of {key}")


def _keep_newest(known: dict[_K, PartitionDocument], key: _K, document: PartitionDocument) -> None:
    before = known.get(key)
    if before is None or document.state.version > before.state.version:
        known[key] = document


def _known(replica: Replica) -> PartitionState:
    """What a leader acts on; a newer state may be stored."""
    state = replica.machine._roles.state
    assert state is not None
    return state


def _who(broker: SimBroker, replica: Replica) -> str:
    return f"{broker.name} p{replica.key.partition}"


def _between(batches: list[Batch], start: int, end: int) -> list[Batch]:
    """Batches that end behind `start`, up to `end`."""
    first = bisect_right(batches, start, key=_next_offset)
    last = bisect_right(batches, end, key=_next_offset)
    return batches[first:last]
