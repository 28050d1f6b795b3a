"""Calls a worker pool's handler, and knows when it cannot be called any more.

That says nothing about the record at hand: it must not become a dead letter for it. At the end of a
program Python begins nothing in threads any more, be it the handler or what the handler needs; or
the system gives the process no thread for either.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.client.dead_letters import no_thread, place_of, program_ended
from penstock.client.model import Record
from penstock.client.threads import MORE_THREADS, program_ends, refused_at_exit, thread_refusal
from penstock.errors import PenstockError

Handler = Callable[[Record], Awaitable[None] | None]


class HandlerCalls:
    """Of one pool. An async handler runs in the event loop, a plain one in one of the threads."""

    def __init__(self, handler: Handler, workers: int) -> None:
        self._handler = handler
        self._workers = workers
        self._is_async = inspect.iscoroutinefunction(handler)
        self._threads = ThreadPoolExecutor(workers, "penstock-worker")
        self.exiting = False
        """The program ends: Python has said so, or somebody who knows it has set this."""
        self._threadless = False
        """No thread could be started, for a handler or by one."""

    async def call(self, record: Record) -> Exception | None:
        """What the handler raised, or None. Raises what ends the pool: no handler can begin."""
        try:
            await self._call(record)
        except Exception as error:
            if self.exiting or self._threadless:
                raise
            if program_ends(error):
                self.exiting = True
                raise program_ended(record, "worker pool") from error
            refusal = thread_refusal(error)
            if refusal is not None:
                self._threadless = True
                raise no_thread(record, "worker pool", refusal) from error
            return error
        return None

    def close(self) -> None:
        """Begins nothing more. Handlers that run go on; nobody waits for them."""
        self._threads.shutdown(wait=False)

    async def _call(self, record: Record) -> None:
        try:
            if self._is_async:
                answer = self._handler(record)
            else:
                answer = await self._begin(record)
            if inspect.isawaitable(answer):  # also of what did not look like an async function
                await answer
        except asyncio.CancelledError as error:
            lane = asyncio.current_task()
            if lane is None or lane.cancelling():
                raise
            # Not by the pool: what the handler waited for was cancelled.
            raise RuntimeError("the handler was cancelled") from error

    def _begin(self, record: Record) -> Awaitable[Awaitable[None] | None]:
        """The plain handler, in one of the threads."""
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._threads, self._in_thread, record)
        except RuntimeError as error:
            if refused_at_exit(error):
                raise
            self._threadless = True
            raise _no_thread(record, self._workers, error) from error

    def _in_thread(self, record: Record) -> Awaitable[None] | None:
        """The plain handler. An asyncio future cannot hold a StopIteration."""
        try:
            return self._handler(record)
        except StopIteration as error:
            raise RuntimeError("the handler raised StopIteration") from error


def _no_thread(record: Record, workers: int, cause: RuntimeError) -> PenstockError:
    """The error of a worker pool that could start no thread: no dead letter, either."""
    return PenstockError(
        f"the worker pool has stopped at {place_of(record)}, and has committed what is done: the "
        f"system gives this process no thread for the handler ({cause}); the pool uses up to "
        f"{workers}. Lower workers, or {MORE_THREADS}"
    )
