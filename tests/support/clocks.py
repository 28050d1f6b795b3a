"""Clocks whose time passes when the test says so."""

import asyncio

from support.waiting import wait_until_async

from penstock_broker.clock import SystemClock


class StandingClock:
    """In the place of `time.monotonic`: the machine may take its time."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class HeldBounds(SystemClock):
    """Of a broker. `timeout` bounds nothing until `pass_bounds`; `asked_s`: what it was asked."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []
        self._held: list[asyncio.Timeout] = []

    def timeout(self, seconds: float) -> asyncio.Timeout:
        self.asked_s.append(seconds)
        held = asyncio.timeout(None)
        self._held.append(held)
        return held

    async def pass_bounds(self) -> None:
        """Once something waits with a bound."""
        await wait_until_async(lambda: self._held, what="something waits with a bound")
        for held in self._held:
            held.reschedule(self.now_s())
        self._held.clear()
