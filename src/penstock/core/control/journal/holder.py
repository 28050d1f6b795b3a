"""The acceptor's part of the journal: what a broker has promised, and its newest journal."""

from dataclasses import dataclass, replace

from penstock.core.control.journal.contract import NO_JOURNAL, NOBODY, Journal
from penstock.core.types import ControllerEpoch


@dataclass(frozen=True, slots=True)
class JournalHolder:
    """A broker's part. The new state must be durable before the answer is sent."""

    promised: ControllerEpoch = NOBODY
    journal: Journal = NO_JOURNAL

    def promise(self, epoch: ControllerEpoch) -> "JournalHolder | None":
        """Refuses everything older than `epoch` from now on; None: a newer one was promised."""
        return None if epoch < self.promised else replace(self, promised=epoch)

    def keep(self, journal: Journal) -> "JournalHolder | None":
        """Stores it unless there is a newer one; None: a newer epoch was promised."""
        if journal.controller_epoch < self.promised:
            return None
        newest = max(self.journal, journal, key=lambda one: one.number)
        return JournalHolder(journal.controller_epoch, newest)
