"""Checks of compacted partitions, record by record: I3, I6, I11 and I20.

The committed log of a partition defines which records are visible: those without a transaction, or
of one that committed, below its last stable offset. A batch written by compaction may lack a record
only if it was aborted, if a newer visible record has its key, or if its value is null; its other
records are those committed there, none of them aborted. No log has data of a transaction without
its marker. A leader keeps null values until the copies that a move makes have them on disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from penstock.core.batch import Batch
from penstock.core.records import decode_batch
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock.core.compaction.plan import Plan
    from penstock.core.types import ProducerId, ReplicaKey
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.world import World

_Record = tuple[bytes | None, bytes | None]
_next_offset = attrgetter("next_offset")


@dataclass(slots=True)
class _Visible:
    """One partition up to `end`: its visible records, and the newest offset of each key."""

    end: int = 0
    batches: int = 0
    records: dict[int, _Record] = field(default_factory=dict)
    newest: dict[bytes | None, int] = field(default_factory=dict)
    checked: dict[int, Batch] = field(default_factory=dict)

    def needs(self, offset: int) -> bool:
        """Compaction may not remove the record at `offset`, however old it is."""
        key, value = self.records.get(offset, (None, None))
        return value is not None and self.newest[key] <= offset


@dataclass(slots=True)
class _Looked:
    """The checked part of a replica's log: its first batches, all committed, found to be right.

    They stay right while they are in the log: what is committed and what has ended only grows,
    until more is lost than is promised to survive; then nothing is checked. next: where they end.
    flagged, marked: transactions with data among them, and those with a marker.
    """

    batches: list[Batch] = field(default_factory=list)
    next: int = -1
    flagged: set[tuple[ProducerId, int]] = field(default_factory=set)
    marked: set[tuple[ProducerId, int]] = field(default_factory=set)


class CompactionChecks:
    """Checks all compacted partitions."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._decoded: dict[int, tuple[Batch, dict[int, _Record]]] = {}
        self._visible: defaultdict[ReplicaKey, _Visible] = defaultdict(_Visible)
        self._looked: defaultdict[tuple[int, ReplicaKey], _Looked] = defaultdict(_Looked)
        self._rewound: set[ReplicaKey] = set()

    def visible(self, key: ReplicaKey) -> _Visible:
        """What is known of a partition, up to date with all that is committed and stable."""
        known = self._visible[key]
        canon, view = self.world.checks.canon(key), self.world.transaction_checks.view(key)
        stable = canon.end if self.world.transactions is None else view.stable[canon.end]
        while known.batches < len(canon.batches):
            batch = canon.batches[known.batches]
            if batch.next_offset > stable:
                break
            known.batches, known.end = known.batches + 1, batch.next_offset
            header = batch.header
            _, commit = view.ended.get((header.producer_id, header.producer_epoch), (0, False))
            if not header.is_control and (commit or not header.is_transactional):
                for offset, record in self._records_of(batch).items():
                    known.records[offset] = record
                    known.newest[record[0]] = offset
        return known

    def _records_of(self, batch: Batch) -> dict[int, _Record]:
        """Decoded once: replicas and readers share a batch. It is kept alive, so its id is
        unique."""
        known = self._decoded.get(id(batch))
        if known is None:
            known = self._decoded[id(batch)] = (batch, records_of(batch))
        return known[1]

    def is_void(self, key: ReplicaKey) -> bool:
        """More was lost than is promised to survive."""
        if self.world.transactions is not None and self.world.transaction_checks.void:
            return True
        return key in self.world.checks.lossy and key not in self._rewound

    def rewound(self, key: ReplicaKey) -> None:
        """After a loss beyond the promise what one replica still has is what is committed."""
        self._rewound.add(key)
        self._visible.pop(key, None)
        self._looked = defaultdict(
            _Looked, {place: one for place, one in self._looked.items() if place[1] != key}
        )

    def check(self, key: ReplicaKey, batch: Batch, who: str) -> None:
        """Checks a batch that differs from the one committed there: compaction wrote it."""
        if self.is_void(key):
            return
        if self._visible[key].checked.get(id(batch)) is batch:
            return
        known = self.visible(key)
        if batch.header.is_control or batch.header.is_transactional:
            raise RuleError(f"I20: {who} has {batch.header}, which compaction never writes")
        if batch.next_offset > known.end:
            raise RuleError(f"I20: {who} compacted {batch.header} past the stable end {known.end}")
        found = self._records_of(batch)
        for offset, record in found.items():
            if known.records.get(offset) != record:
                raise RuleError(f"I20: {who} has {record} at {offset}, which is not visible there")
        for offset in range(batch.base_offset, batch.next_offset):
            if offset not in found and known.needs(offset):
                raise RuleError(f"I20: {who} lost the newest record of its key, at {offset}")
        known.checked[id(batch)] = batch

    def planned(self, broker: SimBroker, replica: Replica, plan: Plan) -> None:
        """A leader that knows of a copy leaves the null values that are not on its disk (I29)."""
        key, state = replica.key, replica.machine._roles.state
        if state is None or self.is_void(key):
            return
        for copy in state.adding if state.leader == broker.id else ():
            disk = self.world.brokers[int(copy)].disk
            slot = disk.slot(key)
            log = [] if slot is None else disk.batches(slot, durable=True)
            end = log[-1].next_offset if log else 0
            # One whose disk was replaced begins again, with what is left here by then.
            if 0 < end < plan.tombstones_end:
                raise RuleError(
                    f"I29: {broker.name} removes null values below {plan.tombstones_end} of {key}, "
                    f"b{copy} is to have a copy, and has it on disk up to {end}"
                )

    def check_log(self, broker: SimBroker, key: ReplicaKey) -> None:
        """A replica with an ISR seat has every committed offset, compacted or not."""
        checks, slot = self.world.checks, broker.disk.slot(key)
        if slot is None or self.is_void(key) or not checks._is_holder(broker, key):
            return
        who, log = f"{broker.name} {key}", broker.disk.batches(slot)
        looked = self._looked[broker.id, key]
        if log[: len(looked.batches)] != looked.batches:  # cheap for identical objects
            looked = self._looked[broker.id, key] = _Looked()
        end = self._look_on(looked, log, key, who)
        ended = self.world.transaction_checks.view(key).ended
        for transaction in looked.flagged - looked.marked:
            marker, _ = ended.get(transaction, (end, False))
            if marker < end:
                raise RuleError(f"I20: {who} has data of {transaction}, its marker is gone")

    def _look_on(self, looked: _Looked, log: list[Batch], key: ReplicaKey, who: str) -> int:
        """Checks from where the last look ended up to what is committed; returns where it ended."""
        canon, position = self.world.checks.canon(key), looked.next
        for batch in log[len(looked.batches) :]:
            if position not in {-1, batch.base_offset}:
                raise RuleError(f"I3: {who} has a gap at {position}: {batch.header}")
            position, header = batch.next_offset, batch.header
            if batch.base_offset >= canon.end:
                break
            transaction = (header.producer_id, header.producer_epoch)
            if header.is_marker:
                looked.marked.add(transaction)
            elif header.is_transactional:
                looked.flagged.add(transaction)
            at = canon.by_base.get(batch.base_offset)
            if at is not batch and at != batch:
                self.check(key, batch, who)
            looked.batches.append(batch)
            looked.next = position
        return position

    def seen(
        self, key: ReplicaKey, position: int, batches: list[Batch], hidden: list[bool]
    ) -> list[Batch]:
        """The committed batches from `position` on, for what a reader of committed records got.

        The first one may begin before that: compaction merged them meanwhile. A batch counts as
        seen if it is visible and each of its records is there or superseded.
        """
        canon, known = self.world.checks.canon(key), self.visible(key)
        end = batches[-1].next_offset
        given: dict[int, _Record] = {}
        for batch, is_hidden in zip(batches, hidden, strict=True):
            if not is_hidden:
                given.update(self._records_of(batch))
        first = bisect_right(canon.batches, position, key=_next_offset)
        found = []
        for batch in canon.batches[first:]:
            if batch.base_offset >= end:
                break
            offsets = range(batch.base_offset, batch.next_offset)
            for offset in offsets:
                record = given.get(offset)
                if record is not None and record != known.records.get(offset):
                    raise RuleError(f"I11: a reader was given {record} at {offset} of {key}")
                if record is None and known.needs(offset):
                    raise RuleError(f"I20: a reader was not given what is at {offset} of {key}")
            if any(offset in known.records for offset in offsets):
                found.append(batch)
        return found


def records_of(batch: Batch) -> dict[int, _Record]:
    """The records by offset."""
    columns = decode_batch(batch)
    return dict(
        zip(columns.offsets(), zip(columns.keys(), columns.values(), strict=True), strict=True)
    )
