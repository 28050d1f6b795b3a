"""Time in shells, behind a seam: a simulator passes its own clock.

now_ms     the machines' clock: monotonic, in ms, the one that deadlines are given in
wall_ms    since 1970; may jump: for stored times, never for waits
call_at    once, at a time of now_s; like `sleep`, by the running event loop
timeout    bounds waits inside `async with`; then raises TimeoutError
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from time import monotonic, time_ns
from typing import Protocol


class Clock(Protocol):
    """See the module. `now_s` is the clock of `call_at`, and may differ from `now_ms`."""

    def now_ms(self) -> int: ...
    def now_s(self) -> float: ...
    def wall_ms(self) -> int: ...
    def call_at(self, when_s: float, act: Callable[[], None]) -> None: ...
    async def sleep(self, seconds: float) -> None: ...
    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]: ...


class SystemClock:
    """The machine's own time, the event loop's timers."""

    def now_ms(self) -> int:
        """Not the loop's clock: finding the running loop takes a system call in CPython 3.11."""
        return int(monotonic() * 1000)

    def now_s(self) -> float:
        """The loop's own clock, which `call_at` uses."""
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        """The operating system's time."""
        return time_ns() // 1_000_000

    def call_at(self, when_s: float, act: Callable[[], None]) -> None:
        """If the time has passed, `act` runs at the end of this turn of the loop."""
        asyncio.get_running_loop().call_at(when_s, act)

    async def sleep(self, seconds: float) -> None:
        """0: lets all other tasks run once."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """Like asyncio's, counted from entering the block."""
        return asyncio.timeout(seconds)
