"""Looks at the wall clock again and again, and says when it is in doubt, and when no longer.

What waits meanwhile, and for how long: `penstock.core.wall_clock`, ADR 0111.
"""

import asyncio
from datetime import UTC, datetime
from typing import Final

from penstock_broker.clock import WallClock
from penstock_broker.observability import EventLog

LOOK_EVERY_S: Final = 10.0
_events = EventLog("clock")


class ClockWatch:
    """`is_doubted`: at the last look; for metrics, in any thread."""

    def __init__(self, wall: WallClock) -> None:
        self._wall = wall
        self.is_doubted = False

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Logs what has changed since the last look."""
        now = self._wall.look()
        if now.is_trusted is not self.is_doubted:
            return
        self.is_doubted = not now.is_trusted
        if self.is_doubted:
            _events.warning(
                "the wall clock is in doubt: nothing is deleted by time until it is back, or has "
                "held for an hour without differing from the controller's; check the node's clock",
                shown=_at(now.shown_ms),
                expected=_at(now.ms),
            )
        else:
            _events.info("the wall clock is trusted again", shown=_at(now.shown_ms))


def _at(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
