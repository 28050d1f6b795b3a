"""Polling with a deadline: the only place where tests sleep.

A wait for something that a server does is useless once the server ended. Whoever starts one
calls `watch`; every wait then asks between two looks whether it is still there, and fails at once
with the reason if it is not, whatever the wait was for.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

A = TypeVar("A")
STEP_S = 0.02
_watched: dict[object, Callable[[], None]] = {}


def watch(owner: object, check: Callable[[], None]) -> None:
    """From now on every wait calls `check`, which raises AssertionError to end the wait."""
    _watched[owner] = check


def unwatch(owner: object) -> None:
    """The owner's check is called no more. Nothing happens if there is none."""
    _watched.pop(owner, None)


def wait_until(condition: Callable[[], A], *, what: str, timeout_s: float = 40.0) -> A:
    """The first truthy answer of `condition`; AssertionError that says `what` after `timeout_s`,
    or at once when a watched process ended by itself."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        _go_on(answer, deadline, what, timeout_s)
        time.sleep(STEP_S)


async def wait_until_async(
    condition: Callable[[], Awaitable[A] | A], *, what: str, timeout_s: float = 40.0
) -> A:
    """As `wait_until`, for asyncio tests; the condition may be a coroutine function."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        answer = await found if isinstance(found, Awaitable) else found
        if answer:
            return answer
        _go_on(answer, deadline, what, timeout_s)
        await asyncio.sleep(STEP_S)


def _go_on(answer: object, deadline: float, what: str, timeout_s: float) -> None:
    for check in list(_watched.values()):
        try:
            check()
        except AssertionError as ended:
            raise AssertionError(f"{ended}\n(while waiting: {what})") from None
    assert time.monotonic() < deadline, (
        f"still not after {timeout_s} s: {what} (last answer: {answer!r})"
    )
