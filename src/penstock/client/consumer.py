"""The async consumer: positions, polls and seeks; the fetcher works ahead of it.

    assign ──▶ FetchState per partition ◀── Fetcher fills (fetcher.py)
    poll   ──▶ FetchState.next_batch, in turn ──▶ ConsumedBatch

**Never silent about gaps (I17).** A position moves forward by what was handed out and nowhere
else. When it is not in the log any more, `on_offset_out_of_range` decides; its default raises.
A topic that was created again is an error, not a continuation. Leaders come and go unnoticed.

Nobody has to poll in time: there are no groups here, and an idle consumer costs its brokers a
waiting call. A consumer belongs to the event loop it is first used in.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self, Unpack

from penstock.client.cluster import Cluster
from penstock.client.config import ConsumerConfig, ConsumerOptions, parse_bootstrap
from penstock.client.fetch_state import FetchState
from penstock.client.fetcher import Fetcher
from penstock.client.leaders import known_partition, list_offsets
from penstock.client.model import (
    EARLIEST,
    LATEST,
    ConsumedBatch,
    OffsetSpec,
    Record,
)
from penstock.client.process import ProcessGuard
from penstock.client.tasks import BackgroundTasks
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError

if TYPE_CHECKING:
    import pyarrow

UNLIMITED: Final = 2**62
ITERATION_POLL_S: Final = 1.0


class AsyncConsumer:
    """Reads assigned partitions in order, without gaps."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ConsumerConfig | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Connects on first use.

        Args:
            bootstrap: Addresses of any brokers of the cluster, "host:port,host:port".
            config: All settings, or None to give them as `options`; not both.
            options: Fields of ConsumerConfig.
        """
        if config is not None and options:
            raise MisuseError("give a config or keyword options, not both")
        self.config = config or ConsumerConfig(**options)
        self._timeout_s = self.config.request_timeout_ms / 1000
        self._guard = ProcessGuard("consumer")
        self._states: dict[TopicPartition, FetchState] = {}
        self._turn: list[FetchState] = []
        self._tasks = BackgroundTasks("consumer", self._crashed)
        self._cluster = Cluster(parse_bootstrap(bootstrap), self.config)
        self._fetcher = Fetcher(self._cluster, self.config, self._states, self._tasks)
        self._arrived = asyncio.Event()
        self._fetcher.arrived = self._arrived.set
        self._starting = asyncio.Lock()
        self._started = False
        self._ended: PenstockError | None = None

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the assignment. Partitions that stay keep their position.

        New ones start where `ConsumerConfig.start` says, unless a seek follows. Raises
        ClusterError(UNKNOWN_TOPIC), MisuseError(UNKNOWN_PARTITION), UnreachableError; then the
        assignment is unchanged.
        """
        await self._start()
        start = EARLIEST if self.config.start == "earliest" else LATEST
        states: dict[TopicPartition, FetchState] = {}
        for where in partitions:
            known = self._states.get(where)
            replaced = known.replaced_topic_id if known is not None else ""
            topic = await known_partition(self._cluster, where)
            if topic.topic_id == replaced:
                await self._cluster.await_other_topic(where.topic, replaced)
                topic = await known_partition(self._cluster, where)
            if known is not None and known.topic_id == topic.topic_id:
                states[where] = known
            else:
                states[where] = FetchState(where, topic.topic_id, start)
        topics = {where.topic for where in states}
        for where in self._states.keys() - states.keys():
            if where.topic not in topics:
                self._cluster.forget_topic(where.topic)
        self._states.clear()
        self._states.update(states)
        self._turn = list(states.values())
        self._fetcher.poke()

    def assignment(self) -> set[TopicPartition]:
        """The partitions assigned."""
        return set(self._states)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next poll begins at `offset` (0 or more); what was fetched ahead is dropped.

        An offset outside the log is noticed by the poll.
        """
        if offset < 0:
            raise MisuseError(f"{partition}: cannot seek to {offset}, offsets begin at 0")
        self._state(partition).seek(offset)
        self._fetcher.poke()

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Moves to the first records there are; None = in all partitions."""
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Moves behind the last records there are now; None = in all partitions."""
        await self._seek_to(partitions, LATEST)

    async def seek_to_time(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Moves to the first record with that timestamp (ms since 1970) or a later one.

        Returns the positions; the end of the log where no record is that young.
        """
        states = {where: self._state(where) for where in timestamps_ms}
        found = await list_offsets(self._cluster, timestamps_ms, self._timeout_s)
        late = [where for where, listed in found.items() if listed.offset < 0]
        ends = await list_offsets(self._cluster, dict.fromkeys(late, LATEST), self._timeout_s)
        positions = {where: listed.offset for where, listed in {**found, **ends}.items()}
        for where, state in states.items():
            state.seek(positions[where])
        self._fetcher.poke()
        return positions

    async def poll(
        self, timeout_s: float = 1.0, max_records: int | None = None
    ) -> list[ConsumedBatch]:
        """What is there, at most `max_records` (None = all that is buffered).

        Waits up to `timeout_s` for something; 0 = does not wait. Batches of a partition come in
        the order of their offsets, without gaps but for offsets that hold no record for users.

        Raises OffsetOutOfRangeError (see `on_offset_out_of_range`), ClusterError
        TOPIC_ID_MISMATCH, UNKNOWN_TOPIC, CORRUPT_BATCH or DATA_CORRUPTED naming partition and
        offset, again on every poll until that partition is seeked, paused or unassigned.
        Whatever else goes wrong is tried again in the background.
        """
        if max_records is not None and max_records < 1:
            raise MisuseError(f"max_records is {max_records}; it must be at least 1, or None")
        await self._start()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            self._arrived.clear()
            batches = self._collect(UNLIMITED if max_records is None else max_records)
            if batches:
                self._fetcher.poke()
                return batches
            self._raise_errors()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return []

    async def poll_arrow(
        self,
        timeout_s: float = 1.0,
        max_records: int | None = None,
        *,
        include_headers: bool = False,
    ) -> "pyarrow.Table":
        """As `poll`, as one Arrow table: a chunk per batch, no rows if nothing came in time.

        The schema is in `penstock.client.arrow`. Raises as `poll`.
        """
        from penstock.client.arrow import batches_to_table  # noqa: PLC0415 - only on demand

        batches = await self.poll(timeout_s, max_records)
        return batches_to_table(batches, include_headers=include_headers)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """All records from the positions on, for ever; ends when the consumer is closed."""
        while self._ended is None:
            for batch in await self.poll(ITERATION_POLL_S):
                for record in batch.records():
                    yield record

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls return nothing of these until `resume`; what was fetched ahead is dropped."""
        for where in partitions:
            state = self._state(where)
            state.paused = True
            state.drop_buffer()

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undoes `pause`."""
        for where in partitions:
            self._state(where).paused = False
        self._fetcher.poke()

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that a poll returns."""
        state = self._state(partition)
        if state.position is None:
            await self._look_up([state])
        assert state.position is not None
        return state.position

    async def lag(self) -> dict[TopicPartition, int]:
        """Per partition, how many offsets lie between position and end, asked of the leaders now.

        0 = everything was handed out.
        """
        await self._look_up(self._unresolved())
        asked = dict.fromkeys(self._states, LATEST)
        ends = await list_offsets(self._cluster, asked, self._timeout_s)
        return {
            where: max(0, ends[where].offset - (state.position or 0))
            for where, state in self._states.items()
            if where in ends
        }

    async def close(self) -> None:
        """Ends fetching and closes the connections; may be called again."""
        if self._ended is None:
            self._ended = ClusterError("the consumer is closed", ErrorCode.CLOSED)
            self._arrived.set()
            await self._tasks.aclose()
            await self._cluster.aclose()

    # -- inside ------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._guard.check()
        if self._ended is not None:
            raise self._ended
        async with self._starting:
            if not self._started:
                await self._tasks.start()
                self._tasks.spawn(self._cluster.keep_fresh(), "metadata")
                self._tasks.spawn(self._fetcher.run(), "fetcher")
                self._started = True

    def _state(self, where: TopicPartition) -> FetchState:
        state = self._states.get(where)
        if state is None:
            raise MisuseError(f"{where} is not assigned; assigned are {len(self._states)} others")
        return state

    def _collect(self, max_records: int) -> list[ConsumedBatch]:
        """Whole buffers, one partition after the other; another one is first next time."""
        batches: list[ConsumedBatch] = []
        left = max_records
        for state in self._turn:
            while left > 0 and not state.paused:
                try:
                    batch = state.next_batch(left)
                except ClusterError:
                    break  # it is the state's error now: raised when all good batches are out
                if batch is None:
                    break
                batches.append(batch)
                left -= batch.record_count
        self._turn = self._turn[1:] + self._turn[:1]
        return batches

    def _raise_errors(self) -> None:
        if self._ended is not None:
            raise self._ended
        for state in self._states.values():
            if state.error is not None and not state.paused:
                raise state.error

    def _unresolved(self) -> list[FetchState]:
        return [state for state in self._states.values() if state.position is None]

    async def _look_up(self, states: Sequence[FetchState]) -> None:
        """Finds missing positions now, for callers that cannot go on without."""
        generations = [state.generation for state in states]
        asked = {state.where: state.start for state in states}
        found = await list_offsets(self._cluster, asked, self._timeout_s)
        for state, generation in zip(states, generations, strict=True):
            if state.generation == generation:  # nobody has seeked or found it meanwhile
                state.seek(found[state.where].offset)
        self._fetcher.poke()

    async def _seek_to(self, partitions: Iterable[TopicPartition] | None, spec: OffsetSpec) -> None:
        wanted = list(self._states if partitions is None else partitions)
        states = [self._state(where) for where in wanted]
        found = await list_offsets(self._cluster, dict.fromkeys(wanted, spec), self._timeout_s)
        for state in states:
            state.seek(found[state.where].offset)
        self._fetcher.poke()

    def _crashed(self, cause: BaseException) -> None:
        self._ended = ClusterError(f"the consumer stopped by a defect: {cause!r}")
        self._arrived.set()
