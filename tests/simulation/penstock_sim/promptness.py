"""I14 by simulated time: while everything is reachable, nothing stays open or unfinished for long.

    healed ─▶ every ISR is large enough, one coordinator is loaded ─▶ the clock runs
        open past its timeout, or decided without a marker, for `LATE_MS` more: broken
    another leader or coordinator ─▶ the clock starts again: that is the one failover

Checked every 100 ms once the nemesis is over. Before that, nothing is reachable for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.types import ReplicaKey
from penstock_sim.scheduler import BASE_TIME_MS, RATE, RuleError

if TYPE_CHECKING:
    from penstock_sim.transactional import Who
    from penstock_sim.transactions import WatchedCoordinator
    from penstock_sim.world import World

LATE_MS: Final = 5_000
"""As I14 says. Most are on time; a pipe's group took 600 ms when it had just got a new leader."""


class Promptness:
    """Checks one history; raises `RuleError`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reached: tuple[object, ...] | None = None
        self._since_ms = 0
        self._undecided: dict[tuple[str, Who], int] = {}

    def look(self) -> None:
        """Called often; only what is seen twice is a violation."""
        world = self._world
        if world.transactions is None or world.transaction_checks.void:
            return
        now_ms = world.scheduler.now_ms
        reached = self._reachable()
        if reached is None or reached != self._reached:
            self._reached, self._since_ms = reached, now_ms
            self._undecided.clear()
        if reached is not None:
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        host = self._host()
        assert host is not None
        seen: dict[tuple[str, Who], int] = {}
        for holder in host.machine.holders.values():
            for branch in holder.branches.values():
                record = branch.record
                if record.is_open:
                    due_ms = (record.started_ms - BASE_TIME_MS + record.timeout_ms) // RATE
                    name = f"{branch} is open, its timeout was {record.timeout_ms} ms"
                    seen[name, (record.producer_id, record.epoch)] = max(due_ms, self._since_ms)
                for participant, ending in branch.finishing.items():
                    name = f"{participant} has not heard of the end of {branch}"
                    seen[name, (ending.producer_id, ending.epoch)] = now_ms
        for key in self._world.data_keys:
            for who in self._world.transaction_checks.view(key).open:
                if who in self._world.transaction_checks.outcomes:
                    seen[f"{key} has no marker", who] = now_ms
        self._undecided = {one: self._undecided.get(one, due) for one, due in seen.items()}
        for (name, who), due_ms in self._undecided.items():
            if now_ms > due_ms + LATE_MS:
                raise RuleError(f"I14: {name}: {who} is {now_ms - due_ms} ms late")

    def _host(self) -> WatchedCoordinator | None:
        """The coordinator, if there is one and it serves."""
        hosts = [broker.transactions for broker in self._world.brokers.values()]
        current = [one.current for one in hosts if one is not None and one.current is not None]
        live = [one for one in current if one.loaded and one.closed is None]
        return live[0] if len(live) == 1 else None

    def _reachable(self) -> tuple[object, ...] | None:
        """Leaders and coordinator; None: not everything is reachable."""
        host = self._host()
        if host is None:
            return None
        leaders = [self._leader(key) for key in self._world.all_keys]
        return None if None in leaders else (host, *leaders)

    def _leader(self, key: ReplicaKey) -> tuple[int, int] | None:
        """Broker and epoch; None: no leader with a large enough ISR."""
        found = []
        for broker in self._world.brokers.values():
            replica = broker.replicas.get(key)
            if broker.up and replica is not None and replica.machine.error is None:
                marks = replica.machine.marks
                if marks.is_leader and len(marks.isr) >= self._world.checks.min_isr(key):
                    found.append((int(broker.id), int(marks.leader_epoch)))
        return found[0] if len(found) == 1 else None
