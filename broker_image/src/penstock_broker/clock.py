"""Time as shells see it, behind a seam: a simulator hands them another one.

now_ms     the machines' clock: monotonic, in ms, the one that deadlines are given in
wall_ms    since 1970; may jump: for what is written down, never for what is waited for
call_at    once, at a moment of now_s; like `sleep`, by the event loop that runs
timeout    a bound on what is awaited inside `async with`; then it raises TimeoutError
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from time import monotonic, time_ns
from typing import Protocol


class Clock(Protocol):
    """See the module. `now_s` is that of `call_at`, and may differ from `now_ms`."""

    def now_ms(self) -> int: ...
    def now_s(self) -> float: ...
    def wall_ms(self) -> int: ...
    def call_at(self, when_s: float, act: Callable[[], None]) -> None: ...
    async def sleep(self, seconds: float) -> None: ...
    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]: ...


class SystemClock:
    """The machine's own time, the event loop's timers."""

    def now_ms(self) -> int:
        """Not asked of the loop: finding the running one takes a system call in CPython 3.11."""
        return int(monotonic() * 1000)

    def now_s(self) -> float:
        """The loop's own clock, the one of `call_at`."""
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        """As the operating system has it."""
        return time_ns() // 1_000_000

    def call_at(self, when_s: float, act: Callable[[], None]) -> None:
        """A moment that has passed: at the end of this turn of the loop."""
        asyncio.get_running_loop().call_at(when_s, act)

    async def sleep(self, seconds: float) -> None:
        """0: lets everyone else have a turn."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """As asyncio's, from the moment it is entered."""
        return asyncio.timeout(seconds)
