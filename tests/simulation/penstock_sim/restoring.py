"""Volumes are restored from older copies, which say that nothing is lost (I7).

    keep ─▶ a copy of a broker's disk and directory, as they are      some time passes, and
         ─▶ a controller has stored that the directory was opened again, or stopped
    restore ─▶ the broker is killed or stopped, and starts from the copy
            ─▶ production: refused, ends, starts again, and is accepted as one that lost its data

As if the disk were lost, it happens only where the promise of I7 has room for one more loss. Not
where brokers keep journals, of which a majority must last, nor where all lose power. What is
restored comes from a generator of its own, in half of the histories with damage; in the others
directories name no generations, so that those are what they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.control.documents import CLUSTER_KEY, decode_cluster

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.directory import DirectoryCopy
    from penstock_sim.disk import SimDisk
    from penstock_sim.faults import Nemesis
    from penstock_sim.world import World

_NEWER: Final = 0.2
"""So often a copy gives way to a newer one."""
_STOPPED: Final = 0.4
"""So often a broker that runs is stopped cleanly, and not killed."""


@dataclass(frozen=True, slots=True)
class VolumeCopy:
    """Of one broker, at one moment."""

    disk: SimDisk
    directory: DirectoryCopy


class Restoring:
    """Of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.scheduler.generator("volumes that are restored")
        self.wanted = self._random.random() < 0.5 and not (world.blackout or world.journal)
        """In this history. Only then do directories name their generations."""
        self._pace_ms = self._random.uniform(5, 40)
        self._copies: dict[int, VolumeCopy] = {}
        self._nemesis: Nemesis | None = None
        self.count = 0

    def start(self, nemesis: Nemesis) -> None:
        """Once the partitions are there."""
        self._nemesis = nemesis
        if self.wanted:
            self._next()

    def _next(self) -> None:
        self.world.scheduler.at_pace(self._random, self._pace_ms, self._act)

    def _act(self) -> None:
        if not self.world.chaotic:
            return
        broker = self._random.choice(list(self.world.brokers.values()))
        copy = self._copies.get(int(broker.id))
        if copy is None or self._random.random() < _NEWER:
            self._keep(broker)
        elif self._may_restore(broker, copy):
            self._take_down(broker, copy)
        self._next()

    def _keep(self, broker: SimBroker) -> None:
        if not broker.disk.has_flips:
            self.world.scheduler.note(broker.name, "its volume is copied")
            found = VolumeCopy(broker.disk.copy(), broker.directory.copy())
            self._copies[int(broker.id)] = found

    def _may_restore(self, broker: SimBroker, copy: VolumeCopy) -> bool:
        """A controller knows that it is older, and one more loss is promised to be survived."""
        assert self._nemesis is not None
        stored = self.world.meta.documents[CLUSTER_KEY]
        known = decode_cluster(stored.text, CLUSTER_KEY).brokers.get(broker.id)
        then = copy.directory
        if known is None or known.directory_id != then.meta.directory_id:
            return False
        if self.world.drainer is not None and self._brings_back(broker, copy):
            return False  # what nobody deletes is there for ever, and no drain of it ends
        return known.generation not in then.generations and self._nemesis._others_hold(broker)

    def _brings_back(self, broker: SimBroker, copy: VolumeCopy) -> bool:
        """A log of a partition that has been moved away since."""
        stored = self.world.checks.stored
        found = [stored[key].state for key in copy.disk.slots() if key in stored]
        return any(broker.id not in {*state.replicas, *state.adding} for state in found)

    def _take_down(self, broker: SimBroker, copy: VolumeCopy) -> None:
        if not broker.up:
            self._restore(broker, copy)
        elif self._random.random() < _STOPPED:
            broker.stop(lambda: self._restore(broker, copy))
        else:
            broker.kill(power=False)
            self._restore(broker, copy)

    def _restore(self, broker: SimBroker, copy: VolumeCopy) -> None:
        """Unless more was lost meanwhile. It starts again in any case."""
        assert self._nemesis is not None
        if self._may_restore(broker, copy):
            self.count += 1
            del self._copies[int(broker.id)]
            broker.restore(copy)
        delay_ms = self._random.choice((5, 30, 100, 350))
        self._nemesis.restart_after(delay_ms, broker)
