"""The consumer of a group member, as it ships, on the event loops of its process.

    the user's program ─▶ AsyncConsumer ─▶ GroupSession ─▶ Heartbeats ═▶ the member's thread
                              │ polls          │ commits, lookups        (the second event loop)
                              ▼                └─▶ WatchedGroupCalls ═▶ coordinator
                       SimFetcher (fetcher.py)

Only the fetcher stands for the product's. `WatchedAssignment` tells the checks which partitions
come and go, what is about to be committed, and which commits count.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from penstock.client.cluster.cluster import Cluster
from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.consumer import AsyncConsumer
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.consumer.group_session import GroupSession
from penstock.client.group.commit_queue import Offsets
from penstock.client.group.contract import (
    NONE,
    Event,
    Heard,
    Partitions,
    Ready,
    StreamEnded,
    Tick,
)
from penstock.client.group.coordinator import GroupCalls
from penstock.client.group.heartbeats import Heartbeats, MemberThread, Reports
from penstock.client.group.link import GroupLink
from penstock.client.group.membership import Membership
from penstock.client.group.model import OffsetAndMetadata
from penstock.core.types import TopicPartition
from penstock.errors import UnreachableError
from penstock_sim.fetcher import SimFetcher
from penstock_sim.group_calls import WatchedGroupCalls, cluster_of
from penstock_sim.nodes import broker_address

if TYPE_CHECKING:
    from penstock_sim.members import SimMember

logging.getLogger("penstock.client").addHandler(logging.NullHandler())


class Watch(Protocol):
    """What the checks are told of a process's partitions and offsets."""

    def polls(self) -> None:
        """A poll begins: what was returned before is processed."""

    def begins(self, state: FetchState, offset: int | None) -> None:
        """It reads a partition from here; None: from where its log begins."""

    def ends(self, where: TopicPartition) -> None:
        """It does not read the partition any more."""

    def committing(self, offsets: Offsets, *, automatic: bool) -> None:
        """They are about to be committed."""

    def adopted(self, where: TopicPartition, committed: OffsetAndMetadata) -> None:
        """Commits go on in a later rewind epoch, from there."""


class WatchedAssignment(Assignment):
    """See the module."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def poll_began(self) -> None:
        super().poll_began()
        self._watch.polls()

    def add(self, state: FetchState, committed: OffsetAndMetadata | None = None) -> None:
        super().add(state, committed)
        self._watch.begins(state, None if committed is None else committed.offset)

    def remove(self, where: TopicPartition) -> None:
        if where in self.states:
            self._watch.ends(where)
        super().remove(where)

    def rewind(self, where: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        super().rewind(where, committed)
        self._watch.begins(self.states[where], self.states[where].position)

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

    def __init__(self, process: SimMember, *parts: Any) -> None:
        super().__init__(*parts)
        self._process = process

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

    def __init__(self, process: SimMember, *parts: Any) -> None:
        super().__init__(*parts)
        self._process = process

    def _new_member(self, reports: Reports) -> MemberThread:
        process = self._process
        chance = process.world.scheduler.generator(f"streams of {process.name}.{process.life}")
        cluster = cluster_of(process.heart, process.config, chance)
        link = partial(WatchedLink, process)
        return MemberThread(cluster, process.config, reports, process.heart.loop, link)


class _Session(GroupSession):
    """With what is watched."""

    def __init__(self, process: SimMember, *parts: Any) -> None:
        self._process = process
        super().__init__(*parts)

    def _new_calls(self) -> GroupCalls:
        process, group_id = self._process, self._config.group_id
        chance = process.world.scheduler.generator(f"calls of {process.name}.{process.life}")
        return WatchedGroupCalls(process.world, self._cluster, group_id, chance, process.judge)

    def _new_heartbeats(self, bootstrap: tuple[str, ...]) -> Heartbeats:
        return _Heartbeats(
            self._process,
            bootstrap,
            self._config,
            self,
            self.coordinator,
            lambda: self._assignment.yielded,
        )


class SimConsumer(AsyncConsumer):
    """Of one process."""

    fetcher: type[SimFetcher] = SimFetcher

    def __init__(self, process: SimMember, watch: Watch) -> None:
        self._process = process
        self._watch = watch
        brokers = process.world.brokers.values()
        super().__init__([broker_address(broker.id) for broker in brokers], process.config)

    @property
    def calls(self) -> WatchedGroupCalls:
        """To the group's coordinator."""
        assert isinstance(self._session.coordinator, WatchedGroupCalls)
        return self._session.coordinator

    @property
    def states(self) -> dict[TopicPartition, FetchState]:
        """What it reads."""
        return self._assignment.states

    def reached(self, where: TopicPartition) -> int | None:
        """The offset behind what it has returned of this partition, or taken in a loop."""
        return self._assignment.progress(where).position

    def rewind_epoch(self, where: TopicPartition) -> int:
        """In which its commits of this partition are."""
        return self._assignment.progress(where).rewind_epoch

    @property
    def membership(self) -> Membership | None:
        """As the member knows it, which the consumer may not yet. None: it has not begun."""
        member = self._session._link._member
        return None if member is None else member.link.membership

    @property
    def unread(self) -> str:
        """Partitions that the member owns and the consumer does not read, or the other way; "" =
        none."""
        membership = self.membership
        readable: Partitions = NONE if membership is None else membership.readable
        installed = frozenset(self._session._installed.values())
        return "" if readable == installed else f"owns {readable}, reads {set(installed)}"

    def _new_assignment(self) -> Assignment:
        return WatchedAssignment(self._watch)

    def _new_cluster(self) -> Cluster:
        process = self._process
        chance = process.world.scheduler.generator(f"cluster of {process.name}.{process.life}")
        return cluster_of(process.user, self.config, chance)

    def _new_fetcher(self) -> SimFetcher:
        return self.fetcher(
            self._process, self._cluster, self.config, self._assignment.states, self._tasks
        )

    def _new_session(self) -> GroupSession:
        return _Session(
            self._process,
            self._cluster,
            self._bootstrap,
            self.config,
            self._assignment,
            self._tasks,
            self._arrived.set,
        )

    def _crashed(self, cause: BaseException) -> None:
        self._process.world.scheduler.fail(cause)
        super()._crashed(cause)
