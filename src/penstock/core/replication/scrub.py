"""Which log a broker reads next to look for damage, and how fast.

    a log begins here ─▶ REGULAR ──interval is over──▶ due ─▶ read from start to end ─▶ REGULAR
                            └─ asked for, mended, or never known to be read: due at once

Damage that nobody reads is found by nobody, until the last sound copy is gone too. So each broker
reads every batch once per interval (I33). A pass is spread over half of the interval: the other
half is there for what restarts, full disks and logs that grow take of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from penstock.core.types import Offset, ReplicaKey

MIB: Final = 1 << 20
RATE_MIN: Final = 1 * MIB
RATE_MAX: Final = 16 * MIB


class Urgency(IntEnum):
    """The smaller, the sooner. All but REGULAR are due at once."""

    MENDED = 0
    """The disk has shown that it changes bytes, in this log."""
    ASKED = 1
    """Somebody waits for it."""
    UNKNOWN = 2
    """Nobody knows when it was last read."""
    REGULAR = 3


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """How far one log is. Times in ms since 1970, by the broker's clock.

    `since_ms`: every batch stored before that has been read since; or, of a log that was never read
    as a whole, when it was first seen. `began_ms`: of the pass that is under way, 0 = none is.
    `next_offset`: what that pass reads next.
    """

    since_ms: int
    urgency: Urgency = Urgency.REGULAR
    began_ms: int = 0
    next_offset: Offset = Offset(0)

    def wanted(self, urgency: Urgency) -> "ScrubProgress":
        """Read again, and so soon. Nothing changes if that is wanted already."""
        if self.urgency <= urgency:
            return self
        return ScrubProgress(self.since_ms, urgency)

    def begun(self, now_ms: int) -> "ScrubProgress":
        """A pass is under way: a new one, unless one was interrupted."""
        return self if self.began_ms else replace(self, began_ms=now_ms, next_offset=Offset(0))

    def read_to(self, offset: Offset) -> "ScrubProgress":
        """The pass has read everything before `offset`."""
        return replace(self, next_offset=offset)

    def finished(self) -> "ScrubProgress":
        """The pass that is under way has read everything."""
        return ScrubProgress(self.began_ms)

    def is_due(self, now_ms: int, interval_ms: int) -> bool:
        """`interval_ms` 0: only what is urgent. A clock that was set back delays nothing."""
        if self.urgency is not Urgency.REGULAR:
            return True
        over = now_ms - self.since_ms >= interval_ms or self.since_ms > now_ms
        return interval_ms > 0 and (over or self.began_ms > 0)


def next_due(
    logs: Mapping[ReplicaKey, ScrubProgress], now_ms: int, interval_ms: int
) -> ReplicaKey | None:
    """The log to read now: the most urgent, then one that was begun, then who waits longest."""
    due = [key for key, one in logs.items() if one.is_due(now_ms, interval_ms)]
    return min(due, key=lambda key: _order(key, logs[key]), default=None)


def _order(key: ReplicaKey, one: ScrubProgress) -> tuple[int, bool, int, str, int]:
    return one.urgency, not one.began_ms, one.since_ms, key.topic_id, key.partition


def scrub_rate(total_bytes: int, interval_ms: int, urgency: Urgency) -> int:
    """Bytes per second at which a broker with so many bytes reads a log of this urgency."""
    if urgency <= Urgency.ASKED or interval_ms == 0:
        return RATE_MAX
    return max(RATE_MIN, min(RATE_MAX, 2_000 * total_bytes // interval_ms))
