"""Commits a streaming query's progress to a consumer group (option groupId), only to show its lag.

    end of a batch that Spark has logged as done ─▶ tell ─▶ committed offsets of the group

Spark's checkpoint is the truth; committed offsets are never read back. So this is best effort: a
failure is a warning, and the next attempt waits for `PAUSE_S`, so that a query does not wait for a
group at every trigger. `commit(end)` is not used for it, because Spark calls that when it plans the
next batch: the last one would be missing until new records arrive. The start passed to
`latestOffset` is the same offset, and comes with every trigger.
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
        """Commits without being a member; raises PenstockError soon if that is not possible."""


class GroupProgress:
    """Of one query. `group_id` None: nothing is committed."""

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
                advice = "set option groupId to an id that no consumer uses"
            case ErrorCode.OFFSET_WENT_BACK:
                advice = (
                    "another query, or this one with an earlier checkpoint, has committed "
                    "higher offsets; reset the group's offsets (penstock group reset), or set "
                    "option groupId to another id"
                )
            case _:
                advice = f"trying again every {PAUSE_S:.0f} s"
        logger.log(
            level,
            "cannot commit this query's progress to group %s, the query continues: %s; %s",
            group_id,
            problem,
            advice,
        )
