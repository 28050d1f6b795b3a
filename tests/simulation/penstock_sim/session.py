"""What of a group's consumer ships: its membership, and the calls to its coordinator.

    Reader ─ polls, lets go ─▶ Heartbeats ═▶ MemberThread, GroupLink, Membership ═▶ Join stream
       ▲ take, revoke, lose ◀──── inbox ◀──┘  (the process's second event loop)
       └ commit, fetch ─▶ Committer, TransactionOffsets ─▶ WatchedGroupCalls ═▶ coordinator

`Reader` is what the product has in `GroupSession`: it lets partitions go and takes them in polls.
`WatchedAssignment` tells the checks what is about to be committed, and which commits count.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.commits import AUTO_COMMIT_S, Committer, MemberIdentity
from penstock.client.consumer.transaction_offsets import Scope, TransactionOffsets
from penstock.client.group.commit_queue import Done, Offsets
from penstock.client.group.contract import (
    NONE,
    Event,
    Fenced,
    Heard,
    Partitions,
    Ready,
    StreamEnded,
    Subscribed,
    Tick,
    Wish,
)
from penstock.client.group.heartbeats import Heartbeats, MemberThread, Reports
from penstock.client.group.link import GroupLink, GroupOwner
from penstock.client.group.membership import Membership
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.tasks import BackgroundTasks
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, PenstockError, UnreachableError
from penstock_sim.group_calls import WatchedGroupCalls, cluster_of

if TYPE_CHECKING:
    from penstock_sim.members import SimMember

logging.getLogger("penstock.client").addHandler(logging.NullHandler())


class Watch(Protocol):
    """What the checks are told of a process's offsets."""

    def committing(self, offsets: Offsets, *, automatic: bool) -> None:
        """They are about to be committed."""

    def adopted(self, where: TopicPartition, committed: OffsetAndMetadata) -> None:
        """Commits go on in a later rewind epoch, from there."""


class WatchedAssignment(Assignment):
    """See the module."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def to_commit(self, *, only_done: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        found = super().to_commit(only_done=only_done)
        self._watch.committing(found, automatic=only_done)
        return found

    def committed(self, where: TopicPartition, commit: OffsetAndMetadata) -> bool:
        if where not in self.states:
            return super().committed(where, commit)
        before = self.progress(where).rewind_epoch
        counts = super().committed(where, commit)
        if self.progress(where).rewind_epoch > before:
            self._watch.adopted(where, commit)
        return counts


class WatchedLink(GroupLink):
    """The link of one member."""

    def __init__(self, member: SimMember, *parts: Any) -> None:
        super().__init__(*parts)
        self._process = member

    def handle(self, event: Event) -> None:
        if isinstance(event, StreamEnded) and not isinstance(event.error, UnreachableError | None):
            self._process.judge(event.error)
        scheduler = self._process.world.scheduler
        if scheduler.traced and not isinstance(event, Tick | Heard):
            scheduler.note(self._process.name, str(event))
        super().handle(event)

    def _obey(self, ready: Ready) -> None:
        if ready.notice:
            self._process.world.scheduler.note(self._process.name, ready.notice)
        super()._obey(ready)

    def _new_member_id(self) -> str:
        return self._process.new_member_id()


class _Heartbeats(Heartbeats):
    """With a loop of the process in place of a thread."""

    def __init__(self, member: SimMember, owner: GroupOwner, *parts: Any) -> None:
        super().__init__((), member.config, owner, *parts)
        self._process = member

    def _new_member(self, reports: Reports) -> MemberThread:
        process = self._process
        chance = process.world.scheduler.generator(f"streams of {process.name}.{process.life}")
        cluster = cluster_of(process.heart, process.config, chance)
        link = partial(WatchedLink, process)
        return MemberThread(cluster, process.config, reports, process.heart.loop, link)


class Session:
    """Of one process. It is its `Committer`'s `Member`."""

    def __init__(self, member: SimMember, assignment: Assignment, owner: GroupOwner) -> None:
        world, config = member.world, member.config
        self._process = member
        self._assignment = assignment
        chance = world.scheduler.generator(f"calls of {member.name}.{member.life}")
        cluster = cluster_of(member.user, config, chance)
        self.calls = WatchedGroupCalls(world, cluster, config.group_id, chance, member.judge)
        self._tasks = BackgroundTasks("consumer", world.scheduler.fail)
        self._heartbeats = _Heartbeats(member, owner, self.calls, lambda: assignment.yielded)
        self._within = TransactionOffsets(self.calls, config, assignment, self)
        self._committer = Committer(cluster, self.calls, config, assignment, self, self._tasks)

    # ------------------------------------------------------------ membership

    def begin(self, wish: Wish, then: Callable[[], None]) -> None:
        """Joins with the first poll, which comes after `then`."""

        async def begin() -> None:
            await self._tasks.start()
            await self._heartbeats.begin()
            self._tasks.spawn(self._heartbeats.run(), "heartbeats")
            self.handle(Subscribed(wish))

        self._start(begin, then)

    def handle(self, event: Event) -> None:
        """See `Heartbeats`."""
        self._heartbeats.handle(event)

    def catch_up(self) -> None:
        """See `Heartbeats`."""
        self._heartbeats.catch_up()

    @property
    def membership(self) -> Membership | None:
        """As the member knows it, which its reader may not yet. None: it has not begun."""
        member = self._heartbeats._member
        return None if member is None else member.link.membership

    @property
    def readable(self) -> Partitions:
        """What the member owns and does not give up, as it knows."""
        membership = self.membership
        return NONE if membership is None else membership.readable

    @property
    def member_id(self) -> str:
        """As the reader knows it."""
        return self._heartbeats.seat.member_id

    # ------------------------------------------------------------ calls

    def commit(self, offsets: Offsets, then: Callable[[], None]) -> None:
        """The user's commit, which it waits for."""
        self._start(partial(self._committer.commit, offsets), then)

    def commit_async(self, offsets: Offsets) -> None:
        """The user's commit, which it does not wait for."""

        async def begin() -> None:
            await self._tasks.start()
            self._committer.start(offsets, None)

        self._start(begin)

    def commit_done(
        self, then: Callable[[], None], partitions: Iterable[TopicPartition] | None = None
    ) -> None:
        """The automatic commit."""
        self._start(partial(self._committer.commit_done, AUTO_COMMIT_S, partitions), then)

    def settle(self, then: Callable[[], None]) -> None:
        """Waits for commits that were started."""
        self._start(partial(self._committer.settle, AUTO_COMMIT_S), then)

    def store(self, scope: Scope, offsets: Offsets, done: Done) -> None:
        """Offsets in a transaction, unless their partitions leave before that begins."""
        states = self._assignment.states
        held = {where: states[where] for where in offsets}

        async def store() -> None:
            try:
                self.catch_up()
                if any(states.get(where) is not state for where, state in held.items()):
                    raise ClusterError("lost meanwhile", ErrorCode.UNKNOWN_MEMBER)
                await self._within.store(scope, offsets, {})
            except PenstockError as error:
                done(error)
            else:
                done(None)

        self._start(store)

    def fetch(
        self,
        ids: dict[TopicPartition, str],
        then: Callable[[dict[TopicPartition, OffsetAndMetadata | None]], None],
        otherwise: Callable[[], None],
    ) -> None:
        """Where the group is in these partitions of topics with these ids."""

        async def look() -> None:
            try:
                found = await self._committer.fetch(ids, repeat=False)
            except PenstockError:
                otherwise()
            else:
                then(found)

        self._start(look)

    def _start(
        self, work: Callable[[], Awaitable[None]], then: Callable[[], None] = lambda: None
    ) -> None:
        async def finish() -> None:
            try:
                await work()
            except PenstockError as error:
                self._process.world.scheduler.note(self._process.name, "is refused", error)
            then()

        self._process.user.start(finish())

    # ------------------------------------------------------------ Member

    def identity(self) -> MemberIdentity:
        self.catch_up()
        return MemberIdentity(*self._heartbeats.seat)

    async def newer_epoch(self, than: int, timeout_s: float) -> None:
        await self._heartbeats.epoch_after(than, timeout_s)

    def fenced(self, code: ErrorCode) -> None:
        self.handle(Fenced(code))
