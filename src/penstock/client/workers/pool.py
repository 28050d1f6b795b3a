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
import logging
from collections.abc import Container, Sequence
from contextlib import suppress
from itertools import count
from typing import Final
from zlib import crc32

from penstock.client.config import AddressResolver
from penstock.client.consumer.consumer import AsyncConsumer
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.model import ConsumedBatch, Record
from penstock.client.producer.producer import INTERRUPTED_FLUSH_S
from penstock.client.workers.calling import Handler, HandlerCalls
from penstock.client.workers.config import WorkerConfig
from penstock.client.workers.letters import Letters
from penstock.client.workers.unfinished import Unfinished
from penstock.core.types import TopicPartition
from penstock.errors import PenstockError

POLL_S: Final = 0.2
FULL_S: Final = 1.0
"""How often a full pool checks whether partitions were revoked."""
POSITION_S: Final = 2.0
"""How long a poll waits for where new partitions start, all of them."""
BEHIND_MAX: Final = 10
"""How many times `queued_max` records of a partition are taken behind one that is not finished."""

_log = logging.getLogger("penstock.client")


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
        self._calls = HandlerCalls(handler, self.config.workers)
        self._consumer = AsyncConsumer(
            bootstrap,
            group_id=group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            client_id="penstock-workers",
            resolve_address=resolve_address,
        )
        self._letters = Letters(self.config.dead_letter_topic, bootstrap, resolve_address)
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
        self._commit_s: float | None = None
        self.handled = 0
        self.retried = 0

    @property
    def dead_lettered(self) -> int:
        """Records that have become dead letters."""
        return self._letters.sent

    @property
    def exiting(self) -> bool:
        """The program ends: Python has said so, or `give_up` was called."""
        return self._calls.exiting

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
            await self._letters.open()
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
        self._calls.exiting = True
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
        for attempt in count(1):
            cause = await self._calls.call(work.record)
            if cause is None:
                self.handled += 1
                return True
            if attempt > self.config.retries:
                await self._letters.send(work.record, cause, attempt)
                return True
            self.retried += 1
            pause_ms = min(
                self.config.backoff_ms << min(attempt - 1, 16), self.config.backoff_max_ms
            )
            await asyncio.sleep(pause_ms / 1000)
            if work.entry.gone:
                break
        return False

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
            await self._letters.close(self._commit_s)
        finally:
            self._calls.close()
            ended.set()


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that stopped the pool, without the group around it."""
    error: BaseException = failed
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
