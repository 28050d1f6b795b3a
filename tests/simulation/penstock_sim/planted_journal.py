"""Bugs put into controllers' journal, for when their store is unavailable: each must be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.core.control.journal import proposer
from penstock.core.control.journal.contract import Holders, Journal
from penstock.core.control.journal.holder import JournalHolder
from penstock.core.control.journal.proposer import JournaledDocuments
from penstock.core.control.storage import StoredText
from penstock_sim.directory import JournalFile

if TYPE_CHECKING:
    from collections.abc import Callable


def one_broker_is_enough(patch: Any) -> None:
    """A journal counts as soon as anybody keeps it; who takes over asks anybody."""
    patch.setattr(Holders, "majority", property(lambda _self: 1))


def take_over_without_asking(patch: Any) -> None:
    """The store is believed to know everything."""

    def learn(_self: Any, found: dict[str, StoredText]) -> Any:
        return found
        yield

    patch.setattr(JournaledDocuments, "_learn", learn)


def keep_what_an_older_controller_sends(patch: Any) -> None:
    """A broker forgets what it has promised."""
    keep = JournalHolder.keep

    def forgetful(self: JournalHolder, journal: Journal) -> JournalHolder | None:
        return keep(JournalHolder(journal.controller_epoch, self.journal), journal)

    patch.setattr(JournalHolder, "keep", forgetful)


def forget_writes_without_an_answer(patch: Any) -> None:
    """A journal begins without the documents that a late write may still change."""
    patch.setattr(JournaledDocuments, "_remember_doubt", lambda _self, _change: None)


def do_not_restamp(patch: Any) -> None:
    """Documents in doubt keep their version: the late write has a newer one."""
    patch.setattr(proposer, "restamped", lambda text, _version: text)


def go_back_to_the_store(patch: Any) -> None:
    """When the store is back the controller goes on with it, in the same epoch."""

    def answered(self: JournaledDocuments) -> None:
        self._holding = False
        self._sequence, self._journal = 0, None

    patch.setattr(JournaledDocuments, "lease_answered", answered)


def lose_journals_at_a_restart(patch: Any) -> None:
    """A broker keeps journals in memory only."""
    patch.setattr(JournalFile, "read", lambda _self: None)


JOURNAL_BUGS: Final[dict[str, tuple[Callable[[Any], None], str]]] = {
    bug.__name__: (bug, faults)
    for bug, faults in (
        (one_broker_is_enough, ""),
        (take_over_without_asking, ""),
        (
            keep_what_an_older_controller_sends,
            "store_away second_controller cut_brokers kill_broker",
        ),
        (forget_writes_without_an_answer, "store_away kill_broker lose_power"),
        (do_not_restamp, "store_away kill_broker lose_power"),
        (go_back_to_the_store, "store_away kill_broker lose_power"),
        (lose_journals_at_a_restart, "store_away kill_broker"),
    )
}
"""As `planted.PLANTED`: how a bug is planted, and the faults that bring it out."""
