"""A controller as the world has it: one run of its process while `up`, nothing that outlives it.

    SimController.start ─▶ ControllerShell: NodeLoop, ControllerProcess      kill ─▶ nothing runs
    event of the machine ─▶ WatchedRuntime ─▶ checks

The process is the production's: runtime, services, journals, on a loop, a network and a metadata
store of ours. In every second seed brokers keep a journal while the store is unavailable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.control import ControlConfig
from penstock.core.control import contract as cc
from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Stored
from penstock.core.types import BrokerId
from penstock.errors import PenstockError
from penstock_broker.controller.process import ControllerProcess
from penstock_broker.controller.runtime import ControllerRuntime
from penstock_broker.controller.seams import ControllerSeams
from penstock_sim.edits import LOOK_S
from penstock_sim.metadata_store import SimStore
from penstock_sim.node_loop import NodeLoop
from penstock_sim.nodes import controller_address
from penstock_sim.scheduler import RATE
from penstock_sim.shell import SHUFFLED_EVERY, SimClock, reporting
from penstock_sim.wire.transport import SimTransport

if TYPE_CHECKING:
    from penstock_sim.world import World


class WatchedRuntime(ControllerRuntime):
    """The production runtime, and a world that looks over its shoulder."""

    shell: ControllerShell

    @property
    def has_taken_over(self) -> bool:
        return self._has_view

    def feed(self, event: cc.Event) -> None:
        shell = self.shell
        if shell.loop.dead:
            return  # a task of a killed process, closed when the world ends
        machine, heeded = self._machine, not self._suspended
        super().feed(event)
        if self._defect is not None:
            shell.world.scheduler.fail(self._defect.__cause__ or self._defect)
        elif machine is not None and heeded and isinstance(event, cc.WriteDone):
            shell.adopted(machine.stored)

    def _log(self, decision: cc.Decision) -> None:
        super()._log(decision)
        self.shell.world.scheduler.note(self.shell.name, decision.event, dict(decision.fields))


class ControllerShell:
    """One run of a controller's process."""

    def __init__(self, world: World, node: int, life: int) -> None:
        self.world = world
        self.name = f"c{node}"
        shuffled = world.seed % SHUFFLED_EVERY == 0
        self.loop = NodeLoop.of(world.scheduler, f"c{node}.{life}", shuffled=shuffled, rate=RATE)
        self.holder = f"{self.name}.{life}"
        self._ids = 0
        store = SimStore(world, node, self.loop, self._is_learning)
        seams = ControllerSeams(
            clock=SimClock(self.loop),
            transport=SimTransport(world.net, node, self.loop),
            store=store,
            holder=self.holder,
            new_id=self._new_id,
        )
        self.process = ControllerProcess(
            ControlConfig(),
            seams,
            controller_address(node),
            cluster_id=world.cluster_id,
            journaled=world.journal,
            look_every_s=0 if world.edits is None else LOOK_S,
            runtime=WatchedRuntime,
        )
        assert isinstance(self.process.runtime, WatchedRuntime)
        self.runtime = self.process.runtime
        self.runtime.shell = self
        self.running = self.loop.start(reporting(self.loop, self.process.run))

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self.loop.name}.{self._ids}"

    def _is_learning(self) -> bool:
        return self.world.journal and not self.runtime.has_taken_over

    def adopted(self, stored: Stored) -> None:
        """It is durable, and this controller decides on it."""
        try:
            self.world.checks.adopted(int(stored.cluster.controller_epoch), stored.topics.values())
        except Exception as error:  # noqa: BLE001 - in a shell's task: it might be swallowed
            self.world.scheduler.fail(error)

    async def ask(self, request: cc.Request, answered: Callable[[object], None]) -> None:
        """As a call would. `answered` gets the result, or the error."""
        answer: object
        try:
            answer = await self.runtime.submit(lambda number: replace(request, request_id=number))
        except PenstockError as error:
            self.world.scheduler.note(self.name, "refuses", request, error)
            answer = error
        try:
            answered(answer)
        except Exception as error:  # noqa: BLE001 - as above
            self.world.scheduler.fail(error)


class SimController:
    """One controller node: `up` while its process runs, with or without the lead."""

    def __init__(self, world: World, node: int) -> None:
        self.world = world
        self.id = node
        self.name = f"c{node}"
        self.shell: ControllerShell | None = None
        self._life = 0

    @property
    def up(self) -> bool:
        return self.shell is not None

    @property
    def active(self) -> bool:
        """It decides, for all that it knows."""
        return self.shell is not None and self.shell.runtime.active

    @property
    def is_deposed(self) -> bool:
        """It decides, and another one has taken over."""
        if self.shell is None or not self.shell.runtime.active:
            return False
        own = self.shell.runtime.machine.stored.cluster.controller_epoch
        return own < (self.world.meta.controller_epoch() or 0)

    @property
    def is_leaving(self) -> bool:
        """It was asked to stop."""
        return self.shell is not None and self.shell.process.stop_requested.is_set()

    def topic(self, name: str) -> TopicDocument | None:
        """As it knows it; None: there is none, or it does not decide."""
        if self.shell is None or not self.shell.runtime.active:
            return None
        return self.shell.runtime.machine.topic(name)

    def sees(self, broker: BrokerId) -> bool:
        """The broker has a session with it."""
        if self.shell is None:
            return False
        known = self.shell.runtime.machine.stored.cluster.brokers.get(broker)
        return known is not None and known.alive

    def start(self) -> None:
        """A new process; it takes the lead if it gets the lease."""
        assert not self.up
        self._life += 1
        self.world.scheduler.note(self.name, "start")
        self.shell = ControllerShell(self.world, self.id, self._life)

    def kill(self) -> None:
        """Everything but the store is gone."""
        assert self.shell is not None
        self.world.scheduler.note(self.name, "kill")
        self.shell.loop.kill()
        self.world.graveyard.append(self.shell)
        self.shell = None

    def request(
        self, request: cc.Request, answered: Callable[[object], None] = lambda _answer: None
    ) -> None:
        """A call of a client. `answered` gets the result or the error, unless it dies before."""
        shell = self.shell
        if shell is not None:
            shell.loop.start(reporting(shell.loop, partial(shell.ask, request, answered)))
