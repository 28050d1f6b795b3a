"""What transactions wrote, compared value by value with what readers of committed records see.

`Ledger` records for every transaction what its producer put into it. A `FoldingReader` decodes what
it reads: a transaction that it sees must be complete once the reader has passed its marker (G1b;
before, the last stable offset can be between two of its records), and have no record of another
transaction (I8, I11).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from penstock.core.records import decode_batch
from penstock.core.types import Offset, ReplicaKey
from penstock_sim.committed_reader import CommittedReader
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock.core.batch import Batch
    from penstock.core.replication import contract as rc
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.producing import Written
    from penstock_sim.world import World


def writer_of(value: bytes) -> str:
    """The transaction in which a value was written."""
    return value.partition(b"|")[0].decode()


def hops_of(value: bytes) -> int:
    """How many pipes have processed it: each puts four words before it."""
    return value.count(b"|") // 4


class Ledger:
    """All transactions of a history that have real records."""

    def __init__(self) -> None:
        self.written: dict[str, Written] = {}

    def begun(self, written: Written) -> None:
        """A producer begins a transaction."""
        self.written[written.name] = written


class FoldingReader(CommittedReader):
    """Reads one partition from its beginning. `there_of`: by transaction, the values seen."""

    def __init__(self, world: World, key: ReplicaKey) -> None:
        super().__init__(world, key)
        self.values: list[tuple[Offset, bytes]] = []
        """All transactional values it saw, in order, without those that retention removed first."""
        self.there_of: dict[str, list[bytes]] = defaultdict(list)
        self.lost_of: dict[str, list[bytes]] = defaultdict(list)
        """By transaction, the values that retention removed before they were read."""
        self._fresh: set[str] = set()

    def _fetch(self, broker: SimBroker, replica: Replica, marks: rc.Marks) -> None:
        super()._fetch(broker, replica, marks)
        for name in tuple(self._fresh):
            written = self.world.ledger.written[name]
            marker, _ = self.world.transaction_checks.view(self.key).ended[written.who]
            if marker < self.position:
                self._fresh.discard(name)
                self._check_whole(name, written.lines.get(self.key, []))

    def _check_whole(self, name: str, wrote: list[bytes]) -> None:
        there = self.there_of[name]
        if there != wrote:
            raise RuleError(f"I11: {name} wrote {wrote} to {self.key}, a reader sees {there}")

    def _read(self, batch: Any, *, is_hidden: bool) -> None:
        super()._read(batch, is_hidden=is_hidden)
        header = batch.header
        if is_hidden or not header.is_transactional:
            return
        for offset, value in _values(batch):
            name = writer_of(value)
            written = self.world.ledger.written[name]
            if written.who != (header.producer_id, header.producer_epoch):
                raise RuleError(f"I8: {value!r} of {written.who} is visible in {header}")
            self.values.append((offset, value))
            self.there_of[name].append(value)
            self._fresh.add(name)

    def _skip(self, to: Offset) -> None:
        outcomes = self.world.transaction_checks.outcomes
        for batch in self.world.checks.canon(self.key).batches:
            header = batch.header
            who = (header.producer_id, header.producer_epoch)
            gone = self.position < batch.next_offset <= to
            if gone and not header.is_control and header.is_transactional and outcomes.get(who):
                for _, value in _values(batch):
                    self._lose(value)
        super()._skip(to)

    def _lose(self, value: bytes) -> None:
        """The value is committed, but no reader here will read it."""
        self.lost_of[writer_of(value)].append(value)
        self.there_of[writer_of(value)].append(value)


def _values(batch: Batch) -> list[tuple[Offset, bytes]]:
    values = decode_batch(batch).values()
    return [
        (Offset(batch.base_offset + i), bytes(v)) for i, v in enumerate(values) if v is not None
    ]
