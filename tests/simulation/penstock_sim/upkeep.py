"""What a broker removes in the background: the retention and the compaction that ship.

    Retention ─▶ LogStartMoved ─▶ machine      Compaction ─▶ Rewrite ─▶ LogWriter

Their threads are the node's; steps are small, so that the world can change between them.
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.core.compaction.keymap import KeyMap
from penstock.core.compaction.plan import LogFacts, Plan
from penstock.core.topic import TopicConfig
from penstock.core.types import Offset, ReplicaKey
from penstock.core.wall_clock import WallTime
from penstock.errors import PenstockError
from penstock_broker.broker.replication import BrokerSeams
from penstock_broker.config import Settings
from penstock_broker.maintenance.compaction import Compaction, Pass
from penstock_broker.maintenance.retention import Retention
from penstock_broker.store.interface import LogStore, Slot
from penstock_sim.compaction import SimPass
from penstock_sim.node_loop import SimExecutor

if TYPE_CHECKING:
    from penstock_sim.broker import SimBroker
    from penstock_sim.shell import Shell

_RETENTION_S: Final = (0.3, 1.0)
_COMPACTION_MS: Final = (100, 400, 1_000)
_KEY_MAP_BYTES: Final = 1 << 20


class _Metrics:
    """Nobody measures here; a failure that no caller may cause ends the history."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self.failures = self
        self.bytes_read = self
        self.count = self.observe_waiting = lambda _what: None

    def inc(self, _amount: float = 1) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, PenstockError):
            self._broker.world.scheduler.fail(error)


class _Disk:
    """As `DiskGuard`."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker

    @property
    def is_full(self) -> bool:
        return self._broker.disk.full


class WatchedCompaction(Compaction):
    """The production's, and a world that looks over its shoulder."""

    def __init__(self, shell: Shell, store: LogStore, backoff_ms: int, chunk_bytes: int) -> None:
        broker = shell.broker
        chance = broker.world.scheduler.generator(f"compaction of {shell.run}")
        super().__init__(
            shell.replicas,
            store,
            cast("Any", _Metrics(broker)),
            Settings(cleaner_backoff_ms=backoff_ms),
            cast("Any", _Disk(broker)),
            shell.clock,
        )
        self._executor = SimExecutor(shell.loop, lambda: chance.uniform(0.05, 4))
        self._broker = broker
        self._chunk_bytes = chunk_bytes

    def pass_on(self, slot: Slot, facts: LogFacts, plan: Plan, end: Offset) -> Pass:
        world, broker = self._broker.world, self._broker
        world.scheduler.note(broker.name, "compacts", slot, plan)
        keys, size = KeyMap(_KEY_MAP_BYTES), self._chunk_bytes
        job = SimPass(self._store, slot, facts, plan, keys, end, chunk_bytes=size)
        for replica in broker.replicas.values():
            if replica.slot == slot and world.changes is not None:
                world.changes.checks.begins(broker, replica, job)
                world.changes.tombstones.planned(broker, replica, plan)
        return job

    def _look(
        self,
        slot: Slot,
        end: Offset,
        config: TopicConfig,
        copied_to: Offset | None,
        now: WallTime,
    ) -> tuple[LogFacts, Plan | None]:
        facts, plan = super()._look(slot, end, config, copied_to, now)
        changes, who = self._broker.world.changes, self._broker.name
        if plan is not None and changes is not None:
            log = self._broker.disk.batches(slot)
            self._broker.check(partial(changes.checks.planned, config, plan, log, who))
        return facts, plan


class WatchedRetentionStore:
    """A broker's store, for `Retention`."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker

    def retention_start(self, slot: Slot, **limits: Any) -> Offset | None:
        found: Offset | None = self._broker.disk.store.retention_start(slot, **limits)
        changes = self._broker.world.changes
        if found is not None and changes is not None:
            changes.checks.decided(self._broker, self._key(slot), self._broker.disk.batches(slot))
        return found

    def _key(self, slot: Slot) -> ReplicaKey:
        [key] = [key for key, one in self._broker.disk.slots().items() if one == slot]
        return key

    def reclaim(self) -> None:
        """Nothing is reclaimed here."""


def upkeep(shell: Shell, seams: BrokerSeams) -> tuple[Coroutine[Any, Any, None], ...]:
    """The coroutines to run until they are cancelled."""
    chance = shell.broker.world.scheduler.generator(f"upkeep of {shell.run}")
    retention = Retention(
        shell.replicas,
        cast("LogStore", WatchedRetentionStore(shell.broker)),
        seams.maintaining,
        shell.clock,
        interval_s=chance.choice(_RETENTION_S),
    )
    backoff_ms, chunk_bytes = chance.choice(_COMPACTION_MS), chance.choice((300, 1_000, 5_000))
    compaction = WatchedCompaction(shell, seams.store, backoff_ms, chunk_bytes)
    return retention.run(), compaction.run()
