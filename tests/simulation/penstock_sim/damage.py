"""Bits flip in stored batches and in the index, logs vanish, and who reads there finds out (I33).

    flip ─▶ SimDisk: reading that batch, or all of that log, fails ─▶ a scrub reads, some time later
        ─▶ production: reported, out of ISR and ELR, mended or copied again, reported as sound
    vanish ─▶ a log is gone when its broker starts, whose directory says that nothing was lost
        ─▶ production: reported as missing, out of ISR and ELR, copied again

A flip takes a replica out as if its disk were lost: so it happens only where the promise of I7 has
room for one more loss, and to each replica only once. What is flipped comes
from generators of its own, and only in histories that want it: the others are what they were. Where
the members of a partition have changed, something is flipped at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.control.partition import PartitionDocument
from penstock.core.types import NO_LEADER, BrokerId, ReplicaKey
from penstock.errors import PenstockError
from penstock_sim.restoring import Restoring
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from penstock.core.batch import BatchHeader
    from penstock_broker.store.interface import Slot
    from penstock_sim.broker import SimBroker
    from penstock_sim.faults import Nemesis
    from penstock_sim.world import World

_INDEX: Final = 0.2
_KILLED_AGAIN: Final = 0.5
_LOOK_MS: Final = 20
_STANDING_MS: Final = 700
"""What is wrong for so long, while nothing else is, was not on its way to be right."""
_CHUNK_BYTES: Final = 500
_APART_MS: Final = 500
"""Between two hits of a partition: so long a report of the first may wait for the metadata store,
and the replica be mended meanwhile. The seat that it then loses is a loss as well."""


class Damage:
    """Of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.scheduler.generator("damage")
        self._strikes = world.scheduler.generator("damage of members that change")
        self._pace_ms = self._random.uniform(40, 200)
        self._hit: set[tuple[int, ReplicaKey]] = set()
        self._hit_ms: dict[ReplicaKey, float] = {}
        self._standing: dict[tuple[ReplicaKey, BrokerId], tuple[int, int]] = {}
        """Damaged replicas with a seat beside a sound one: since when, and in which version."""
        self._vanishing = world.scheduler.generator("logs that vanish")
        self._vanish_chance = self._vanishing.choice((0, 1))
        if world.blackout:
            self._vanish_chance = 0  # records on all disks are to survive that, and one is gone
        self._nemesis: Nemesis | None = None
        self.restoring = Restoring(world)
        self.gone: set[tuple[int, ReplicaKey]] = set()
        """Logs that have vanished, of replicas that have a seat still."""
        self.flips = 0
        self.vanished = 0
        self.mended = 0

    def start(self, nemesis: Nemesis) -> None:
        """Once the partitions are there."""
        self._nemesis = nemesis
        self._next()
        self.restoring.start(nemesis)
        self.world.scheduler.after(_LOOK_MS, self._look)

    def _next(self) -> None:
        self.world.scheduler.at_pace(self._random, self._pace_ms, self._act)

    def _act(self) -> None:
        if not self.world.chaotic:
            return
        self._flip(self._random)
        self._next()

    def _look(self) -> None:
        self.check_seats()
        self.world.scheduler.after(_LOOK_MS, self._look)

    # ------------------------------------------------------------ flips

    def _flip(self, chance: Random, key: ReplicaKey | None = None) -> None:
        key = chance.choice(self.world.keys) if key is None else key
        broker = chance.choice(list(self.world.brokers.values()))
        slot = broker.disk.slot(key)
        if (int(broker.id), key) in self._hit:
            return  # what is said about the first flip may still be on its way
        if self._was_hit_lately(key):
            return
        if slot is None or not self._may_be_lost(broker, key):
            return
        present = broker.disk.batches(slot)
        batches = [one for one in broker.disk.batches(slot, durable=True) if one in present]
        if not batches:
            return
        index = broker.intact and chance.random() < _INDEX
        if index:
            broker.disk.flip_index(slot)
        else:
            broker.disk.flip(slot, chance.choice(batches).header)
        self.flips += 1
        self._hit.add((int(broker.id), key))
        self._hit_ms[key] = self.world.scheduler.now_ms
        self.world.scheduler.note(broker.name, "flip", key, "index" if index else "batch")
        delay_ms = chance.choice((1, 20, 100, 300))
        self.world.scheduler.after(delay_ms, self._scrub, broker, key)

    def _was_hit_lately(self, key: ReplicaKey) -> bool:
        return self.world.scheduler.now_ms < self._hit_ms.get(key, -_APART_MS) + _APART_MS

    def _may_be_lost(self, broker: SimBroker, key: ReplicaKey) -> bool:
        """One member more, or who copies to become one; and another one with a seat has all that
        was committed, on its disk."""
        checks = self.world.checks
        document = checks.stored.get(key)
        if document is None:
            return False
        if broker.id not in {*document.state.replicas, *document.state.adding}:
            return False
        if checks.missing(key) | self.losses(key) or not self.world.layout.losses:
            return False
        seats = {*document.state.isr, *document.elr} - {broker.id}
        return any(self._has_all(self.world.brokers[one], key) for one in seats)

    def _has_all(self, broker: SimBroker, key: ReplicaKey) -> bool:
        slot = broker.disk.slot(key)
        end = self.world.checks.canon(key).end
        return slot is not None and broker.disk.log_end(slot, durable=True) >= end

    def losses(self, key: ReplicaKey) -> set[int]:
        """Members that cannot serve all that they had, whoever knows of it."""
        document = self.world.checks.stored[key]
        found = {int(one) for one in document.state.damaged}
        found |= {member for member, lost in self.gone if lost == key}
        for broker in self.world.brokers.values():
            slot = broker.disk.slot(key)
            known = broker.shell is not None and key in broker.shell.replicas.damage.found
            if known or (slot is not None and broker.disk.is_damaged(slot)):
                found.add(int(broker.id))
        return found

    def may_stop(self, broker: SimBroker, key: ReplicaKey) -> bool:
        """A replica stops if it cannot read its log; where nothing was flipped, it can."""
        return (int(broker.id), key) in self._hit

    # ------------------------------------------------------------ logs that vanish

    def down(self, broker: SimBroker) -> None:
        """A broker has crashed. If it will say that it has everything, a log of it may vanish."""
        if not broker.intact or self._vanishing.random() > self._vanish_chance:
            return
        keys = self._vanishing.sample(self.world.keys, len(self.world.keys))
        key = next((one for one in keys if self._may_vanish(broker, one)), None)
        if key is None:
            return
        self.world.scheduler.note(broker.name, "vanish", key)
        slot = broker.disk.slot(key)
        assert slot is not None
        broker.disk.vanish(slot)
        self.world.checks.forget_epochs(broker, key)
        self.world.checks.moving.forget(broker, key)
        self._hit.add((int(broker.id), key))
        self._hit_ms[key] = self.world.scheduler.now_ms
        self.gone.add((int(broker.id), key))
        self.vanished += 1
        if self._vanishing.random() < _KILLED_AGAIN:
            self._kill_again(broker, broker.incarnation)

    def _may_vanish(self, broker: SimBroker, key: ReplicaKey) -> bool:
        """It has a seat. A partition in its first epoch is new, and a log that vanishes there is
        one that was never stored; later, an empty log in a seat is a loss (I22)."""
        document, slot = self.world.checks.stored.get(key), broker.disk.slot(key)
        if slot is None or document is None or document.state.leader_epoch == 1:
            return False
        if self._was_hit_lately(key):
            return False  # that may be on its way to a controller, and cost another one its seat
        seats = {*document.state.isr, *document.elr}
        if (int(broker.id), key) in self._hit or broker.id not in seats:
            return False
        return broker.disk.log_end(slot) > 0 and self._may_be_lost(broker, key)

    def _kill_again(self, broker: SimBroker, incarnation: int) -> None:
        """Its next run, about when that finds out, or has just told a controller."""
        if not self.world.chaotic or broker.incarnation > incarnation + 1:
            return
        if broker.incarnation > incarnation and self._nemesis is not None:
            self._nemesis.kill(broker)
        else:
            delay_ms = self._vanishing.choice((10, 30, 60, 120))
            self.world.scheduler.after(delay_ms, self._kill_again, broker, incarnation)

    # ------------------------------------------------------------ who reads

    def _scrub(self, broker: SimBroker, key: ReplicaKey) -> None:
        """As `maintenance.scrub` reads a log."""
        shell, replica = broker.shell, broker.replicas.get(key)
        if shell is None or replica is None:
            return  # once it is up, or at the end

        async def read() -> None:
            offset, end = replica.marks.log_start_offset, replica.marks.written_end
            while offset < end:
                try:
                    batches = await shell.reader.read_stored(replica, offset, _CHUNK_BYTES, end)
                except PenstockError:
                    return  # the reader has told
                offset = batches[-1].next_offset if batches else end

        shell.start(read)

    def heal(self) -> None:
        """What was flipped is read by now, wherever that is."""
        for broker in self.world.brokers.values():
            for key, slot in broker.disk.slots().items():
                if broker.disk.is_damaged(slot):
                    self._scrub(broker, key)

    # ------------------------------------------------------------ I33

    def changed(
        self, key: ReplicaKey, before: PartitionDocument | None, after: PartitionDocument
    ) -> None:
        """After a change of the stored partition, or of a journal that counts."""
        if before is None:
            return
        if {*before.state.replicas} != {*after.state.replicas} and self.world.chaotic:
            self.world.scheduler.after(0, self._flip, self._strikes, key)
        damaged = {*after.state.damaged}
        joined = {*after.state.isr} - {*before.state.isr}
        whole = {one for one in joined if self._has_all(self.world.brokers[one], key)}
        seats = {int(one) for one in (*after.state.isr, *after.elr) if one not in whole}
        self.gone = {one for one in self.gone if one[1] != key or one[0] in seats}
        beside = {*after.state.isr} - damaged
        if joined & damaged and beside:
            raise RuleError(f"I33: {joined & damaged} joined damaged: {before} to {after}")
        healed = {*before.state.damaged} - damaged
        for member in healed & {*after.state.replicas}:
            broker = self.world.brokers[member]
            slot = broker.disk.slot(key)
            if slot is not None and broker.disk.is_damaged(slot):
                raise RuleError(f"I33: {broker.name} is called sound, and is not: {key} {after}")
            self.mended += 1

    def check_seats(self) -> None:
        """No damaged replica keeps a seat, or leads, beside a sound member that is live."""
        now_ms, found = self.world.scheduler.now_ms, dict[tuple[ReplicaKey, BrokerId], int]()
        for key, document in self.world.checks.stored.items():
            state = document.state
            seats, damaged = {*state.isr, *document.elr}, {*state.damaged}
            if state.leader == NO_LEADER or not any(map(self._is_live, seats - damaged)):
                continue
            found.update({(key, one): state.version for one in seats & damaged})
        before, self._standing = self._standing, {}
        for place, version in found.items():
            since_ms, seen = before.get(place, (now_ms, version))
            since_ms = since_ms if seen == version else now_ms
            self._standing[place] = since_ms, version
            if now_ms - since_ms > _STANDING_MS:
                raise RuleError(
                    f"I33: b{place[1]} is damaged and keeps its seat: "
                    f"{self.world.checks.stored[place[0]]}"
                )

    def _is_live(self, member: BrokerId) -> bool:
        """For the controller that decides; False if none can."""
        world = self.world
        if world.meta.slow or world.meta.away or not world.brokers[member].up:
            return False
        active = [one for one in world.controllers.values() if one.active]
        return len(active) == 1 and active[0].sees(member)

    def dropped(self, broker: SimBroker, key: ReplicaKey) -> bool:
        """Whether a replica may give up its log to copy it again: it has no seat, and never will.

        As the metadata store has it: a journal may be lost.
        """
        document = self.world.checks.stored.get(key)
        if document is None:
            return False
        if broker.id not in {*document.state.replicas, *document.state.adding}:
            # Others have its place meanwhile; after a crash it would have no seat in older images.
            may = broker.shell is not None and key in broker.shell.replicas.damage.given_up
        else:
            may = broker.id in document.state.damaged
        if not may:
            return False
        if broker.id in {*document.state.isr, *document.elr}:
            raise RuleError(f"I33: {broker.name} gives up its log, and has a seat: {document}")
        self.world.checks.forget_epochs(broker, key)
        return True

    def left_over(self, key: ReplicaKey, document: PartitionDocument) -> str:
        """What of the damage is left in a healed world; "": nothing."""
        for member in document.state.replicas:
            slot = self.world.brokers[member].disk.slot(key)
            if slot is not None and self.world.brokers[member].disk.is_damaged(slot):
                return f"I33: b{member} is still damaged"
            if (int(member), key) in self.gone:
                return f"I33: b{member} has a seat, and nothing of the log: {document}"
        return f"I33: damage is marked: {document}" if document.state.damaged else ""


def check_mended(broker: SimBroker, before: Mapping[Slot, Sequence[BatchHeader]]) -> None:
    """After a write that mends: `before` is what each log had, and it has the same batches now.

    Nobody accepts a loss in a history, so no batch is emptied in its place either.
    """
    for slot, headers in before.items():
        for one, known in zip(broker.disk.headers(slot), headers, strict=True):
            if one != known:
                raise RuleError(f"I33: {broker.name} mends {known} in slot {slot} with {one}")
