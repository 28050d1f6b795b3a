"""What moving replicas must keep: I29 (switches), I30 (what is dropped), I31 (what was asked for).

    every change of a stored partition ──▶ changed      a slot is dropped ──▶ dropped
    every write of a broker ─────────────▶ wrote        the end ────────────▶ left_over

At a switch every new member has, synced, what was committed when its copy first had all that was
committed; page cache alone is no replacement for what was on a disk for years.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.control.documents import TopicDocument, decode_topic, topic_key
from penstock.core.control.partition import PartitionDocument
from penstock.core.replication import contract as rc
from penstock.core.types import BrokerId, PartitionState, ReplicaKey
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

Members = tuple[BrokerId, ...]


class MovingChecks:
    """Of one history; raises `RuleError`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reached: dict[tuple[int, ReplicaKey], int] = {}
        """Who copies: what was committed when it had all that was. It must be synced to join.

        As long as it has the copy: a journal may take back a switch that nobody heard of.
        """
        self._restored: set[tuple[int, ReplicaKey]] = set()
        """Logs that came back with a volume."""
        self._named: dict[tuple[int, ReplicaKey], int] = {}
        """Who is to drop its data: the metadata version that said so first."""
        self._stored: dict[ReplicaKey, set[Members]] = {}
        """The replicas that the store, and no journal, has named at any time."""
        self._names: dict[ReplicaKey, str] = {}
        self.switches = 0
        self.drops = 0
        self.cancelled = 0

    # ------------------------------------------------------------ metadata

    def changed(
        self,
        key: ReplicaKey,
        before: PartitionDocument | None,
        after: PartitionDocument,
        topic: TopicDocument,
        *,
        journaled: bool,
    ) -> None:
        """After a change of the stored partition, or of a journal that counts."""
        self._names[key] = topic.name
        known = self._stored.setdefault(key, set())
        if not journaled or not known:  # a journal may have the first word of a new topic
            known.add(after.state.replicas)
        elif after.state.replicas not in known:
            raise RuleError(f"I30: a journal gives {key} the replicas {after.state.replicas}")
        _check_places(key, after)
        self._check_slots(key, after)
        if before is None:
            return
        for broker in set(after.state.dropping) - set(before.state.dropping):
            self._named[broker, key] = topic.metadata_version
        if set(before.state.replicas) != set(after.state.replicas):
            self._switched(key, before, after)
        elif before.target and not after.target and before.state.replicas == after.state.replicas:
            self._cancelled(key, before, after)
        if self._world.mover is not None:
            self._world.mover.changed(key, before, after)

    def _check_slots(self, key: ReplicaKey, after: PartitionDocument) -> None:
        """Who has data is a member, copies, or is told to drop it."""
        state = after.state
        named = {*state.replicas, *state.adding, *state.dropping}
        for broker in self._world.brokers.values():
            if broker.id not in named and self._has_data(broker, key):
                raise RuleError(f"I30: {broker.name} has data of {key}, stored is {after}")

    def _has_data(self, broker: SimBroker, key: ReplicaKey) -> bool:
        """And not because its volume was restored from a copy that has it: nobody deletes that."""
        restored = (int(broker.id), key) in self._restored
        return broker.disk.slot(key) is not None and not restored

    def _switched(
        self, key: ReplicaKey, before: PartitionDocument, after: PartitionDocument
    ) -> None:
        """One write replaces the replicas: by those that were asked for, with all that counts."""
        self.switches += 1
        old, new = before.state, after.state
        mover, world = self._world.mover, self._world
        if mover is None or new.replicas not in mover.asked[key]:
            raise RuleError(f"I31: nobody asked for the replicas of {key}: {before} to {after}")
        world.scheduler.note("checks", "switched", key, before, after)
        joined = set(new.replicas) - set(old.replicas)
        at_once = new.version == old.version + 1
        if not joined <= {*old.adding, *before.target}:
            raise RuleError(f"I29: {joined} never copied {key}: {before} to {after}")
        # Who has died behind the switch, and is mentioned in the same write, was in sync at it.
        in_sync = set(new.isr if at_once else new.replicas)
        enough = max(
            min(len(old.isr), len(new.replicas)),
            min(world.layout.min_isr, len(new.replicas)),
        )
        if len(in_sync) < enough:
            raise RuleError(
                f"I29: {key} has {new.isr} in sync, {enough} are promised: {before} to {after}"
            )
        if not joined <= in_sync:
            raise RuleError(f"I29: {joined} of {key} are not all in sync: {before} to {after}")
        for member in joined:
            self._check_synced(world.brokers[member], key)

    def _check_synced(self, broker: SimBroker, key: ReplicaKey) -> None:
        """What it copied is on its disk, not only in its page cache."""
        if (int(broker.id), key) in self._world.checks.lost:
            return
        canon, slot = self._world.checks.canon(key), broker.disk.slot(key)
        floor = max(self._reached.get((int(broker.id), key), 0), canon.disk_end)
        floor = min(floor, canon.end)
        synced = 0 if slot is None else broker.disk.log_end(slot, durable=True)
        if synced < floor:
            raise RuleError(
                f"I29: {broker.name} becomes a member of {key} with {synced} synced, not {floor}"
            )

    def _cancelled(
        self, key: ReplicaKey, before: PartitionDocument, after: PartitionDocument
    ) -> None:
        mover, old, new = self._world.mover, before.state, after.state
        self.cancelled += 1
        if mover is None or not (mover.may_cancel(key) or new.replicas in mover.asked[key]):
            raise RuleError(f"I31: nobody cancelled the move of {key}: {before} to {after}")
        alone = new.version == old.version + bool(old.adding)
        if alone and (old.isr, old.leader, before.elr) != (new.isr, new.leader, after.elr):
            raise RuleError(f"I31: a cancel changed more than the move: {before} to {after}")

    # ------------------------------------------------------------ brokers

    def wrote(self, broker: SimBroker, key: ReplicaKey) -> None:
        """After each write, and each event of a copy that its leader knows: whether it has all that
        was committed, for the first time.

        A cancel that is stored and that nobody has heard of may be taken back by a journal: the
        copy has gone on meanwhile.
        """
        checks, place = self._world.checks, (int(broker.id), key)
        document = checks.stored.get(key)
        if document is None or place in self._reached:
            return
        if broker.id not in {*document.state.adding, *checks.newest_told(key).state.adding}:
            return
        if self.is_complete(broker, key):
            self._reached[place] = self._world.checks.canon(key).end

    def is_complete(self, broker: SimBroker, key: ReplicaKey) -> bool:
        """It has all that is committed."""
        slot = broker.disk.slot(key)
        return slot is not None and broker.disk.log_end(slot) >= self._world.checks.canon(key).end

    def down(self, broker: SimBroker) -> None:
        """It starts over: what its last run had counts no more."""
        self._reached = {
            place: end for place, end in self._reached.items() if place[0] != int(broker.id)
        }

    def restored(self, broker: SimBroker) -> None:
        """Its volume is an older one."""
        self._restored = {place for place in self._restored if place[0] != int(broker.id)}
        self._restored |= {(int(broker.id), key) for key in broker.disk.slots()}

    def rewound(self, key: ReplicaKey) -> None:
        """After a loss beyond the promise: what was committed is less now."""
        self._reached = {place: end for place, end in self._reached.items() if place[1] != key}

    def not_created(self, keys: Collection[ReplicaKey]) -> None:
        """A controller has just refused to create them: a journal had, and is lost."""
        for key in keys:
            self._stored.pop(key, None)

    def forget(self, broker: SimBroker, key: ReplicaKey) -> None:
        """Nothing of its log is left."""
        self._reached.pop((int(broker.id), key), None)
        self._restored.discard((int(broker.id), key))

    def dropped(self, broker: SimBroker, key: ReplicaKey) -> None:
        """Before a broker removes a slot with all its data."""
        self.forget(broker, key)
        if self._world.is_deleted(key):
            return
        damage = self._world.damage
        if damage is not None and damage.dropped(broker, key):
            return
        self.drops += 1
        text = self._world.meta.documents.get(topic_key(self._names[key]))
        if text is None:
            return
        document = decode_topic(text.text, text.version).partitions[key.partition]
        if broker.id not in document.state.dropping:
            raise RuleError(f"I30: {broker.name} drops its data of {key}, stored is {document}")
        said, known = self._named[broker.id, key], broker.directory.metadata_version
        if known < said:
            raise RuleError(
                f"I30: {broker.name} drops its data of {key} by version {said}, and would know "
                f"only {known} after a crash"
            )

    def handled(
        self, broker: SimBroker, replica: Replica, ready: rc.Ready, marks: rc.Marks
    ) -> None:
        """After each event."""
        known, mover = replica.machine._roles.state, self._world.mover
        if known is None or not known.adding:
            return
        self.check_copies(broker, known, marks)
        if replica.machine.is_answered:
            self.wrote(broker, replica.key)  # a new run may have it all, and writes nothing
        proposed = ready.isr_change
        if mover is not None and proposed is not None and {*known.adding} & {*proposed.isr}:
            mover.proposed(replica.key)

    @staticmethod
    def check_copies(broker: SimBroker, known: PartitionState, marks: rc.Marks) -> None:
        """Who only copies, by what this broker knows, neither leads nor counts."""
        if marks.is_leader and {broker.id, *marks.isr} & {*known.adding}:
            raise RuleError(f"I29: {broker.name} leads with {marks} and knows {known}")

    def fed(self, broker: SimBroker, replica: Replica) -> None:
        """After the shell has obeyed: nobody is fed who is no member and no copy any more."""
        state = replica.machine._roles.state
        assert state is not None
        strangers = set(replica.feeders) - {*state.replicas, *state.adding}
        if strangers:
            raise RuleError(f"I29: {broker.name} feeds {strangers} of {replica.key} on: {state}")

    # ------------------------------------------------------------ the end

    def left_over(self, key: ReplicaKey, document: PartitionDocument) -> str:
        """What of a move has not ended in a healed world; "": nothing."""
        state = document.state
        if document.target or state.adding or state.dropping:
            return f"I31: a move has not ended: {document}"
        for broker in self._world.brokers.values():
            if broker.id not in state.replicas and self._has_data(broker, key):
                return f"I30: {broker.name} has data"
        return ""


def _check_places(key: ReplicaKey, after: PartitionDocument) -> None:
    """Nobody is in two places at once; only members are in sync."""
    state = after.state
    places = (*state.replicas, *state.adding, *state.dropping)
    if len(places) != len(set(places)):
        raise RuleError(f"I29: somebody is in two places: {key} is {after}")
    if not {*state.isr, *after.elr, *after.lossy, *state.damaged} <= {*state.replicas}:
        raise RuleError(f"I29: somebody counts who has no replica: {key} is {after}")
