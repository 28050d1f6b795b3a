"""Whether a broker's wall clock is to be trusted, and what time it is while it is not.

    wall time, monotonic time ──look──▶ ┌─────────────────────┐
                                        │ wall − monotonic,   │──▶ WallTime: ms, is_trusted
    controller's wall time ────told───▶ │ which is a constant │
                                        └─────────────────────┘

A clock that is right keeps its distance from the monotonic clock. If the distance differs by more
than DOUBT_MS from the one that counts, or if the controller's clock has never agreed with it, then
whoever deletes by time waits (I20), and the time is the controller's, or else goes on from the last
one that was trusted. ADR 0111 has the rules and their prices. All times in ms.
"""

from typing import Final, NamedTuple

DOUBT_MS: Final = 600_000
"""Clocks that differ by more than this are not both right."""
HOLD_MS: Final = 3_600_000
"""A new distance counts once it has held for so long: somebody has set a clock that was wrong."""


class WallTime(NamedTuple):
    """One look at the clock, since 1970.

    ms: the time to stamp and to compare with. is_trusted: it may decide that something is deleted.
    shown_ms: what the clock shows, which is `ms` if it is trusted.
    """

    ms: int
    is_trusted: bool
    shown_ms: int


class WallClockGuard:
    """Of one process. Distances are wall time minus monotonic time."""

    def __init__(self) -> None:
        self._counts: int | None = None
        """The distance that counts; None: nobody has looked yet."""
        self._counts_since_ms = 0
        self._newest = 0
        """The last distance seen that was close to the one that counts."""
        self._other: tuple[int, int] | None = None
        """A distance that does not count yet, and since when (monotonic) it has held."""
        self._controller: int | None = None
        self._has_agreed = False
        """The controller's clock has confirmed the distance that counts."""

    def told(self, controller_ms: int, now_ms: int) -> None:
        """The active controller's wall time has arrived, at `now_ms` of the monotonic clock."""
        self._controller = controller_ms - now_ms
        self._compare()

    def look(self, shown_ms: int, now_ms: int) -> WallTime:
        """`shown_ms`: the wall clock; `now_ms`: the monotonic clock, which must not go back."""
        self._see(shown_ms - now_ms, now_ms)
        if self._other is None and not self._is_disputed:
            return WallTime(shown_ms, True, shown_ms)
        known = self._newest if self._controller is None else self._controller
        return WallTime(known + now_ms, False, shown_ms)

    @property
    def _is_disputed(self) -> bool:
        """It was wrong from the start, or the controller's is."""
        return self._controller is not None and not self._has_agreed

    def _see(self, distance: int, now_ms: int) -> None:
        if self._counts is None:
            self._take(distance, now_ms)
        elif _close(distance, self._counts):
            self._newest, self._other = distance, None
            if now_ms - self._counts_since_ms >= HOLD_MS:  # follows a clock that drifts
                self._counts, self._counts_since_ms = distance, now_ms
        elif self._is_disputed and _close(distance, self._controller):
            self._take(distance, now_ms)
        elif self._other is None or not _close(distance, self._other[0]):
            self._other = (distance, now_ms)
        elif now_ms - self._other[1] >= HOLD_MS:
            self._take(distance, now_ms)

    def _take(self, distance: int, now_ms: int) -> None:
        self._counts = self._newest = distance
        self._counts_since_ms, self._other, self._has_agreed = now_ms, None, False
        self._compare()

    def _compare(self) -> None:
        if self._counts is not None and _close(self._counts, self._controller):
            self._has_agreed = True


def _close(one: int, other: int | None) -> bool:
    return other is not None and abs(one - other) <= DOUBT_MS
