"""The nemesis: breaks things within what the guarantees promise to survive, and repairs them.

A broker loses unsynced writes only within the promise of I7: while fewer than
min.insync.replicas - 1 others miss data and another holder of each partition is intact. In a
`blackout` history all lose power at once, and only sync=DISK is promised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.core.control import contract as cc
from penstock.core.replication.contract_leader import LogStartMoved
from penstock.core.types import Offset
from penstock_sim.blackouts import Blackouts
from penstock_sim.changes import UNHARMED as BY_SETTINGS
from penstock_sim.edits import UNHARMED

_RELEASED: Final = 0.7
_CALM: Final = 4
"""So much more time between faults a cluster needs, if it is to come to rest now and then."""
DELETE_RECORDS_EVERY: Final = 5
"""In one of so many seeds records are deleted up to any offset, not by whole batches."""
_POSTPONED_MS: Final = 50

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.network import Stream
    from penstock_sim.wire.connection import Connection
    from penstock_sim.world import World


class Nemesis:
    """Does something bad every now and then while the world is chaotic."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.scheduler.random
        self._menu: list[tuple[int, Callable[[], None]]] = [
            (10, self.kill_broker),
            (5, self.lose_power),
            (8, self.cut_brokers),
            (5, self.cut_broker_off),
            (7, self.cut_from_controller),
            (8, self.break_stream),
            (5, self.slow_disk),
            (3, self.full_disk),
            (3, self.bad_reads),
            (4, self.kill_controller),
            (2, self.second_controller),
            (10 if world.journal else 3, self.store_away),
            (2, self.slow_store),
            (6, self.move_leaders),
            (4, self.retention),
            (3, self.slow_network),
        ]
        if not world.journal:
            self._menu.append((3, self.replace_disk))
        if world.edits is not None:
            self._menu = [one for one in self._menu if one[1].__name__ not in UNHARMED]
        if world.changes is not None:
            self._menu = [one for one in self._menu if one[1].__name__ not in BY_SETTINGS]
        # Most histories stress a few faults, so that they meet; some have all.
        if world.faults:
            self._menu = [
                (weight, fault) for weight, fault in self._menu if fault.__name__ in world.faults
            ]
            assert len(self._menu) == len(world.faults), f"unknown faults in {world.faults}"
        elif world.scheduler.chance(0.7):
            self._menu = self._random.sample(self._menu, self._random.randrange(2, 7))
        self._pace_ms = world.scheduler.between(25, 200)
        if world.hibernation is not None:
            self._pace_ms *= _CALM
        self.blackouts: Blackouts | None = None
        if world.wants_blackout:
            self.blackouts = Blackouts(world, self)
        elif world.blackout:
            at_ms = world.scheduler.between(0.3, 0.8) * world.chaos_ms
            world.scheduler.after(at_ms, self._blackout)
        self._next()

    def _next(self) -> None:
        scheduler = self.world.scheduler
        scheduler.at_pace(scheduler.random, self._pace_ms, self._strike)

    def _strike(self) -> None:
        if not self.world.chaotic:
            return
        total = sum(weight for weight, _ in self._menu)
        pick = self._random.randrange(total)
        for weight, fault in self._menu:
            pick -= weight
            if pick < 0:
                fault()
                break
        self._next()

    def heal(self) -> None:
        """Everything works again; what is down comes back."""
        world = self.world
        world.net.blocked.clear()
        world.net.slow = False
        world.meta.away.clear()
        world.meta.slow = False
        if world.pauses is not None:
            world.pauses.heal()
        if world.damage is not None:
            world.damage.heal()
        if world.hibernation is not None:
            world.hibernation.heal()
        for broker in world.brokers.values():
            broker.disk.full = False
            broker.disk.slow = False
            broker.disk.unreadable = False
            if not broker.up and world.runs_brokers:
                broker.start()
        up = any(controller.up for controller in world.controllers.values())
        if not up and world.runs_controllers:
            next(iter(world.controllers.values())).start()
        world.meta.bury_holder(
            {
                controller.shell.holder
                for controller in world.controllers.values()
                if controller.shell
            }
        )

    # ------------------------------------------------------------ brokers

    def _some_broker(self) -> SimBroker:
        return self._random.choice(list(self.world.brokers.values()))

    def kill_broker(self) -> None:
        broker = self._some_broker()
        if self._random.random() < 0.4:
            broker = self.world.find_leader(self._random.choice(self.world.checked_keys))[0]
        self.kill(broker)

    def kill(self, broker: SimBroker) -> None:
        """If it runs."""
        if broker.up:
            broker.kill(power=False)
            self._restart_later(broker)

    def _restart_later(self, broker: SimBroker) -> None:
        self.restart_after(self.world.scheduler.random.choice((5, 30, 100, 350, 700)), broker)

    def restart_after(self, delay_ms: float, broker: SimBroker) -> None:
        """Unless it was started before."""
        self.world.scheduler.after(delay_ms, self._restart, broker, broker.incarnation)

    def _restart(self, broker: SimBroker, incarnation: int) -> None:
        same = broker.incarnation == incarnation
        if not broker.up and same and self.world.runs_brokers:
            broker.start()

    def lose_power(self) -> None:
        self.take_power(self._some_broker())

    def take_power(self, broker: SimBroker) -> None:
        """If that is promised to be survived."""
        if broker.up and self._others_hold(broker):
            broker.kill(power=True)
            self._restart_later(broker)

    def replace_disk(self) -> None:
        self.take_disk(self._some_broker())

    def take_disk(self, broker: SimBroker) -> None:
        """As `take_power`. Not where brokers keep journals: of those, a majority must last."""
        if not self.world.journal and broker.up and self._others_hold(broker):
            broker.kill(power=False)
            broker.replace_disk()
            self._restart_later(broker)

    def _others_hold(self, broker: SimBroker) -> bool:
        """Of every partition it has, some other member of ISR or ELR has all that was committed.

        And no more brokers miss data at one time than is promised: with min.insync.replicas 1,
        a dead broker that has everything may be given up for one that only seems to. A copy counts
        once it has all that was committed: its leader may have asked for the switch.
        """
        checks = self.world.checks
        for key in self.world.checked_keys:
            document = checks.stored.get(key)
            if document is None:
                return False
            if self.world.may_elect_anyone(key):
                continue
            state = document.state
            counts = broker.id in state.adding and checks.moving.is_complete(broker, key)
            if broker.id not in state.replicas and not counts:
                continue
            damage = self.world.damage
            damaged = set[int]() if damage is None else damage.losses(key)
            if len(checks.missing(key) | damaged) >= self.world.layout.losses:
                return False
            holders = {int(member) for member in (*document.state.isr, *document.elr)}
            intact = {member for member in holders if (member, key) not in checks.lost} - damaged
            if not intact - {int(broker.id)}:
                return False
        return True

    def _blackout(self) -> None:
        """Not while a disk is lost and no controller knows: no promise survives both."""
        if self.world.checks.lost:
            if self.world.chaotic:
                self.world.scheduler.after(_POSTPONED_MS, self._blackout)
            return
        for broker in self.world.brokers.values():
            if broker.up:
                broker.kill(power=True)
            else:
                broker.lose_writes()
                self.world.checks.broker_down(broker)
            self._restart_later(broker)

    def slow_disk(self) -> None:
        disk = self._some_broker().disk
        disk.slow = True
        self.world.scheduler.after(
            self.world.scheduler.between(50, 500), setattr, disk, "slow", False
        )

    def full_disk(self) -> None:
        disk = self._some_broker().disk
        disk.full = True
        self.world.scheduler.after(
            self.world.scheduler.between(50, 500), setattr, disk, "full", False
        )

    def bad_reads(self) -> None:
        """Reads fail, some of them; what they asked for is still there."""
        disk = self._some_broker().disk
        disk.unreadable = True
        self.world.scheduler.after(
            self.world.scheduler.between(50, 500), setattr, disk, "unreadable", False
        )

    def retention(self) -> None:
        """The leader drops some of what is committed: whole batches, or up to any offset."""
        key = self._random.choice(self.world.keys)
        broker = self.world.find_leader(key)[0]
        replica = broker.replicas.get(key) if broker.up else None
        if replica is None or not replica.machine.marks.is_leader:
            return
        high_watermark = replica.machine.marks.high_watermark
        ends = [
            batch.next_offset
            for batch in broker.disk.batches(replica.slot)
            if batch.next_offset <= high_watermark
        ]
        if ends:
            log_start = self._random.choice(ends)
            if self.world.seed % DELETE_RECORDS_EVERY == DELETE_RECORDS_EVERY - 2:
                before = replica.machine.marks.log_start_offset
                log_start = Offset(self._random.randrange(min(before, log_start), log_start + 1))
            broker.handle(replica, LogStartMoved(log_start))

    # ------------------------------------------------------------ network

    def _cut(self, pairs: set[tuple[int, int]], longest_ms: float) -> None:
        net, scheduler = self.world.net, self.world.scheduler
        net.blocked |= pairs
        scheduler.note("net", "cut", sorted(pairs))
        scheduler.after(scheduler.between(30, longest_ms), self._mend, pairs)

    def _mend(self, pairs: set[tuple[int, int]]) -> None:
        self.world.net.blocked -= pairs
        self.world.scheduler.note("net", "mended", sorted(pairs))

    def _both_ways(self, one: int, two: int) -> set[tuple[int, int]]:
        if self._random.random() < 0.3:
            return {(one, two)}
        return {(one, two), (two, one)}

    def cut_brokers(self) -> None:
        one, two = self._random.sample(list(self.world.brokers), 2)
        self._cut(self._both_ways(one, two), 900)

    def cut_broker_off(self) -> None:
        one = int(self._some_broker().id)
        others = [*self.world.brokers, *self.world.controllers]
        self._cut({pair for two in others if two != one for pair in self._both_ways(one, two)}, 900)

    def cut_from_controller(self) -> None:
        one = int(self._some_broker().id)
        self._cut(
            {pair for two in self.world.controllers for pair in self._both_ways(one, two)}, 900
        )

    def break_stream(self) -> None:
        net = self.world.net
        streams = [stream for stream in net.streams if stream.open]
        open_now: list[Stream | Connection] = [*streams, *net.connections.values()]
        if open_now:
            self._random.choice(open_now).break_off()

    def slow_network(self) -> None:
        net = self.world.net
        net.slow = True
        self.world.scheduler.after(
            self.world.scheduler.between(50, 500), setattr, net, "slow", False
        )

    # ------------------------------------------------------------ controller

    def kill_controller(self) -> None:
        """Its lease is held for a while; or it has said that it leaves, but done nothing more."""
        for controller in self.world.controllers.values():
            if controller.up:
                controller.kill()
        if self._random.random() < _RELEASED:
            self.world.meta.lose_lease()
        delay_ms = self.world.scheduler.between(5, 400)
        self.world.scheduler.after(delay_ms, self._start_controller)

    def _start_controller(self) -> None:
        controllers = list(self.world.controllers.values())
        up = any(controller.up for controller in controllers)
        if not up and self.world.runs_controllers:
            self._random.choice(controllers).start()

    def second_controller(self) -> None:
        """Two alive at once: the lease is lost, the older one does not know yet."""
        for controller in self.world.controllers.values():
            if not controller.up and self.world.runs_controllers:
                controller.start()
        self.world.meta.lose_lease()

    def store_away(self) -> None:
        """From all controllers, or from one of them."""
        controllers = list(self.world.controllers)
        if self.world.journal and self._random.random() < 0.5:
            controllers = [self._random.choice(controllers)]
        longest_ms = 1500 if self.world.journal else 500
        self.world.meta.away.update(controllers)
        self.world.scheduler.after(
            self.world.scheduler.between(50, longest_ms),
            self.world.meta.away.difference_update,
            controllers,
        )

    def slow_store(self) -> None:
        meta = self.world.meta
        meta.slow = True
        self.world.scheduler.after(
            self.world.scheduler.between(50, 500), setattr, meta, "slow", False
        )

    def move_leaders(self) -> None:
        away_from = self._some_broker().id if self._random.random() < 0.7 else None
        request = cc.ElectLeaders(
            self.world.next_request(), self.world.cluster_id, away_from=away_from
        )
        for controller in self.world.controllers.values():
            if controller.active:
                controller.request(request)
