"""Time in shells, behind a seam: a simulator passes its own clock.

now_ms     the machines' clock: monotonic, in ms, the one that deadlines are given in
wall_ms    since 1970, as the operating system has it; may jump: never for waits
wall       the same, and whether it is to be trusted: for stored times, and before deleting by time
call_at    once, at a time of now_s; like `sleep`, by the running event loop
timeout    bounds waits inside `async with`; then raises TimeoutError
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from time import monotonic, time_ns
from typing import Protocol

from penstock.core.wall_clock import WallClockGuard, WallTime


class WallClock:
    """The wall clock of a process under its guard. Only for the event loop's thread."""

    def __init__(self, shown_ms: Callable[[], int], now_ms: Callable[[], int]) -> None:
        """`shown_ms`: the operating system's time; `now_ms`: monotonic."""
        self._shown_ms, self._now_ms = shown_ms, now_ms
        self._guard = WallClockGuard()

    def look(self) -> WallTime:
        """The time, and whether it may decide that something is deleted."""
        return self._guard.look(self._shown_ms(), self._now_ms())

    def told(self, controller_ms: int) -> None:
        """The controller's wall time has just arrived; 0: its release does not tell it."""
        if controller_ms:
            self._guard.told(controller_ms, self._now_ms())


class Clock(Protocol):
    """See the module. `now_s` is the clock of `call_at`, and may differ from `now_ms`."""

    def now_ms(self) -> int: ...
    def now_s(self) -> float: ...
    def wall_ms(self) -> int: ...
    @property
    def wall(self) -> WallClock: ...
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

    @cached_property
    def wall(self) -> WallClock:
        """One for all parts of the process that share this clock."""
        return WallClock(self.wall_ms, self.now_ms)

    def call_at(self, when_s: float, act: Callable[[], None]) -> None:
        """If the time has passed, `act` runs at the end of this turn of the loop."""
        asyncio.get_running_loop().call_at(when_s, act)

    async def sleep(self, seconds: float) -> None:
        """0: lets all other tasks run once."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """Like asyncio's, counted from entering the block."""
        return asyncio.timeout(seconds)
