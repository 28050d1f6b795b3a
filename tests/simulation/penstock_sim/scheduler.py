"""Virtual time: one heap of callbacks, one seeded source of chance, one fingerprint.

Nothing in a simulation reads a real clock or uses a generator that is not the seed's, so a seed
determines a history. The fingerprint includes the time of every step; two runs of one seed must
have the same one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

_MASK: Final = (1 << 64) - 1
RATE: Final = 8
"""Seconds of a node per second of the world. A session timeout of 1.8 s is 225 ms of a history."""
BASE_TIME_MS: Final = 1_700_000_000_000
"""What the wall clock shows when a history begins."""


class RuleError(AssertionError):
    """An invariant of guarantees.md does not hold. The message names it first."""


class Scheduler:
    """Runs callbacks in order of virtual time; ties in the order they were planned."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.random = random.Random(seed)
        self._seed = seed
        self.now_us = 0
        self.steps = 0
        self.fingerprint = seed & _MASK
        self.traced = traced
        self.trace: list[str] = []
        self._failure: BaseException | None = None
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    @property
    def wall_ms(self) -> int:
        """Since 1970, for everybody: it is as fast as a node's clock."""
        return BASE_TIME_MS + self.now_us * RATE // 1000

    def after(self, delay_ms: float, callback: Callable[..., None], *args: object) -> None:
        """Plans `callback(*args)`; the delay is at least one microsecond."""
        self._planned += 1
        delay_us = int(delay_ms * 1000)
        due_us = self.now_us + (delay_us if delay_us > 1 else 1)  # noqa: FURB136 - `max` is a call
        heappush(self._heap, (due_us, self._planned, callback, args))

    def at_pace(self, chance: random.Random, pace_ms: float, act: Callable[[], None]) -> None:
        """Plans `act` after `pace_ms`, more or less, as `chance` has it."""
        self.after(chance.uniform(0.2, 1.8) * pace_ms, act)

    def run_until(self, end_ms: float) -> None:
        """Runs everything due up to `end_ms`."""
        end_us = int(end_ms * 1000)
        heap = self._heap
        while heap and heap[0][0] <= end_us:
            due_us, number, callback, args = heappop(heap)
            self.now_us = due_us
            self.steps += 1
            self.fingerprint = (self.fingerprint * 1_000_003 ^ due_us ^ (number << 40)) & _MASK
            callback(*args)
            if self._failure is not None:
                raise self._failure
        self.now_us = max(self.now_us, end_us)

    def fail(self, error: BaseException) -> None:
        """Ends the history with `error` after this step: where raising may have no effect.

        A shell's task may swallow an exception raised in it. Only the first error counts.
        """
        self._failure = self._failure or error

    def generator(self, name: str) -> random.Random:
        """Another generator: using it does not affect the others."""
        return random.Random(f"{name} of {self._seed}")

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random.random()

    def note(self, who: str, what: str, *details: object) -> None:
        """One line of the trace; costs nothing unless traced."""
        if self.traced:
            text = " ".join(str(detail) for detail in details)
            self.trace.append(f"{self.now_us / 1000:10.3f} {who:<8} {what} {text}".rstrip())
