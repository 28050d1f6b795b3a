"""Polling with a deadline: the only place where tests sleep."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

A = TypeVar("A")
STEP_S = 0.02


def wait_until(condition: Callable[[], A], *, what: str, timeout_s: float = 20.0) -> A:
    """The first truthy answer of `condition`; AssertionError that says `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, (
            f"still not after {timeout_s} s: {what} (last answer: {answer!r})"
        )
        time.sleep(STEP_S)


async def wait_until_async(
    condition: Callable[[], Awaitable[A] | A], *, what: str, timeout_s: float = 20.0
) -> A:
    """As `wait_until`, for asyncio tests; the condition may be a coroutine function."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        answer = await found if isinstance(found, Awaitable) else found
        if answer:
            return answer
        assert time.monotonic() < deadline, (
            f"still not after {timeout_s} s: {what} (last answer: {answer!r})"
        )
        await asyncio.sleep(STEP_S)
