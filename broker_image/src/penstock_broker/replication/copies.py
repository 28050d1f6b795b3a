"""The throttle of copies, both ends of it (ADR 66). The rules are `core.throttle`'s.

    leader     FollowerStream, one per follower ─▶ CopyAllowance ─▶ CopyThrottle, of all of them
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
_GRANTING_MS: Final = 1_000
"""Who lacks credit, and is granted none for so long, gets none: grants come every 50 ms."""


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

    def paid(self, growth: Growth, size: int) -> None:
        """A copy was read; what growth does not pay for is taken from the bucket."""
        now_ms = _now_ms()
        self._bucket.take(growth.pay(size, now_ms), now_ms)

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


class CopyAllowance:
    """What may be copied to one follower, over the life of its stream: both throttles let it go.

    Each counts for itself what the partitions grew by. Growth pays for a message that was larger
    than the follower's credit, too, as long as more is granted: while nothing is, its disk has no
    room, and growth waits.
    """

    def __init__(self, throttle: CopyThrottle, wake: Callable[[], None]) -> None:
        """`wake` is called when it is worth asking again, if only the throttle here said no."""
        self._throttle = throttle
        self._wake = wake
        self._growth, self._growth_there = Growth(), Growth()
        self._credit = 0
        self._granting_until_ms = 0.0
        self.spent = self._spent_told = 0
        """Of the credit: used, known to the follower."""

    def credited(self, copy_credit: int) -> None:
        """Granted since the stream began, as the follower says."""
        if copy_credit > self._credit:
            self._granting_until_ms = _now_ms() + _GRANTING_MS
        self._credit = copy_credit

    def grew(self, size: int) -> None:
        """Partitions that are copied have so many more bytes."""
        now_ms = _now_ms()
        self._growth.gain(size, now_ms)
        self._growth_there.gain(size, now_ms)

    def may_go(self) -> bool:
        """Whether the next message may be read."""
        return self._has_credit() and self._throttle.may_go(self._growth, self._wake)

    def _has_credit(self) -> bool:
        now_ms, lacking = _now_ms(), max(self.spent + 1 - self._credit, 0)
        pays = self._growth_there.pays(lacking, now_ms)
        return not lacking or (pays and now_ms < self._granting_until_ms)

    def pay(self, size: int) -> None:
        """A message was read: what growth does not pay for is counted."""
        self._throttle.paid(self._growth, size)
        self.spent += self._growth_there.pay(size, _now_ms())

    def newly_spent(self) -> int:
        """The credit used so far, if that is news; else 0."""
        news = self.spent != self._spent_told
        self._spent_told = self.spent
        return self.spent if news else 0

    @property
    def waits_here(self) -> bool:
        """Whether the throttle of this broker holds copies back."""
        return self._throttle.holds(self._wake)

    @property
    def lacks_credit(self) -> bool:
        """Whether all that the follower granted is used."""
        return self.spent >= self._credit


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
