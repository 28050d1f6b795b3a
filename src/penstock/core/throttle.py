"""The throttle of copies: how many bytes may go to a broker that a partition moves to (I32).

    out, at the leader     Growth + Bucket ─▶ may a message go now?
    in, at the receiver    Bucket ─▶ grants ─▶ credit of every leader that copies to it

It limits the backlog, not what is written meanwhile: what the copied partition grew by costs
nothing. A throttle that counts that too never ends below the rate of writes (KIP-73 warns of it,
L5). So a backlog falls at the rate, whatever is written. Both ends count alike, each for itself:
growth is kept for as long as a message is owed, because it will pay for that (ADR 100).

The law: over any 10 s, all who copy out of a broker, or in, send at most 10 s of the rate, what the
copied partitions grew by, and a message each. Buckets hold a burst, so that a timer that is late
loses nothing; they are filled slower than the rate by as much as bursts add to 10 s.

Times are in ms of a clock that does not go back; sizes in bytes.
"""

from collections.abc import Hashable, Mapping
from math import ceil, inf
from typing import Final, TypeVar

WINDOW_MS: Final = 10_000
"""For which the law holds."""
BURST_MS: Final = 100
"""Of the rate in a bucket, and, at a receiver, as much in credit that leaders have not used."""
_FILLED: Final = 1 - 3 * BURST_MS / WINDOW_MS
"""Of the rate. Bursts: of a bucket, and of leaders that came one by one (1 + 1/2 + 1/3)."""
_GROWTH_MS: Final = 1_000
"""How long growth counts that nobody used and nothing owed waits for, at least; at most twice
that."""
UNLIMITED_CREDIT: Final = 1 << 30
"""Unused, of each leader, if there is no limit."""

_Link = TypeVar("_Link", bound=Hashable)


class Bucket:
    """Tokens, a byte each. Whoever takes while it is not in debt may take any amount."""

    def __init__(self, rate: int | None) -> None:
        """`rate`: bytes per second, at least 1; None: no limit. It begins full."""
        assert rate != 0, "a rate of 0 never lets anything go"
        self.rate = rate
        self._tokens = inf
        self._at_ms = -inf

    def set_rate(self, rate: int | None, now_ms: float) -> None:
        """From now on. A debt stays, and is paid off at the new rate."""
        assert rate != 0, "a rate of 0 never lets anything go"
        self.tokens(now_ms)
        self.rate = rate

    def tokens(self, now_ms: float) -> float:
        """What is in it now; below zero: a debt."""
        if self.rate is None:
            self._at_ms, self._tokens = now_ms, inf
            return inf
        most = self.rate * BURST_MS / 1_000
        gained = 0.0
        if now_ms > self._at_ms > -inf:
            gained = (now_ms - self._at_ms) * self.rate * _FILLED / 1_000
        self._tokens = min(self._tokens + gained, most)
        self._at_ms = max(now_ms, self._at_ms)
        return self._tokens

    def take(self, size: float, now_ms: float) -> None:
        """Takes, always."""
        self._tokens = self.tokens(now_ms) - size

    def wait_ms(self, now_ms: float) -> float:
        """How long until a debt is paid off; 0 if there is none."""
        tokens = self.tokens(now_ms)
        if self.rate is None or tokens >= 0:
            return 0.0
        return -tokens * 1_000 / (self.rate * _FILLED)


class Growth:
    """What partitions grew by while they are copied to one broker, until it is used or too old."""

    def __init__(self) -> None:
        self._new = self._old = 0
        self._owed = 0
        self._since_ms = 0.0

    def pays(self, owed: float, now_ms: float) -> bool:
        """Whether there is so much of it. Until this is asked again, as much does not grow old:
        else what comes while a large debt is paid off would be backlog for ever."""
        self._owed = ceil(owed)
        return self.unused(now_ms) >= owed

    def gain(self, size: int, now_ms: float) -> None:
        """They grew."""
        self._age(now_ms)
        self._new += size

    def unused(self, now_ms: float) -> int:
        """What may be sent for nothing."""
        self._age(now_ms)
        return self._new + self._old

    def pay(self, size: int, now_ms: float) -> int:
        """Uses it for a message, the oldest first; returns what is left to pay."""
        self._age(now_ms)
        old = min(size, self._old)
        new = min(size - old, self._new)
        self._old -= old
        self._new -= new
        return size - old - new

    def _age(self, now_ms: float) -> None:
        spans = (now_ms - self._since_ms) // _GROWTH_MS
        if spans < 1:
            return
        young = self._new if spans == 1 else 0
        self._old = min(self._old + self._new, max(young, self._owed))
        self._new = 0
        self._since_ms += spans * _GROWTH_MS


def room_for_copies(reserve_bytes: int, total_bytes: int) -> int:
    """What must be free on a receiver's disk, in bytes, for it to grant credit: far more than its
    reserve, so that a partition that moves there makes no write refused."""
    return max(2 * reserve_bytes, total_bytes // 10)


def may_go(bucket: Bucket, growth: Growth, now_ms: float) -> bool:
    """Whether a copy may be sent now: growth pays for the bucket's debt."""
    return growth.pays(max(-bucket.tokens(now_ms), 0.0), now_ms)


def grants(bucket: Bucket, unused: Mapping[_Link, int], now_ms: float) -> dict[_Link, int]:
    """Credit for the leaders that copy to this broker, taken from its bucket.

    `unused`: of the credit that each has; below zero if its last message was larger. Each is
    filled up to its share of a burst, those that lack least first: what one does not use, the
    others get (redpanda#9593).
    """
    if not unused:
        return {}
    if bucket.rate is None:
        return {link: UNLIMITED_CREDIT - has for link, has in unused.items()}
    share = max(int(bucket.rate * BURST_MS / 1_000 / len(unused)), 1)
    left = max(int(bucket.tokens(now_ms)), 0)
    granted: dict[_Link, int] = {}
    for waiting, (link, has) in enumerate(sorted(unused.items(), key=lambda one: -one[1])):
        granted[link] = min(max(share - has, 0), left // (len(unused) - waiting))
        left -= granted[link]
    bucket.take(sum(granted.values()), now_ms)
    return {link: size for link, size in granted.items() if size}
