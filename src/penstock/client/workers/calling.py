"""Calls a worker pool's handler, and knows when it cannot be called any more.

That says nothing about the record at hand: it must not become a dead letter for it. At the end of a
program Python begins nothing in threads any more, be it the handler or what the handler needs; or
the system gives the process no thread.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.client.dead_letters import place_of
from penstock.client.model import Record
from penstock.errors import MisuseError, PenstockError

Handler = Callable[[Record], Awaitable[None] | None]
_AT_EXIT: Final = re.compile("interpreter shutdown|cannot schedule new futures after shutdown")


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
        """No thread could be started for a handler."""

    async def call(self, record: Record) -> Exception | None:
        """What the handler raised, or None. Raises what ends the pool: no handler can begin."""
        try:
            await self._call(record)
        except Exception as error:
            if self.exiting or self._threadless:
                raise
            if _refused_at_exit(error) and self._refused():
                self.exiting = True
                raise _program_ended(record) from error
            return error
        return None

    def close(self) -> None:
        """Begins nothing more. Handlers that run go on; nobody waits for them."""
        self._threads.shutdown(wait=False)

    async def _call(self, record: Record) -> None:
        if self._is_async:
            answer = self._handler(record)
        else:
            answer = await self._begin(record)
        if inspect.isawaitable(answer):  # also of what did not look like an async function
            await answer

    def _begin(self, record: Record) -> Awaitable[Awaitable[None] | None]:
        """The plain handler, in one of the threads."""
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._threads, self._handler, record)
        except RuntimeError as error:
            if _refused_at_exit(error):
                raise
            self._threadless = True
            raise _no_thread(record, self._workers, error) from error

    def _refused(self) -> bool:
        """Whether Python starts nothing in threads any more. An error that says so may be of
        another process, or of an executor that the handler has shut down; this one is not, before
        `close`."""
        try:
            self._threads.submit(int)
        except RuntimeError as error:
            return _refused_at_exit(error)
        return False


def _refused_at_exit(error: BaseException) -> bool:
    """Whether Python refused to begin something in a thread, as it does once the program's main
    thread has ended: the error says so, or one that led to it.

    An executor speaks of the interpreter's shutdown until the first of its threads has noticed it,
    and then of its own. So a program that has shut down an executor of its own is told the same.
    """
    left: list[BaseException | None] = [error]
    seen = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        said = any(isinstance(each, str) and _AT_EXIT.search(each) for each in one.args)
        if isinstance(one, RuntimeError) and said:
            return True
        left += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
    return False


def _program_ended(record: Record) -> MisuseError:
    """The error of a worker pool that runs in a thread, in a program that ends: no dead letter."""
    return MisuseError(
        f"the worker pool has stopped at {place_of(record)}, and has committed what is done: the "
        "program's main thread has ended, and then Python starts nothing in the threads of a pool. "
        "Call run in the main thread, or join the thread that runs it"
    )


def _no_thread(record: Record, workers: int, cause: RuntimeError) -> PenstockError:
    """The error of a worker pool that could start no thread: no dead letter, either."""
    return PenstockError(
        f"the worker pool has stopped at {place_of(record)}, and has committed what is done: the "
        f"system gives this process no thread for the handler ({cause}); the pool uses up to "
        f"{workers}. Lower workers, or raise the limit (ulimit -u, pids.max of a container)"
    )
