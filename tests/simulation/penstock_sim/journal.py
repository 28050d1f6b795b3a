"""Which journals count: those that a majority of the brokers has kept at some time."""

from __future__ import annotations

from penstock.core.control.journal.contract import Journal
from penstock.core.types import BrokerId


class JournalCounts:
    """By number: who has kept it."""

    def __init__(self) -> None:
        self._keepers: dict[tuple[int, int], set[int]] = {}

    def kept(self, broker: BrokerId, journal: Journal, registered: int) -> bool:
        """This broker's is the one that makes the majority of those that are registered."""
        keepers = self._keepers.setdefault(journal.number, set())
        before = len(keepers)
        keepers.add(int(broker))
        return before < len(keepers) == registered // 2 + 1
