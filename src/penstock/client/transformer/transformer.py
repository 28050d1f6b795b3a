"""Consume, transform, produce: a group's records to records of other topics, exactly once.

    take: ──▶ poll ──▶ batches, out ──▶ the user's handler ──▶ out.send ─┐
              │ a partition leaves                        every 100 ms   │
              └────────────────────▶ commit: offsets + output ◀──────────┘
                                         │ anything fails
                 abort ─▶ back to what is committed ─▶ pause ─▶ again

`TransformModel` (machine.py) decides; this module drives a consumer of the group and a
transactional producer (output.py). The source offsets are part of the same transaction as the
output, so that each record has its effect once, whatever crashes in between (I15). The outcome of a
commit whose answer was lost does not have to be known: a new producer with the same id aborts what
is open, and the group's offsets show the outcome. The id belongs to this transformer only; the
group's coordinator aborts its transaction when it removes the member, so no reader waits for the
transaction of a dead one.

One transaction is open at a time; while it is committed, the consumer prefetches.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, Self, Unpack

from penstock.client.admin.admin import AsyncAdmin
from penstock.client.clock import now_ms
from penstock.client.consumer.consumer import AsyncConsumer
from penstock.client.dead_letters import cause_text, no_thread, place_of, program_ended
from penstock.client.documented import with_settings
from penstock.client.model import ConsumedBatch, Record
from penstock.client.producer.producer import exit_flush_s
from penstock.client.threads import program_ends, thread_refusal
from penstock.client.transformer.config import (
    TransformConfig,
    TransformOptions,
    check_handle,
    transactional_id,
)
from penstock.client.transformer.machine import Letter, State, Step, TransformModel
from penstock.client.transformer.out import AsyncOut, is_behind, is_too_large, refused_for_good
from penstock.client.transformer.output import TransformOutput, connecting
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError

AsyncHandle = Callable[[Record, AsyncOut], Awaitable[None]]
Pass = tuple[list[ConsumedBatch], AsyncOut]
_MENDED_BY_NOBODY: Final = frozenset(
    {ErrorCode.MISUSE, ErrorCode.INVALID_REQUEST, ErrorCode.CLOSED}
)
"""Errors for which a retry cannot help."""

_POLL_INTERVAL_MS: Final = 300_000
"""How long the handlers of a pass may take, as for every consumer."""

_log = logging.getLogger("penstock.client")


@with_settings(TransformConfig)
class AsyncTransformer:
    """Reads a group's records, and commits the output together with their offsets.

    Use it with `async with`, and loop over it, or call `run` with a handler:

        async with AsyncTransformer(addr, group_id="billing", source="orders") as loop:
            async for batches, out in loop:
                for batch in batches:
                    for record in batch.records():
                        await out.send("paid", price(record), key=record.key)

    Taking the next batches says that the previous ones are done. Commits happen automatically. If a
    transaction fails, its batches are returned again, with a new `out`; the output of the first
    attempt is never visible to read_committed readers.
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
            config: All settings, or None to give them by keyword; not both.

        Raises MisuseError for invalid settings.
        """
        if config is not None and options:
            raise MisuseError("give a config or keyword options, not both")
        self.config = config or TransformConfig(**options)
        self.transactional_id = transactional_id(self.config.group_id)
        self._bootstrap = bootstrap
        self._model = TransformModel(self.config)
        self._consumer = self._new_consumer()
        self._output = self._new_output()
        self._in_hand = 0
        self._handling = False
        self._interrupted = False
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
        """Subscribes; the first pass also does this. Raises ClusterError(UNKNOWN_TOPIC), also for
        the dead-letter topic, and UnreachableError."""
        if self._started:
            return
        if letters := self.config.dead_letter_topic:
            async with AsyncAdmin(self._bootstrap, **connecting(self.config)) as admin:
                await admin.describe_topics([letters])
        await self._consumer.subscribe(self.config.topics, listener=self)
        self._started = True

    async def take(self) -> Pass | None:
        """Says that the previous batches are done. Returns the next ones and where to send their
        output; None after `stop`, when everything is committed.

        Raises what stops a consumer (see `AsyncConsumer.poll`), MisuseError, and errors that a
        retry cannot cure: INVALID_REQUEST for a timeout that the cluster does not allow, and, with
        nothing committed, INVALID_TIMESTAMP, RECORD_TOO_LARGE and all other permanent refusals of
        output by its topic; UNKNOWN_TOPIC if that topic is deleted; TRANSACTION_TOO_LARGE if the
        output of one record has more partitions than a transaction may have.
        """
        async with self._turn():
            await self.start()
            self._finish_pass()
            while True:
                step = self._model.step(self._now_ms())
                if step is Step.END:
                    return None
                found = await self._obey(step)
                if found is not None:
                    return found

    async def commit(self) -> None:
        """Says that the current batches are done, and commits now. Failed batches are returned
        again. Raises only what a retry cannot cure, as `run`."""
        async with self._turn():
            self._finish_pass()
            if self._model.state is State.OPEN:
                await self._commit()

    async def run(self, handle: AsyncHandle) -> None:
        """Calls `handle(record, out)` for every record, one after the other, until `stop`.

        A handler that raises is called again, in a new transaction, after a pause; when `retries`
        are used up, the record goes to `dead_letter_topic`. Raises MisuseError unless `handle` is
        an async function; HandlerFailedError without a dead-letter topic; otherwise as `take`.
        Output that its topic refuses for good ends the loop; it counts as the handler's failure if
        the handler waits for it: `await (await out.send(...))`.
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
        """Ends the loop when finished records are committed."""
        self._model.stop()
        self._stop.set()

    async def close(self) -> None:
        """Commits finished records and leaves the group; can be called repeatedly.

        The current batches do not count as done, because the next ones were not taken. While `run`
        is running, nothing is committed: call `stop` and let it return first.
        """
        await self.end(None)

    async def end(self, kind: type[BaseException] | None) -> None:
        """Internal: like `close`; after an error: aborts, with a short timeout if the program is
        being interrupted."""
        self.stop()  # a pass that another task waits for ends
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
        """Internal: there may be a current record whose handler has not returned."""
        self._handling = True
        try:
            yield
        except BaseException:
            self.interrupted()
            raise  # and it stays so
        self._handling = False

    def interrupted(self) -> None:
        """Internal: the user may not have got what was taken, or not be done with it: the next call
        goes back to what is committed."""
        self._interrupted = True

    def one_by_one(self, batches: Sequence[ConsumedBatch]) -> Iterator[Record]:
        """Internal: the records of a pass, each done when the next is taken."""
        self._in_hand = 0
        for record in self._consumer.one_by_one(batches):
            if self._model.waits(record):
                self._consumer.put_back(record)
                return
            yield record

    def handled(self, record: Record, letter: Letter | None) -> bool:
        """Internal: True if `between` must be called before the next record."""
        stop = self._model.handled(record, self._now_ms(), as_letter=letter is not None)
        return stop or self._output.failure is not None

    def handler_failed(self, record: Record, cause: Exception, letter: Letter | None) -> None:
        """Internal: raises what ends the loop."""
        if letter is not None:
            self._letter_failed(record, cause)
            return
        unknown = self._output.unknown_topic
        if unknown is not None and is_behind(cause, unknown):
            raise unknown
        if program_ends(cause):
            raise program_ended(record, "transformer") from cause
        refusal = thread_refusal(cause)
        if refusal is not None:
            raise no_thread(record, "transformer", refusal) from cause
        text = cause_text(cause)
        if is_too_large(cause) and self._model.too_large(in_hand=1):
            self._model.failed()
            _log.warning("%s: trying again with fewer records: %s", place_of(record), text)
            return
        final = self._model.handler_failed(record, text)
        if final is not None:
            raise final from cause
        _log.warning("%s: the handler failed, trying again: %s", place_of(record), text)

    def _letter_failed(self, record: Record, cause: Exception) -> None:
        if not isinstance(cause, PenstockError) or cause.code is not ErrorCode.RECORD_TOO_LARGE:
            raise cause
        final = self._model.letter_too_large(record, cause)
        if final is not None:
            raise final from cause

    async def between(self) -> AsyncOut | None:
        """Internal: in the middle of a pass. Commits, and continues in the next transaction; None:
        the rest of the pass comes with a new poll."""
        async with self._turn():
            self._finish_pass()
            if self._model.step(self._now_ms()) is Step.COMMIT:
                await self._commit()
            return await self._opened() if self._model.goes_on(self._now_ms()) else None

    # ------------------------------------------------------------ called by the group, inside polls

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Internal: they start at the committed offsets."""

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Internal: the next owner starts after what is committed here."""
        if self._model.state is State.OPEN:
            await self._commit()
        self._model.leaves(partitions)

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Internal: the open transaction must no longer count."""
        self._model.lost(partitions)

    # ------------------------------------------------------------ replaced where they are simulated

    def _new_consumer(self) -> AsyncConsumer:
        return AsyncConsumer(
            self._bootstrap,
            group_id=self.config.group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            transactional_id=self.transactional_id,
            session_timeout_ms=self.config.session_timeout_ms,
            # It does not poll while it pauses, and is to keep its partitions.
            max_poll_interval_ms=_POLL_INTERVAL_MS + self.config.backoff_max_ms,
            client_id=self.config.client_id,
            **connecting(self.config),
        )

    def _new_output(self) -> TransformOutput:
        return TransformOutput(self._bootstrap, self.config, self.transactional_id)

    def _now_ms(self) -> int:
        """Also in other threads than the event loop's."""
        return now_ms()

    # ------------------------------------------------------------ inside

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One call at a time. An interrupted one leaves nothing to commit: batches may be lost with
        it, or half of a commit."""
        async with self._alone:
            if self._interrupted:
                self._interrupted = False
                self._in_hand = 0
                self._doom()
            try:
                yield
            except BaseException:
                self._doom()
                raise

    def _doom(self) -> None:
        if self._model.state is State.OPEN:
            self._model.failed()

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
        wait_s = self._model.wait_ms(self._now_ms()) / 1000
        batches = await self._consumer.poll(wait_s, self._model.room)
        records = sum(batch.record_count for batch in batches)
        passed_over = not records and self._consumer.uncommitted
        if not self._model.polled(records, self._now_ms(), passed_over=passed_over):
            return None
        out = await self._opened()
        if out is None:
            return None
        self._in_hand = records
        return batches, out

    async def _opened(self) -> AsyncOut | None:
        """Where to send; None if no transaction could be begun."""
        try:
            return await self._output.begin()
        except PenstockError as error:
            self._failed("could not begin a transaction", error)
            return None

    async def _commit(self) -> None:
        """Commits offsets first, so that records are stored in the meantime; the commit waits for
        those."""
        try:
            await self._output.commit(self._consumer)
        except PenstockError as error:
            self._failed("a transaction was not committed", error)
            await self._output.abort(error)
        else:
            self._model.committed(self._now_ms())

    def _failed(self, what: str, error: PenstockError) -> None:
        """Raises it if a retry cannot help."""
        how = self._slow_or_not()
        self._model.failed()
        if error.code in _MENDED_BY_NOBODY:
            raise error
        final = refused_for_good(error)
        if final is not None:
            raise final from error
        if is_too_large(error) and not self._model.too_large():
            raise ClusterError(
                f"{error}; it has the output of one source record, which is not committed: send "
                "a record's output to fewer partitions",
                ErrorCode.TRANSACTION_TOO_LARGE,
            ) from error
        _log.warning("group %s: %s, trying again%s: %s", self.config.group_id, what, how, error)

    def _slow_or_not(self) -> str:
        """How the next attempt differs, if this one took too long."""
        records = self._model.open_records
        if not self._model.too_slow(self._now_ms()) or not records:
            return ""
        timeout = f"transaction_timeout_ms ({self.config.transaction_timeout_ms:,})"
        if records > 1:
            return f" with fewer records, because it was open for longer than {timeout}"
        return f"; one record took longer than {timeout}, so raise that"

    async def _recover(self) -> None:
        pause_s = self._model.pause_ms / 1000
        try:
            await self._output.abort()
            if self._output.producer is None:
                # Takes over the id: what the previous one left open is aborted.
                await self._output.begin()
            await self._consumer.seek_to_committed()
        except PenstockError as error:
            self._failed("could not go back to the committed offsets", error)
            # Partitions may have been revoked, such as those of a deleted topic, whose offsets
            # nobody finds: only a poll gives them up. What it returns is read again.
            await self._consumer.poll(0, 1)
        else:
            self._model.recovered()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stop.wait()


@with_settings(TransformConfig)
async def async_transform(
    bootstrap: str | Sequence[str],
    config: TransformConfig | None = None,
    *,
    handle: AsyncHandle,
    **options: Unpack[TransformOptions],
) -> None:
    """Runs `handle(record, out)` for every record of a group's source, until it is cancelled.

    The handler's output and the source record's offset are committed together or not at all. See
    `AsyncTransformer.run` for failures. `group_id` and `source` are needed.
    """
    check_handle(handle, is_async=True)
    async with AsyncTransformer(bootstrap, config, **options) as loop:
        await loop.run(handle)
