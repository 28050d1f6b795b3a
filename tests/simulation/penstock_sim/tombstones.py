"""Keys that are deleted for good while delete.retention.ms changes, and readers who must notice.

    a value of a new key ─▶ its null value ─▶ the key is never used again
    reader: from the log start to the end of one leader's log ─▶ the keys that it takes for there

Whoever reads all of a log within delete.retention.ms sees that a key was deleted (I20). A replica
that copied what its leader had compacted may lack a null value for ever, and have an older value:
it was offline for longer than that (ADR 26). Only in histories with changes that compact.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.core.encode import encode_columns
from penstock.core.records import build_batch
from penstock.core.types import Acks, Offset, ReplicaKey, Sync
from penstock_sim.clients import Outgoing, Plan, Producer
from penstock_sim.compaction_checks import records_of
from penstock_sim.disk_checks import visible
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from penstock.core.batch import Batch
    from penstock.core.compaction.plan import Plan as PassPlan
    from penstock_broker.replication.replica import Replica
    from penstock_broker.store.interface import PartitionWrite
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

_FIRST_PRODUCER: Final = 700
_READERS: Final = 2
"""Of each partition, at a pace of their own: a pass or two have to come while one reads."""
_DELETED: Final = 0.7
_STEPS_MS: Final = (4, 15, 40)
_BATCHES: Final = (1, 2, 6)
_NEVER: Final = 1 << 60


class DeletingProducer(Producer):
    """Each of its keys has one value, and then most often a null value."""

    def __init__(
        self, world: World, number: int, key: ReplicaKey, plan: Plan, chance: Random
    ) -> None:
        super().__init__(world, number, key, plan)
        self._chance = chance
        self._present: deque[bytes] = deque()
        self._made = 0

    def _new_outgoing(self) -> Outgoing:
        self._made += 1
        keys: list[bytes | None] = [b"%s-%d" % (self.name.encode(), self._made)]
        values: list[bytes | None] = [f"{self.name}:{len(self.sent)}:0".encode()]
        while len(self._present) > 1 and self._chance.random() < _DELETED:
            keys.append(self._present.popleft())
            values.append(None)
        self._present.append(keys[0] or b"")
        sequence, self._sequence = self._sequence, self._sequence + len(keys)
        batch = build_batch(
            encode_columns(values, keys, timestamps_ms=self.world.scheduler.wall_ms),
            producer_id=self._producer_id,
            producer_epoch=self._epoch if self.plan.idempotent else -1,
            base_sequence=sequence if self.plan.idempotent else -1,
        )
        return Outgoing(batch)


class ReaderOfAll:
    """Reads a partition from its start to its end, again and again; knows each key's value."""

    def __init__(self, tombstones: Tombstones, key: ReplicaKey) -> None:
        self._tombstones = tombstones
        self._world = tombstones.world
        self._key = key
        self._from: tuple[int, int, int] = (0, 0, 0)
        """The run and the epoch of the leader that it reads from."""
        self._begin()

    def start(self) -> None:
        """Goes on after a while."""
        pause_ms = self._tombstones.random.uniform(0.2, 1.8) * self._step_ms
        self._world.scheduler.after(pause_ms, self._read)

    def _begin(self) -> None:
        chance = self._tombstones.random
        self._step_ms, self._count = chance.choice(_STEPS_MS), chance.choice(_BATCHES)
        self._position = Offset(0)
        self._began_ms = self._world.scheduler.wall_ms
        self._known: dict[bytes | None, int] = {}
        self._from = (0, 0, 0)

    def _read(self) -> None:
        self.start()
        broker, _ = self._world.find_leader(self._key, self._tombstones.random)
        replica = broker.replicas.get(self._key) if broker.up else None
        if replica is None or not replica.machine.marks.is_leader:
            return
        marks = replica.machine.marks
        source = (int(broker.id), broker.incarnation, int(marks.leader_epoch))
        if self._from != source or self._position < marks.log_start_offset:
            # Replicas compact each alone; what retention has removed is not told by null values.
            self._begin()
            self._from, self._position = source, marks.log_start_offset
        checks = self._world.compaction_checks
        if checks.is_void(self._key):
            self._from = (0, 0, 0)
            return
        end = Offset(min(marks.last_stable_offset, checks.visible(self._key).end))
        batches = broker.read(replica, self._position, end, self._count)
        for batch in batches:
            self._take_in(batch)
        if not batches:
            self._has_all(broker)

    def _take_in(self, batch: Batch) -> None:
        records = self._world.compaction_checks.visible(self._key).records
        for offset, (name, value) in records_of(batch).items():
            if offset < self._position or offset not in records:
                continue
            if value is None:
                self._known.pop(name, None)
            else:
                self._known[name] = offset
        self._position = batch.next_offset

    def _has_all(self, broker: SimBroker) -> None:
        """It is at the end: no key that it takes for there was deleted on the way."""
        records = self._world.compaction_checks.visible(self._key).records
        took_ms = self._world.scheduler.wall_ms - self._began_ms
        if self._position and took_ms < self._tombstones.kept_ms(broker, self._key, self._began_ms):
            self._tombstones.scans += 1
            deleted = self._tombstones.deleted(self._key, int(self._position))
            for name, offset in self._known.items():
                gone = deleted.get(name, -1)
                if gone > offset and not self._tombstones.is_excused(broker, self._key, name):
                    raise RuleError(
                        f"I20: who read {self._key} from {broker.name} in {took_ms} ms takes "
                        f"{name!r} for there, as in {records.get(offset)} at {offset}: it was "
                        f"deleted at {gone}"
                    )
        self._begin()


class Tombstones:
    """Of one history with changes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random: Random = world.scheduler.generator("tombstones")
        self.scans = 0
        self.checked = 0
        """Deleted keys that were looked for on a replica at the end."""
        self._plans: dict[tuple[int, ReplicaKey], list[tuple[int, int]]] = {}
        """When passes were planned, and what delete.retention.ms was."""
        self._excused: set[tuple[int, ReplicaKey, bytes | None]] = set()

    def start(self) -> None:
        """The producers and readers."""
        chance, world = self.random, self.world
        for number, key in enumerate(world.keys if world.compacts else (), _FIRST_PRODUCER):
            plan = Plan(
                idempotent=chance.random() < 0.8,
                acks=Acks.ALL,
                sync=chance.choice((Sync.DISK, Sync.OS, Sync.OS)),
                retries=True,
                pause_ms=chance.choice((10, 25, 60)),
            )
            world.producers.append(DeletingProducer(world, number, key, plan, chance))
            for _ in range(_READERS):
                ReaderOfAll(self, key).start()

    # ------------------------------------------------------------ what is known

    def planned(self, broker: SimBroker, replica: Replica, plan: PassPlan) -> None:
        """A pass begins."""
        passes = self._plans.setdefault((int(broker.id), replica.key), [])
        passes.append((self.world.scheduler.wall_ms, plan.delete_retention_ms))

    def kept_ms(self, broker: SimBroker, key: ReplicaKey, since_ms: int) -> int:
        """So long the passes of this broker keep null values that were planned since."""
        passes = self._plans.get((int(broker.id), key), [])
        return min((kept for at_ms, kept in passes if at_ms >= since_ms), default=_NEVER)

    def deleted(self, key: ReplicaKey, end: int) -> dict[bytes | None, int]:
        """Where the keys were deleted that were not written since, as of `end`."""
        known = self.world.compaction_checks.visible(key)
        records, newest = known.records, known.newest
        if end < known.end:
            newest = {name: at for at, (name, _) in sorted(records.items()) if at < end}
        return {name: at for name, at in newest.items() if records[at][1] is None}

    def is_excused(self, broker: SimBroker, key: ReplicaKey, name: bytes | None) -> bool:
        """It has copied what its leader had compacted, without a null value of this key."""
        return (int(broker.id), key, name) in self._excused

    def written(self, broker: SimBroker, writes: Iterable[PartitionWrite]) -> None:
        """A log grows: with what its leader still has."""
        for write in writes:
            compacted = [batch for batch in write.batches if batch.header.is_compacted]
            for key in self.world.keys if compacted else ():
                if broker.disk.slot(key) == write.slot:
                    for batch in compacted:
                        self._excuse(broker, key, batch.base_offset, batch.next_offset)

    def _excuse(self, broker: SimBroker, key: ReplicaKey, start: int, end: int) -> None:
        records = self.world.compaction_checks.visible(key).records
        for offset in range(start, end):
            name, value = records.get(offset, (None, b""))
            if value is None:
                self._excused.add((int(broker.id), key, name))

    # ------------------------------------------------------------ the end

    def check_end(self) -> None:
        """No replica has an older value of a deleted key, and nothing that deletes it."""
        for key in self.world.keys if self.world.compacts else ():
            if self.world.compaction_checks.is_void(key):
                continue
            deleted = self.deleted(key, _NEVER)
            for broker in self.world.members(key):
                replica = broker.replicas[key]
                if replica.machine.error is None:
                    self._check_replica(broker, replica, deleted)

    def _check_replica(
        self, broker: SimBroker, replica: Replica, deleted: dict[bytes | None, int]
    ) -> None:
        there = visible(broker.disk.batches(replica.slot))
        newest = {name: offset for offset, (name, _) in sorted(there.items())}
        for name, gone in deleted.items():
            offset = newest.get(name, -1)
            self.checked += 1
            if -1 < offset < gone and not self.is_excused(broker, replica.key, name):
                raise RuleError(
                    f"I20: {broker.name} has {there[offset]} at {offset} of {replica.key}: the "
                    f"key was deleted at {gone}"
                )
