"""What a consumer group hears of a streaming query (option groupId): for its lag, no more.

    end of a batch that Spark has logged as done ─▶ tell ─▶ committed offsets of the group

Spark's checkpoint is the truth; what is committed is never read back. Therefore best effort: a
failure is a warning, and the next attempt waits for `PAUSE_S`, so that a query does not wait for
a group at every trigger. Not from `commit(end)`: Spark calls it when it plans the next batch, so
that the last one would be missing for as long as nothing arrives. The start that `latestOffset`
is asked from is the same offset, and comes with every trigger.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, PenstockError

PAUSE_S: Final = 30.0
logger = logging.getLogger(__name__)


class GroupClient(Protocol):
    """Implemented by `cluster.ClusterOffsets` (real) and by a page of test code."""

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits without being a member; soon raises PenstockError if that is not possible."""


class GroupProgress:
    """Of one query. `group_id` None: nothing is ever told."""

    def __init__(self, group_id: str | None) -> None:
        self._group_id = group_id
        self._told: dict[TopicPartition, int] = {}
        self._again_s = 0.0
        self._warned: object = None

    def tell(
        self, connect: Callable[[], GroupClient], positions: Mapping[TopicPartition, int]
    ) -> None:
        """Commits what is new in `positions` (the next offsets to read). Never raises."""
        now_s = time.monotonic()
        if self._group_id is None or now_s < self._again_s:
            return
        news = {tp: at for tp, at in positions.items() if self._told.get(tp) != at}
        if not news:
            return
        try:
            connect().commit(self._group_id, news)
        except Exception as problem:  # noqa: BLE001 - a query never fails for its group
            self._again_s = now_s + PAUSE_S
            self._warn(self._group_id, problem)
        else:
            self._told = dict(positions)
            self._warned = None

    def _warn(self, group_id: str, problem: Exception) -> None:
        """Once per kind of problem."""
        kind = problem.code if isinstance(problem, PenstockError) else type(problem)
        level = logging.DEBUG if kind == self._warned else logging.WARNING
        self._warned = kind
        match kind:
            case ErrorCode.GROUP_NOT_EMPTY:
                advice = "give option groupId an id that no consumer uses"
            case ErrorCode.OFFSET_WENT_BACK:
                advice = (
                    "another query, or this one with an earlier checkpoint, told it more; reset "
                    "its offsets (penstock group reset), or give option groupId another id"
                )
            case _:
                advice = f"trying again every {PAUSE_S:.0f} s"
        logger.log(
            level,
            "group %s does not hear of this query's progress, the query goes on: %s; %s",
            group_id,
            problem,
            advice,
        )
