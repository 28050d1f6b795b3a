"""Positions of a consumer's partitions: seeks, lookups, lag.

Everything asks the partitions' leaders (`leaders.py`), or the group's coordinator, and moves states
of the assignment.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.leaders import list_offsets
from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.commits import FindCommitted
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.model import LATEST, OffsetSpec
from penstock.core.types import TopicPartition


class Seeker:
    """Of one consumer; `moved` is called after every change of a position."""

    def __init__(
        self,
        cluster: Cluster,
        assignment: Assignment,
        timeout_s: float,
        moved: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._assignment = assignment
        self._timeout_s = timeout_s
        self._moved = moved

    async def to_spec(self, partitions: Iterable[TopicPartition] | None, spec: OffsetSpec) -> None:
        """Moves to the starts or ends of the logs; None = of all partitions."""
        wanted = [state.where for state in self._assignment.of(partitions)]
        found = await list_offsets(self._cluster, dict.fromkeys(wanted, spec), self._timeout_s)
        self._seek({where: listed.offset for where, listed in found.items()})

    async def to_time(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """See `AsyncConsumer.seek_to_time`."""
        self._assignment.of(timestamps_ms)
        # The ends first: what comes between the two calls is found by its time, or follows.
        asked = dict.fromkeys(timestamps_ms, LATEST)
        ends = await list_offsets(self._cluster, asked, self._timeout_s)
        found = await list_offsets(self._cluster, timestamps_ms, self._timeout_s)
        positions = {
            where: (listed if listed.offset >= 0 else ends[where]).offset
            for where, listed in found.items()
        }
        self._seek(positions)
        return positions

    async def to_committed(
        self, partitions: Iterable[TopicPartition] | None, find_committed: FindCommitted
    ) -> None:
        """See `AsyncConsumer.seek_to_committed`."""
        ids = {state.where: state.topic_id for state in self._assignment.of(partitions)}
        for where, offset in (await find_committed(ids)).items():
            state = self._assignment.states.get(where)
            if state is not None and state.topic_id == ids[where]:
                self._assignment.rewind(where, offset)
        self._moved()

    async def position(self, where: TopicPartition) -> int:
        """The next offset to return, looked up if necessary."""
        progress = self._assignment.progress(where)
        if progress.position is None:
            await self._look_up([progress.state])
        assert progress.position is not None
        return progress.position

    async def lag(self) -> dict[TopicPartition, int]:
        """Offsets between position and end, per partition."""
        assignment = self._assignment
        await self._look_up([s for s in assignment.of(None) if s.position is None])
        asked = dict.fromkeys(assignment.states, LATEST)
        ends = await list_offsets(self._cluster, asked, self._timeout_s)
        return {
            where: max(0, ends[where].offset - (assignment.progress(where).position or 0))
            for where in list(assignment.states)
            if where in ends
        }

    async def _look_up(self, states: Sequence[FetchState]) -> None:
        """Finds missing positions now, for callers that cannot continue without them."""
        generations = [state.generation for state in states]
        asked = {state.where: state.start for state in states}
        found = await list_offsets(self._cluster, asked, self._timeout_s)
        for state, generation in zip(states, generations, strict=True):
            if state.generation == generation:  # it was not seeked or found in the meantime
                state.looked_up(found[state.where].offset)
        self._moved()

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        for where, offset in positions.items():
            if where in self._assignment.states:  # a rebalance may have taken it in the meantime
                self._assignment.seek(where, offset)
        self._moved()
