"""Checks what transactions read, from the records alone (I13; G1a, G1b and G1c in Adya's terms).

A value names the transaction that wrote it (`ledger.writer_of`); a pipe records what it read in
which transaction. Among the committed ones:

- no two read what the other wrote, directly or through others (G1c);
- what was read is committed (G1a);
- each readable record was read by one transaction of a group, so that no transaction continued with
  only part of what another wrote (G1b).
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
    """A record that was handed to a member."""

    source: ReplicaKey
    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """`reader` read it for its group. `writer` None: it was not written in a transaction."""

    group_id: str
    reader: Written
    writer: Written | None
    record: Input


class Reads:
    """The reads of all transactions of a history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._taken: list[Read] = []

    def took(self, group_id: str, reader: Written, inputs: Iterable[Input]) -> None:
        """A pipe processes these, or ends their path."""
        written = self._world.ledger.written
        for one in inputs:
            writer = written.get(writer_of(one.value))
            self._taken.append(Read(group_id, reader, writer, one))

    def committed(self) -> Iterator[Read]:
        """The reads of committed transactions."""
        outcomes = self._world.transaction_checks.outcomes
        return (one for one in self._taken if outcomes.get(one.reader.who))

    def check_provenance(self) -> None:
        """There is no cycle, and no data of a transaction that is not committed."""
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
        """Each of `inputs` within `span`, by offset, was read once for a group."""
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
