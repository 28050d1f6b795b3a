"""Consume, transform, produce: a group's records to records of other topics, exactly once.

    take: ──▶ poll ──▶ batches, out ──▶ the user's handler ──▶ out.send ─┐
              │ a partition leaves                        every 100 ms   │
              └────────────────────▶ commit: offsets + output ◀──────────┘
                                         │ anything fails
                 abort ─▶ back to what is committed ─▶ pause ─▶ again

`TransformModel` (transform_model.py) decides; this drives a consumer of the group and a producer
of transactions. The offsets of what was read are part of the transaction of what was made of it, so
that each record has its effect once, whoever dies meanwhile (I15). Whether a commit whose answer
was lost has happened need not be known: a new producer with the same id ends what is open, and the
group's offsets tell. The id is this transformer's own; the group's coordinator fences it when it
puts the member out, so that nobody waits for the transaction of a dead one.

One transaction is open at a time; while it is committed, the consumer fetches ahead.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, Self, Unpack

from penstock.client.accumulator import now_ms
from penstock.client.admin import AsyncAdmin
from penstock.client.config import ClientOptions
from penstock.client.consumer import AsyncConsumer
from penstock.client.dead_letters import cause_text, place_of
from penstock.client.model import ConsumedBatch, Record
from penstock.client.producer import AsyncProducer, exit_flush_s
from penstock.client.transaction_handle import AsyncTransaction
from penstock.client.transform_config import (
    TransformConfig,
    TransformOptions,
    check_handle,
    transactional_id,
)
from penstock.client.transform_model import Letter, State, Step, TransformModel
from penstock.client.transform_out import AsyncOut, refused_for_good
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, MisuseError, PenstockError

AsyncHandle = Callable[[Record, AsyncOut], Awaitable[None]]
Pass = tuple[list[ConsumedBatch], AsyncOut]
_MENDED_BY_NOBODY: Final = frozenset(
    {ErrorCode.MISUSE, ErrorCode.INVALID_REQUEST, ErrorCode.CLOSED}
)
"""Trying again cannot help."""

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
            **self._connecting(),
        )
        self._producer: AsyncProducer | None = None
        self._transaction: AsyncTransaction | None = None
        self._out: AsyncOut | None = None
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
            async with AsyncAdmin(self._bootstrap, **self._connecting()) as admin:
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
                await self._abort(timeout_s=exit_flush_s(kind))
            finally:
                try:
                    await self._consumer.close()
                finally:
                    if self._producer is not None:
                        await self._producer.close(exit_flush_s(kind))

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
        assert self._out is not None, "a record was handed out"
        stop = self._model.handled(record, now_ms(), as_letter=letter is not None)
        return stop or self._out.failure is not None

    def handler_failed(self, record: Record, cause: Exception, letter: Letter | None) -> None:
        """Internal: raises what ends the loop."""
        assert self._out is not None, "a record was handed out"
        if letter is not None:
            raise cause
        unknown = self._out.unknown_topic
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
        failure = self._out.failure if self._out is not None else None
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
        """Where to send; None if no transaction could be begun."""
        try:
            await self._begin()
        except PenstockError as error:
            self._failed("no transaction could be begun", error)
            return None
        return self._out

    async def _begin(self) -> AsyncTransaction:
        """The transaction that is open, or a new one. Failing, it leaves no producer."""
        if self._transaction is None:
            if self._producer is None:
                self._producer = self._new_producer()
            transaction = self._producer.transaction()
            try:
                await transaction.begin()
            except PenstockError:
                await self._drop_producer()
                raise
            self._transaction = transaction
            self._out = AsyncOut(self._producer, transaction)
        return self._transaction

    async def _commit(self) -> None:
        """Offsets first, so that records are stored meanwhile; the commit waits for those."""
        try:
            transaction = await self._begin()
            await transaction.commit_offsets(self._consumer)
            await transaction.commit(timeout_s=self._timeout_s)
        except PenstockError as error:
            self._failed("a transaction was not committed", error)
            await self._abort(error)
        else:
            self._transaction = None
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

    async def _abort(
        self, cause: PenstockError | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Ends what is open. If nobody confirms that, another producer has to."""
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return
        ended = cause is not None and cause.code is ErrorCode.TRANSACTION_ABORTED
        if not transaction.over:
            limit_s = self._timeout_s if timeout_s is None else timeout_s
            ended = True
            try:
                await transaction.abort(timeout_s=limit_s)
            except PenstockError as error:
                _log.info("group %s: transaction not aborted: %s", self.config.group_id, error)
                ended = False
        if not ended:
            await self._drop_producer()

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(0)

    async def _recover(self) -> None:
        pause_s = self._model.pause_ms / 1000
        try:
            await self._abort()
            if self._producer is None:
                await self._begin()  # takes the id: what the one before left open ends
            await self._consumer.seek_to_committed()
        except PenstockError as error:
            self._failed("not back at what is committed yet", error)
        else:
            self._model.recovered()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stop.wait()

    @property
    def _timeout_s(self) -> float:
        return self.config.transaction_timeout_ms / 1000

    def _new_producer(self) -> AsyncProducer:
        timeout_ms = self.config.transaction_timeout_ms
        return AsyncProducer(
            self._bootstrap,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=timeout_ms,
            client_id=self.config.client_id,
            **self._connecting(),
        )

    def _connecting(self) -> ClientOptions:
        names = ClientOptions.__annotations__
        return {name: getattr(self.config, name) for name in names}  # type: ignore[return-value]


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
