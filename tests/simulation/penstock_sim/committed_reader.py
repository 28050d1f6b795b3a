"""A reader of committed records, wherever its partition is led.

It gets batches below the last stable offset, without those that the leader's index marks as
aborted, and without control batches. What it sees must have been committed, what it does not see
aborted (I11); the last stable offset that it sees never falls (I2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.types import Offset, ReplicaKey
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock.core.batch import Batch
    from penstock.core.replication import contract as rc
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

_CHECK_EVERY = 8


class CommittedReader:
    """Reads one partition from its beginning."""

    def __init__(self, world: World, key: ReplicaKey) -> None:
        self.world = world
        self.key = key
        self.position = Offset(0)
        self.seen: set[bytes] = set()
        self.missed: set[bytes] = set()
        """Values that retention removed before they were read."""
        self._epoch = 0
        self._stable = 0
        self._reads = 0

    def start(self) -> None:
        self.world.scheduler.after(self.world.scheduler.between(5, 40), self._poll)

    def _poll(self) -> None:
        self.start()
        broker, _ = self.world.find_leader(self.key)
        replica = broker.replicas.get(self.key) if broker.up else None
        if replica is None or self.world.transaction_checks.void:
            return
        marks = replica.machine.marks
        if marks.is_leader and marks.leader_epoch >= self._epoch:
            self._fetch(broker, replica, marks)

    def _fetch(self, broker: SimBroker, replica: Replica, marks: rc.Marks) -> None:
        self._epoch = marks.leader_epoch
        if marks.high_watermark < marks.epoch_start_offset:
            return
        if marks.last_stable_offset < self._stable:
            raise RuleError(f"I2: a reader saw last stable offset {self._stable}, now {marks}")
        self._stable = marks.last_stable_offset
        if self.position < marks.log_start_offset:
            self._skip(marks.log_start_offset)
        self._reads += 1
        if self._reads % _CHECK_EVERY == 0:
            self.world.transaction_checks.check_index(broker, replica)
        batches = broker.read(replica, self.position, marks.last_stable_offset, 8)
        if not batches:
            return
        end = batches[-1].next_offset
        aborted = broker.disk.aborted(replica.slot, self.position, end)
        hidden = {(one.producer_id, one.producer_epoch) for one in aborted}
        hides = [
            batch.header.is_control
            or (batch.header.is_transactional and _transaction(batch) in hidden)
            for batch in batches
        ]
        if self.world.compacts:
            batches = self.world.compaction_checks.seen(self.key, self.position, batches, hides)
            hides = [False] * len(batches)
        for batch, is_hidden in zip(batches, hides, strict=True):
            self._read(batch, is_hidden=is_hidden)
        self.position = end

    def _read(self, batch: Any, *, is_hidden: bool) -> None:
        header = batch.header
        outcome = self.world.transaction_checks.outcomes.get(
            (header.producer_id, header.producer_epoch)
        )
        if not header.is_transactional or header.is_control:
            return
        if is_hidden is outcome:
            raise RuleError(f"I11: {header} has outcome {outcome}, and hidden is {is_hidden}")
        if outcome is None:
            raise RuleError(f"I11: {header} lies below the last stable offset, nobody decided")
        if not is_hidden:
            if batch.payload in self.seen:
                raise RuleError(f"I11: {batch.payload!r} was read twice")
            self.seen.add(batch.payload)

    def _skip(self, to: Offset) -> None:
        canon = self.world.checks.canon(self.key)
        for batch in canon.batches:
            if self.position <= batch.base_offset < to:
                self.missed.add(batch.payload)
        self.position = to


def _transaction(batch: Batch) -> tuple[int, int]:
    return batch.header.producer_id, batch.header.producer_epoch
