"""A timer for code that checks again and again: usually it is already set early enough."""

import asyncio
from collections.abc import Callable


class Alarm:
    """Made and used in one event loop; rings at most once each time it is set."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._set: asyncio.TimerHandle | None = None

    def within(self, ms: int | None) -> None:
        """Rings in `ms` or earlier; None: does not need to ring, but may."""
        if ms is None:
            return
        when_s = self._loop.time() + ms / 1000
        if self._set is not None:
            if self._set.when() <= when_s:
                return
            self._set.cancel()
        self._set = self._loop.call_at(when_s, self._rings)

    def cancel(self) -> None:
        """Does not ring until it is set again."""
        if self._set is not None:
            self._set.cancel()
            self._set = None

    def _rings(self) -> None:
        self._set = None
        self._ring()
