"""Who owns the client's background tasks: one task group per client, inside one owner task.

A client is used with `async with`, or started and closed by hand in different tasks; a `TaskGroup`
must be entered and left in one and the same. So the group lives in an owner task, the only bare
task there is, which `aclose` cancels and awaits. A background task that fails (a defect: expected
errors are handled where they occur) ends them all and calls `on_crash`, so that no caller waits for
ever. So does a cancellation from outside, as at the end of `asyncio.run`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.errors import ClusterError, MisuseError

_log = logging.getLogger("penstock.client")


class BackgroundTasks:
    """Start with `start`, add with `spawn`, end with `aclose`."""

    def __init__(self, name: str, on_crash: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_crash = on_crash
        self._owner: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._entered = asyncio.Event()
        self._closing = False

    def check_loop(self) -> None:
        """Raises MisuseError in another event loop than the one of `start`: calls would wait there
        for ever, or fail somewhere inside."""
        if self._owner is not None and self._owner.get_loop() is not asyncio.get_running_loop():
            raise MisuseError(
                f"this {self._name} was first used in another event loop; create one in each, or "
                "hand the call over to that loop with asyncio.run_coroutine_threadsafe"
            )

    async def start(self) -> None:
        """Returns when `spawn` may be called. A call that was cancelled may be made again."""
        if self._owner is None:
            loop = asyncio.get_running_loop()
            self._owner = loop.create_task(self._own(), name=f"penstock-{self._name}")
            # If it is cancelled before its first step, it never says that it has begun.
            self._owner.add_done_callback(lambda _: self._entered.set())
        await self._entered.wait()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None] | None":
        """Runs `work` until it ends or the client closes; None (and nothing runs) if it closes, or
        has: a task that began now would hold up the end of the others, or come after it."""
        owner = self._owner
        if self._group is None or owner is None or owner.done() or owner.cancelling():
            work.close()
            return None
        return self._group.create_task(work, name=f"penstock-{self._name}-{name}")

    async def aclose(self) -> None:
        """Cancels all tasks and waits for their end."""
        self._closing = True
        owner = self._owner
        if owner is None or owner.done():  # perhaps in another event loop
            return
        owner.cancel()
        await asyncio.wait([owner])

    async def _own(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._entered.set()
                await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as outside:
            if not self._closing:
                self._on_crash(outside)
            raise
        except BaseExceptionGroup as crashed:
            cause = crashed.exceptions[0]
            _log.error("%s client stopped because of a defect", self._name, exc_info=cause)
            self._on_crash(cause)
        finally:
            self._group = None


def why_ended(what: str, cause: BaseException) -> ClusterError:
    """What calls raise after `on_crash`. Never CLOSED, with which a loop over records ends."""
    if isinstance(cause, asyncio.CancelledError):
        return ClusterError(
            f"the {what}'s background tasks were cancelled before it was closed, by the end of "
            "asyncio.run or by code that cancels all of asyncio.all_tasks(); close it first, and "
            "create one in each event loop"
        )
    return ClusterError(f"the {what} stopped because of a defect: {cause!r}")
