"""The throttle of copies, both ends of it (ADR 66). The rules are `core.throttle`'s.

    leader     FollowerStream, one per follower ─▶ CopyThrottle: one bucket for all of them
    receiver   CopyCredits ─ every 50 ms ─▶ LeaderLink.grant, of every leader that copies to it

Nothing runs here while nothing is copied.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol

from penstock.core.throttle import Bucket, Growth, grants, may_go
from penstock.core.types import BrokerId

_GRANT_EVERY_S: Final = 0.05
_PAUSE_MIN_S: Final = 0.001


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1_000


class CopyThrottle:
    """What all followers together may copy from this broker."""

    def __init__(self, rate: int | None) -> None:
        """`rate`: bytes per second; None: no limit."""
        self._bucket = Bucket(rate)
        self._waiting: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set_rate(self, rate: int | None) -> None:
        """From now on; who waits looks again."""
        self._bucket.set_rate(rate, _now_ms())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake()

    def may_go(self, growth: Growth, wake: Callable[[], None]) -> bool:
        """Whether a copy may be sent now. If not, `wake` is called when it is worth asking again.

        Those who wait are called one by one, the first first, so that each gets its turn.
        """
        if may_go(self._bucket, growth, _now_ms()):
            return True
        self._waiting[wake] = None
        self._plan()
        return False

    def holds(self, wake: Callable[[], None]) -> bool:
        """Whether it will call `wake`."""
        return wake in self._waiting

    def paid(self, growth: Growth, size: int) -> int:
        """A copy was read; returns how much of it the throttle counts."""
        now_ms = _now_ms()
        counted = growth.pay(size, now_ms)
        self._bucket.take(counted, now_ms)
        return counted

    def _plan(self) -> None:
        if self._waiting and self._timer is None:
            wait_s = max(self._bucket.wait_ms(_now_ms()) / 1_000, _PAUSE_MIN_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._next)

    def _next(self) -> None:
        self._timer = None
        wake = next(iter(self._waiting))
        del self._waiting[wake]
        wake()
        self._plan()


class CopyLink(Protocol):
    """The stream to a leader, as far as copies use it (`following`)."""

    @property
    def unused_credit(self) -> int:
        """Granted on this stream and, as far as known, not used; below zero: overdrawn."""
        ...

    def grant(self, size: int) -> None: ...


class CopyCredits:
    """What all leaders together may copy to this broker."""

    def __init__(
        self, rate: int | None, links: Callable[[Collection[BrokerId]], dict[BrokerId, CopyLink]]
    ) -> None:
        """`rate`: as in `CopyThrottle`. `links`: those of these leaders that are up."""
        self._bucket = Bucket(rate)
        self._links = links
        self._leaders: frozenset[BrokerId] = frozenset()
        self._copying = asyncio.Event()
        self.has_space: Callable[[], bool] = lambda: True
        """Whether the disk has room for copies; without it no credit is granted. Set by the
        broker."""

    def set_rate(self, rate: int | None) -> None:
        """From now on. Credit that was granted stays."""
        self._bucket.set_rate(rate, _now_ms())

    def copied_from(self, leaders: Collection[BrokerId]) -> None:
        """These lead partitions that move to this broker."""
        self._leaders = frozenset(leaders)
        if self._leaders:
            self._copying.set()
        else:
            self._copying.clear()

    def grant(self) -> None:
        """Once."""
        if not self.has_space():
            return
        links = self._links(self._leaders)
        unused = {leader: link.unused_credit for leader, link in links.items()}
        for leader, size in grants(self._bucket, unused, _now_ms()).items():
            links[leader].grant(size)

    async def run(self) -> None:
        """Grants while anything is copied, until cancelled."""
        while True:
            await self._copying.wait()
            self.grant()
            await asyncio.sleep(_GRANT_EVERY_S)
