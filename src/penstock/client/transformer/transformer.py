"""Consume, transform, produce: a group's records to records of other topics, exactly once.

    take: ──▶ poll ──▶ batches, out ──▶ the user's handler ──▶ out.send ─┐
              │ a partition leaves                        every 100 ms   │
              └────────────────────▶ commit: offsets + output ◀──────────┘
                                         │ anything fails
                 abort ─▶ back to what is committed ─▶ pause ─▶ again

`TransformModel` (machine.py) decides; this drives a consumer of the group and a producer
of transactions (output.py). The offsets of what was read are part of the transaction of
what was made of it, so that each record has its effect once, whoever dies meanwhile (I15). Whether
a commit whose answer was lost has happened need not be known: a new producer with the same id ends
what is open, and the group's offsets tell. The id is this transformer's own; the group's
coordinator fences it when it puts the member out: nobody waits for the transaction of a dead one.

One transaction is open at a time; while it is committed, the consumer fetches ahead.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, Self, Unpack

from penstock.client.admin.admin import AsyncAdmin
from penstock.client.clock import now_ms
from penstock.client.consumer.consumer import AsyncConsumer
from penstock.client.dead_letters import cause_text, place_of
from penstock.client.model import ConsumedBatch, Record
from penstock.client.producer.producer import exit_flush_s
from penstock.client.transformer.config import (
    TransformConfig,
    TransformOptions,
    check_handle,
    transactional_id,
)
from penstock.client.transformer.machine import Letter, State, Step, TransformModel
from penstock.client.transformer.out import AsyncOut, refused_for_good
from penstock.client.transformer.output import TransformOutput, connecting
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError, PenstockError

AsyncHandle = Callable[[Record, AsyncOut], Awaitable[None]]
Pass = tuple[list[ConsumedBatch], AsyncOut]
_MENDED_BY_NOBODY: Final = frozenset(
    {ErrorCode.MISUSE, ErrorCode.INVALID_REQUEST, ErrorCode.CLOSED}
)
"""Errors for which a retry cannot help."""

_log = logging.getLogger("penstock.client")


class AsyncTransformer:
    """Hands out records of a group, and commits what is sent with their offsets.

    Use it with `async with`, and loop over it, or call `run` with a handler:

        async with AsyncTransformer(addr, group_id="billing", source="orders") as loop:
            async for batches, out in loop:
                for batch in batches:
                    for record in batch.records():
                        await out.send("paid", price(record), key=record.key)

    Asking for the next batches says that those before are done. Commits follow by themselves. Where
    a transaction fails, its batches come again, with another `out`; nothing that was sent for the
    first time is visible to read_committed readers.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: TransformConfig | None = None,
        **options: Unpack[TransformOptions],
    ) -> None:
        """Connects on first use.

        Args:
            bootstrap: Addresses of any brokers of the cluster, "host:port,host:port".
            config: All settings, or None to give them as `options`; not both.
            options: Fields of TransformConfig; group_id and source are needed.

        Raises MisuseError for settings that make no sense.
        """
        if config is not None and options:
            raise MisuseError("give a config or keyword options, not both")
        self.config = config or TransformConfig(**options)
        self.transactional_id = transactional_id(self.config.group_id)
        self._bootstrap = bootstrap
        self._model = TransformModel(self.config)
        self._consumer = AsyncConsumer(
            bootstrap,
            group_id=self.config.group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            transactional_id=self.transactional_id,
            session_timeout_ms=self.config.session_timeout_ms,
            client_id=self.config.client_id,
            **connecting(self.config),
        )
        self._output = TransformOutput(bootstrap, self.config, self.transactional_id)
        self._in_hand = 0
        self._handling = False
        self._alone = asyncio.Lock()
        self._stop = asyncio.Event()
        self._started = False
        self._closed = False

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.end(kind)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Pass:
        found = await self.take()
        if found is None:
            raise StopAsyncIteration
        return found

    @property
    def model(self) -> TransformModel:
        """Internal."""
        return self._model

    async def start(self) -> None:
        """Subscribes; done by the first pass as well. Raises ClusterError(UNKNOWN_TOPIC), also for
        the dead-letter topic, and UnreachableError."""
        if self._started:
            return
        letters = self.config.dead_letter_topic
        if letters:
            async with AsyncAdmin(self._bootstrap, **connecting(self.config)) as admin:
                await admin.describe_topics([letters])
        await self._consumer.subscribe(self.config.topics, listener=self)
        self._started = True

    async def take(self) -> Pass | None:
        """The batches before are done. The next ones and where to send what is made of them; None
        after `stop`, when all is committed.

        Raises what stops a consumer (see `AsyncConsumer.poll`), MisuseError, and what no retry
        helps against: INVALID_REQUEST for a timeout that the cluster does not allow, and, with
        nothing committed, INVALID_TIMESTAMP, RECORD_TOO_LARGE and whatever else a topic refuses for
        good in what was sent; UNKNOWN_TOPIC if that is deleted.
        """
        async with self._turn():
            await self.start()
            self._finish_pass()
            while True:
                step = self._model.step(now_ms())
                if step is Step.END:
                    return None
                found = await self._obey(step)
                if found is not None:
                    return found

    async def commit(self) -> None:
        """The batches in hand are done: commits now. Raises nothing: what fails comes again."""
        async with self._turn():
            self._finish_pass()
            if self._model.state is State.OPEN:
                await self._commit()

    async def run(self, handle: AsyncHandle) -> None:
        """Calls `handle(record, out)` for every record, one after the other, until `stop`.

        A handler that raises is called again, in another transaction, after a pause; after
        `retries` the record goes to `dead_letter_topic`. Raises MisuseError unless `handle` is an
        async function; HandlerFailedError without a dead-letter topic; otherwise as `take`.
        Output that its topic refuses for good ends the loop; it is a handler's failure if the
        handler waits for it: `await (await out.send(...))`.
        """
        check_handle(handle, is_async=True)
        with self.handling():
            while (found := await self.take()) is not None:
                batches, out = found
                for record in self.one_by_one(batches):
                    letter = self._model.letter(record)
                    try:
                        if letter is None:
                            await handle(record, out)
                        else:
                            await out.send(*letter[:3], headers=letter.headers)
                    except Exception as error:  # noqa: BLE001 - whatever a handler raises
                        self.handler_failed(record, error, letter)
                        break
                    if self.handled(record, letter):
                        more = await self.between()
                        if more is None:
                            break
                        out = more

    def stop(self) -> None:
        """Hands out no more; the loop ends when what is done is committed."""
        self._model.stop()
        self._stop.set()

    async def close(self) -> None:
        """Commits what is done and leaves the group; may be called again.

        Batches in hand are not done: nobody has asked for the next ones. While `run` is under way
        nothing is committed: call `stop` and let it return before.
        """
        await self.end(None)

    async def end(self, kind: type[BaseException] | None) -> None:
        """As `close`; by an error: aborts, briefly if somebody wants the program to end now."""
        self.stop()  # a pass that is waited for elsewhere ends
        async with self._alone:
            if self._closed:
                return
            self._closed = True
            try:
                if kind is None and not self._in_hand and not self._handling:
                    self._finish_pass()
                    if self._model.state is State.OPEN:
                        await self._commit()
                if self._model.state is State.OPEN:
                    self._model.failed()
                await self._output.abort(timeout_s=exit_flush_s(kind))
            finally:
                try:
                    await self._consumer.close()
                finally:
                    await self._output.close(exit_flush_s(kind))

    # ------------------------------------------------------------ one record after the other

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Internal: a record may be in hand whose handler has not returned."""
        self._handling = True
        yield  # left by an error, it stays so
        self._handling = False

    def one_by_one(self, batches: Sequence[ConsumedBatch]) -> Iterator[Record]:
        """Internal: the records of a pass, each done when the next is taken."""
        self._in_hand = 0
        for record in self._consumer.one_by_one(batches):
            if self._model.waits(record):
                self._consumer.put_back(record)
                return
            yield record

    def handled(self, record: Record, letter: Letter | None) -> bool:
        """Internal: True if `between` is to be called before the next record."""
        stop = self._model.handled(record, now_ms(), as_letter=letter is not None)
        return stop or self._output.failure is not None

    def handler_failed(self, record: Record, cause: Exception, letter: Letter | None) -> None:
        """Internal: raises what ends the loop."""
        if letter is not None:
            raise cause
        unknown = self._output.unknown_topic
        behind: BaseException | None = cause
        while unknown is not None and behind is not None:
            if behind is unknown:
                raise unknown
            behind = behind.__cause__ or behind.__context__
        text = cause_text(cause)
        final = self._model.handler_failed(record, text)
        if final is not None:
            raise final from cause
        _log.warning("%s: the handler failed, trying again: %s", place_of(record), text)

    async def between(self) -> AsyncOut | None:
        """Internal: in the middle of a pass. Commits, and goes on in the next transaction; None:
        the rest of the pass comes with another poll."""
        async with self._turn():
            self._finish_pass()
            if self._model.step(now_ms()) is Step.COMMIT:
                await self._commit()
            return await self._opened() if self._model.goes_on(now_ms()) else None

    # ------------------------------------------------------------ the group's word, inside polls

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """They begin at what is committed."""

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """The next owner begins behind what is committed here."""
        if self._model.state is State.OPEN:
            await self._commit()
        self._model.leaves(partitions)

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """What is open is not to count any more."""
        self._model.lost(partitions)

    # ------------------------------------------------------------ inside

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One call at a time. One that is cut short leaves nothing to be committed: batches may be
        gone with it, or half of a commit."""
        async with self._alone:
            try:
                yield
            except BaseException:
                if self._model.state is State.OPEN:
                    self._model.failed()
                raise

    def _finish_pass(self) -> None:
        self._model.done(self._in_hand)
        self._in_hand = 0
        failure = self._output.failure
        if failure is not None and self._model.state is State.OPEN:
            self._failed("records could not be sent", failure)

    async def _obey(self, step: Step) -> Pass | None:
        if step is Step.COMMIT:
            await self._commit()
        elif step is Step.RECOVER:
            await self._recover()
        else:
            return await self._poll()
        return None

    async def _poll(self) -> Pass | None:
        wait_s = self._model.wait_ms(now_ms()) / 1000
        batches = await self._consumer.poll(wait_s, self.config.max_records)
        records = sum(batch.record_count for batch in batches)
        passed_over = not records and self._consumer.uncommitted
        if not self._model.polled(records, now_ms(), passed_over=passed_over):
            return None
        out = await self._opened()
        if out is None:
            return None
        self._in_hand = records
        return batches, out

    async def _opened(self) -> AsyncOut | None:
        """Where to send; None if could not begin a transaction."""
        try:
            return await self._output.begin()
        except PenstockError as error:
            self._failed("could not begin a transaction", error)
            return None

    async def _commit(self) -> None:
        """Offsets first, so that records are stored meanwhile; the commit waits for those."""
        try:
            await self._output.commit(self._consumer)
        except PenstockError as error:
            self._failed("a transaction was not committed", error)
            await self._output.abort(error)
        else:
            self._model.committed()

    def _failed(self, what: str, error: PenstockError) -> None:
        """Raises it if trying again cannot help."""
        self._model.failed()
        if error.code in _MENDED_BY_NOBODY:
            raise error
        final = refused_for_good(error)
        if final is not None:
            raise final from error
        _log.warning("group %s: %s, trying again: %s", self.config.group_id, what, error)

    async def _recover(self) -> None:
        pause_s = self._model.pause_ms / 1000
        try:
            await self._output.abort()
            if self._output.producer is None:
                await self._output.begin()  # takes the id: what the one before left open ends
            await self._consumer.seek_to_committed()
        except PenstockError as error:
            self._failed("could not go back to the committed offsets", error)
        else:
            self._model.recovered()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stop.wait()


async def async_transform(
    bootstrap: str | Sequence[str],
    config: TransformConfig | None = None,
    *,
    handle: AsyncHandle,
    **options: Unpack[TransformOptions],
) -> None:
    """Runs `handle(record, out)` for every record of a group's source, until it is cancelled.

    What the handler sends, and that the record is done, count together or not at all. See
    `AsyncTransformer.run` for what becomes of failures, TransformConfig for `options`.
    """
    check_handle(handle, is_async=True)
    async with AsyncTransformer(bootstrap, config, **options) as loop:
        await loop.run(handle)
