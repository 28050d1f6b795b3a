"""An alarm rings when the earliest of those who set it wants it to."""

import asyncio

from penstock.client.alarm import Alarm

LONG_MS = 3_600_000


async def rung(alarm_for: str, *settings: int | None) -> None:
    """Sets an alarm as often, and waits until it rings."""
    ringing = asyncio.Event()
    alarm = Alarm(ringing.set)
    for ms in settings:
        alarm.within(ms)
    async with asyncio.timeout(120):
        await ringing.wait()
    assert ringing.is_set(), alarm_for


async def test_it_rings_as_early_as_anybody_asked_for() -> None:
    await rung("set once", 1)
    await rung("set to an earlier time", LONG_MS, 1)
    await rung("set to a later time", 1, LONG_MS)
    await rung("need not ring any more, but may", 1, None)


async def test_it_rings_once_each_time_it_is_set() -> None:
    rings: list[int] = []
    ringing = asyncio.Event()

    def ring() -> None:
        rings.append(len(rings))
        ringing.set()

    alarm = Alarm(ring)
    for expected in ([0], [0, 1]):
        alarm.within(3)
        alarm.within(1)
        async with asyncio.timeout(120):
            await ringing.wait()
        ringing.clear()
        await rung("a later one", 5)
        assert rings == expected


async def test_it_does_not_ring_when_it_was_cancelled_or_never_set() -> None:
    rings: list[None] = []
    cancelled, unset = Alarm(lambda: rings.append(None)), Alarm(lambda: rings.append(None))
    cancelled.within(1)
    cancelled.cancel()
    unset.within(None)
    unset.cancel()
    await rung("a later one", 5)
    assert rings == []
