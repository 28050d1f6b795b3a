"""The commits of a group member: one at a time, in order, retried.

This is `client/consumer/commits.py` under virtual time.

The offsets of a commit are looked up when its turn comes, so that an older one never overwrites a
newer one; the network adds copies and late arrivals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.client.consumer.assignment import Assignment
from penstock.client.group.contract import Fenced
from penstock.client.group.model import OffsetAndMetadata
from penstock.core.groups import contract as gc
from penstock.core.groups.catalog import NamedPartition
from penstock.core.groups.contract_views import Fetched, FetchRequested
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, Lost, PenstockError
from penstock_sim.coordinator import OFFSETS_KEY

if TYPE_CHECKING:
    from penstock_sim.members import SimMember

COMMIT_MS: Final = 400
"""How long a call to the coordinator is retried, by the world's clock."""
_LATE: Final = 0.5
_LATE_MS: Final = 150
Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Told(Protocol):
    """Is called with the offsets that are about to be sent."""

    def __call__(self, offsets: Offsets, *, automatic: bool) -> None: ...


class Commits:
    """The commits of one process."""

    def __init__(
        self,
        member: SimMember,
        assignment: Assignment,
        told: Told,
        adopted: Callable[[TopicPartition, OffsetAndMetadata], None],
    ) -> None:
        """`adopted`: is called when commits go on in a later rewind epoch, from there."""
        self._member = member
        self._world = member.world
        self._assignment = assignment
        self._told = told
        self._adopted = adopted
        self._waiting: deque[tuple[Callable[[], Offsets], bool, Callable[[], None]]] = deque()
        self._busy = False
        self._last: gc.CommitRequested | None = None
        self._late = self._world.scheduler.generator(f"late commits of {member.name}")

    def last_comes_late(self) -> None:
        """The network may deliver the last one once more, at any moment: its reader goes back."""
        last, world, chance = self._last, self._world, self._late
        if last is None or not world.chaotic or chance.random() > _LATE:
            return

        def arrives() -> None:
            broker, _ = world.find_leader(OFFSETS_KEY, chance)
            if broker.coordinators is not None:
                copy = replace(last, request_id=world.next_request())
                broker.coordinators.ask(copy, lambda _answer: None)

        world.scheduler.after(chance.uniform(1, _LATE_MS), arrives)

    def commit(
        self, wanted: Callable[[], Offsets], then: Callable[[], None], *, automatic: bool
    ) -> None:
        """Commits one at a time, in order; `then` is called with any outcome."""
        self._waiting.append((wanted, automatic, then))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        wanted, automatic, then = self._waiting.popleft()
        offsets = wanted()
        if not offsets:
            then()
            self._next()
            return
        self._busy = True
        self._told(offsets, automatic=automatic)

        def done() -> None:
            self._busy = False
            then()
            self._next()

        self._store(offsets, self._world.scheduler.now_ms + COMMIT_MS, done)

    def _store(self, offsets: Offsets, deadline_ms: float, done: Callable[[], None]) -> None:
        """As `Committer._store`."""
        plan = self._member.plan
        member_id, epoch = self._member.member_id, self._member.membership.member_epoch
        topic_id = self._world.group_checks.catalog.names[plan.topic]
        sent: Offsets = offsets

        def request(number: int) -> gc.CommitRequested:
            nonlocal sent
            sent = self._assignment.may_be_sent(offsets)
            self._last = gc.CommitRequested(
                request_id=number,
                group_id=plan.group_id,
                member_id=member_id,
                member_epoch=epoch,
                instance_id=plan.instance_id,
                offsets=tuple(
                    gc.NewOffset(
                        where=NamedPartition(where.topic, topic_id, where.partition),
                        offset=offset.offset,
                        leader_epoch=offset.leader_epoch,
                        rewind_epoch=offset.rewind_epoch,
                    )
                    for where, offset in sent.items()
                ),
            )
            return self._last

        def stored(answer: Any) -> None:
            self._world.scheduler.note(self._member.name, "commits", epoch, sent, answer)
            if isinstance(answer, gc.Committed):
                behind: dict[TopicPartition, OffsetAndMetadata] = {}
                for where, error in zip(sent, answer.errors, strict=True):
                    if error is None:
                        self._known(where, sent[where])
                        continue
                    self._member.judge(error)
                    if error.code is ErrorCode.OFFSET_WENT_BACK and sent[where].rewind_epoch:
                        behind[where] = sent[where]
                self._in_newer_epoch(behind, deadline_ms, done)
            elif isinstance(answer, PenstockError) and answer.lost is Lost.MEMBERSHIP:
                self._refused(answer, epoch, (offsets, deadline_ms, done))
            else:
                self._member.judge(answer)
                done()

        self._member.call(request, deadline_ms, stored)

    def _in_newer_epoch(
        self, behind: Offsets, deadline_ms: float, done: Callable[[], None]
    ) -> None:
        """As `Committer._in_newer_epoch`; then commits these again."""
        if not behind:
            done()
            return
        topic_id = self._world.group_checks.catalog.names[self._member.plan.topic]
        asked = tuple(NamedPartition(where.topic, topic_id, where.partition) for where in behind)

        def found(answer: Any) -> None:
            newer = {}
            seen = answer.offsets if isinstance(answer, Fetched) else ()
            for where, committed in zip(behind, seen, strict=False):
                if committed.rewind_epoch <= behind[where].rewind_epoch:
                    continue
                there = OffsetAndMetadata(committed.offset, rewind_epoch=committed.rewind_epoch)
                if self._known(where, there) and behind[where].offset >= committed.offset:
                    newer[where] = replace(behind[where], rewind_epoch=committed.rewind_epoch)
            if newer:
                self._store(newer, deadline_ms, done)
            else:
                done()

        group_id = self._member.plan.group_id
        self._member.call(
            lambda number: FetchRequested(number, group_id, asked), deadline_ms, found
        )

    def _known(self, where: TopicPartition, committed: OffsetAndMetadata) -> bool:
        """As `Assignment.committed`, which it asks."""
        if where not in self._assignment.states:
            return False
        before = self._assignment.progress(where).rewind_epoch
        counts = self._assignment.committed(where, committed)
        if self._assignment.progress(where).rewind_epoch > before:
            self._adopted(where, committed)
        return counts

    def _refused(self, error: PenstockError, epoch: int, commit: tuple[Any, ...]) -> None:
        """After a stale epoch, waits for the newer one; without one, the process is no longer a
        member."""
        now_ms = self._world.scheduler.now_ms
        if error.code is ErrorCode.STALE_MEMBER_EPOCH and now_ms < commit[1]:
            if self._member.membership.member_epoch != epoch:
                self._store(*commit)
            else:
                self._member.later(5, self._refused, error, epoch, commit)
            return
        self._member.handle(Fenced(error.code))
        commit[2]()
