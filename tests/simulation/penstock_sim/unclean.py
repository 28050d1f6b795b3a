"""Unclean elections: whoever is alive leads, whatever it lacks, and everybody follows it.

What the elected broker has in common with what was committed is what is committed from then on. A
deposed leader that has not heard of it may acknowledge a while longer, which counts for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.types import NO_LEADER, ReplicaKey
from penstock_sim.compaction_checks import records_of

if TYPE_CHECKING:
    from penstock.core.batch import Batch
    from penstock.core.control.partition import PartitionDocument
    from penstock.core.replication import contract as rc
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World


class UncleanElections:
    """Those of one history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._epochs: dict[ReplicaKey, int] = {}
        self._cut: set[tuple[int, ReplicaKey]] = set()
        self.count = 0

    def was_elected(self, key: ReplicaKey) -> bool:
        """Somebody was."""
        return key in self._epochs

    def is_deposed(self, key: ReplicaKey, marks: rc.Marks) -> bool:
        """It led before the last one: what it says does not count."""
        return marks.leader_epoch < self._epochs.get(key, 0)

    def cuts(self, broker: SimBroker, key: ReplicaKey, marks: rc.Marks) -> bool:
        """Whether this broker truncates its log after it was elected, and before it is told of it:
        it follows the leader before. What it has then is what is committed."""
        state = self._world.checks.stored[key].state
        known = self._epochs.get(key, 0)
        if state.leader != broker.id or not marks.leader_epoch < known <= state.leader_epoch:
            return False
        self._cut.add((int(broker.id), key))
        return True

    def has_cut(self, broker: SimBroker, key: ReplicaKey) -> bool:
        """Once per `cuts`, when that is written."""
        place = (int(broker.id), key)
        if place not in self._cut:
            return False
        self._cut.remove(place)
        self._rewind(broker, key)
        return True

    def changed(
        self,
        key: ReplicaKey,
        before: PartitionDocument,
        after: PartitionDocument,
        holders: set[int],
    ) -> bool:
        """After a change of the stored partition; `holders` had all that is committed. Whether the
        new leader is none of them."""
        old, new = before.state, after.state
        if not self._world.may_elect_anyone(key) or new.leader == NO_LEADER:
            return False
        if new.leader_epoch == old.leader_epoch or int(new.leader) in holders:
            return False
        self._epochs[key] = new.leader_epoch
        self.count += 1
        self._rewind(self._world.brokers[new.leader], key)
        return True

    def _rewind(self, leader: SimBroker, key: ReplicaKey) -> None:
        checks = self._world.checks
        canon, slot = checks.canon(key), leader.disk.open_slot(key)
        log = leader.disk.batches(slot)
        log_start = leader.disk.store.recover(slot).checkpoint.log_start_offset
        there = {batch.base_offset: batch for batch in log}
        known = leader.disk.store.recover(slot).checkpoint.high_watermark
        if leader.up and (replica := leader.replicas.get(key)) is not None:
            known = replica.machine.marks.high_watermark
        end = min(log_start, canon.end)
        if self._world.compacts and key in self._world.keys:
            end = self._shared_end(key, log, end)
            checks.disk.forgive(key)
        else:
            for batch in canon.batches:
                if batch.next_offset <= log_start:
                    continue
                if there.get(batch.base_offset) != batch:
                    break
                end = batch.next_offset
        self._world.scheduler.note("checks", "unclean election", key, leader.name, end, canon.end)
        checks.lossy.add(key)
        checks.lost.discard((int(leader.id), key))
        checks.moving.rewound(key)
        canon.disk_end = min(canon.disk_end, end)
        canon.rewind_to(end, log)
        canon.adopt([one for one in log if end <= one.base_offset and one.next_offset <= known])
        self._world.forgive(key)

    def _shared_end(self, key: ReplicaKey, log: list[Batch], end: int) -> int:
        """Up to where a compacted log has nothing but what was committed, from `end` on."""
        canon = self._world.checks.canon(key)
        committed = {
            offset: record
            for batch in canon.batches
            for offset, record in records_of(batch).items()
        }
        for batch in log:
            if batch.next_offset <= end:
                continue
            same = canon.by_base.get(batch.base_offset) == batch
            if not same and batch.header.is_compacted:
                found = records_of(batch)
                same = all(committed.get(offset) == one for offset, one in found.items())
            if batch.next_offset > canon.end or not same:
                break
            end = batch.next_offset
        return end
