"""A member's stream and clock on a thread of their own: no program delays its heartbeats.

    the consumer's event loop                       thread penstock-heartbeats
    GroupSession ──handle: events, in order───────▶ GroupLink, Membership, the stream
         ▲ catch_up ◀── inbox, in order ◀───────────┘ take, revoke, lose, fail, seated

A handler that blocks the consumer's event loop (a data frame, another library's call) does not get
its member removed after `session_timeout_ms`. What is stuck must still leave: a consumer that is
not polled for `max_poll_interval_ms` does. A poll that waits says again and again that it does, so
one whose event loop stands still counts as no poll.

What the thread reports waits in the inbox until the event loop turns. Whoever decides by it catches
up first. So a commit carries the seat that the consumer knows, never one that the member got after
it had lost its partitions: that one would make the coordinator accept old records (I18).

The thread has its own connections: gRPC's belong to one event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from penstock.client.cluster.cluster import Cluster
from penstock.client.config import ConsumerConfig
from penstock.client.group.contract import Event, Partitions, PollBegan, PollEnded
from penstock.client.group.coordinator import GroupCalls
from penstock.client.group.link import GroupLink, GroupOwner
from penstock.client.loop_thread import heartbeat_loop
from penstock.client.tasks import BackgroundTasks, why_ended
from penstock.errors import PenstockError

REPEATS: Final = 3
"""How often a poll that waits says so within `max_poll_interval_ms`."""
CLOSE_S: Final = 5.0


class Seat(NamedTuple):
    """Who the member is. Epoch 0: it has no seat in the group."""

    member_id: str = ""
    member_epoch: int = 0


class Heartbeats:
    """Of one consumer. Used in the consumer's event loop, after `begin`."""

    def __init__(
        self,
        bootstrap: tuple[str, ...],
        config: ConsumerConfig,
        owner: GroupOwner,
        coordinator: GroupCalls,
        yielded: Callable[[], int],
    ) -> None:
        """`coordinator`: the consumer's, which goes where the member is. `yielded`: how many
        records were taken one by one; also called in the thread."""
        self._bootstrap = bootstrap
        self._config = config
        self._owner = owner
        self._coordinator = coordinator
        self._yielded = yielded
        self._member: MemberThread | None = None
        self._inbox: deque[Callable[[], None]] = deque()
        self._polling = False
        self._news = asyncio.Event()
        self.seat = Seat()
        """As of the last time that the consumer caught up."""

    async def begin(self) -> None:
        """Makes the member, which joins nothing yet; `run` ends it. Raises MisuseError."""
        post = _Post(self._inbox, asyncio.get_running_loop(), self.catch_up)
        reports = Reports(post, self._owner, self._coordinator.settle, self._seated)
        self._member = self._new_member(reports)
        self._member.link.yielded = self._yielded
        try:
            await self._member.begin()
        except asyncio.CancelledError:
            self._member.end()  # nobody knows of it; the next call makes another one
            raise

    async def run(self) -> None:
        """Repeats that a poll goes on. Until cancelled: then the member ends, without a leave."""
        member = self._begun
        try:
            while True:
                await asyncio.sleep(self._config.max_poll_interval_ms / 1000 / REPEATS)
                if self._polling:
                    member.handle(PollBegan())
        except asyncio.CancelledError:
            await member.close()
            raise

    def end(self) -> None:
        """Ends the member if it has not ended, without waiting."""
        self._begun.end()

    def handle(self, event: Event) -> None:
        """Tells the member what happened. What that brings is reported later."""
        if isinstance(event, PollBegan | PollEnded):
            self._polling = isinstance(event, PollBegan)
        self._begun.handle(event)

    def catch_up(self) -> None:
        """Takes in what was reported so far."""
        while self._inbox:
            self._inbox.popleft()()

    async def epoch_after(self, epoch: int, timeout_s: float) -> None:
        """Waits until the member's epoch has changed, for at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.seat.member_epoch == epoch:
                    await self._news.wait()
        except TimeoutError:
            pass

    async def left(self, timeout_s: float) -> None:
        """Waits until a leave was confirmed, for at most `timeout_s`."""
        await self._begun.left(timeout_s)
        self.catch_up()

    def _new_member(self, reports: "Reports") -> "MemberThread":
        cluster = Cluster(self._bootstrap, self._config)
        return MemberThread(cluster, self._config, reports, heartbeat_loop().loop)

    @property
    def _begun(self) -> "MemberThread":
        assert self._member is not None, "used before `begin`"
        return self._member

    def _seated(self, seat: Seat) -> None:
        self.seat = seat
        self._news.set()
        self._news = asyncio.Event()


class MemberThread:
    """The member in its thread. Its methods are called in the consumer's event loop."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        reports: "Reports",
        loop: asyncio.AbstractEventLoop,
        link: Callable[..., GroupLink] = GroupLink,
    ) -> None:
        """`loop`: the thread's, which alone uses `cluster`. `link`: as `GroupLink`."""
        self._cluster = cluster
        self._tasks = BackgroundTasks("member", reports.crashed)
        coordinator = GroupCalls(cluster, config.group_id)
        self.link = link(cluster, coordinator, config, self._tasks, reports)
        self.loop = loop
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._life: Future[None] | None = None

    async def begin(self) -> None:
        """Returns when events may be handled."""
        self._life = asyncio.run_coroutine_threadsafe(self._live(), self.loop)
        await asyncio.wrap_future(self._started)

    def handle(self, event: Event) -> None:
        """In the order of the calls."""
        self.loop.call_soon_threadsafe(self.link.handle, event)

    async def left(self, timeout_s: float) -> None:
        """See `GroupLink`; behind all events so far."""
        waiting = asyncio.run_coroutine_threadsafe(self.link.left(timeout_s), self.loop)
        await asyncio.wait([asyncio.wrap_future(waiting)], timeout=2 * timeout_s)

    def end(self) -> None:
        """Soon; can be called repeatedly, even when no event loop runs."""
        if self._life is not None:
            self._life.cancel()

    async def close(self) -> None:
        """Ends it, and waits for that."""
        self.end()
        await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=CLOSE_S)

    async def _live(self) -> None:
        try:
            await self._tasks.start()
            self._tasks.spawn(self._cluster.keep_fresh(), "metadata")
            self._tasks.spawn(self.link.run(), "clock")
            self._cluster.refresh_soon()
            self._started.set_result(None)
            await asyncio.get_running_loop().create_future()
        finally:
            await self._tasks.aclose()
            await self._cluster.aclose()
            self._ended.set_result(None)


class _Post:
    """From the thread to the consumer's event loop, in order."""

    def __init__(
        self,
        inbox: deque[Callable[[], None]],
        loop: asyncio.AbstractEventLoop,
        catch_up: Callable[[], None],
    ) -> None:
        self._inbox = inbox
        self._loop = loop
        self._catch_up = catch_up

    def __call__(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        # A closed event loop polls no more: the member leaves after `max_poll_interval_ms`.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._catch_up)


class Reports:
    """The `SeatedOwner` in the thread: passes everything on."""

    def __init__(
        self,
        post: _Post,
        owner: GroupOwner,
        reached: Callable[[str], None],
        seated: Callable[[Seat], None],
    ) -> None:
        self._post = post
        self._owner = owner
        self._tell_reached = reached
        self._tell_seat = seated
        self._seat = Seat()

    def take(self, partitions: Partitions) -> None:
        """See `GroupOwner`."""
        self._post(partial(self._owner.take, partitions))

    def revoke(self, partitions: Partitions) -> None:
        """See `GroupOwner`."""
        self._post(partial(self._owner.revoke, partitions))

    def lose(self, partitions: Partitions) -> None:
        """See `GroupOwner`."""
        self._post(partial(self._owner.lose, partitions))

    def fail(self, error: PenstockError) -> None:
        """See `GroupOwner`."""
        self._post(partial(self._owner.fail, error))

    def reached(self, address: str) -> None:
        """See `SeatedOwner`."""
        self._post(partial(self._tell_reached, address))

    def seated(self, member_id: str, member_epoch: int) -> None:
        """See `SeatedOwner`."""
        seat = Seat(member_id, member_epoch)
        if seat != self._seat:
            self._seat = seat
            self._post(partial(self._tell_seat, seat))

    def crashed(self, cause: BaseException) -> None:
        """Polls raise it."""
        self.fail(why_ended("group's member", cause))
