"""A broker as the world has it: its disk for ever, one run of its process while `up`.

The shells of a run are the production's (`shell`). Here is what the world does with it: start,
kill, power loss; its session, its coordinators, requests of clients. `kill` forgets all but the
disk.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.core.batch import Batch
from penstock.core.compaction.plan import Cleaned
from penstock.core.control.journal.contract import Journal
from penstock.core.replication import contract as rc
from penstock.core.replication import contract_leader as lc
from penstock.core.types import BrokerId, Offset, PartitionState, ReplicaKey
from penstock.errors import PenstockError
from penstock_broker.replication.replica import Replica
from penstock_broker.services.settings import check_settings
from penstock_broker.store.interface import LogStore, Rewrite
from penstock_broker.store.losses import promise_nothing
from penstock_sim.compaction import Compactor
from penstock_sim.coordination import SimCoordination
from penstock_sim.coordinator import GroupDesk
from penstock_sim.directory import SimDirectory
from penstock_sim.disk import SimDisk
from penstock_sim.rebirth import is_reborn
from penstock_sim.shell import Shell
from penstock_sim.transactions import TransactionDesk

if TYPE_CHECKING:
    from penstock_sim.restoring import VolumeCopy
    from penstock_sim.world import World

CRASH_AGAIN_EVERY: Final = 7
"""In one of so many histories with a blackout brokers are killed as soon as they registered."""
_CRASHES: Final = 6
_next_offset = attrgetter("next_offset")


class SimBroker:
    """One broker id."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.id = BrokerId(broker_id)
        self.name = f"b{broker_id}"
        self.disk = SimDisk(world.scheduler)
        self._disks = 1
        self.shell: Shell | None = None
        self._last: Shell | None = None
        self.directory = SimDirectory(self.id, self.accepted, self._kept)
        self.lost_writes = False
        """Ever."""
        self.incarnation = 0
        self.coordination: SimCoordination | None = None
        """Of this run, or the last one; None: nothing to coordinate in this history."""
        self._own: dict[int, lc.ProduceRequested | lc.EndRequested] = {}
        """What its coordinators append, and the markers asked for, by number."""
        self._next_request = 0

    @property
    def up(self) -> bool:
        return self.shell is not None

    @property
    def coordinators(self) -> GroupDesk | None:
        return None if self.coordination is None else self.coordination.groups

    @property
    def transactions(self) -> TransactionDesk | None:
        return None if self.coordination is None else self.coordination.transactions

    @property
    def intact(self) -> bool:
        """What the next registration says of the data; a loss that was accepted is said once."""
        return self.directory.data_intact

    @property
    def names_generations(self) -> bool:
        """Its directory does, as in production: where volumes are restored."""
        damage = self.world.damage
        return damage is not None and damage.restoring.wanted

    @property
    def run(self) -> str:
        """Names this run of the process, or the last one."""
        return f"{self.id}.{self.incarnation}"

    @property
    def replicas(self) -> dict[ReplicaKey, Replica]:
        """Of this run; while it is down, of the last one."""
        return {} if self._last is None else self._last.replicas.by_key

    # ------------------------------------------------------------ process

    def start(self) -> None:
        """A new process on the same disk."""
        assert not self.up
        self.incarnation += 1
        self.disk.is_closed = False
        if self.names_generations:
            self.directory.opened()
        if not self.intact:
            promise_nothing(cast("LogStore", self.disk))  # it has what this needs
        self.world.scheduler.note(self.name, "start", f"intact={self.intact}")
        self.shell = self._last = Shell(self)
        self._own = {}
        if self.world.groups is not None or self.world.transactions is not None:
            self.coordination = SimCoordination(
                self, self.shell.transport, self.shell.config.settings
            )
            self.coordination.start()
        if self.world.compacts and self.world.changes is None:
            Compactor(self).start()

    def kill(self, *, power: bool) -> None:
        """kill -9, or the machine loses power (and what was not synced)."""
        assert self.shell is not None
        self.world.scheduler.note(self.name, "power loss" if power else "kill")
        self.shell.kill()
        self.world.graveyard.append(self.shell)
        self.shell = None
        if power:
            self.lose_writes()
        for stream in self.world.net.streams:
            if self.id in (stream.opener, stream.acceptor):
                stream.break_off(silent_for=self.id)
        self.world.checks.broker_down(self)
        if self.world.damage is not None:
            self.world.damage.down(self)

    def stop(self, stopped: Callable[[], None]) -> None:
        """SIGTERM: hands over, fsyncs, ends, and then calls `stopped`, unless it is killed."""
        shell = self.shell
        assert shell is not None
        self.world.scheduler.note(self.name, "stop")

        async def act() -> None:
            clean = await shell.stop()
            self.world.scheduler.after(0.001, self._ended, shell, clean, stopped)

        shell.start(act)

    def _ended(self, shell: Shell, clean: bool, stopped: Callable[[], None]) -> None:
        if self.shell is not shell:
            return
        self.kill(power=False)
        if clean:
            self.disk.close()
        self.world.scheduler.note(self.name, "has stopped", clean)
        stopped()

    def switch_off(self) -> None:
        """Its machine, while no process runs on it; what a clean stop left there is on disk."""
        if not self.up and self.disk.is_closed:
            self.disk.lose_power()

    def lose_writes(self) -> None:
        """Of a machine without power."""
        self.disk.lose_power()
        self.lost_writes = True
        self.directory.set_intact(False)

    def replace_disk(self) -> None:
        """It gets an empty one: a broker with its id, and nothing else that it had."""
        assert not self.up
        self._disks += 1
        self.world.scheduler.note(self.name, "new disk", self._disks)
        self.disk = SimDisk(self.world.scheduler)
        self.lost_writes = True
        self.directory = SimDirectory(self.id, self.accepted, self._kept, self._disks)
        self.world.checks.broker_down(self)

    def restore(self, copy: VolumeCopy) -> None:
        """Its volume is as it was when that was made; nothing there says so."""
        assert not self.up
        self.world.scheduler.note(self.name, "its volume is restored", copy.directory.meta)
        self.disk = copy.disk
        self.lost_writes = True
        self.directory.restore(copy.directory)
        self.world.checks.broker_down(self, restored=True)

    def refused(self, shell: Shell) -> None:
        """Its data directory is older than the cluster knows: its process ends, and starts again.

        As wherever it runs: by Kubernetes, or by `penstock local`.
        """
        self.world.scheduler.note(self.name, "is refused", self.directory.generations)
        self.world.scheduler.after(0.001, self._end_refused, shell)

    def _end_refused(self, shell: Shell) -> None:
        if self.shell is shell:
            self.kill(power=False)
            self.world.scheduler.after(20, self._start_if_down)

    def accepted(self) -> None:
        """A controller knows of this run, and of what it lost. In some histories it dies then."""
        world = self.world
        doomed = world.seed % CRASH_AGAIN_EVERY == CRASH_AGAIN_EVERY - 2 and world.blackout
        doomed = doomed and self.lost_writes and self.incarnation < _CRASHES
        if doomed and world.scheduler.chance(0.6):
            delay_ms = world.scheduler.between(0, 10)
            world.scheduler.after(delay_ms, self._crash, self.incarnation)

    def _crash(self, incarnation: int) -> None:
        if self.up and incarnation == self.incarnation:
            self.kill(power=False)
            self.world.scheduler.after(20, self._start_if_down)

    def _start_if_down(self) -> None:
        if not self.up:
            self.start()

    # ------------------------------------------------------------ machines

    def handle(self, replica: Replica, event: rc.Event) -> None:
        """An event from the world, not from a shell."""
        shell = self.shell
        if shell is not None:
            act = partial(shell.replicas.handle, replica, event)
            shell.loop.when_running(partial(shell.loop.run, act))

    def handled(self, replica: Replica, event: rc.Event, before: rc.Marks, ready: rc.Ready) -> None:
        """A machine has decided; the shell has yet to obey."""
        if self.world.scheduler.traced:
            shown = [] if ready is rc.NOTHING else [f"-> {_shorten(ready)}"]
            self.world.scheduler.note(self.name, f"p{replica.key.partition}", event, *shown)
        self.world.checks.handled(self, replica, before, replica.machine.marks, ready)
        if isinstance(event, lc.ProduceRequested) and self.world.changes is not None:
            self.world.changes.limits.handled(replica, event, ready)
        if isinstance(event, lc.ProduceRequested | lc.EndRequested) and event.request_id < 0:
            self._own[event.request_id] = event
        for reply in ready.replies:
            asked = self._own.pop(reply.request_id, None)
            if asked is not None and reply.error is None:
                self._answered(replica, asked, reply)

    def _answered(
        self,
        replica: Replica,
        asked: lc.ProduceRequested | lc.EndRequested,
        reply: lc.ProduceReply,
    ) -> None:
        if isinstance(asked, lc.EndRequested):
            self.world.transaction_checks.marked(self, replica.key, asked, reply)
        else:
            self.world.checks.acknowledged(self, replica, asked.batch, reply)

    def start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Of this run, which nobody waits for: what it raises ends the history."""
        assert self.shell is not None
        loop = self.shell.loop

        def ended(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and not loop.dead:
                self.world.scheduler.fail(error)

        loop.start(coroutine).add_done_callback(ended)

    def told(self, key: ReplicaKey, state: PartitionState) -> None:
        """By a controller, in an image or an answer."""
        self.check(partial(self.world.checks.told, key, state))

    def _kept(self, journal: Journal) -> None:
        """It is on disk."""
        self.check(partial(self.world.checks.journal_kept, self.id, journal))

    def check(self, check: Callable[[], None]) -> None:
        """In a shell's task: what is raised there might be swallowed."""
        try:
            check()
        except Exception as error:  # noqa: BLE001 - as above
            self.world.scheduler.fail(error)

    def rewrite(
        self,
        replica: Replica,
        rewrite: Rewrite | None,
        cleaned: Cleaned | None,
        done: Callable[[bool], None],
    ) -> None:
        """Replaces batches with the next write, or stores what a pass did."""
        shell = self.shell
        assert shell is not None

        async def act() -> None:
            truncations = replica.truncations
            done(await shell.replicas.rewrite(replica, rewrite, cleaned, truncations))

        shell.start(act)

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

    # ------------------------------------------------------------ clients

    def produce(self, key: ReplicaKey, request: dict[str, Any], respond: Any) -> None:
        """A client's request; `respond(ProduceReply)` is called at most once."""
        if self.shell is not None:
            self.shell.loop.when_running(partial(self._produce, key, request, respond))

    def _produce(self, key: ReplicaKey, request: dict[str, Any], respond: Any) -> None:
        replica, shell, rebirth = self.replicas.get(key), self.shell, self.world.rebirth
        if shell is None:
            return
        refusal: PenstockError | None = shell.refusal()
        if rebirth is not None and is_reborn(key) and not request.get("transactional_id"):
            found = rebirth.find(shell.view, key)
            if isinstance(found, ReplicaKey):
                replica = self.replicas.get(found)
            else:
                refusal = refusal or found
        if replica is None and refusal is None:
            return
        if refusal is not None:
            respond(lc.ProduceReply(request_id=0, base_offset=Offset(-1), error=refusal))
            return
        assert replica is not None
        event = lc.ProduceRequested(
            request_id=self._awaited(replica, request["batch"], respond),
            batch=request["batch"],
            acks=request["acks"],
            sync=request["sync"],
            deadline_ms=shell.deadline_ms(request["timeout_ms"]),
            expected_epoch=request["expected_epoch"],
            transactional_id=request.get("transactional_id", ""),
            refusal=self._refusal(replica, request["batch"]),
        )
        self.handle(replica, event)

    def _refusal(self, replica: Replica, batch: Batch) -> PenstockError | None:
        """Why the settings of its topic do not allow it, in histories in which they change."""
        if self.world.changes is None or self.shell is None:
            return None
        try:
            check_settings(batch, replica.config, replica, self.shell.clock.wall.look())
        except PenstockError as error:
            return error
        return None

    def _awaited(
        self, replica: Replica, batch: Batch, respond: Callable[[lc.ProduceReply], None]
    ) -> int:
        """The number of a request that `respond` waits for."""
        scheduler, changes = self.world.scheduler, self.world.changes

        def answered(reply: lc.ProduceReply) -> None:
            try:
                hibernation = self.world.hibernation
                if reply.error is None and hibernation is not None:
                    hibernation.checks.acknowledged(replica.key, self.name)
                if changes is not None:
                    changes.limits.answered(replica, batch, reply)
                respond(reply)
            except Exception as error:  # noqa: BLE001 - in a shell's task: it might be swallowed
                scheduler.fail(error)

        self._next_request += 1
        replica.pending[self._next_request] = answered
        return self._next_request


def _shorten(ready: rc.Ready) -> str:
    """Only the fields that say something."""
    shown = []
    for name in ready.__slots__:
        value = getattr(ready, name)
        if value not in (None, (), 0, False):
            shown.append(f"{name}={value}")
    return ", ".join(shown)
