"""Event loop threads of a process: one behind all sync clients, one for all heartbeats.

One for all sync clients, because a thread per client would not be faster. It starts with the first
sync client, is a daemon, and ends with the process: at exit, clients still open are closed first (a
producer flushes for at most `EXIT_FLUSH_S` and warns). The other one starts with the first member
of a group and outlives the first: closing clients leave their groups. A forked child has no
threads; its first client starts them.
"""

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from penstock.client.process import ProcessGuard
from penstock.errors import ClusterError, ErrorCode, MisuseError
from penstock.waits import result_of, take

Result = TypeVar("Result")
EXIT_FLUSH_S: Final = 10.0

_log = logging.getLogger("penstock.client")


_Errand = tuple[Callable[[], object], "asyncio.Future[None]"]
_errands: ContextVar["SimpleQueue[_Errand | None]"] = ContextVar("errands")


async def errand(call: Callable[[], object]) -> None:
    """Makes the thread that waits in `run_with_errands` call `call`; raises what it raises."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    _errands.get().put((call, done))
    await done


class ClosesAtExit(Protocol):
    """A sync client."""

    def close_at_exit(self) -> None:
        """Called at the end of the process if the client is still open."""


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """As usual, except for answers that nobody waits for any more.

    gRPC has one queue for all event loops of a process: whichever turns first takes an answer out,
    and passes it on. If a program's own loop has been closed in the meantime, that raises in ours.
    """
    error, where = context.get("exception"), str(context.get("message"))
    if isinstance(error, RuntimeError) and "_handle_events" in where and "closed" in str(error):
        return
    loop.default_exception_handler(context)


class LoopThread:
    """Runs coroutines for threads that are not in the loop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_report)
        self._clients: set[ClosesAtExit] = set()
        self._ended = False
        self._guard = ProcessGuard("client")
        self._thread = threading.Thread(target=self._turn, name=name, daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        """Until `close`. The loop also ends when a task calls `sys.exit`, as a user's handler may:
        whoever waits for that task gets it, and the clients of others go on."""
        while not self._ended:
            with suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs `work` in the loop and returns its result; Ctrl-C cancels it and propagates."""
        self._check_process(work)
        if threading.current_thread() is self._thread:
            work.close()
            raise MisuseError(
                "a sync client was called inside the client's own event loop (in a callback or "
                "partitioner); use the async client there"
            )
        if self._ended:
            work.close()
            raise ClusterError("the process is ending and its clients are closed", ErrorCode.CLOSED)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return result_of(future)
        except BaseException:
            future.cancel()  # nothing happens if it ended by itself
            raise

    def run_with_errands(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Like `run`; meanwhile, the calling thread does what `work` requests with `errand`."""
        self._check_process(work)
        queue: SimpleQueue[_Errand | None] = SimpleQueue()

        async def carried() -> Result:
            _errands.set(queue)
            try:
                return await work
            finally:
                queue.put(None)

        if threading.current_thread() is self._thread or self._ended:
            return self.run(work)
        future = asyncio.run_coroutine_threadsafe(carried(), self.loop)
        try:
            while (wanted := take(queue)) is not None:
                call, done = wanted
                self._do_errand(call, done)
            return result_of(future)
        except BaseException:
            future.cancel()
            raise

    def _check_process(self, work: Coroutine[Any, Any, Any]) -> None:
        """In a child process there is no thread that could run `work`."""
        try:
            self._guard.check()
        except MisuseError:
            work.close()
            raise

    def _do_errand(self, call: Callable[[], object], done: "asyncio.Future[None]") -> None:
        try:
            call()
        except StopIteration as error:  # an asyncio future cannot hold it
            failure = RuntimeError("the callback raised StopIteration")
            failure.__cause__ = error
            self.loop.call_soon_threadsafe(_fail, done, failure)
        except Exception as error:  # noqa: BLE001 - raised again by who asked
            self.loop.call_soon_threadsafe(_fail, done, error)
        else:
            self.loop.call_soon_threadsafe(_succeed, done)

    def adopt(self, client: ClosesAtExit) -> None:
        """Closes the client at exit, unless it is released before; keeps it alive until then."""
        self._clients.add(client)

    def release(self, client: ClosesAtExit) -> None:
        """The client was closed."""
        self._clients.discard(client)

    def close(self) -> None:
        """Closes the clients, stops the loop, ends the thread."""
        for client in list(self._clients):
            try:
                client.close_at_exit()
            except Exception:  # noqa: BLE001 - whatever it is, the others are to be flushed
                _log.exception("a client could not be closed when the process ended")
        self._ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=1.0)


def _succeed(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)


def _fail(done: "asyncio.Future[None]", error: Exception) -> None:
    if not done.done():
        done.set_exception(error)


_lock = threading.Lock()
_shared: LoopThread | None = None
_heartbeats: LoopThread | None = None


def shared_loop() -> LoopThread:
    """The thread of the process's sync clients; started if there is none."""
    global _shared  # noqa: PLW0603 - one per process is what it is for
    with _lock:
        if _shared is None:
            _shared = LoopThread("penstock-client")
            atexit.register(_shared.close)
        return _shared


def heartbeat_loop() -> LoopThread:
    """The thread of the process's members of groups; started if there is none."""
    global _heartbeats  # noqa: PLW0603 - likewise
    with _lock:
        if _heartbeats is None:
            _heartbeats = LoopThread("penstock-heartbeats")
        return _heartbeats


def _end_heartbeats() -> None:
    if _heartbeats is not None:
        _heartbeats.close()


def _after_fork() -> None:
    global _lock, _shared, _heartbeats  # noqa: PLW0603 - the child starts over
    if _shared is not None:
        atexit.unregister(_shared.close)
    _lock = threading.Lock()
    _shared = _heartbeats = None


atexit.register(_end_heartbeats)  # before any client is made: so it is called after they are closed
os.register_at_fork(after_in_child=_after_fork)
