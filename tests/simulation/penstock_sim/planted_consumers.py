"""Bugs planted in the consumer, its group session and the transformer, as in `planted_shells`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.client.consumer.consumer import AsyncConsumer
from penstock.client.consumer.group_session import GroupSession
from penstock.client.transformer.transformer import AsyncTransformer
from penstock_sim.planted_shells import in_text

CONSUMER_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "begin_what_was_revoked_before_the_poll": in_text(
        GroupSession,
        "_forget",
        "self._prepared.pop(each, None)",
        "pass",
    ),
    "read_on_what_was_lost": in_text(
        GroupSession,
        "lose",
        "self._drop(installed)",
        "pass",
    ),
    "poll_without_saying_so": in_text(
        AsyncConsumer,
        "_poll",
        "self._session.poll_began()",
        "pass",
    ),
    "commit_what_the_last_poll_has_returned": in_text(
        AsyncConsumer,
        "_poll",
        "if batches:",
        """
        if batches:
            self._assignment.poll_began()
        if batches:
        """,
    ),
}
"""How each is planted. Found with all faults, in histories with groups."""
TRANSFORMER_BUGS: Final[dict[str, Callable[[Any], None]]] = {
    "go_on_after_an_abort": in_text(
        AsyncTransformer,
        "_recover",
        "await self._consumer.seek_to_committed()",
        "pass",
    ),
    "count_a_failed_transaction_as_committed": in_text(
        AsyncTransformer,
        "_commit",
        'self._failed("a transaction was not committed", error)',
        "self._model.committed(self._now_ms())",
    ),
}
"""How each is planted. Found with all faults, in histories with pipes."""
