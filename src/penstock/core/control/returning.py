"""Leaderships return to preferred replicas; a cluster at rest is not searched for them again.

Every few seconds all partitions are searched for leaderships to give back. What is found depends
on the topics, on who is alive, and on who may lead. A search that found nothing finds nothing
again until one of them is another.
"""

from collections.abc import Mapping

from penstock.core.control.documents import TopicDocument
from penstock.core.control.draft import Draft
from penstock.core.control.election import Liveness
from penstock.core.control.requests import return_leaders
from penstock.core.types import BrokerId


class Returning:
    """Remembers the last search that found nothing. Of one controller, and in memory only."""

    def __init__(self) -> None:
        self._nothing: tuple[Mapping[str, TopicDocument], Liveness, frozenset[BrokerId]] | None
        self._nothing = None

    def give_back(self, draft: Draft, liveness: Liveness, may_lead: frozenset[BrokerId]) -> int:
        """How many leaderships moved, in `draft`; see `return_leaders`.

        Adopted topics are never changed in place, so the same mapping has the same topics.
        """
        topics = draft.base.topics
        is_base = draft.is_empty
        if is_base and self._nothing is not None:
            known, *others = self._nothing
            if known is topics and others == [liveness, may_lead]:
                return 0
        moved = return_leaders(draft, liveness, may_lead)
        self._nothing = (topics, liveness, may_lead) if is_base and not moved else None
        return moved
