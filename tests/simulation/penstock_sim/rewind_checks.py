"""Committed offsets that go back because a reader does (I18).

A reader that seeks back begins a new rewind epoch. From then on its group's committed offset is
where the reader is: what was on its way before must not count any more.
"""

from __future__ import annotations

from penstock.core.groups.records import OffsetRecord
from penstock.core.types import ReplicaKey
from penstock_sim.scheduler import RuleError

Place = tuple[str, ReplicaKey]
"""A group and a partition that it reads."""


class RewindChecks:
    """Is told of every seek, what readers were handed, and every offset in the committed log."""

    def __init__(self) -> None:
        self.went_back = 0
        """Commits that went back."""
        self._epochs: dict[Place, int] = {}
        self._sought: dict[tuple[Place, int], int] = {}
        self._ends: dict[tuple[Place, int], int] = {}

    def epoch(self, place: Place) -> int:
        """The committed one."""
        return self._epochs.get(place, 1)

    def sought(self, place: Place, epoch: int, offset: int) -> None:
        """The user seeks back, and commits in this epoch from there on."""
        self._sought[place, epoch] = min(offset, self._sought.get((place, epoch), offset))
        self.reached(place, epoch, offset)

    def reached(self, place: Place, epoch: int, end: int) -> None:
        """In this epoch, the group was handed out everything below, or told to skip it."""
        self._ends[place, epoch] = max(end, self._ends.get((place, epoch), 0))

    def committed(self, place: Place, before: int, record: OffsetRecord, log_start: int) -> None:
        """By a reader, not by a reset. `before`: the offset before it."""
        known, epoch = self.epoch(place), record.rewind_epoch
        if epoch < known:
            raise RuleError(f"I18: {place} went back from rewind epoch {known} to {record}")
        sought = self._sought.get((place, epoch))
        if record.offset < before:
            if epoch == known or sought is None or record.offset < sought:
                raise RuleError(
                    f"I18: {place} went back from {before} to {record}, nobody reset it, and a "
                    f"reader went back to {sought}"
                )
            self.went_back += 1
        reached = max(self._ends.get((place, epoch), 0), log_start)
        if sought is not None and record.offset > reached:
            raise RuleError(f"I18: {place} is {record}, its reader went back and is at {reached}")
        self._epochs[place] = epoch

    def reset(self, place: Place, record: OffsetRecord | None) -> None:
        """By an administrator; None: to no offset at all, also because it has expired."""
        self._epochs[place] = 1 if record is None else record.rewind_epoch
        if record is not None:
            self.reached(place, record.rewind_epoch, record.offset)
