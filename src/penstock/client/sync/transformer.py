"""The sync transformer: handlers run in the calling thread, everything else on the loop thread.

Decides nothing; see `penstock.client.transformer`. A send that does not have to wait runs in the
calling thread, as with the sync producer.
"""

from collections.abc import Callable, Iterator, Sequence
from inspect import isawaitable, iscoroutine
from typing import Any, Self, Unpack

from penstock.client.documented import facade, with_settings
from penstock.client.loop_thread import LoopThread, shared_loop
from penstock.client.model import ConsumedBatch, Record
from penstock.client.producer.delivery import ColumnsDelivery, Delivery
from penstock.client.producer.topic_buffer import given_headers
from penstock.client.transformer.config import TransformConfig, TransformOptions, check_handle
from penstock.client.transformer.out import AsyncOut
from penstock.client.transformer.transformer import AsyncTransformer, Pass
from penstock.core.columns import Header
from penstock.errors import MisuseError


@facade(AsyncOut)
class Out:
    """Sends in the transaction that commits the source offsets."""

    def __init__(self, loop: LoopThread, core: AsyncOut) -> None:
        """Made by a transformer."""
        self._loop = loop
        self._core = core

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Delivery:
        """Sends a record, like `Producer.send`; it is visible when the transaction commits.

        You do not have to wait for the delivery: nothing commits before all records are stored.
        Raises MisuseError for invalid records, and ClusterError(UNKNOWN_TOPIC), which ends the
        loop. Any other error fails the delivery, and the transaction is done again.
        """
        headers = given_headers(headers)
        delivery = self._core.try_send(topic, (value, key, partition, timestamp_ms, headers))
        if delivery is not None:
            return delivery
        return self._loop.run(
            self._core.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        )

    def send_columns(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        timestamps_ms: Any = None,
        partition: int | None = None,
        headers: Sequence[Sequence[Header] | None] | None = None,
    ) -> ColumnsDelivery:
        """Sends many records at once; see `AsyncOut.send_columns`."""
        return self._loop.run(
            self._core.send_columns(
                topic,
                values,
                keys,
                timestamps_ms=timestamps_ms,
                partition=partition,
                headers=headers,
            )
        )


Handle = Callable[[Record, Out], None]


@facade(AsyncTransformer, TransformConfig)
class Transformer:
    """Reads a group's records, and commits the output together with their offsets.

    Use it in a `with` block, and loop over it, or call `run` with a handler:

        with Transformer(addr, group_id="billing", source="orders") as loop:
            for batches, out in loop:
                for batch in batches:
                    for record in batch.records():
                        out.send("paid", price(record), key=record.key)

    Taking the next batches says that the previous ones are done. If you leave the loop yourself,
    call `commit` first, or the current batches are delivered again.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: TransformConfig | None = None,
        **options: Unpack[TransformOptions],
    ) -> None:
        self._loop = shared_loop()
        self._core = AsyncTransformer(bootstrap, config, **options)
        self._loop.adopt(self)

    @property
    def core(self) -> AsyncTransformer:
        """The wrapped async transformer, with `transactional_id` and `config`."""
        return self._core

    def __enter__(self) -> Self:
        try:
            self._loop.run(self._core.__aenter__())
        except BaseException:
            self._loop.release(self)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._end(kind)

    def __iter__(self) -> Iterator[tuple[list[ConsumedBatch], Out]]:
        """Batches of records and where to send their output, until `stop`.

        Taking the next ones says that the previous ones are done. Raises as `run`.
        """
        while (found := self._take()) is not None:
            batches, out = found
            yield batches, Out(self._loop, out)

    def run(self, handle: Handle) -> None:
        """Calls `handle(record, out)` for every record, one after the other, until `stop`.

        Other threads and signal handlers may call `stop`. A handler that raises is called again, in
        a new transaction, after a pause; when `retries` are used up, the record goes to
        `dead_letter_topic`. Output that its topic refuses for good ends the loop; it counts as the
        handler's failure if the handler waits for it: `out.send(...).result()`.

        Raises MisuseError if `handle` is an async function; HandlerFailedError without a
        dead-letter topic; what stops a consumer (see `Consumer.poll`); and what a retry cannot
        cure: INVALID_REQUEST for a timeout that the cluster does not allow, INVALID_TIMESTAMP,
        RECORD_TOO_LARGE and all other permanent refusals of output by its topic, UNKNOWN_TOPIC if
        that topic is deleted.
        """
        check_handle(handle, is_async=False)
        with self._core.handling():
            for batches, out in self:
                self._handle_all(handle, batches, out)

    def _handle_all(self, handle: Handle, batches: list[ConsumedBatch], out: Out) -> None:
        core = self._core
        for record in core.one_by_one(batches):
            letter = core.model.letter(record)
            answer: object = None
            try:
                if letter is None:
                    answer = handle(record, out)  # type: ignore[func-returns-value]  # who knows
                else:
                    out.send(*letter[:3], headers=letter.headers)
            except Exception as error:  # noqa: BLE001 - whatever a handler raises
                core.handler_failed(record, error, letter)
                return
            if answer is not None:
                _check_answer(answer)
            if core.handled(record, letter):
                more = self._loop.run(core.between())
                if more is None:
                    return
                out = Out(self._loop, more)

    def commit(self) -> None:
        """The current batches are done: commits now; see `AsyncTransformer.commit`."""
        self._loop.run(self._core.commit())

    def stop(self) -> None:
        """Ends the loop when finished records are committed.

        Other threads and signal handlers may call it.
        """
        self._core.model.stop()  # seen by a handler's thread after its current record
        self._loop.loop.call_soon_threadsafe(self._core.stop)

    def close(self) -> None:
        """Commits finished records and leaves the group; see `AsyncTransformer.close`."""
        self._end(None)

    def close_at_exit(self) -> None:
        """Internal: the process ends without a call of `close`. Aborts what is open."""
        self._end(KeyboardInterrupt)

    def _take(self) -> Pass | None:
        try:
            return self._loop.run(self._core.take())
        except BaseException:
            # Ctrl-C reaches this thread alone: the pass may be taken, and must come again.
            self._loop.loop.call_soon_threadsafe(self._core.interrupted)
            raise

    def _end(self, kind: type[BaseException] | None) -> None:
        try:
            self._loop.run(self._core.end(kind))
        finally:
            self._loop.release(self)


@with_settings(TransformConfig)
def transform(
    bootstrap: str | Sequence[str],
    config: TransformConfig | None = None,
    *,
    handle: Handle,
    **options: Unpack[TransformOptions],
) -> None:
    """Runs `handle(record, out)` for every record of a group's source, until Ctrl-C.

        def price(record, out):
            out.send("paid", amount(record.value), key=record.key)

        transform("localhost:9092", group_id="billing", source="orders", handle=price)

    The handler's output and the source record's offset are committed together or not at all. Run up
    to as many instances as the source has partitions. See `Transformer.run` for failures; a
    `Transformer` can be stopped by other means. `group_id` and `source` are needed.
    """
    check_handle(handle, is_async=False)
    with Transformer(bootstrap, config, **options) as loop:
        loop.run(handle)


def _check_answer(answer: object) -> None:
    """It would never be awaited: the records would count as done."""
    if isawaitable(answer):
        if iscoroutine(answer):
            answer.close()
        raise MisuseError("handle returned an awaitable; use async_transform")
