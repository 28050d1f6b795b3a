"""Processes are stopped and go on later, as by SIGSTOP, a full machine or a long collection.

    pause ─▶ no turn of the node begins, no thread gets on ─▶ messages, timers, answers wait
        ─▶ resume: it acts on what it knew, before it hears what has happened since

A pause differs from a cut network: what has arrived is there when the process goes on, and all
timers fire at once. So brokers write and acknowledge with a leadership that has ended, and
controllers decide while another one has their Lease.

Who is stopped, and when, comes from a generator of its own, and only in histories that want it:
the others are what they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock_sim.network import KEEPALIVE_MS

if TYPE_CHECKING:
    from penstock_sim.node_loop import NodeLoop
    from penstock_sim.world import World

_LENGTHS_MS: Final = (1, 5, 20, 60, 150, 350, 700)
"""A session ends after 225, a Lease after a similar time."""
_CONTROLLER: Final = 0.35
_LEADER: Final = 0.4
_IN_THE_MIDDLE: Final = 0.06
"""So often a controller is stopped while the metadata store answers it."""
_CUT: Final = 0.3
"""So often a write of several objects is sent in two parts."""
_PINGED: Final = 0.5
"""So often its peers notice that it does not answer on connections; streams are not pinged."""


class Pauses:
    """Of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.scheduler.generator("pauses")
        self._pace_ms = self._random.uniform(20, 150)
        self.count = 0

    def start(self) -> None:
        """Once the partitions are there."""
        self.world.scheduler.at_pace(self._random, self._pace_ms, self._act)

    def _act(self) -> None:
        if not self.world.chaotic:
            return
        if self._random.random() < _CONTROLLER:
            self._pause_controller()
        else:
            self._pause_broker()
        self.start()

    def _pause_controller(self) -> None:
        running = [one for one in self.world.controllers.values() if one.shell is not None]
        active = [one for one in running if one.active]
        if running:
            one = self._random.choice(active or running)
            assert one.shell is not None
            self._pause(one.shell.loop, one.id)

    def _pause_broker(self) -> None:
        world = self.world
        if self._random.random() < _LEADER:
            broker = world.find_leader(self._random.choice(world.all_keys), self._random)[0]
        else:
            broker = self._random.choice(list(world.brokers.values()))
        if broker.shell is not None:
            self._pause(broker.shell.loop, int(broker.id))

    def cut(self, changes: int) -> int:
        """After how many of them a controller has to hear an answer, to go on; 0: after all."""
        if changes < 2 or not self.world.chaotic or self._random.random() >= _CUT:
            return 0
        return self._random.randrange(1, changes)

    def answered(self, node: int, loop: NodeLoop) -> None:
        """The metadata store has an answer for a controller, which has not heard it yet."""
        if self.world.chaotic and self._random.random() < _IN_THE_MIDDLE:
            self._pause(loop, node)

    def _pause(self, loop: NodeLoop, node: int) -> None:
        if loop.dead:
            return
        for_ms = self._random.choice(_LENGTHS_MS) * self._random.uniform(0.5, 1.5)
        self.world.scheduler.note(loop.name, "is paused", f"{for_ms:.1f} ms")
        self.count += 1
        loop.pause(for_ms)
        if for_ms > KEEPALIVE_MS and self._random.random() < _PINGED:
            self.world.scheduler.after(KEEPALIVE_MS, self._unanswered, loop, node)

    def _unanswered(self, loop: NodeLoop, node: int) -> None:
        """Its connections end, as far as others can tell."""
        if loop.paused and not loop.dead:
            for connection in list(self.world.net.connections.values()):
                if node in {connection.opener, connection.acceptor}:
                    connection.break_off()

    def heal(self) -> None:
        """Everybody goes on."""
        shells = [broker.shell for broker in self.world.brokers.values()]
        others = [controller.shell for controller in self.world.controllers.values()]
        for shell in (*shells, *others):
            if shell is not None and shell.loop.paused:
                shell.loop.resume()
