"""Power losses of all brokers at once, once or more often, in histories that want them.

    first ─▶ second, soon or later ─▶ third        each: who keeps its power, who is back late

Soon is while replicas copy their logs again, coordinators load and compaction passes run. In some
histories they come just when a broker has a part of a compacted log, and that one keeps its power.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.control.documents import CLUSTER_KEY, decode_cluster

if TYPE_CHECKING:
    from random import Random

    from penstock_sim.broker import SimBroker
    from penstock_sim.faults import Nemesis
    from penstock_sim.world import World

CHAOS_LEAST_MS: Final = 1_200
"""A history with more than one blackout needs the time."""
_FIRST: Final = (0.15, 0.7)
"""When the first one comes, as a part of the chaos."""
_COUNTS: Final = (1, 2, 2, 3)
_SOON: Final = 0.6
_SOON_MS: Final = (10, 300)
_LATER_MS: Final = (300, 900)
_SPARED: Final = 0.3
"""So often one broker keeps its power. A third of those are killed instead."""
_LATE: Final = 0.25
"""So often one broker comes back much later than the others."""
_LATE_MS: Final = (800, 1_600)
_POSTPONED_MS: Final = 50
_HUNTS: Final = 0.5
"""So often, of histories with compaction, one waits for a part of a log."""
_HUNT_MS: Final = 0.7
_HIT: Final = 0.4
_LURE_MS: Final = (20, 120)
_DISK: Final = (0, 0, 0.5, 0.8, 1)
"""So many producers of a partition want to be told that their records are on disk. Those of others
may be lost, and may have superseded these."""


class Syncs:
    """Which producers of one partition ask for sync=DISK, in a history with blackouts."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._share = chance.choice(_DISK)

    def ask_for_disk(self) -> bool:
        """Whether the next one does."""
        return self._chance.random() < self._share


class Blackouts:
    """Of one history."""

    def __init__(self, world: World, nemesis: Nemesis) -> None:
        self.world = world
        self._nemesis = nemesis
        self.count = 0
        self.spared = 0
        self._hunts = 0
        self._restart = nemesis.restart_after
        self._random = world.scheduler.generator("blackouts")
        self._left = self._random.choice(_COUNTS)
        world.scheduler.after(self._random.uniform(*_FIRST) * world.chaos_ms, self._strike)
        if world.compacts and self._random.random() < _HUNTS:
            self._hunts = self._random.choice(_COUNTS)
            self._lure()
            self._hunt()

    def _lure(self) -> None:
        """Now and then a broker is to copy its logs, or what they lack."""
        if self.world.chaotic and self._hunts:
            one = self._random.choice(list(self.world.brokers.values()))
            keeps_disk = self.world.journal or self._random.random() < 0.3
            (self._nemesis.take_power if keeps_disk else self._nemesis.take_disk)(one)
            self.world.scheduler.after(self._random.uniform(*_LURE_MS), self._lure)

    def _hunt(self) -> None:
        """Strikes some time after a broker has begun to copy a compacted log."""
        if not self.world.chaotic:
            return
        found = [one for one in self.world.brokers.values() if one.up and self._has_part(one)]
        if found and self._random.random() < _HIT and not self._lost_disk():
            self._hunts -= 1
            self._black_out(self._random.choice(found))
            if self._hunts:
                self.world.scheduler.after(self._random.uniform(*_LATER_MS), self._hunt)
        else:
            self.world.scheduler.after(_HUNT_MS, self._hunt)

    def _has_part(self, broker: SimBroker) -> bool:
        replicas = (broker.replicas.get(key) for key in self.world.keys)
        return any(one is not None and one.machine._log.is_part for one in replicas)

    def _strike(self) -> None:
        """Not while a disk is lost and no controller knows: no promise survives both."""
        if not self.world.chaotic:
            return
        if self._lost_disk():
            self.world.scheduler.after(_POSTPONED_MS, self._strike)
            return
        chance, brokers = self._random, list(self.world.brokers.values())
        self._black_out(chance.choice(brokers) if chance.random() < _SPARED else None)
        self._left -= 1
        if self._left:
            between = _SOON_MS if chance.random() < _SOON else _LATER_MS
            self.world.scheduler.after(chance.uniform(*between), self._strike)

    def _black_out(self, spared: SimBroker | None) -> None:
        """All but this one lose their power."""
        self.count += 1
        chance, brokers = self._random, list(self.world.brokers.values())
        late = chance.choice(brokers) if chance.random() < _LATE else None
        self.world.scheduler.note("world", "blackout", self.count, spared and spared.name)
        for broker in brokers:
            if broker is spared:
                self.spared += 1
                self._spare(broker)
                continue
            self._darken(broker)
            delay_ms: float = chance.choice((5, 30, 100, 350, 700))
            self._restart(chance.uniform(*_LATE_MS) if broker is late else delay_ms, broker)

    def _spare(self, broker: SimBroker) -> None:
        if broker.up and self._random.random() < 1 / 3:
            broker.kill(power=False)
            self._restart(self._random.choice((5, 100, 700)), broker)

    @staticmethod
    def _darken(broker: SimBroker) -> None:
        if broker.up:
            broker.kill(power=True)
        else:
            broker.lose_writes()
            broker.world.checks.broker_down(broker)

    def _lost_disk(self) -> bool:
        """Some broker has another one than is stored of it, or its controller has yet to act."""
        stored = self.world.meta.documents[CLUSTER_KEY]
        known = decode_cluster(stored.text, CLUSTER_KEY).brokers
        return any(
            broker.directory.directory_id != known[broker.id].directory_id
            for broker in self.world.brokers.values()
        )
