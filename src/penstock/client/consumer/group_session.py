"""The consumer's side of a group: partitions are assigned and revoked between two polls, never
inside one.

    Heartbeats ──take──▶ look up committed offsets ──▶ prepared ─┐
               ──revoke─────────────────────────────▶ leaving  ─┼─▶ next poll: `rebalance`
               ──lose──▶ stop reading at once ──────▶ lost     ─┘      lost, revoked, assigned

A poll says that its caller is done with what earlier polls returned, so partitions change owners
here: finished records are committed, the listener may commit more, and only then is the partition
released (I18). A new partition is read once its position is known and the listener had a chance to
seek. Partitions that stay are not affected: their records are delivered in the meantime.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from penstock.client.cluster.cluster import Cluster
from penstock.client.config import ConsumerConfig
from penstock.client.consumer import assigning
from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.commits import AUTO_COMMIT_S, Committer, MemberIdentity
from penstock.client.consumer.transaction_offsets import TransactionOffsets
from penstock.client.consumer.user_offsets import UserOffsets
from penstock.client.group.commit_queue import Offsets
from penstock.client.group.contract import (
    NONE,
    Fenced,
    GroupPartition,
    Partitions,
    PollBegan,
    PollEnded,
    Released,
    Subscribed,
    Wish,
)
from penstock.client.group.coordinator import GroupCalls
from penstock.client.group.heartbeats import Heartbeats
from penstock.client.group.model import OffsetAndMetadata, RebalanceListener
from penstock.client.tasks import BackgroundTasks
from penstock.core.types import TopicPartition
from penstock.errors import ClusterError, ErrorCode, MisuseError, PenstockError

LEAVE_S: Final = 5.0
RETRY_S: Final = 0.2
LATE_S: Final = 5.0
"""Longer than a coordinator takes to load, or a transaction to end, of which nobody has to hear."""

Notify = Callable[[Callable[[], Awaitable[None] | None]], Awaitable[None]]
"""Calls a listener's method where the user wants it called, and waits until it returns."""

_log = logging.getLogger("penstock.client")


async def notify_here(call: Callable[[], Awaitable[None] | None]) -> None:
    """In the event loop: for async consumers."""
    answer = call()
    if inspect.isawaitable(answer):
        await answer


class GroupSession:
    """Of one consumer with a subscription; made once, subscriptions may change."""

    def __init__(
        self,
        cluster: Cluster,
        bootstrap: tuple[str, ...],
        config: ConsumerConfig,
        assignment: Assignment,
        tasks: BackgroundTasks,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when a poll has something to do or to raise, `begun` (settable) when
        there are new partitions to fetch."""
        self._cluster = cluster
        self._config = config
        self._assignment = assignment
        self._tasks = tasks
        self._changed = changed
        self.begun: Callable[[], None] = lambda: None
        self.coordinator = self._new_calls()
        self.committer = Committer(cluster, self.coordinator, config, assignment, self, tasks)
        timeout_s = config.request_timeout_ms / 1000
        self._user_offsets = UserOffsets(cluster, assignment, timeout_s)
        self.within = TransactionOffsets(self.coordinator, config, assignment, self)
        self._link = self._new_heartbeats(bootstrap)
        self._beginning = asyncio.Lock()
        self._running = False
        self._listener: RebalanceListener | None = None
        self.subscribed = False
        self.error: PenstockError | None = None
        self.notify: Notify = notify_here
        self._prepared: dict[GroupPartition, OffsetAndMetadata | None] = {}
        self._leaving: Partitions = NONE
        self._lost: Partitions = NONE
        self._installed: dict[TopicPartition, GroupPartition] = {}
        self._unannounced: Partitions = NONE
        """Read from the next poll on, which tells the listener first."""
        self._tenures: dict[GroupPartition, object] = {}
        """The `take` with which a partition was assigned: lookups for an earlier one are void."""

    # ------------------------------------------------------------ the consumer's calls

    async def subscribe(self, wish: Wish, listener: RebalanceListener | None) -> None:
        """Joins with the next poll; or changes the subscription."""
        async with self._beginning:
            if not self._running:
                await self._link.begin()
                self._running = True
                task = self._tasks.spawn(self._link.run(), "heartbeats")
                if task is None:  # the client is closing
                    self._link.end()
                else:  # also if it is cancelled before its first step
                    task.add_done_callback(lambda _: self._link.end())
        self.subscribed = True
        self.error = None
        self._listener = listener
        self._link.handle(Subscribed(wish))

    async def leave(self) -> None:
        """Commits finished records, notifies the listener, leaves."""
        if not self.subscribed:
            return
        await self.committer.settle(AUTO_COMMIT_S)
        self._link.catch_up()
        lost, self._lost = self._lost, NONE
        try:
            await self._tell("on_lost", lost)
            await self._give_up(frozenset(self._installed.values()))
        finally:
            self._drop(frozenset(self._installed.values()))
            self._link.handle(Subscribed(None))
            self.subscribed = False
            self.error = None
        await self._link.left(LEAVE_S)

    async def close(self) -> None:
        """The last commit of a consumer, and its leave."""
        if self.subscribed:
            await self.leave()
        elif self._config.group_id and self._config.enable_auto_commit:
            await self.committer.commit_done(AUTO_COMMIT_S)
        else:
            await self.committer.settle(AUTO_COMMIT_S)

    async def commit_dropped(self, partitions: Collection[TopicPartition]) -> None:
        """The last automatic commit for partitions that the user no longer assigns."""
        if partitions and self._config.group_id and self._config.enable_auto_commit:
            await self.committer.commit_done(AUTO_COMMIT_S, partitions)

    def poll_began(self) -> None:
        """See `PollBegan`."""
        if self.subscribed:
            self._link.handle(PollBegan())

    def poll_ended(self) -> None:
        """See `PollEnded`."""
        if self.subscribed:
            self._link.handle(PollEnded())

    def check_kept(self) -> None:
        """Raises ClusterError(UNKNOWN_MEMBER) if partitions were lost since the last poll.

        Other members may already be reading the user's current records.
        """
        self._link.catch_up()
        if self._lost:
            places = ", ".join(sorted(str(each.where) for each in self._lost))
            raise ClusterError(
                f"group {self._config.group_id!r} has assigned {places} to other members, which "
                "read from the committed offsets; the next poll continues",
                ErrorCode.UNKNOWN_MEMBER,
            )

    def need_group(self, what: str) -> None:
        """Raises MisuseError if the consumer has no group."""
        if not self._config.group_id:
            raise MisuseError(f"{what} needs a group_id: offsets are stored for a group")

    async def committed(
        self, ids: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """See `FindCommitted`."""
        return await self.committer.fetch(ids) if self._config.group_id else {}

    async def to_commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None
    ) -> Offsets:
        """The user's offsets, checked; None = after everything returned so far."""
        if offsets is None:
            moved = self._assignment.to_commit(only_done=False)
            return moved | self.committer.renewals(only_done=False, at_once=not moved)
        return self._assignment.decided(await self._user_offsets.checked(offsets))

    async def rebalance(self) -> None:
        """Carries out what the coordinator has requested since; called only inside polls."""
        self._link.catch_up()
        if self._lost:
            lost, self._lost = self._lost, NONE
            try:
                await self._tell("on_lost", lost)
            except BaseException:  # the next poll calls the listener again
                self._lost |= lost
                raise
        if self._leaving:
            leaving, self._leaving = self._leaving, NONE
            try:
                await self._give_up(leaving & frozenset(self._installed.values()))
            finally:
                # A poll that was cancelled in the commit still reads them: the next one goes on.
                kept = leaving & frozenset(self._installed.values())
                self._leaving |= kept
                self._link.handle(Released(leaving - kept))
        if self._prepared or self._unannounced:
            prepared, self._prepared = self._prepared, {}
            await self._begin(prepared)
        self._link.catch_up()  # nothing that was lost in the meantime is returned

    # ------------------------------------------------------------ GroupOwner

    def take(self, partitions: Partitions) -> None:
        """Looks up the start offset; the poll after that starts to read them, in their order."""
        tenure = object()
        self._tenures.update(dict.fromkeys(sorted(partitions), tenure))
        self._tasks.spawn(self._prepare(tenure), "group-positions")

    def revoke(self, partitions: Partitions) -> None:
        """The next poll gives them up."""
        self._leaving |= partitions
        self._forget(partitions)
        self._changed()

    def lose(self, partitions: Partitions) -> None:
        """Stops reading at once; the next poll notifies the listener."""
        self._forget(partitions)
        self._leaving -= partitions
        installed = partitions & frozenset(self._installed.values())
        self._lost |= installed
        self._drop(installed)
        self._changed()

    def fail(self, error: PenstockError) -> None:
        """Polls raise this."""
        self.error = error
        self._changed()

    # ------------------------------------------------------------ Member

    @property
    def member_id(self) -> str:
        """Without catching up: may be called in any thread."""
        return self._link.seat.member_id

    def identity(self) -> MemberIdentity:
        """The member, or none for a consumer with `assign`."""
        self._link.catch_up()
        if not self.subscribed:
            return MemberIdentity()
        return MemberIdentity(*self._link.seat)

    async def newer_epoch(self, than: int, timeout_s: float) -> None:
        await self._link.epoch_after(than, timeout_s)

    def catch_up(self) -> None:
        self._link.catch_up()

    def fenced(self, code: ErrorCode) -> None:
        if self.subscribed:
            self._link.handle(Fenced(code))

    # ------------------------------------------------------------ replaced where they are simulated

    def _new_calls(self) -> GroupCalls:
        return GroupCalls(self._cluster, self._config.group_id)

    def _new_heartbeats(self, bootstrap: tuple[str, ...]) -> Heartbeats:
        assignment = self._assignment
        return Heartbeats(
            bootstrap, self._config, self, self.coordinator, lambda: assignment.yielded
        )

    # ------------------------------------------------------------ inside

    async def _prepare(self, tenure: object) -> None:
        """Finds topics and committed offsets of newly assigned partitions; retries until they are
        revoked, and says so once if that takes long."""
        late_s: float | None = asyncio.get_running_loop().time() + LATE_S
        while wanted := [each for each, mark in self._tenures.items() if mark is tenure]:
            try:
                for topic_id, topic in dict.fromkeys(each[:2] for each in wanted):
                    known = await self._cluster.topic(topic)
                    if known.topic_id != topic_id:
                        await self._cluster.await_other_topic(topic, known.topic_id)
                # Not repeated there: what is revoked meanwhile, as with a deleted topic, must not
                # hold up the others.
                ids = {each.where: each.topic_id for each in wanted}
                found = await self.committer.fetch(ids, repeat=False)
            except PenstockError as error:
                if late_s is not None and asyncio.get_running_loop().time() >= late_s:
                    late_s = None
                    _log.warning(
                        "group %s: %d assigned partitions are not read yet, because it is not "
                        "known where to start, for %g s: %s",
                        self._config.group_id,
                        len(wanted),
                        LATE_S,
                        error,
                    )
                await asyncio.sleep(RETRY_S)
                continue
            for each in wanted:
                if self._tenures.get(each) is tenure:
                    del self._tenures[each]
                    self._prepared[each] = found.get(each.where)
            self._changed()

    async def _begin(self, prepared: dict[GroupPartition, OffsetAndMetadata | None]) -> None:
        for each, offset in prepared.items():
            assigning.add(self._assignment, self._config, each.where, each.topic_id, offset)
            self._installed[each.where] = each
        new, self._unannounced = self._unannounced | frozenset(prepared), NONE
        try:
            await self._tell("on_assigned", new)
        except BaseException:  # the next poll calls the listener again: it may seek
            self._unannounced |= new & frozenset(self._installed.values())
            raise
        self.begun()

    async def _give_up(self, partitions: Partitions) -> None:
        """Gives these partitions up: commits, notifies the listener, stops reading."""
        if not partitions:
            return
        places = [each.where for each in partitions]
        if self._config.enable_auto_commit:
            await self.committer.commit_done(AUTO_COMMIT_S, places)
        else:
            await self.committer.settle(AUTO_COMMIT_S)
        try:
            await self._tell("on_revoked", partitions)
        finally:
            self._drop(partitions)

    def _forget(self, partitions: Partitions) -> None:
        """Undoes a `take` that no poll has seen."""
        for each in partitions:
            self._tenures.pop(each, None)
            self._prepared.pop(each, None)

    def _drop(self, partitions: Partitions) -> None:
        for each in partitions:
            self._assignment.remove(each.where)
            self._installed.pop(each.where, None)
        self._unannounced -= partitions

    async def _tell(self, method: str, partitions: Partitions) -> None:
        listener = self._listener
        if listener is None or not partitions:
            return
        places = frozenset(each.where for each in partitions)
        await self.notify(lambda: getattr(listener, method)(places))
