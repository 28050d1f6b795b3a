"""What was acknowledged with sync=DISK outlasts a power loss of all brokers, in compacted logs too.

Such a record is in the log that goes on, or a newer visible one of its key is. What superseded it
may have been lost with the power: then compaction must not have removed it, on no replica that
leads later. Without compaction `Checks` compares batch by batch.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock_sim.compaction_checks import records_of
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.batch import Batch
    from penstock.core.types import ReplicaKey
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World


class DiskChecks:
    """Remembers what was acknowledged in compacted partitions; raises `RuleError`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._acknowledged: defaultdict[ReplicaKey, dict[int, Batch]] = defaultdict(dict)
        self._former_nulls: dict[ReplicaKey, dict[bytes | None, int]] = {}
        """Of histories that unclean elections ended; some of it may be in those that went on."""

    def acknowledged(self, key: ReplicaKey, batch: Batch) -> None:
        """With sync=DISK, as it was committed."""
        self._acknowledged[key][batch.base_offset] = batch

    def forgive(self, key: ReplicaKey) -> None:
        """After an unclean election: what was acknowledged before need not be there."""
        self._former_nulls[key] = self._nulls(key, self.world.checks.canon(key).end)
        self._acknowledged.pop(key, None)

    def check(self, key: ReplicaKey, log: Sequence[Batch], log_start: int, who: str) -> None:
        """All of it is in this log, from its start on."""
        there = visible(log)
        newest = {record[0]: offset for offset, record in sorted(there.items())}
        nulls = self._nulls(key, log[-1].next_offset if log else log_start)
        for batch in self._acknowledged[key].values():
            for offset, record in records_of(batch).items():
                if offset < log_start or record[1] is None or there.get(offset) == record:
                    continue
                if max(newest.get(record[0], -1), nulls.get(record[0], -1)) <= offset:
                    raise RuleError(
                        f"I7: {who} lacks {record} at {offset} of {key}, acknowledged on disk, and "
                        "has nothing newer of its key"
                    )

    def check_same(self, key: ReplicaKey, brokers: Sequence[SimBroker]) -> None:
        """At the end, when all is committed: the newest value of each key is on all of them.

        Each compacts its log for itself. Who was offline for long may have a value whose null value
        is gone elsewhere.
        """
        logs, start, newest = {}, 0, dict[bytes | None, int]()
        for broker in brokers:
            replica = broker.replicas[key]
            logs[broker.name] = visible(broker.disk.batches(replica.slot))
            start = max(start, replica.machine.marks.log_start_offset)
        for there in logs.values():
            for offset, (name, _) in there.items():
                newest[name] = max(newest.get(name, -1), offset)
        nulls = self._nulls(key, self.world.checks.canon(key).end)
        for name, offset in newest.items():
            if nulls.get(name, -1) > offset:
                continue
            found = {who: there.get(offset) for who, there in logs.items()}
            values = {record[1] for record in found.values() if record is not None}
            if offset >= start and values != {None} and len({*found.values()}) > 1:
                raise RuleError(f"I3: the newest record of {name!r}, at {offset} of {key}: {found}")

    def _nulls(self, key: ReplicaKey, end: int) -> dict[bytes | None, int]:
        """The newest null value of each key that was committed below `end`: compaction may have
        removed it, too, once it had superseded others. What was lost past `end` supersedes nothing.
        """
        ended = self.world.transaction_checks.view(key).ended
        former = self._former_nulls.get(key, {})
        found = {name: offset for name, offset in former.items() if offset < end}
        for batch in self.world.checks.canon(key).batches:
            header = batch.header
            _, commit = ended.get((header.producer_id, header.producer_epoch), (0, True))
            if header.is_control or (header.is_transactional and not commit):
                continue
            for offset, (name, value) in records_of(batch).items():
                if value is None and offset < end:
                    found[name] = max(found.get(name, -1), offset)
        return found


def visible(log: Sequence[Batch]) -> dict[int, tuple[bytes | None, bytes | None]]:
    """The records that a reader of committed records gets, by this log's own markers."""
    commits = {
        (batch.header.producer_id, batch.header.producer_epoch)
        for batch in log
        if batch.header.is_marker and batch.header.commits
    }
    found = {}
    for batch in log:
        header = batch.header
        decided = (header.producer_id, header.producer_epoch) in commits
        if not header.is_control and (decided or not header.is_transactional):
            found.update(records_of(batch))
    return found
