"""A pool of workers that uses a topic as a queue: one handler per record, several at once.

    poll ──▶ lanes, one per worker: a key always in the same ──▶ handler, again after failures
                                       │ done                      │ given up
             commit the lowest ◀───────┴──── Unfinished ◀──── dead-letter topic

At least once: a record's offset is committed when its handler has returned, or when its dead letter
is stored; never before. Records that a member had not finished when it lost a partition are handled
again by the next owner. A handler that fails for good without a dead-letter topic stops the pool:
nothing is skipped silently.

The handler is an async function, which runs in the event loop, or a plain one, which runs in one
of the pool's threads; if that returns an awaitable, the event loop waits for it. Membership does
not wait for either.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal
from zlib import crc32

from penstock.client.admin.admin import AsyncAdmin
from penstock.client.config import AddressResolver
from penstock.client.consumer.consumer import AsyncConsumer
from penstock.client.dead_letters import (
    cause_text,
    handler_failed,
    letter_headers,
    letter_too_large,
    no_thread,
    place_of,
    program_ended,
    refused_at_exit,
    without_text,
)
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.model import ConsumedBatch, Record
from penstock.client.producer.producer import INTERRUPTED_FLUSH_S, AsyncProducer
from penstock.client.workers.unfinished import Unfinished
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError, PenstockError

Handler = Callable[[Record], Awaitable[None] | None]
POLL_S: Final = 0.2
FULL_S: Final = 1.0
"""How often a full pool checks whether partitions were revoked."""
POSITION_S: Final = 2.0
"""How long a poll waits for where new partitions start, all of them."""
BEHIND_MAX: Final = 10
"""How many times `queued_max` records of a partition are taken behind one that is not finished."""

_log = logging.getLogger("penstock.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How records are handled.

    Attributes:
        workers: How many handlers run at once, 1 to 1,000.
        order: "key": records of the same key one after the other, those without a key in any order.
            "partition": all records of a partition one after the other.
        queued_max: Maximum number of records taken and not finished; at least `workers`. Ten times
            as many are taken of a partition behind one that is not finished, then no more until it
            is: they cannot be committed before it.
        retries: How often a handler that raised is called again, 0 = never.
        backoff_ms: Pause before the first retry; doubles up to `backoff_max_ms`.
        backoff_max_ms: The longest pause; at least `backoff_ms`.
        dead_letter_topic: Where records go that failed `retries` + 1 times, with headers that say
            where they come from and why; it must exist. "" = the pool stops instead.
        commit_interval_ms: How often finished records are committed.
        drain_ms: How long to wait for running handlers when partitions are revoked, or at the end.
    """

    workers: int = 8
    order: Literal["key", "partition"] = "key"
    queued_max: int = 1_000
    retries: int = 3
    backoff_ms: int = 100
    backoff_max_ms: int = 10_000
    dead_letter_topic: str = ""
    commit_interval_ms: int = 1_000
    drain_ms: int = 30_000

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= 1_000:
            raise MisuseError(f"workers is {self.workers}; it must be 1 to 1,000")
        if self.order not in ("key", "partition"):
            raise MisuseError(f"order is {self.order!r}; use 'key' or 'partition'")
        if self.queued_max < self.workers:
            raise MisuseError(
                f"queued_max is {self.queued_max}; it must be at least workers ({self.workers})"
            )
        for name in ("retries", "backoff_ms", "drain_ms"):
            if getattr(self, name) < 0:
                raise MisuseError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if self.commit_interval_ms < 1 or self.backoff_max_ms < self.backoff_ms:
            raise MisuseError("commit_interval_ms must be 1 or more, backoff_max_ms >= backoff_ms")


class _Work:
    """A record in progress, or what is left of it when its partition was lost."""

    __slots__ = ("entry", "record")

    def __init__(self, record: Record, entry: "_Owned") -> None:
        self.record = record
        self.entry = entry


class _Owned:
    """A partition while it is owned. `gone`: what is queued of it is dropped."""

    def __init__(self, position: int) -> None:
        self.unfinished = Unfinished(position)
        self.running = 0
        self.committed = -1
        self.gone = False


class AsyncWorkerPool:
    """Call `run`; call `stop` from anywhere in the loop to end it cleanly."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topics: str | Sequence[str],
        group_id: str,
        handler: Handler,
        config: WorkerConfig | None = None,
        *,
        resolve_address: AddressResolver | None = None,
    ) -> None:
        """Joins the group when it runs; starts at the beginning of partitions without a committed
        offset.

        Raises MisuseError for invalid settings.
        """
        self.config = config or WorkerConfig()
        self._topics = topics
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler)
        self._consumer = AsyncConsumer(
            bootstrap,
            group_id=group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            client_id="penstock-workers",
            resolve_address=resolve_address,
        )
        self._bootstrap = bootstrap
        self._resolve_address = resolve_address
        self._producer: AsyncProducer | None = None
        self._threads = ThreadPoolExecutor(self.config.workers, "penstock-worker")
        self._lanes = [asyncio.Queue[_Work]() for _ in range(self.config.workers)]
        self._owned: dict[TopicPartition, _Owned] = {}
        self._held: set[TopicPartition] = set()
        """Paused, as a record that is not finished holds up what can be committed."""
        self._queued = 0
        self._turn = 0
        self._changed = asyncio.Event()
        self._stopping = False
        self._ended: asyncio.Event | None = None
        self._task: asyncio.Task[object] | None = None
        """Runs, and has not begun to end."""
        self.exiting = False
        """The program ends: Python has said so, or `give_up` was called."""
        self._threadless = False
        """No thread could be started for a handler."""
        self._commit_s: float | None = None
        self.handled = 0
        self.retried = 0
        self.dead_lettered = 0

    def stop(self) -> None:
        """Takes no more records; `run` returns when the taken ones are handled and committed."""
        self._stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Until `stop`; once per pool. Cancelled, it commits what is done and leaves the group.

        Raises HandlerFailedError, UNKNOWN_TOPIC for a topic that does not exist (also the
        dead-letter topic), or an error that stops the consumer or the sending of a dead letter.
        """
        self._ended = asyncio.Event()
        self._task = asyncio.current_task()
        try:
            await self._open_dead_letters()
            await self._consumer.subscribe(self._topics, listener=self)
            async with asyncio.TaskGroup() as group:
                lanes = [group.create_task(self._work(lane)) for lane in self._lanes]
                committing = group.create_task(self._commit_often())
                await self._take_until_stopped()
                await self._idle(list(self._owned.values()))
                for task in (*lanes, committing):
                    task.cancel()
        except BaseExceptionGroup as failed:
            raise _first(failed) from None
        except asyncio.CancelledError:
            self._commit_s = INTERRUPTED_FLUSH_S  # a program that is being interrupted waits for it
            raise
        finally:
            await self._end(self._ended)

    def give_up(self) -> None:
        """Internal: the program ends. `run` commits what is done and leaves the group at once."""
        self.exiting = True
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Internal: returns when `run` has, or at once if it was never called."""
        if self._ended is not None:
            await self._ended.wait()

    # ------------------------------------------------------------ called by the group

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Internal: new partitions. Their start offsets are committed soon, so that lag is known,
        if they are: a partition may have no leader now, or be lost meanwhile."""
        until_s = asyncio.get_running_loop().time() + POSITION_S
        for where in partitions:
            start = -1
            with suppress(PenstockError, TimeoutError):
                async with asyncio.timeout_at(until_s):
                    start = await self._consumer.position(where)
            self._owned[where] = _Owned(start)

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Internal: finishes running records, drops waiting ones, commits finished ones."""
        leaving = [self._owned[where] for where in partitions if where in self._owned]
        for entry in leaving:
            entry.gone = True
        await self._idle(leaving)
        await self._commit(partitions)
        await self.on_lost(partitions)

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Internal: others have them, so nothing more is committed."""
        for where in partitions:
            entry = self._owned.pop(where, None)
            if entry is not None:
                entry.gone = True

    # ------------------------------------------------------------ inside

    async def _open_dead_letters(self) -> None:
        topic = self.config.dead_letter_topic
        if topic:
            async with AsyncAdmin(self._bootstrap, resolve_address=self._resolve_address) as admin:
                await admin.describe_topics([topic])
            self._producer = AsyncProducer(self._bootstrap, resolve_address=self._resolve_address)

    async def _take_until_stopped(self) -> None:
        while not self._stopping:
            room = self.config.queued_max - self._queued
            if room <= 0:
                await self._wait_for_room()
                continue
            await self._hold_up()
            self._queue(await self._consumer.poll(POLL_S, room))

    def _queue(self, batches: Sequence[ConsumedBatch]) -> None:
        for batch in batches:
            entry = self._owned[batch.topic_partition]
            for record in batch.records():
                entry.unfinished.begin(record.offset, batch.next_offset)
                self._queued += 1
                self._lanes[self._lane(record)].put_nowait(_Work(record, entry))

    async def _hold_up(self) -> None:
        """Pauses partitions with too much behind a record that is not finished; resumes others."""
        limit = BEHIND_MAX * self.config.queued_max
        behind = {at: entry.unfinished for at, entry in self._owned.items()}
        held = {at for at, unfinished in behind.items() if len(unfinished) >= limit}
        if held == self._held:
            return
        assigned = self._consumer.assignment()
        held &= assigned
        for where in held - self._held:
            _log.warning(
                "%s: no more records are taken until the one at offset %d is finished; %d behind "
                "it wait to be committed",
                where,
                behind[where].commit,
                len(behind[where]) - 1,
            )
        await self._consumer.pause(held - self._held)
        await self._consumer.resume((self._held - held) & assigned)
        self._held = held

    async def _wait_for_room(self) -> None:
        """Meanwhile, polls with all partitions paused, because some may be revoked."""
        self._changed.clear()
        try:
            async with asyncio.timeout(FULL_S):
                await self._changed.wait()
        except TimeoutError:
            places = self._consumer.assignment()
            await self._consumer.pause(places)
            # A partition that is assigned in this poll is not paused: its first record may come.
            self._queue(await self._consumer.poll(0, 1))
            await self._consumer.resume((places & self._consumer.assignment()) - self._held)

    def _lane(self, record: Record) -> int:
        if self.config.order == "partition":
            return crc32(f"{record.topic}/{record.partition}".encode()) % len(self._lanes)
        if record.key is not None:
            return crc32(record.key) % len(self._lanes)
        self._turn += 1
        return self._turn % len(self._lanes)

    async def _work(self, lane: "asyncio.Queue[_Work]") -> None:
        while True:
            work = await lane.get()
            entry = work.entry
            if not entry.gone:
                entry.running += 1
                try:
                    if await self._handle(work):
                        entry.unfinished.finish(work.record.offset)
                finally:
                    entry.running -= 1
            self._queued -= 1
            self._changed.set()

    async def _handle(self, work: _Work) -> bool:
        """Whether the record is done; False if its partition was lost before."""
        for attempt in range(self.config.retries + 1):
            try:
                await self._call(work.record)
            except Exception as error:
                if self.exiting or self._threadless:
                    raise
                if refused_at_exit(error) and self._refused():
                    self.exiting = True
                    raise program_ended(work.record) from error
                cause = error
            else:
                self.handled += 1
                return True
            if attempt < self.config.retries:
                self.retried += 1
                pause_ms = min(
                    self.config.backoff_ms << min(attempt, 16), self.config.backoff_max_ms
                )
                await asyncio.sleep(pause_ms / 1000)
                if work.entry.gone:
                    return False
        await self._give_up(work.record, cause)
        return True

    async def _call(self, record: Record) -> None:
        if self._is_async:
            answer = self._handler(record)
        else:
            answer = await self._begin(record)
        if inspect.isawaitable(answer):  # also of what did not look like an async function
            await answer

    def _begin(self, record: Record) -> Awaitable[Awaitable[None] | None]:
        """The plain handler, in one of the threads. That none can be started says nothing about the
        record, which must not become a dead letter for it."""
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._threads, self._handler, record)
        except RuntimeError as error:
            if refused_at_exit(error):
                raise
            self._threadless = True
            raise no_thread(record, self.config.workers, error) from error

    def _refused(self) -> bool:
        """Whether Python starts nothing in threads any more. An error that says so may be of
        another process, or of an executor that the handler has shut down; the pool's own is not,
        while `run` runs."""
        try:
            self._threads.submit(int)
        except RuntimeError as error:
            return refused_at_exit(error)
        return False

    async def _give_up(self, record: Record, cause: Exception) -> None:
        attempts = self.config.retries + 1
        text = cause_text(cause)
        if self._producer is None:
            raise handler_failed(record, text, attempts) from cause
        topic = self.config.dead_letter_topic
        for said in (text, without_text(text)):
            headers = letter_headers(record, said, attempts)
            try:
                await (await self._producer.send(topic, record.value, record.key, headers=headers))
            except PenstockError as error:
                if error.code is not ErrorCode.RECORD_TOO_LARGE:
                    raise
                refusal = error
            else:
                break
        else:
            raise letter_too_large(record, text, attempts, topic, refusal) from cause
        self.dead_lettered += 1
        _log.warning("%s went to %s: %s", place_of(record), topic, text)

    async def _idle(self, entries: list[_Owned]) -> None:
        """Waits until no handler of these is running, and none is waiting unless it was dropped."""
        try:
            async with asyncio.timeout(self.config.drain_ms / 1000):
                while any(e.running or (not e.gone and len(e.unfinished)) for e in entries):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _log.warning("handlers still running after %d ms", self.config.drain_ms)

    async def _commit_often(self) -> None:
        while True:
            await asyncio.sleep(self.config.commit_interval_ms / 1000)
            await self._commit(self._owned.keys())

    async def _commit(self, partitions: Container[TopicPartition]) -> None:
        """Commits finished records; a failure is logged, and the next commit covers it."""
        offsets = {
            where: OffsetAndMetadata(entry.unfinished.commit)
            for where, entry in self._owned.items()
            if where in partitions and entry.unfinished.commit > entry.committed
        }
        if not offsets:
            return
        try:
            async with asyncio.timeout(self._commit_s):
                await self._consumer.commit(offsets)
        except (PenstockError, TimeoutError) as error:
            _log.warning(
                "a commit failed, the next one covers it: %s", error or "no answer in time"
            )
            return
        for where, offset in offsets.items():
            if where in self._owned:
                self._owned[where].committed = offset.offset

    async def _end(self, ended: asyncio.Event) -> None:
        self._task = None
        try:
            await self._commit(list(self._owned))
            await self._consumer.close()
            if self._producer is not None:
                await self._producer.close(self._commit_s)
        finally:
            self._threads.shutdown(wait=False)
            ended.set()


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that stopped the pool, without the group around it."""
    error: BaseException = failed
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
