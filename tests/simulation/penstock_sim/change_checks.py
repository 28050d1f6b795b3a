"""What brokers may remove by a topic's settings as they know them (I20).

    retention_start ─▶ decided      LogStartMoved ─▶ moves_start
    plan of a pass ──▶ planned      rewrite ───────▶ rewrites

Retention removes only what was older, or more, than the topic retains, and only while its policy
deletes; compaction removes only while its policy compacts, and nothing young. A broker that has
heard of other settings goes by these: whatever it had begun before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.batch import Batch
    from penstock.core.compaction.plan import Plan
    from penstock.core.topic import TopicConfig
    from penstock.core.types import Offset, ReplicaKey
    from penstock_broker.maintenance.compaction import Pass
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World


@dataclass(frozen=True, slots=True)
class Removal:
    """A batch that retention wants to remove, and how many bytes remain without it."""

    end: Offset
    newest_ms: int
    left_bytes: int

    def is_due(self, config: TopicConfig, now_ms: int) -> bool:
        old = 0 <= config.retention_ms < now_ms - self.newest_ms
        return old or 0 <= config.retention_bytes <= self.left_bytes


class ChangeChecks:
    """Of one history; raises `RuleError`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._removals: dict[tuple[int, ReplicaKey], tuple[Removal, ...]] = {}
        """What the last look of retention wants to remove, by broker."""
        self._passes: dict[tuple[int, ReplicaKey], Pass] = {}
        """The last of each broker and partition."""
        self._began: dict[tuple[int, ReplicaKey], TopicConfig] = {}
        """The settings with which it began."""
        self.retained = 0
        self.rewritten = 0

    def decided(self, broker: SimBroker, key: ReplicaKey, batches: Sequence[Batch]) -> None:
        """Retention has looked at these batches, the whole log of `key`."""
        left_bytes = sum(batch.size_bytes for batch in batches)
        found = []
        for batch in batches:
            left_bytes -= batch.size_bytes
            newest_ms = batch.header.effective_max_timestamp_ms
            found.append(Removal(batch.next_offset, newest_ms, left_bytes))
        self._removals[int(broker.id), key] = tuple(found)

    def moves_start(self, broker: SimBroker, replica: Replica, log_start: Offset) -> None:
        """Before a leader's log start moves."""
        marks, config, key = replica.machine.marks, replica.config, replica.key
        who = f"{broker.name} moves the log start of {key} to {log_start}"
        if not marks.is_leader or replica.machine.error is not None:
            return
        if log_start > marks.last_stable_offset:
            raise RuleError(f"I20: {who}, past what is decided: {marks}")
        if not config.cleanup_policy.deletes:
            raise RuleError(f"I20: {who}, its policy is {config.cleanup_policy}")
        now_ms = self._world.scheduler.wall_ms
        for removal in self._removals[int(broker.id), key]:
            if marks.log_start_offset < removal.end <= log_start:
                self.retained += 1
                if not removal.is_due(config, now_ms):
                    raise RuleError(f"I20: {who} at {now_ms} ms, and removes {removal} by {config}")

    def planned(self, config: TopicConfig, plan: Plan, log: Sequence[Batch], who: str) -> None:
        """Compaction has planned a pass over this log."""
        lag_ms = config.min_compaction_lag_ms
        oldest_ms = self._world.scheduler.wall_ms - lag_ms
        for batch in log:
            young = batch.header.effective_max_timestamp_ms >= oldest_ms
            if lag_ms and young and batch.base_offset < plan.end:
                raise RuleError(f"I20: {who} compacts {batch.header}, younger than {lag_ms} ms")

    def begins(self, broker: SimBroker, replica: Replica, job: Pass) -> None:
        """A pass over the replica's log begins."""
        self._passes[int(broker.id), replica.key] = job
        self._began[int(broker.id), replica.key] = replica.config

    def rewrites(self, broker: SimBroker, replica: Replica) -> None:
        """Before compaction replaces batches."""
        self.rewritten += 1
        policy, job = replica.config.cleanup_policy, self._passes[int(broker.id), replica.key]
        plan, kept_ms = job.plan, replica.config.delete_retention_ms
        began = self._began[int(broker.id), replica.key]
        if replica.config.min_compaction_lag_ms > began.min_compaction_lag_ms:
            raise RuleError(f"I20: {broker.name} goes on by {began}, it is {replica.config} now")
        if plan.tombstones_end and kept_ms > plan.delete_retention_ms:
            raise RuleError(
                f"I20: {broker.name} removes null values of {replica.key} that are older than "
                f"{plan.delete_retention_ms} ms, it is to keep them for {kept_ms} ms"
            )
        if not policy.compacts:
            raise RuleError(f"I20: {broker.name} compacts {replica.key}, its policy is {policy}")
        self._world.compaction_checks.planned(broker, replica, plan)
