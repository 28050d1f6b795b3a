"""The consumer of a group member: polls, positions, commits; polls change partitions.

`client/consumer/group_session.py` and `fetcher.py` in virtual time; `session` is what ships beside
them. The production `Assignment` and `FetchState` decide; what waits there is a callback here.
`group_checks` is told of every handed batch and every commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.client.consumer.assignment import Assignment
from penstock.client.consumer.fetch_state import FetchState
from penstock.client.group.commit_queue import Offsets
from penstock.client.group.contract import (
    NONE,
    GroupPartition,
    Partitions,
    PollBegan,
    PollEnded,
    Released,
    Subscribed,
    Wish,
)
from penstock.client.group.model import OffsetAndMetadata
from penstock.client.model import EARLIEST, ConsumedBatch, Record
from penstock.core.batch import Batch
from penstock.core.types import Offset, ReplicaKey, TopicId, TopicPartition
from penstock.errors import OffsetOutOfRangeError, OffsetRange, PenstockError
from penstock_sim.seeking import Seeks
from penstock_sim.session import Session, WatchedAssignment

if TYPE_CHECKING:
    from penstock_broker.replication.replica import Replica
    from penstock_sim.broker import SimBroker
    from penstock_sim.members import SimMember

_POLL_MS: Final = 40
_FETCH_MS: Final = 6
_BUFFER_BYTES: Final = 4_000
_PREPARE_PAUSE_MS: Final = 20
_REJOIN_MS: Final = 60


class Reader:
    """The reader of one process; ends with it."""

    def __init__(self, member: SimMember) -> None:
        self.member = member
        self.world = member.world
        self.assignment: Assignment = WatchedAssignment(self)
        self._checks = self.world.group_checks
        self._plan = member.plan
        self._prepared: dict[GroupPartition, OffsetAndMetadata | None] = {}
        self._tenures: dict[GroupPartition, object] = {}
        self._leaving: Partitions = NONE
        self._installed: dict[TopicPartition, GroupPartition] = {}
        self._who: dict[TopicPartition, str] = {}
        self.session = Session(member, self.assignment, self)
        self._seeks = Seeks(member, self.assignment)
        self._poll_until_ms = 0
        self._asleep = False
        self._naps = 0
        self.extra_work_ms = 0.0
        """Set by the nemesis: the next piece of work takes this much longer."""
        self.ending = False
        """The user stops: the next poll leaves the group."""

    def start(self) -> None:
        """Starts with the process."""
        self.session.begin(Wish((self._plan.topic,)), self._begun)

    def _begun(self) -> None:
        scheduler = self.world.scheduler
        self.member.later(scheduler.between(0, 5), self._poll)
        self.member.later(scheduler.between(0, _FETCH_MS), self._fetch)
        if self._plan.automatic:
            self.member.later(self._plan.commit_every_ms, self._auto_commit)

    def stop(self) -> None:
        """Stops with the process."""
        self._drop(frozenset(self._installed.values()))

    @property
    def behind(self) -> str:
        """What is left to do if no new records arrive; "" = nothing."""
        if self.session.readable != frozenset(self._installed.values()):
            return f"owns {self.session.readable}, reads {set(self._installed)}"
        for where, each in self._installed.items():
            key = _key(each)
            position = self._checks.position(self._who[where], key)
            end = self.world.checks.canon(key).end
            if max(position, self._checks.log_start(key)) < end:
                return f"is at {position} of {end} in {where}"
        return ""

    # ------------------------------------------------------------ poll

    def _poll(self) -> None:
        self.assignment.poll_began()
        for who in set(self._who.values()):
            self._checks.came_back(who)
        if self.ending:
            self._leave()
            return
        self.session.handle(PollBegan())
        self._poll_until_ms = self.world.scheduler.now_ms + _POLL_MS
        self._turn()

    def _turn(self) -> None:
        """One round of the loop in `AsyncConsumer.poll`, as far as `GroupSession.rebalance`."""
        self.session.catch_up()
        if self._leaving:
            leaving, self._leaving = self._leaving, NONE

            def released() -> None:
                self.session.handle(Released(leaving))
                self._collect()

            self._give_up(leaving & frozenset(self._installed.values()), released)
        else:
            self._collect()

    def _collect(self) -> None:
        if self._prepared:
            prepared, self._prepared = self._prepared, {}
            self._begin(prepared)
        self.session.catch_up()  # nothing that was lost meanwhile is returned
        limit = self.world.scheduler.random.choice((1, 3, 10, 1_000))
        batches = self.assignment.collect(limit)
        if not batches and self.world.scheduler.now_ms < self._poll_until_ms:
            self._asleep = True
            left_ms = self._poll_until_ms - self.world.scheduler.now_ms
            self.member.later(left_ms, self._wake, self._naps)
            return
        if not self._plan.record_wise:
            for batch in batches:
                self._hand_out(batch, batch.first_offset, batch.next_offset)
        self.session.handle(PollEnded())
        if self._plan.record_wise and batches:
            self._take(self.assignment.one_by_one(batches), batches)
        else:
            self._work(self._worked)

    def _arrived(self) -> None:
        """Wakes a poll that waits."""
        if self._asleep:
            self._asleep = False
            self.member.later(0.05, self._wake, self._naps)

    def _wake(self, nap: int) -> None:
        if nap == self._naps:
            self._naps += 1
            self._asleep = False
            self._turn()

    def _take(self, taking: Iterator[Record], batches: list[ConsumedBatch]) -> None:
        """Takes some records in a loop, then works on them for a while."""
        count = self.world.scheduler.random.randrange(1, 6)
        for _ in range(count):
            record = next(taking, None)
            for who in set(self._who.values()):
                self._checks.came_back(who)
            if record is None:
                self._worked()
                return
            batch = next(
                batch
                for batch in batches
                if batch.topic_partition == TopicPartition(record.topic, record.partition)
            )
            self._hand_out(batch, record.offset, record.offset + 1)
        if self.world.scheduler.chance(0.1):
            self._work(self._worked)  # leaves the loop in the middle
        else:
            self._work(lambda: self._take(taking, batches))

    def _hand_out(self, batch: ConsumedBatch, first: int, end: int) -> None:
        where = batch.topic_partition
        each = self._installed[where]
        self.world.scheduler.note(self.member.name, "reads", where, first, end)
        group_id = self._plan.group_id
        self._checks.handed_out(group_id, self._who[where], _key(each), first, end)

    def _work(self, then: Callable[[], None]) -> None:
        work_ms, self.extra_work_ms = self.extra_work_ms, 0.0
        work_ms += self._plan.work_ms * self.world.scheduler.between(0.2, 2)
        self.member.later(work_ms, then)

    def _worked(self) -> None:
        self._maybe_seek()
        if self._plan.automatic or self.world.scheduler.chance(0.4):
            self._poll()
        elif self.world.scheduler.chance(0.5):
            self.session.commit(self._handed_out(), self._poll)
        else:
            self.session.commit_async(self._handed_out())
            self._poll()

    def _maybe_seek(self) -> None:
        """Between two polls: what was handed out before is processed."""
        sought = self._seeks.maybe()
        if sought is None:
            return
        where, offset = sought
        self.world.scheduler.note(self.member.name, "seeks", where, offset)
        self.session.calls.last_comes_late()
        epoch = self.assignment.progress(where).rewind_epoch
        who, key = self._who[where], _key(self._installed[where])
        self._checks.sought(self._plan.group_id, who, key, offset, epoch)

    def _leave(self) -> None:
        """`close`: commits what is processed, gives up partitions, leaves; the process ends."""

        def gone() -> None:
            self.session.handle(Subscribed(None))
            self.member.later(10, self.member.kill)

        self._give_up(frozenset(self._installed.values()), gone)

    # ------------------------------------------------------------ partitions come and go

    def take(self, partitions: Partitions) -> None:
        """Looks up where to begin; the next poll begins there."""
        tenure = object()
        self._tenures.update(dict.fromkeys(partitions, tenure))
        self._prepare(tenure)

    def revoke(self, partitions: Partitions) -> None:
        """The next poll gives these up."""
        self._leaving |= partitions
        self._forget(partitions)
        self._arrived()

    def lose(self, partitions: Partitions) -> None:
        """Stops reading these at once."""
        self._forget(partitions)
        self._leaving -= partitions
        installed = partitions & frozenset(self._installed.values())
        self._drop(installed)
        self._arrived()

    def fail(self, _error: PenstockError) -> None:
        """A static member whose instance id is in use: its user tries again."""
        wish = Wish((self._plan.topic,))
        self.member.later(_REJOIN_MS, self.session.handle, Subscribed(wish))

    def _forget(self, partitions: Partitions) -> None:
        for each in partitions:
            self._tenures.pop(each, None)
            self._prepared.pop(each, None)

    def _drop(self, partitions: Partitions) -> None:
        for each in sorted(partitions):
            self.assignment.remove(each.where)
            del self._installed[each.where]
            self._checks.ended(self._who.pop(each.where), _key(each))

    def _prepare(self, tenure: object) -> None:
        wanted = sorted(each for each, mark in self._tenures.items() if mark is tenure)
        if not wanted:
            return

        def found(offsets: dict[TopicPartition, OffsetAndMetadata | None]) -> None:
            for each in wanted:
                if self._tenures.get(each) is tenure:
                    del self._tenures[each]
                    self._prepared[each] = offsets.get(each.where)
            self._arrived()

        def again() -> None:
            self.member.later(_PREPARE_PAUSE_MS, self._prepare, tenure)

        self.session.fetch({each.where: each.topic_id for each in wanted}, found, again)

    def _begin(self, prepared: dict[GroupPartition, OffsetAndMetadata | None]) -> None:
        for each, offset in prepared.items():
            state = FetchState(each.where, each.topic_id, EARLIEST)
            if offset is not None:
                state.seek(offset.offset)
            self.assignment.add(state, offset)
            self._installed[each.where] = each
            who = self._who[each.where] = self.session.member_id
            start = None if offset is None else offset.offset
            self.world.scheduler.note(self.member.name, "begins", each.where, start)
            self._checks.began(self._plan.group_id, who, _key(each), start)

    def _give_up(self, partitions: Partitions, then: Callable[[], None]) -> None:
        """Last chance before these are revoked: commits, then stops reading."""
        if not partitions:
            then()
            return
        places = [each.where for each in partitions]

        def dropped() -> None:
            self._drop(partitions & frozenset(self._installed.values()))
            then()

        def settled() -> None:
            """As a listener of the user that commits."""
            offsets = self._handed_out() if self.world.scheduler.chance(0.8) else {}
            self.session.commit({at: offsets[at] for at in places if at in offsets}, dropped)

        if self._plan.automatic:
            self.session.commit_done(dropped, places)
        else:
            self.session.settle(settled)

    # ------------------------------------------------------------ commits

    def adopted(self, where: TopicPartition, committed: OffsetAndMetadata) -> None:
        """See `Watch`."""
        self.world.scheduler.note(self.member.name, "goes on from", where, committed)
        who, key = self._who[where], _key(self._installed[where])
        self._checks.adopted(
            self._plan.group_id, who, key, committed.offset, committed.rewind_epoch
        )

    def committing(self, offsets: Offsets, *, automatic: bool) -> None:
        """See `Watch`."""
        for where, offset in offsets.items():
            if where in self._installed:
                key = _key(self._installed[where])
                self._checks.commits_to(self._who[where], key, offset.offset, automatic=automatic)

    def _handed_out(self) -> Offsets:
        self.session.catch_up()
        return self.assignment.to_commit(only_done=False)

    def _auto_commit(self) -> None:
        def again() -> None:
            self.member.later(self._plan.commit_every_ms, self._auto_commit)

        self.session.commit_done(again)

    # ------------------------------------------------------------ fetching

    def _fetch(self) -> None:
        self.member.later(self.world.scheduler.between(0.5, 1.5) * _FETCH_MS, self._fetch)
        for state in list(self.assignment.states.values()):
            generation = state.generation
            if state.in_flight is not None and state.in_flight[0] == generation:
                continue
            if state.position is None or state.wants_fetch(_BUFFER_BYTES):
                self._ask(state)

    def _ask(self, state: FetchState) -> None:
        """Asks the broker that seems to lead; an empty answer costs nothing."""
        key = ReplicaKey(TopicId(state.topic_id), state.where.partition)
        broker, _ = self.world.find_leader(key)
        replica = broker.replicas.get(key) if broker.up else None
        net, node = self.world.net, self.member.node
        if replica is None or (node, int(broker.id)) in net.blocked:
            return
        marks = replica.machine.marks
        if not marks.is_leader or marks.leader_epoch < state.leader_epoch:
            return
        if state.position is None:
            found: Any = marks.log_start_offset
        elif state.fetch_offset < marks.log_start_offset:
            valid = OffsetRange(marks.log_start_offset, marks.high_watermark)
            found = OffsetOutOfRangeError("below the log start", valid)
        else:
            found = self._read(broker, replica, Offset(state.fetch_offset))
            if not found:
                return
        state.in_flight = (state.generation, broker.name)
        marks_epoch, end = marks.leader_epoch, marks.high_watermark
        self.member.later(
            net.delay_ms(), self._answered, state, state.generation, state.fetch_offset, found,
            marks_epoch, end,
        )  # fmt: skip

    def _read(self, broker: SimBroker, replica: Replica, offset: Offset) -> list[Batch]:
        """The leader's answer, from `offset` on."""
        found = broker.read(replica, offset, replica.machine.marks.high_watermark, 8)
        checks = self.world.checks
        if found and not checks.unclean.is_deposed(replica.key, replica.machine.marks):
            who = f"{broker.name} to {self.member.name}"
            checks.consumed(replica.key, found, who)
        return found

    def _answered(
        self, state: FetchState, generation: int, asked: int, found: Any, epoch: int, end: int
    ) -> None:
        """As `Fetcher._take`."""
        if state.generation != generation:
            return
        state.in_flight = None
        if isinstance(found, list):
            state.leader_epoch = max(state.leader_epoch, epoch)
            state.accept(asked, found, end)
            self._arrived()
        elif isinstance(found, OffsetOutOfRangeError):
            state.out_of_range(found, "earliest", self.member.now_ms)
        else:
            state.looked_up(found)


def _key(each: GroupPartition) -> ReplicaKey:
    return ReplicaKey(TopicId(each.topic_id), each.partition)
