"""Polling with a deadline: the only place where tests sleep.

A wait for something that a server does is useless once the server ended. Whoever starts one
calls `watch`; every wait then asks between two looks whether it is still there, and fails at once
with the reason if it is not, whatever the wait was for.

What neither comes nor ends is given up after seconds of a machine to oneself (`Patience`): with 60
tasks on two cores a broker takes 48 s to start instead of 1.5, and nothing is wrong with it.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, overload

A = TypeVar("A")
STEP_S = 0.02
_LONGEST_STEP_S = 0.1
_STEP_PART = 0.05
_STEP_CHARGED_S = 5.0
_watched: dict[object, Callable[[], None]] = {}


def watch(owner: object, check: Callable[[], None]) -> None:
    """From now on every wait calls `check`, which raises AssertionError to end the wait."""
    _watched[owner] = check


def unwatch(owner: object) -> None:
    """The owner's check is called no more. Nothing happens if there is none."""
    _watched.pop(owner, None)


def crowding() -> float:
    """How many times longer things take now than on idle cores: tasks per core, at least 1.

    The larger of what wants to run in this moment and of the last minute's average, which counts
    tasks that wait for the disk too.
    """
    load, _, _, running, _ = Path("/proc/loadavg").read_text().split()
    tasks = max(float(load), int(running.partition("/")[0]))
    return max(1.0, tasks / len(os.sched_getaffinity(0)))


class Patience:
    """Seconds that something may take on idle cores; on crowded ones it gets more by the clock."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        crowd: Callable[[], float] = crowding,
    ) -> None:
        self._left_s = seconds
        self._clock = clock
        self._crowd = crowd
        self._began_s = self._looked_s = clock()

    @property
    def step_s(self) -> float:
        """Until the next look: a twentieth of the time waited so far, within limits. A look often
        is a call, and what takes seconds need not be seen at once."""
        waited_s = self._looked_s - self._began_s
        return min(_LONGEST_STEP_S, max(STEP_S, waited_s * _STEP_PART))

    def is_over(self) -> bool:
        """To be asked at every look. Time between two looks counts for five seconds at most: a
        machine that stood still did nothing for anybody."""
        now_s = self._clock()
        self._left_s -= min(now_s - self._looked_s, _STEP_CHARGED_S) / self._crowd()
        self._looked_s = now_s
        return self._left_s < 0


def wait_exit(process: "subprocess.Popen[Any]", timeout_s: float) -> int:
    """The exit code of a child that ends; raises subprocess.TimeoutExpired like its `wait`."""
    patience = Patience(timeout_s)
    while True:
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired as late:
            if patience.is_over():
                raise subprocess.TimeoutExpired(late.cmd, timeout_s) from None


def wait_until(condition: Callable[[], A | None], *, what: str, timeout_s: float = 40.0) -> A:
    """The first truthy answer of `condition`; AssertionError that says `what` after `timeout_s`
    of a machine to itself, or at once when a watched process ended by itself."""
    patience = Patience(timeout_s)
    while True:
        answer = condition()
        if answer:
            return answer
        _go_on(answer, patience, what, timeout_s)
        time.sleep(patience.step_s)


@overload
async def wait_until_async(
    condition: Callable[[], Awaitable[A | None]], *, what: str, timeout_s: float = 40.0
) -> A: ...


@overload
async def wait_until_async(
    condition: Callable[[], A | None], *, what: str, timeout_s: float = 40.0
) -> A: ...


async def wait_until_async(
    condition: Callable[[], Awaitable[A | None] | A | None], *, what: str, timeout_s: float = 40.0
) -> A:
    """As `wait_until`, for asyncio tests; the condition may be a coroutine function."""
    patience = Patience(timeout_s)
    while True:
        found = condition()
        answer = await found if isinstance(found, Awaitable) else found
        if answer:
            return answer
        _go_on(answer, patience, what, timeout_s)
        await asyncio.sleep(patience.step_s)


def _go_on(answer: object, patience: Patience, what: str, timeout_s: float) -> None:
    for check in list(_watched.values()):
        try:
            check()
        except AssertionError as ended:
            raise AssertionError(f"{ended}\n(while waiting: {what})") from None
    assert not patience.is_over(), (
        f"still not after {timeout_s} s: {what} (last answer: {answer!r})"
    )
