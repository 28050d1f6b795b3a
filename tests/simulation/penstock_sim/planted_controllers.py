"""Bugs put into the shells around the controller: its runtime, sessions, ISR changes, journals.

As `planted_shells`: a text of the product is replaced by another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.core.control.journal.contract import Holders
from penstock_broker.broker.membership import Membership
from penstock_broker.controller.metadata_store.journal_holders import GrpcJournalHolders
from penstock_broker.controller.outbox import SessionOutbox
from penstock_broker.controller.runtime import ControllerRuntime
from penstock_broker.controller.store_task import StoreTask
from penstock_broker.metadata.session import ControllerSession
from penstock_broker.replication.isr import IsrChanges
from penstock_broker.services.journal import JournalService
from penstock_sim.planted_shells import in_text


def _half_is_a_majority(patch: Any) -> None:
    patch.setattr(Holders, "majority", property(lambda self: (len(self.brokers) + 1) // 2))


CONTROLLER_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    # ---------------------------------------------------------------- the runtime
    "an_await_before_a_write_counts": in_text(
        StoreTask,
        "_carry_out",
        "if generation == self._generation:\n    self._feed(event)",
        """
        if generation == self._generation:
            await self._clock.sleep(1)
            self._feed(event)
        """,
    ),
    "a_reload_beside_a_write_wakes_nobody": in_text(
        StoreTask,
        "take",
        "self._reload = True\nself._wanted.set()",
        "self._reload = True",
    ),
    "a_failed_read_is_not_repeated": in_text(
        StoreTask,
        "run",
        "generation = self._generation",
        "generation, self._reload = self._generation, False",
    ),
    "the_store_task_forgets_what_came_meanwhile": in_text(
        StoreTask,
        "run",
        "await self._carry_out(ready.write_id, ready.writes)",
        "await self._carry_out(ready.write_id, ready.writes)\nself._wanted.clear()",
    ),
    "an_image_leaves_out_the_next_change": in_text(
        SessionOutbox,
        "_take",
        "self._sent_version = image.metadata_version",
        "self._sent_version = image.metadata_version + 1",
    ),
    # ---------------------------------------------------------------- sessions and ISR changes
    "a_failed_isr_call_is_not_answered": in_text(
        IsrChanges,
        "_send",
        """
        for replica in batch:
            self._answered(replica, IsrAnswered(None, error))
        return
        """,
        "return",
    ),
    "a_proposal_beside_a_call_is_forgotten": in_text(
        IsrChanges,
        "run",
        "await self._send(batch)",
        "await self._send(batch)\nself._waiting.clear()",
    ),
    "a_session_gives_up": in_text(
        ControllerSession, "run", "failures += 1", "failures += 1\nif failures > 8:\n    return"
    ),
    "a_loss_is_told_only_once": in_text(
        Membership,
        "_identity",
        "data_intact=self._directory.data_intact,",
        "data_intact=(self._directory.data_intact, self._directory.registration_accepted())[0],",
    ),
}
"""For histories without groups and transactions, with journals."""
JOURNAL_SHELL_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "a_journal_is_kept_in_memory": in_text(
        JournalService, "_store", "self._file.replace(msgspec.json.encode(holder))", "pass"
    ),
    "the_first_that_keeps_it_decides": in_text(
        GrpcJournalHolders, "_decisive", "if len(answers) >= enough:", "if answers:"
    ),
    "who_journaled_goes_on_with_the_store": in_text(
        ControllerRuntime,
        "_on_lease",
        "if self._suspended or (self.active and self._store.detached):",
        "if self._suspended:",
    ),
}
FOUR_BROKER_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "half_is_a_majority": _half_is_a_majority
}
