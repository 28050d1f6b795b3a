"""The async consumer: positions, polls and seeks; the fetcher prefetches for it.

    assign    ──▶ FetchState per partition (assigning.py) ◀── Fetcher fills (fetcher.py)
    subscribe ──▶ GroupSession: partitions come and go by themselves (group_session.py)
    poll      ──▶ FetchState.next_batch, in turn ──▶ ConsumedBatch (assignment.py)
    commit    ──▶ the group's offsets (commits.py)

**Never silent about gaps (I17).** A position moves forward only by the records returned. If it is
no longer in the log, `on_offset_out_of_range` decides; its default raises. A topic that was created
again is an error, not a continuation. Leader changes go unnoticed.

A consumer with `assign` does not have to poll in time; a member of a group has
`max_poll_interval_ms`. In both cases an idle consumer costs its brokers one waiting call, and it
belongs to the event loop in which it is first used.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Final, Self, SupportsIndex, Unpack

from penstock.client.cluster.cluster import Cluster
from penstock.client.cluster.leaders import known_partition
from penstock.client.config import ConsumerConfig, ConsumerOptions, parse_bootstrap
from penstock.client.consumer import assigning
from penstock.client.consumer.assignment import Assignment, Returned
from penstock.client.consumer.fetcher import Fetcher
from penstock.client.consumer.group_session import GroupSession, Notify
from penstock.client.consumer.one_poll import OnePoll
from penstock.client.consumer.read_result import ReadResult
from penstock.client.consumer.reading import READ_BYTES_MAX, EndReader, ReadLimits, ReadStart
from penstock.client.consumer.seeking import Seeker
from penstock.client.consumer.transaction_offsets import Scope, check_source
from penstock.client.decoders import Decoder, Decoding, UndecodablePolicy
from penstock.client.documented import with_settings
from penstock.client.group.commit_queue import Offsets
from penstock.client.group.contract import Wish
from penstock.client.group.model import OffsetAndMetadata, RebalanceListener
from penstock.client.model import EARLIEST, LATEST, ConsumedBatch, Record
from penstock.client.process import ProcessGuard
from penstock.client.tasks import BackgroundTasks, why_ended
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError

if TYPE_CHECKING:
    import pyarrow

UNLIMITED: Final = 2**62
ITERATION_POLL_S: Final = 1.0


@with_settings(ConsumerConfig)
class AsyncConsumer:
    """Reads partitions in order, without gaps: assigned ones, or its share in a group."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ConsumerConfig | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Connects on first use.

        Args:
            bootstrap: Addresses of any brokers of the cluster, "host:port,host:port".
            config: All settings, or None to give them by keyword; not both.
        """
        if config is not None and options:
            raise MisuseError("give a config or keyword options, not both")
        self.config = config or ConsumerConfig(**options)
        self._timeout_s = self.config.request_timeout_ms / 1000
        self._guard = ProcessGuard("consumer")
        self._assignment = self._new_assignment()
        self._tasks = BackgroundTasks("consumer", self._crashed)
        self._bootstrap = parse_bootstrap(bootstrap)
        self._cluster = self._new_cluster()
        self._fetcher = self._new_fetcher()
        self._arrived = asyncio.Event()
        self._fetcher.arrived = self._arrived.set
        self._seeker = Seeker(self._cluster, self._assignment, self._timeout_s, self._fetcher.poke)
        self._session = self._new_session()
        self._session.begun = self._fetcher.poke
        self._one_poll = OnePoll()
        self._starting = asyncio.Lock()
        self._started = False
        self._has_source = False
        self._closing = asyncio.Lock()
        self._closer: asyncio.Task[None] | None = None
        self._closed = False
        self._ended: PenstockError | None = None

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str = "",
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads these topics as a member of `group_id`, together with the group's other members.

        The next poll joins the group; later calls change the subscription. A partition starts at
        the group's committed offset, or else as `auto_offset_reset` says.

        Args:
            topics: Names of topics that exist, or one name.
            pattern: Topics whose whole name matches are added, now and when they are created:
                literals, . [ ] ( ) | * + ? and \\ before any of these; ^ first and $ last change
                nothing. "" = none.
            listener: Is called when partitions are assigned, revoked or lost.

        Raises MisuseError without a group id, with nothing to subscribe to, or after `assign`;
        ClusterError(UNKNOWN_TOPIC). Polls raise what the coordinator refuses (a pattern, an
        instance id in use).
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not self.config.group_id:
            raise MisuseError("subscribe needs a group_id; without a group, use assign")
        if not names and not pattern:
            raise MisuseError(
                "subscribe needs topics or a pattern; to unsubscribe, call unsubscribe"
            )
        if self._assignment.states and not self._session.subscribed:
            raise MisuseError(
                "this consumer has assigned partitions; call assign([]) before subscribe"
            )
        await self._start()
        for name in names:
            await self._cluster.topic(name)
        await self._session.subscribe(Wish(names, pattern), listener)
        self._has_source = True

    def notify_by(self, notify: Notify) -> None:
        """Internal: `notify` calls the listeners; of a sync consumer, in its user's thread."""
        self._session.notify = notify

    async def unsubscribe(self) -> None:
        """Leaves the group, after a last commit as in `close`."""
        await self._start()
        try:
            await self._session.leave()
        finally:
            self._has_source = bool(self._assignment.states)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the assignment. Partitions that stay keep their position.

        New ones start at the committed offset of `group_id`, or else as `auto_offset_reset` says,
        unless a seek follows. With `enable_auto_commit`, what earlier polls returned of partitions
        that are dropped is committed first, as in `close`. Raises MisuseError after `subscribe`,
        ClusterError(UNKNOWN_TOPIC), MisuseError(UNKNOWN_PARTITION), UnreachableError; then the
        assignment is unchanged.
        """
        if self._session.subscribed:
            raise MisuseError(
                "this consumer is a member of a group; call unsubscribe before assign"
            )
        await self._start()
        await assigning.assign(
            self._cluster,
            self._assignment,
            partitions,
            self.config,
            self._session.committed,
            self._session.commit_dropped,
        )
        self._has_source = True
        self._fetcher.poke()

    def assignment(self) -> set[TopicPartition]:
        """The current partitions: assigned with `assign`, or owned as a member of the group."""
        return set(self._assignment.states)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next poll starts at `offset` (0 or more); prefetched records are dropped.

        The poll reports an offset outside the log.
        """
        if not isinstance(offset, SupportsIndex) or not 0 <= index(offset) < 2**63:
            raise MisuseError(
                f"{partition}: cannot seek to offset {offset!r}; it must be a whole number, "
                "0 to 2^63 - 1"
            )
        self._assignment.seek(partition, offset)
        self._fetcher.poke()

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Moves to the first record of the log; None = in all partitions."""
        await self._seeker.to_spec(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Moves to the current end of the log; None = in all partitions."""
        await self._seeker.to_spec(partitions, LATEST)

    async def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Moves to the group's committed offsets, or where there is none, to where this consumer
        started.

        None = in all partitions. Waits for offsets that are pending in an open transaction. Use it
        to continue after an aborted transaction. Raises as `committed`.
        """
        await self._start()
        self._session.need_group("seek_to_committed")
        await self._seeker.to_committed(partitions, self._session.committed)

    async def seek_to_time(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Moves to the first record with that timestamp (ms since 1970) or a later one.

        Returns the positions; the end of the log where no record is that recent.
        """
        return await self._seeker.to_time(timestamps_ms)

    async def poll(
        self, timeout_s: float | None = 1.0, max_records: int | None = None
    ) -> list[ConsumedBatch]:
        """Returns available records, at most `max_records` (None = everything buffered).

        Waits up to `timeout_s` for a record; 0 = does not wait, None = as long as it takes.
        Batches of a partition come in the order of their offsets, without gaps except for offsets
        that hold no record for users.

        Raises MisuseError before `subscribe` or `assign`, as there is nothing to read, and while
        another task or thread polls, who would commit what the other one has in hand;
        OffsetOutOfRangeError (see `on_offset_out_of_range`), ClusterError TOPIC_ID_MISMATCH,
        UNKNOWN_TOPIC, CORRUPT_BATCH or DATA_CORRUPTED naming partition and offset, again on every
        poll until that partition is seeked, paused or unassigned; and permanent refusals of the
        group's coordinator. All other errors are retried in the background.

        A poll means that the caller is done with what earlier polls returned: automatic commits
        cover that, and partitions are revoked here.
        """
        if max_records is not None and max_records < 1:
            raise MisuseError(f"max_records is {max_records}; it must be at least 1, or None")
        _check_timeout(timeout_s)
        await self._start()
        if not self._has_source:
            raise MisuseError("nothing to read: call subscribe or assign before poll")
        async with self._one_poll.turn():
            return await self._poll(timeout_s, max_records or UNLIMITED)

    async def poll_arrow(
        self,
        timeout_s: float | None = 1.0,
        max_records: int | None = None,
        *,
        include_headers: bool = False,
    ) -> "pyarrow.Table":
        """Like `poll`, but as one Arrow table: a chunk per batch, no rows if nothing came in time.

        The schema is in `penstock.client.arrow`. Raises as `poll`; what could not be converted is
        returned by the next poll.
        """
        from penstock.client.arrow import batches_to_table  # noqa: PLC0415 - only on demand

        batches = await self.poll(timeout_s, max_records)
        returned = self.returned(batches)
        try:
            return batches_to_table(batches, include_headers=include_headers)
        except BaseException:
            self.take_back(returned)
            raise

    async def read_to_end(
        self,
        source: str | Iterable[TopicPartition],
        start: ReadStart = EARLIEST,
        *,
        max_records: int | None = None,
        max_bytes: int = READ_BYTES_MAX,
        key: Decoder | None = None,
        value: Decoder | None = None,
        on_undecodable: UndecodablePolicy = "error",
    ) -> ReadResult:
        """Reads everything that is there now, once, and returns it: for notebooks and scripts.

        Ends at the high watermark, or with read_committed at the last stable offset, as they are
        at the call. Has no part in groups: the assignment, positions and committed offsets of this
        consumer are neither used nor changed.

        Args:
            source: A topic, or some partitions.
            start: EARLIEST; a datetime with its time zone: the first record of that time or later;
                or offsets by partition, as in `next_offsets` of an earlier result, where partitions
                that it lacks are read from their first record. `auto_offset_reset` does not count
                here.
            max_records: Stop at so many, from any of the partitions; the result says `truncated`.
            max_bytes: Of keys, values and headers. A larger read raises MisuseError, because
                results are held in memory; 256 MiB.
            key: Decodes keys, such as string_decoder(); None = they stay bytes.
            value: Likewise for values: json_decoder(), protobuf_decoder(…), avro_decoder(…).
            on_undecodable: "error": what the result converts to raises DecodeError, naming topic,
                partition and offset. "keep": the record has no key and value, but an `error`.

        Raises MisuseError; ClusterError(UNKNOWN_TOPIC, UNKNOWN_PARTITION, REQUEST_TIMED_OUT if a
        partition gives nothing for `request_timeout_ms`), UnreachableError;
        OffsetOutOfRangeError as `poll`, and for a start after the end.
        """
        self._check_open()
        limits = ReadLimits(max_records=max_records, max_bytes=max_bytes)
        decoding = Decoding(key=key, value=value, on_undecodable=on_undecodable)
        reader = EndReader(self._bootstrap, self.config)
        return await reader.read(source, start, limits, decoding)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """All records from the positions on, for ever; ends when the consumer is closed.

        Taking the next record means being done with the previous one. You can leave the loop at any
        record: the next poll or loop continues after it.
        """
        while True:
            try:
                batches = await self.poll(ITERATION_POLL_S)
            except ClusterError as error:
                if error.code is ErrorCode.CLOSED:
                    return
                raise
            for record in self.one_by_one(batches):
                yield record

    def one_by_one(self, batches: Sequence[ConsumedBatch]) -> Iterator[Record]:
        """The records of the last poll, each counted as returned when it is taken.

        `position` and commits follow the loop, not the poll; the loop ends early for partitions
        that were lost or seeked, and completely with the next poll.
        """
        return self._assignment.one_by_one(batches)

    def returned(self, batches: Sequence[ConsumedBatch]) -> list[Returned]:
        """Internal: what to tell `take_back`; called right after the poll."""
        return self._assignment.returned(batches)

    def take_back(self, returned: Iterable[Returned]) -> None:
        """Internal: a poll's records did not reach the user; the next poll returns them again."""
        self._assignment.take_back(returned)
        self._fetcher.poke()

    def put_back(self, record: Record) -> None:
        """Internal: the last record from `one_by_one` was not handled; leave the loop."""
        self._assignment.put_back(record)

    @property
    def uncommitted(self) -> bool:
        """Internal: positions are ahead of the committed offsets, as far as this consumer knows."""
        return self._assignment.uncommitted

    @property
    def member_id(self) -> str:
        """Internal: who this consumer is in its group, as far as it knows; "" = nobody yet."""
        return self._session.member_id

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls return no records of these partitions until `resume`; prefetched records are
        dropped. A loop over records ends for them after the current record, and `resume` continues
        behind it."""
        for where in partitions:
            self._assignment.pause(where)
        self._fetcher.poke()

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undoes `pause`."""
        for where in partitions:
            self._assignment.progress(where).state.paused = False
        self._fetcher.poke()

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that a poll will return."""
        return await self._seeker.position(partition)

    async def lag(self) -> dict[TopicPartition, int]:
        """Per partition, the number of offsets between position and end, as the leaders report now.

        0 = everything was returned.
        """
        return await self._seeker.lag()

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> None:
        """Stores the group's offsets; returns when all in-sync replicas have them.

        Args:
            offsets: The next offset to read per partition. None = after everything returned so far,
                which in a loop over records includes the current record.

        Raises MisuseError without a group id or for invalid offsets; ClusterError: OFFSET_WENT_BACK
        for an offset below the committed one, unless this consumer went back there by a seek or
        because the log became shorter (reset the group's offsets instead),
        STALE_MEMBER_EPOCH for a partition that another member owns now, UNKNOWN_MEMBER or
        FENCED_INSTANCE_ID if this consumer is no longer a member (the next poll joins again),
        GROUP_NOT_EMPTY for a consumer with `assign` while the group has members.
        """
        await self._start()
        self._session.need_group("commit")
        self._session.check_kept()
        await self._session.committer.commit(await self._session.to_commit(offsets))

    async def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: Callable[[PenstockError | None], None] | None = None,
    ) -> None:
        """Like `commit`, but without waiting: `callback` gets None or the error, in the event loop.

        Commits are stored in the order of the calls. Those made while another commit is in flight
        share the next call, so a commit after every record is cheap. `close` waits for them.
        Without a callback, an error is logged. The meaning of `offsets` None is decided now.
        """
        await self._start()
        self._session.need_group("commit_async")
        self._session.check_kept()
        self._session.committer.start(await self._session.to_commit(offsets), callback)

    async def offsets_in_hand(
        self, cluster_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None
    ) -> Offsets:
        """Internal, for a producer's transactions in this cluster: the offsets to commit."""
        await self._start()
        self._session.need_group("commit_offsets")
        if not self._cluster.view.cluster_id:
            await self._cluster.refresh(self._timeout_s)
        check_source(self.config, self._cluster.view.cluster_id, cluster_id)
        self._session.check_kept()
        if offsets is None:  # nothing is renewed in a transaction, which may abort
            return self._assignment.to_commit(only_done=False)
        return await self._session.to_commit(offsets)

    async def store_offsets(self, scope: Scope, offsets: Offsets) -> None:
        """Internal: stores them in a transaction; see `TransactionOffsets.store`."""
        self._session.check_kept()
        if offsets:
            topics = self._cluster.view.topics
            known = {at.topic: topics[at.topic].topic_id for at in offsets if at.topic in topics}
            await self._session.within.store(scope, offsets, known)

    def offsets_counted(self, offsets: Offsets) -> None:
        """Internal: the transaction is committed."""
        for where, offset in offsets.items():
            self._assignment.committed(where, offset)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets of these partitions; None = none."""
        await self._start()
        self._session.need_group("committed")
        topics = {at: await known_partition(self._cluster, at) for at in partitions}
        return await self._session.committed({at: topic.topic_id for at, topic in topics.items()})

    async def close(self) -> None:
        """Leaves the group, ends fetching and closes the connections.

        Can be called repeatedly: later calls return when the first one has. Cancelled, it closes
        everything at once: a group that it has not left by then gives its partitions to others
        after the session timeout. What it could not close, a later call does.

        With `enable_auto_commit`, what earlier polls returned is committed; what the last one
        returned is not, because you have not said that it is done: if it is, call `commit` first.
        """
        if self._closer is asyncio.current_task():
            return  # a listener, called by the close that is going on
        if self._ended is None:
            self._tasks.check_loop()
        async with self._closing:  # nobody ends the event loop under the call that came first
            if not self._closed:
                self._closer = asyncio.current_task()
                try:
                    await self._close()
                finally:
                    self._closer = None

    # -- parts, replaced where time, network and chance are simulated ------------------------

    def _new_assignment(self) -> Assignment:
        return Assignment()

    def _new_cluster(self) -> Cluster:
        return Cluster(self._bootstrap, self.config)

    def _new_fetcher(self) -> Fetcher:
        return Fetcher(self._cluster, self.config, self._assignment.states, self._tasks)

    def _new_session(self) -> GroupSession:
        return GroupSession(
            self._cluster,
            self._bootstrap,
            self.config,
            self._assignment,
            self._tasks,
            self._arrived.set,
        )

    # -- inside ------------------------------------------------------------------------------

    async def _poll(self, timeout_s: float | None, max_records: int) -> list[ConsumedBatch]:
        now_s = asyncio.get_running_loop().time()
        deadline = None if timeout_s is None else now_s + timeout_s
        self._assignment.poll_began()
        self._session.poll_began()
        try:
            while True:
                self._arrived.clear()
                await self._session.rebalance()
                batches = self._assignment.collect(max_records)
                # Also without batches: a loop that was left or a revoked partition freed a buffer.
                self._fetcher.poke()
                if batches:
                    return batches
                self._raise_errors()
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._arrived.wait()
                except TimeoutError:
                    return []
        finally:
            self._session.poll_ended()

    async def _close(self) -> None:
        try:
            if self._started and self._ended is None:
                await self._session.close()
        finally:
            self._ended = self._ended or ClusterError("the consumer is closed", ErrorCode.CLOSED)
            self._arrived.set()
            await self._tasks.aclose()
            await self._cluster.aclose()
            self._closed = True

    def _check_open(self) -> None:
        self._guard.check()
        if self._ended is not None:
            raise self._ended

    async def _start(self) -> None:
        self._check_open()
        self._tasks.check_loop()
        async with self._starting:
            if not self._started:
                await self._tasks.start()
                self._check_open()  # it may have been closed meanwhile
                self._tasks.spawn(self._cluster.keep_fresh(), "metadata")
                self._tasks.spawn(self._fetcher.run(), "fetcher")
                if self.config.group_id and self.config.enable_auto_commit:
                    self._tasks.spawn(self._session.committer.run(), "auto-commit")
                self._started = True

    def _raise_errors(self) -> None:
        session = self._session
        error = self._ended or session.error
        error = error or self._assignment.first_error(in_group=session.subscribed)
        if error is not None:
            raise error

    def _crashed(self, cause: BaseException) -> None:
        self._ended = why_ended("consumer", cause)
        self._arrived.set()


def _check_timeout(timeout_s: object) -> None:
    if timeout_s is None or (isinstance(timeout_s, Real) and float(timeout_s) >= 0):
        return
    raise MisuseError(
        f"timeout_s is {timeout_s!r}; it must be a number of seconds, 0 or more, or None to wait "
        "as long as it takes"
    )
