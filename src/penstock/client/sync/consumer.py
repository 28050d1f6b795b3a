"""The sync consumer: its async namesake, driven from the loop thread.

Decides nothing. Every method passes its arguments to the async client and blocks the calling thread
until that is done; errors and meanings are documented there. Threads can share it, but one at a
time polls it (one_poll.py).
Ctrl-C interrupts a waiting call and leaves the client usable; what an interrupted poll had is
returned by the next one (handing_over.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from threading import RLock
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from penstock.client.config import ConsumerConfig, ConsumerOptions
from penstock.client.consumer.consumer import ITERATION_POLL_S, AsyncConsumer
from penstock.client.consumer.handing_over import HandingOver
from penstock.client.consumer.read_result import ReadResult
from penstock.client.consumer.reading import READ_BYTES_MAX, ReadStart
from penstock.client.decoders import Decoder, UndecodablePolicy
from penstock.client.documented import facade
from penstock.client.group.model import OffsetAndMetadata, RebalanceListener
from penstock.client.loop_thread import errand, shared_loop
from penstock.client.model import EARLIEST, ConsumedBatch, Record
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError

if TYPE_CHECKING:
    import pyarrow

Result = TypeVar("Result")


@facade(AsyncConsumer, ConsumerConfig)
class Consumer:
    """Reads partitions in order, without gaps.

    A listener's methods are called in the thread that polls, closes or unsubscribes.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ConsumerConfig | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._loop = shared_loop()
        self._core = AsyncConsumer(bootstrap, config, **options)
        self._core.notify_by(errand)
        self._closing = RLock()  # a listener may call `close` in the thread that closes
        self._closed = False
        self._loop.adopt(self)

    @property
    def config(self) -> ConsumerConfig:
        """All settings, checked."""
        return self._core.config

    @property
    def core(self) -> AsyncConsumer:
        """Internal: for transactions that commit this consumer's offsets."""
        return self._core

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str = "",
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads topics as a member of the group; joins with the next poll."""
        for method in ("on_assigned", "on_revoked", "on_lost"):
            if iscoroutinefunction(getattr(listener, method, None)):  # would never be awaited
                raise MisuseError(
                    f"{method} of the listener {listener!r} is async, and a Consumer calls it in "
                    "the thread that polls; make it a plain method, or use an AsyncConsumer"
                )
        self._loop.run(self._core.subscribe(topics, pattern=pattern, listener=listener))

    def unsubscribe(self) -> None:
        """Leaves the group, after a last commit."""
        self._loop.run_with_errands(self._core.unsubscribe())

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the assignment; partitions that stay keep their position."""
        self._loop.run(self._core.assign(partitions))

    def assignment(self) -> set[TopicPartition]:
        """The partitions assigned."""
        return self._core.assignment()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next poll starts at `offset`."""
        self._loop.run(self._core.seek(partition, offset))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Moves to the first record of the log; None = in all partitions."""
        self._loop.run(self._core.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Moves to the current end of the log; None = in all partitions."""
        self._loop.run(self._core.seek_to_end(partitions))

    def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Moves to the group's committed offsets; None = in all partitions."""
        self._loop.run(self._core.seek_to_committed(partitions))

    def seek_to_time(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Moves to the first records of a time (ms since 1970) or later; returns positions."""
        return self._loop.run(self._core.seek_to_time(timestamps_ms))

    def poll(
        self, timeout_s: float | None = 1.0, max_records: int | None = None
    ) -> list[ConsumedBatch]:
        """Returns available records; waits up to `timeout_s` for one."""
        return self._polled(timeout_s, max_records, lambda batches: batches)

    def poll_arrow(
        self,
        timeout_s: float | None = 1.0,
        max_records: int | None = None,
        *,
        include_headers: bool = False,
    ) -> "pyarrow.Table":
        """Like `poll`, but as one Arrow table with a chunk per batch."""
        from penstock.client.arrow import batches_to_table  # noqa: PLC0415 - only on demand

        convert = partial(batches_to_table, include_headers=include_headers)
        return self._polled(timeout_s, max_records, convert)

    def read_to_end(
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
        """As AsyncConsumer.read_to_end."""
        return self._loop.run(
            self._core.read_to_end(
                source,
                start,
                max_records=max_records,
                max_bytes=max_bytes,
                key=key,
                value=value,
                on_undecodable=on_undecodable,
            )
        )

    def __iter__(self) -> Iterator[Record]:
        """All records from the positions on, for ever; ends when the consumer is closed.

        Taking the next record means being done with the previous one. You can leave the loop at any
        record: the next poll or loop continues after it. Raises as `poll`.
        """
        while True:
            try:
                records = self._polled(ITERATION_POLL_S, None, self.one_by_one)
            except ClusterError as error:
                if error.code is ErrorCode.CLOSED:
                    return
                raise
            yield from records

    def one_by_one(self, batches: Sequence[ConsumedBatch]) -> Iterator[Record]:
        """The records of the last poll, each counted as returned when it is taken."""
        return self._core.one_by_one(batches)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls return no records of these partitions until `resume`."""
        self._loop.run(self._core.pause(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undoes `pause`."""
        self._loop.run(self._core.resume(partitions))

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that a poll will return."""
        return self._loop.run(self._core.position(partition))

    def lag(self) -> dict[TopicPartition, int]:
        """Per partition, the number of offsets between position and end now."""
        return self._loop.run(self._core.lag())

    def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> None:
        """Stores the group's offsets; None = after everything returned so far."""
        self._loop.run(self._core.commit(offsets))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: Callable[[PenstockError | None], None] | None = None,
    ) -> None:
        """Like `commit`, but without waiting: `callback` gets None or the error, in the client's
        own thread, which it must not block.

        Commits are stored in the order of the calls. Those made while another commit is in flight
        share the next call, so a commit after every record is cheap. `close` waits for them.
        Without a callback, an error is logged. The meaning of `offsets` None is decided now.
        """
        self._loop.run(self._core.commit_async(offsets, callback))

    def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets of these partitions; None = none."""
        return self._loop.run(self._core.committed(partitions))

    def close(self) -> None:
        """Leaves the group, ends fetching, closes the connections; can be called repeatedly."""
        with self._closing:
            if not self._closed:
                self._closed = True
                try:
                    self._loop.run_with_errands(self._core.close())
                except BaseException:
                    self._closed = False  # the next call does the rest
                    raise
                self._loop.release(self)

    def close_at_exit(self) -> None:
        """Internal: the process ends without a call of `close`."""
        self.close()

    def _polled(
        self,
        timeout_s: float | None,
        max_records: int | None,
        convert: Callable[[list[ConsumedBatch]], Result],
    ) -> Result:
        """A poll's records as the user gets them; without a result, they count as not returned."""
        handing = HandingOver(self._core)
        try:
            return convert(self._loop.run_with_errands(handing.poll(timeout_s, max_records)))
        except BaseException:
            # Not waited for, so that no second Ctrl-C can stop it; later calls find it done.
            self._loop.loop.call_soon_threadsafe(handing.take_back)
            raise
