"""The program of a group's member: it polls, works, commits, seeks, and leaves at last.

It does to `AsyncConsumer` what users do to it, and cancels a poll now and then; its listener
commits when partitions are revoked. `group_checks` is told of every handed batch and every commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from penstock.client.consumer.fetch_state import FetchState
from penstock.client.group.commit_queue import Offsets
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.model import ConsumedBatch, Record
from penstock.core.types import ReplicaKey, TopicId, TopicPartition
from penstock.errors import PenstockError
from penstock_sim.consumer import SimConsumer
from penstock_sim.node_loop import pause
from penstock_sim.seeking import Seeks

if TYPE_CHECKING:
    from penstock_sim.members import SimMember

_POLL_S: Final = 0.32
AT_ONCE: Final = (1, 3, 10, 1_000)
"""How many records a poll may return."""
_HASTE: Final = 0.05
_PATIENCE_S: Final = (0.0, 0.2)
"""Of a node's clock, as `_POLL_S`: a commit before partitions are given up takes longer."""
AGAIN_MS: Final = 60
"""Pause after a refusal."""


class Reader:
    """The program of one process; ends with it. It is its consumer's `Watch` and listener."""

    consumer: SimConsumer

    def __init__(self, member: SimMember) -> None:
        self.member = member
        self.world = member.world
        self._checks = self.world.group_checks
        self._plan = member.plan
        name = f"haste of {member.name}.{member.life}"
        self._haste = self.world.scheduler.generator(name)
        self._keys: dict[TopicPartition, ReplicaKey] = {}
        """Of all that it has read."""
        self._who: dict[TopicPartition, str] = {}
        self.extra_work_ms = 0.0
        """Set by the nemesis: the next piece of work takes this much longer."""
        self.ending = False
        """The user stops: in place of the next poll, the consumer is closed."""

    def start(self) -> None:
        """Starts with the process."""
        self._make()
        self.member.user.start(self._live())

    def stop(self) -> None:
        """Stops with the process."""
        for where in list(self._who):
            self.ends(where)

    def _make(self) -> None:
        self.consumer = SimConsumer(self.member, self)
        self._seeks = Seeks(self.member, self.consumer)

    @property
    def behind(self) -> str:
        """What is left to do if no new records arrive; "" = nothing."""
        if unread := self.consumer.unread:
            return unread
        for where, who in self._who.items():
            key = self._keys[where]
            position = self._checks.position(who, key)
            end = self.world.checks.canon(key).end
            if max(position, self._checks.log_start(key)) < end:
                return f"is at {position} of {end} in {where}"
        return ""

    # ------------------------------------------------------------ the program

    async def _live(self) -> None:
        await self._subscribe()
        await pause(self.world.scheduler.between(0, 5))
        while not self.ending:
            try:
                batches = await self._poll()
            except TimeoutError:
                continue
            except PenstockError as error:  # its instance id is in use
                self._refused(error)
                await pause(AGAIN_MS)
                await self._subscribe()
                continue
            await self._handle(batches)
            await self._go_on()
        await self.consumer.close()
        self.member.later(10, self.member.kill)

    async def _poll(self) -> list[ConsumedBatch]:
        """Raises TimeoutError if the user, now and then, cancels it: sooner than it would end."""
        limit = self.world.scheduler.random.choice(AT_ONCE)
        hasty = self.world.chaotic and self._haste.random() < _HASTE
        async with asyncio.timeout(self._haste.uniform(*_PATIENCE_S) if hasty else None):
            return await self.consumer.poll(_POLL_S, limit)

    async def _subscribe(self) -> None:
        while not await self._told(
            lambda: self.consumer.subscribe(self._plan.topic, listener=self)
        ):
            await pause(AGAIN_MS)

    async def _handle(self, batches: list[ConsumedBatch]) -> None:
        if not (self._plan.record_wise and batches):
            for batch in batches:
                self._hand_out(batch.topic_partition, batch.first_offset, batch.next_offset)
            await self._work()
            return
        left = 0
        records = self.consumer.one_by_one(batches)
        while (record := next(records, None)) is not None:
            self.polls()  # those before it are processed
            self._hand_out(partition_of(record), record.offset, record.offset + 1)
            left = left or self.world.scheduler.random.randrange(1, 6)
            left -= 1
            if not left:
                await self._work()
                if self.world.scheduler.chance(0.1):
                    return  # in the middle
        self.polls()

    def _hand_out(self, where: TopicPartition, first: int, end: int) -> None:
        self.world.scheduler.note(self.member.name, "reads", where, first, end)
        group_id = self._plan.group_id
        self._checks.handed_out(group_id, self._who[where], self._keys[where], first, end)

    async def _go_on(self) -> None:
        await self._maybe_seek()
        scheduler = self.world.scheduler
        if self._plan.automatic or scheduler.chance(0.4):
            return
        if scheduler.chance(0.5):
            await self._told(self.consumer.commit)
        else:
            await self._told(self.consumer.commit_async)

    async def _maybe_seek(self) -> None:
        """Between two polls: what was handed out before is processed."""
        sought = await self._seeks.maybe()
        if sought is None:
            return
        where, offset = sought
        self.world.scheduler.note(self.member.name, "seeks", where, offset)
        self.consumer.calls.last_comes_late()
        epoch = self.consumer.rewind_epoch(where)
        who, key = self._who[where], self._keys[where]
        self._checks.sought(self._plan.group_id, who, key, offset, epoch)

    async def _work(self) -> None:
        work_ms, self.extra_work_ms = self.extra_work_ms, 0.0
        await pause(work_ms + self._plan.work_ms * self.world.scheduler.between(0.2, 2))

    async def _told(self, call: Callable[[], Awaitable[None]]) -> bool:
        """Whether the consumer did it; otherwise, it was refused."""
        try:
            await call()
        except PenstockError as error:
            self._refused(error)
            return False
        return True

    def _refused(self, error: PenstockError) -> None:
        self.world.scheduler.note(self.member.name, "is refused", error)

    # ------------------------------------------------------------ the listener

    async def on_assigned(self, _partitions: Iterable[TopicPartition]) -> None:
        """They start where they should."""

    async def on_revoked(self, _partitions: Iterable[TopicPartition]) -> None:
        """Inside a poll, or the close: commits, mostly."""
        if not self._plan.automatic and self.world.scheduler.chance(0.8):
            await self._told(self.consumer.commit)

    async def on_lost(self, _partitions: Iterable[TopicPartition]) -> None:
        """Others have them."""

    # ------------------------------------------------------------ see `Watch`

    def polls(self) -> None:
        for who in set(self._who.values()):
            self._checks.came_back(who)

    def begins(self, state: FetchState, offset: int | None) -> None:
        where = state.where
        who = self._who.setdefault(where, self.consumer.member_id)
        key = self._keys[where] = ReplicaKey(TopicId(state.topic_id), where.partition)
        self.world.scheduler.note(self.member.name, "begins", where, offset)
        self._checks.began(self._plan.group_id, who, key, offset)

    def ends(self, where: TopicPartition) -> None:
        self._checks.ended(self._who.pop(where), self._keys[where])

    def adopted(self, where: TopicPartition, committed: OffsetAndMetadata) -> None:
        self.world.scheduler.note(self.member.name, "goes on from", where, committed)
        who, key = self._who[where], self._keys[where]
        self._checks.adopted(
            self._plan.group_id, who, key, committed.offset, committed.rewind_epoch
        )

    def committing(self, offsets: Offsets, *, automatic: bool) -> None:
        for where, offset in offsets.items():
            if where in self._who:
                key = self._keys[where]
                self._checks.commits_to(self._who[where], key, offset.offset, automatic=automatic)


def partition_of(record: Record) -> TopicPartition:
    """Where it was read."""
    return TopicPartition(record.topic, record.partition)
