"""The outcome of a record: a handle that costs two words, and one outcome per batch.

`send` makes only a `Delivery` (outcome, index): no future, no callback. All records of a batch
share its `Outcome`, which is set once. A caller that waits registers with the outcome then, from
any thread or event loop.

    Delivery ──┐
    Delivery ──┼──▶ Outcome ◀── sender: resolve(report) | fail(error)
    Delivery ──┘        └── waiters, only if someone waits
"""

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from penstock.client.model import DeliveryReport
from penstock.client.process import used_in_child
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.waits import wait_for


class DeliveryError(ClusterError):
    """Records were not delivered, or it is unknown whether they were.

    `unknown_outcome` True: an attempt was sent, but its answer never came or did not say: the
    records may be in the log, now or later, once. False: they are not and never will be (I8).
    """

    def __init__(
        self,
        message: str,
        code: ErrorCode,
        *,
        topic: str,
        partition: int,
        unknown_outcome: bool,
    ) -> None:
        super().__init__(message, code)
        self.topic = topic
        self.partition = partition
        self.unknown_outcome = unknown_outcome


_waiters_lock: Final = threading.Lock()


class Outcome:
    """What happened to a batch. Written once, by the event loop that owns the producer."""

    __slots__ = ("_loop", "_parts", "_pid", "_waiters", "error", "report")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._pid = os.getpid()
        self._waiters: list[Callable[[], object]] | None = None
        self._parts: Sequence[tuple[Outcome, int]] = ()
        self.report: DeliveryReport | None = None
        self.error: DeliveryError | None = None

    @property
    def done(self) -> bool:
        if self._parts:
            return all(part.done for part, _ in self._parts)
        return self.report is not None or self.error is not None

    def split(self, parts: "Sequence[tuple[Outcome, int]]") -> None:
        """The batch is sent in parts, with an outcome and a number of records each: it is done with
        the last of them."""
        self._parts = parts
        for part, _ in parts:
            part.when_done(self._part_done)

    def resolve(self, report: DeliveryReport) -> None:
        """The batch is stored as `report` says."""
        assert not self.done
        self.report = report
        self._wake()

    def fail(self, error: DeliveryError) -> None:
        """The batch is given up."""
        assert not self.done
        self.error = error
        self._wake()

    def when_done(self, wake: Callable[[], object]) -> None:
        """Calls `wake` once when done, at once if it already is; from the thread where that
        happens."""
        with _waiters_lock:
            if not self.done:
                if self._waiters is None:
                    self._waiters = []
                self._waiters.append(wake)
                return
        wake()

    def wait(self, timeout_s: float | None) -> None:
        """Blocks the calling thread. Raises TimeoutError, which does not affect the batch."""
        if self.done:
            return
        self._check_process()
        if self._loop is not None and self._loop is running_loop():
            raise MisuseError("result() would block the producer's event loop: await the delivery")
        event = threading.Event()
        self.when_done(event.set)
        if not wait_for(event, timeout_s):
            raise TimeoutError(
                f"no outcome within {timeout_s} s; the record may still be delivered"
            )

    async def wait_async(self) -> None:
        """Waits in the current event loop; cancelling the wait does not affect the batch."""
        if self.done:
            return
        self._check_process()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self.when_done(lambda: _call_in(loop, future))
        await future

    def _check_process(self) -> None:
        """In a child process nobody would ever settle it."""
        if os.getpid() != self._pid:
            raise used_in_child("delivery", self._pid)

    def reports(self, count: int) -> list[DeliveryReport]:
        """A report on each batch that the `count` records were sent in; raises the first error."""
        if not self._parts:
            return [self.report_of(0, count)]
        return [one for part, held in self._parts for one in part.reports(held)]

    def report_of(self, index: int, count: int) -> DeliveryReport:
        """The report on records [index, index + count) of one batch; raises its error."""
        for part, held in self._parts:
            if index < held:
                return part.report_of(index, count)
            index -= held
        if self.error is not None:
            raise self.error
        report = self.report
        assert report is not None, "asked before done"
        if index == 0 and count == report.record_count:
            return report
        base = report.base_offset + index if report.base_offset >= 0 else report.base_offset
        return replace(report, base_offset=base, record_count=count)

    def _part_done(self) -> None:
        if self.done:
            self._wake()

    def _wake(self) -> None:
        with _waiters_lock:
            waiters, self._waiters = self._waiters, None
        for wake in waiters or ():
            wake()


def _call_in(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
    def settle() -> None:
        if not future.done():
            future.set_result(None)

    if loop is running_loop():
        settle()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(settle)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop this is called in, if it is called in one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Delivery:
    """The handle `send` returns for one record: `done()`, `result()`, or `await` it.

    You may ignore it: a failed delivery is logged and counted by `close()`.
    """

    __slots__ = ("_index", "_outcome")

    def __init__(self, outcome: Outcome, index: int) -> None:
        self._outcome = outcome
        self._index = index

    def done(self) -> bool:
        """True when `result` returns or raises at once."""
        return self._outcome.done

    def result(self, timeout_s: float | None = None) -> DeliveryReport:
        """Blocks until the outcome is known; None = at most the delivery timeout.

        Raises DeliveryError if the record was not delivered or its outcome is unknown, TimeoutError
        if `timeout_s` passes first, MisuseError in the event loop of an AsyncProducer (use await)
        and in a child process.
        """
        self._outcome.wait(timeout_s)
        return self._outcome.report_of(self._index, 1)

    def __await__(self) -> Generator[Any, None, DeliveryReport]:
        if not self._outcome.done:
            yield from self._outcome.wait_async().__await__()
        return self._outcome.report_of(self._index, 1)


class ColumnsDelivery:
    """The handle that `send_columns` returns: a report per batch of the columns; more if the
    topic's limit was lowered, and one was split.

    Reports come in the order of the records within each partition. With keys, the records of one
    call are spread over partitions.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[tuple[Outcome, int]]) -> None:
        """`parts`: outcome and number of records of each batch, which they fill alone."""
        self._parts = tuple(parts)

    def done(self) -> bool:
        """True when `result` returns or raises at once."""
        return all(outcome.done for outcome, _ in self._parts)

    def result(self, timeout_s: float | None = None) -> list[DeliveryReport]:
        """Blocks until all are known. Raises the first DeliveryError, after all are known."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        for outcome, _ in self._parts:
            outcome.wait(None if deadline is None else max(0.0, deadline - monotonic()))
        return self._reports()

    def __await__(self) -> Generator[Any, None, list[DeliveryReport]]:
        for outcome, _ in self._parts:
            if not outcome.done:
                yield from outcome.wait_async().__await__()
        return self._reports()

    def _reports(self) -> list[DeliveryReport]:
        return [one for outcome, count in self._parts for one in outcome.reports(count)]
