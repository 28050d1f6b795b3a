"""A consumer without membership that commits offsets of a topic which is created again (I18, I24).

    commit of a life's partition ─▶ coordinator ─▶ answer      fetch by the name alone ─▶ offsets

Each life's offsets are numbers of its own, so that one of a former life is recognized. A client
knows the id of the topic that it reads: its coordinator may not have heard of it yet, or still know
the former one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.core.groups import contract as gc
from penstock.core.groups.catalog import NamedPartition
from penstock.core.groups.contract_views import Fetched, FetchRequested
from penstock.core.types import TopicId
from penstock.errors import ErrorCode, PenstockError
from penstock_sim.coordinator import OFFSETS_KEY
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock_sim.rebirth import Life, Rebirth

GROUP: Final = "visitor"
_NODE: Final = 998
_PACE_MS: Final = 40
_PER_LIFE: Final = 1_000_000


class Visitor:
    """Of one history with groups."""

    def __init__(self, rebirth: Rebirth, name: str) -> None:
        self.commits = 0
        self._rebirth = rebirth
        self._world = rebirth.world
        self._name = name
        self._random = rebirth.world.scheduler.generator("visitor")
        self._accepted: dict[tuple[Life, int], int] = {}
        self._numbers = 0

    def start(self) -> None:
        """With the topic."""
        self._world.scheduler.at_pace(self._random, _PACE_MS, self._act)

    def _act(self) -> None:
        if not self._world.chaotic:
            return
        self.start()
        lives = [life for life in self._rebirth.lives if life.partitions]
        if not lives:
            return
        life = lives[-1] if self._random.random() < 0.8 else self._random.choice(lives)
        if self._random.random() < 0.6:
            self._commit(life, self._random.randrange(life.partitions))
        else:
            self._fetch(self._random.randrange(life.partitions))

    def _commit(self, life: Life, partition: int) -> None:
        self._numbers += 1
        offset = life.number * _PER_LIFE + self._numbers
        where = NamedPartition(self._name, life.topic_id, partition)

        def answered(answer: Any) -> None:
            error = answer.errors[0] if isinstance(answer, gc.Committed) else answer
            self._world.scheduler.note(GROUP, "is answered", where, offset, error)
            if error is None:
                self.commits += 1
                known = self._accepted.get((life, partition), 0)
                self._accepted[life, partition] = max(known, offset)
            elif error.code is ErrorCode.TOPIC_ID_MISMATCH and not life.is_gone:
                raise RuleError(f"I24: a commit of {where} is refused for good: {error}")

        self._ask(
            lambda number: gc.CommitRequested(
                request_id=number,
                group_id=GROUP,
                member_id="",
                member_epoch=-1,
                instance_id="",
                offsets=(gc.NewOffset(where=where, offset=offset),),
            ),
            answered,
        )

    def _fetch(self, partition: int) -> None:
        """Of whatever topic has the name."""
        where = NamedPartition(self._name, TopicId(""), partition)
        accepted = dict(self._accepted)

        def answered(answer: Any) -> None:
            self._world.scheduler.note(GROUP, "is answered", where, answer)
            if isinstance(answer, PenstockError):
                return
            assert isinstance(answer, Fetched)
            for found in answer.offsets:
                if found.error is not None:
                    continue
                [life] = [one for one in self._rebirth.lives if one.topic_id == found.topic_id]
                if found.offset >= 0 and found.offset // _PER_LIFE != life.number:
                    raise RuleError(f"I18: {found} is an offset of a former topic")
                if found.offset < accepted.get((life, partition), -1) and not life.is_gone:
                    least = accepted[life, partition]
                    raise RuleError(f"I18: {found} is less than {least}, which was accepted")

        self._ask(
            lambda number: FetchRequested(request_id=number, group_id=GROUP, partitions=(where,)),
            answered,
        )

    def _ask(self, make: Any, answered: Any) -> None:
        world = self._world
        broker = world.find_leader(OFFSETS_KEY, self._random)[0]

        def heard(answer: Any) -> None:
            if not world.group_checks.void:
                answered(answer)

        if broker.coordinators is not None:
            request = make(world.next_request())
            world.net.call(_NODE, int(broker.id), broker.coordinators.ask, request, heard)
