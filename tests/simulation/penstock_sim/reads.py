"""What transactions read, judged by the records alone (I13; G1a, G1b and G1c in Adya's terms).

A value names the transaction that wrote it (`ledger.writer_of`); a pipe says what it took in which
transaction. Among the committed ones:

- nobody read what the other wrote, whoever else was between them (G1c);
- what was read is committed (G1a);
- each record that can be read was taken by one transaction of a group, so that nobody went on
  with a part of what a transaction wrote (G1b).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from penstock.core.types import Offset, ReplicaKey
from penstock_sim.ledger import writer_of
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock_sim.producing import Written
    from penstock_sim.world import World


@dataclass(frozen=True, slots=True)
class Input:
    """A record that was handed out."""

    source: ReplicaKey
    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """`reader` took it for its group. `writer` None: it was written in no transaction."""

    group_id: str
    reader: Written
    writer: Written | None
    record: Input


class Reads:
    """Of all transactions of a history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._taken: list[Read] = []

    def took(self, group_id: str, reader: Written, inputs: Iterable[Input]) -> None:
        """A pipe makes something of these, or lets them end."""
        written = self._world.ledger.written
        for one in inputs:
            writer = written.get(writer_of(one.value))
            self._taken.append(Read(group_id, reader, writer, one))

    def committed(self) -> Iterator[Read]:
        """Those of committed transactions."""
        outcomes = self._world.transaction_checks.outcomes
        return (one for one in self._taken if outcomes.get(one.reader.who))

    def check_provenance(self) -> None:
        """No cycle, and nothing of a transaction that is not committed."""
        outcomes = self._world.transaction_checks.outcomes
        sources: dict[str, dict[str, None]] = {}
        aborted: Read | None = None
        for one in self.committed():
            if one.writer is None:
                continue
            if outcomes.get(one.writer.who):
                sources.setdefault(one.reader.name, {})[one.writer.name] = None
            else:
                aborted = aborted or one
        try:
            TopologicalSorter(sources).prepare()
        except CycleError as found:
            cycle = " before ".join(found.args[1])
            raise RuleError(f"I13: each wrote what the next one read: {cycle}") from None
        if aborted is not None and aborted.writer is not None:
            outcome = outcomes.get(aborted.writer.who)
            raise RuleError(
                f"I11: {aborted.reader.name} is committed and read {aborted.record.value!r}, of "
                f"a transaction that ended with {outcome}"
            )

    def check_once(
        self, place: tuple[str, ReplicaKey], inputs: Mapping[Offset, bytes], span: range
    ) -> None:
        """Each of `inputs` within `span`, by offset, was taken once for a group."""
        group_id, key = place
        found: dict[int, Read] = {}
        for one in self.committed():
            if one.group_id == group_id and one.record.source == key:
                other = found.setdefault(one.record.offset, one)
                if other is not one:
                    raise RuleError(
                        f"I15: {place} offset {one.record.offset} was taken by "
                        f"{other.reader.name} and by {one.reader.name}"
                    )
        for offset, value in inputs.items():
            if offset in span and offset not in found:
                raise RuleError(f"I15: {place} is at {span.stop}, nobody took {value!r}")
