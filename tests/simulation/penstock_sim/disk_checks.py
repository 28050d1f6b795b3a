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
    from penstock_sim.world import World


class DiskChecks:
    """Remembers what was acknowledged in compacted partitions; raises `RuleError`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._acknowledged: defaultdict[ReplicaKey, dict[int, Batch]] = defaultdict(dict)

    def acknowledged(self, key: ReplicaKey, batch: Batch) -> None:
        """With sync=DISK, as it was committed."""
        self._acknowledged[key][batch.base_offset] = batch

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

    def _nulls(self, key: ReplicaKey, end: int) -> dict[bytes | None, int]:
        """The newest null value of each key that was committed below `end`: compaction may have
        removed it, too, once it had superseded others. What was lost past `end` supersedes nothing.
        """
        ended = self.world.transaction_checks.view(key).ended
        found: dict[bytes | None, int] = {}
        for batch in self.world.checks.canon(key).batches:
            header = batch.header
            _, commit = ended.get((header.producer_id, header.producer_epoch), (0, True))
            if header.is_control or (header.is_transactional and not commit):
                continue
            for offset, (name, value) in records_of(batch).items():
                if value is None and offset < end:
                    found[name] = offset
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
