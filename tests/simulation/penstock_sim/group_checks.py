"""The invariants of consumer groups, checked in each step (I16-I19).

Two records are kept beside the machines: the committed log of `__consumer_offsets`, loaded record
by record as it is committed, and what each member was handed, counted here and not by the client. A
coordinator's state must always equal what its log adds up to; whatever it answers must be in the
committed log by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.core.batch import Batch
from penstock.core.groups import contract as gc
from penstock.core.groups.catalog import Catalog, CatalogTopic
from penstock.core.groups.contract_views import Fetched, FetchRequested
from penstock.core.groups.loading import Loader
from penstock.core.groups.records import (
    CurrentKey,
    CurrentRecord,
    EndedKey,
    EndedRecord,
    GroupKey,
    GroupRecord,
    MemberKey,
    OffsetKey,
    OffsetRecord,
    PendingKey,
    decode_key,
    decode_value,
)
from penstock.core.groups.state import Group
from penstock.core.lag import fetch_from, oldest_unread, partition_lag
from penstock.core.records import decode_batch
from penstock.core.types import ProducerId, ReplicaKey, TopicId
from penstock_sim.coordinator import OFFSETS_KEY, WatchedCoordinator
from penstock_sim.rewind_checks import Place, RewindChecks
from penstock_sim.scheduler import RuleError

if TYPE_CHECKING:
    from penstock_sim.world import World


_NO_EPOCH: Final = 0
"""In which nothing is committed."""


@dataclass(slots=True)
class Asked:
    """A request to a coordinator, and the state when it arrived.

    A deposed coordinator may answer with what was true before: it can only read, and does not know
    that it is deposed. `marks`: length of the history of each place. `current`: what the member
    had.
    """

    event: gc.Request
    coordinator: WatchedCoordinator
    marks: dict[Place, int]
    current: CurrentRecord | None = None
    undecided: dict[tuple[TopicId, int], tuple[ProducerId, int]] = field(default_factory=dict)
    """What had yet to be decided, of what is fetched."""


@dataclass(slots=True)
class Reading:
    """One member's tenure of one partition. `handed`: end of what it was handed.

    `finished`: the member has polled again since, so everything below is processed. `epoch`: the
    rewind epoch of its commits, as far as it is known here. `began`: the first offset that it was
    handed, or the last one that it sought.
    """

    handed: int | None
    finished: int = 0
    epoch: int = 1
    began: int = 0


@dataclass(slots=True)
class Coverage:
    """The offsets of a partition that a group was handed, or was told to skip."""

    below: int = 0
    beyond: set[int] = field(default_factory=set)

    def add(self, first: int, end: int) -> None:
        if first <= self.below:
            self.below = max(self.below, end)
        else:
            self.beyond.update(range(first, end))
        while self.below in self.beyond:
            self.beyond.discard(self.below)
            self.below += 1


class GroupChecks:
    """Is told of every record, decision, answer and handed batch; raises `RuleError`."""

    def __init__(self, world: World, *topics: CatalogTopic) -> None:
        self.world = world
        self.catalog = Catalog.of(*topics)
        self.reset_ids: set[str] = set()
        self.commits = 0
        self.rebalances = 0
        self.piped = 0
        self.void = False
        """Acknowledged records were lost beyond the promise: nothing here applies any more."""
        self._log = Loader()
        self._history: dict[Place, list[int]] = {}
        self.rewinds = RewindChecks()
        self._owners: dict[Place, str] = {}
        self._readings: dict[tuple[str, ReplicaKey], Reading] = {}
        self._covered: dict[Place, Coverage] = {}
        self._log_starts: dict[ReplicaKey, int] = {}

    # ------------------------------------------------------------ the committed log

    def committed(self, batch: Batch) -> None:
        """A batch of the offsets partition is committed: I18 in the log itself."""
        if self.void:
            return
        columns = decode_batch(batch)
        found = list(zip(columns.keys(), columns.values(), strict=True))
        reset = {
            known.group_id
            for key, value in found
            if isinstance(known := decode_key(key), GroupKey)
            and value is not None
            and self._is_reset(known, decode_value(known, value))
        }
        for raw, value in found:
            key = decode_key(raw)
            if isinstance(key, OffsetKey):
                record = None if value is None else decode_value(key, value)
                assert record is None or isinstance(record, OffsetRecord)
                self._offset(key, record, is_reset=key.group_id in reset)
            elif isinstance(key, PendingKey | EndedKey):
                self._in_transaction(key, None if value is None else decode_value(key, value))
            self._log.add(raw, value)
        self._find_owners()

    def _is_reset(self, key: GroupKey, record: object) -> bool:
        assert isinstance(record, GroupRecord)
        before = self._log._found.get(key)
        known = before.reset if isinstance(before, GroupRecord) else None
        if isinstance(before, GroupRecord) and record.epoch < before.epoch:
            raise RuleError(f"I16: group {key.group_id} went back from {before} to {record}")
        return record.reset is not None and record.reset != known

    def _offset(self, key: OffsetKey, record: OffsetRecord | None, *, is_reset: bool) -> None:
        place = (key.group_id, ReplicaKey(key.topic_id, key.partition))
        history = self._history_of(place)
        before, offset = history[-1], -1 if record is None else record.offset
        explicit = is_reset and (record is None or record.reset_id in self.reset_ids)
        if explicit:
            self.rewinds.reset(place, record)
            self._coverage(place).add(max(before, 0), offset)
        elif record is None and self.world.is_deleted(place[1]):
            pass  # offsets of a topic that is gone are swept
        elif record is None:
            raise RuleError(f"I18: {place} lost {before}, nobody reset it")
        else:
            self.rewinds.committed(place, before, record, self.log_start(place[1]))
        history.append(offset)

    def _in_transaction(self, key: PendingKey | EndedKey, record: object) -> None:
        """Offsets in transactions: `pipe_checks`."""

    def _find_owners(self) -> None:
        """At most one owner per group and partition, members that are giving it up included."""
        self._owners.clear()
        for key, value in self._log._found.items():
            if isinstance(key, CurrentKey) and isinstance(value, CurrentRecord):
                for topic_id, partition in value.parts | value.pending:
                    place = (key.group_id, ReplicaKey(topic_id, partition))
                    other = self._owners.setdefault(place, key.member_id)
                    if other != key.member_id:
                        raise RuleError(f"I18: {other} and {key.member_id} own {place}")

    def _history_of(self, place: Place) -> list[int]:
        return self._history.setdefault(place, [-1])

    def committed_offset(self, place: Place) -> int:
        """By the committed log; -1: none."""
        return self._history_of(place)[-1]

    # ------------------------------------------------------------ coordinators

    def loaded(self, coordinator: WatchedCoordinator) -> None:
        """A coordinator has read its log and is about to start."""
        self._same_log(coordinator, "loaded another state than")

    def decided(self, coordinator: WatchedCoordinator, ready: gc.Ready) -> None:
        """After every event: the live state is what the records add up to."""
        if self.void:
            return
        self.rebalances += ready.rebalances
        for key, value in ready.records:
            coordinator.shadow.add(key, value)
        if ready is gc.NOTHING:
            return
        live, rebuilt = coordinator.machine.groups, coordinator.shadow.groups()
        if live.keys() != rebuilt.keys():
            raise RuleError(f"I16: {coordinator} has groups {set(live)}, its log {set(rebuilt)}")
        for group_id, group in live.items():
            one, two = _durable(group), _durable(rebuilt[group_id])
            if one != two:
                raise RuleError(f"I16: {coordinator} has {one}, its log says {two}")

    def appended(self, coordinator: WatchedCoordinator) -> None:
        """An append was acknowledged; if that was all, its log is the committed one."""
        if coordinator.quiet:
            self._same_log(coordinator, "has written another state than")

    def _same_log(self, coordinator: WatchedCoordinator, what: str) -> None:
        if self.void or self._is_deposed(coordinator):
            return
        if coordinator.shadow._found != self._log._found:
            raise RuleError(
                f"I16: {coordinator} {what} is committed: {coordinator.shadow._found}, "
                f"{self._log._found}"
            )

    def _is_deposed(self, coordinator: WatchedCoordinator) -> bool:
        """Another leader is stored, and may have committed more than this one knows."""
        return self.world.checks.stored[OFFSETS_KEY].state.leader_epoch > coordinator.leader_epoch

    def asked(self, coordinator: WatchedCoordinator, event: gc.Request) -> Asked:
        """A request comes in."""
        marks = {place: len(history) - 1 for place, history in self._history.items()}
        if not isinstance(event, gc.CommitRequested):
            return Asked(event, coordinator, marks)
        found = coordinator.shadow._found
        if MemberKey(event.group_id, event.member_id) not in found:
            return Asked(event, coordinator, marks)
        current = found.get(CurrentKey(event.group_id, event.member_id), CurrentRecord())
        assert isinstance(current, CurrentRecord)
        return Asked(event, coordinator, marks, current)

    def answered(self, asked: Asked, answer: Any) -> None:
        """An answer leaves the coordinator: it is true and cannot be undone."""
        if self.void:
            return
        match asked.event, answer:
            case gc.CommitRequested(), gc.Committed():
                for new, error in zip(asked.event.offsets, answer.errors, strict=True):
                    if error is None:
                        self._accepted(asked, asked.event, new)
            case FetchRequested(), Fetched():
                for seen in answer.offsets:
                    self._was_true(asked, _place(asked.event.group_id, seen), seen.offset)
            case gc.ResetRequested(), gc.ResetDone() if answer.applied:
                for new in asked.event.offsets:
                    self._was_true(asked, _place(asked.event.group_id, new.where), new.offset)
            case _:
                pass

    def _was_true(self, asked: Asked, place: Place, offset: int) -> None:
        committed = self._history_of(place)
        if not self._is_deposed(asked.coordinator):
            committed = committed[asked.marks.get(place, 0) :]
        if offset not in committed:
            raise RuleError(
                f"I16: {asked.event} was answered with {offset} in {place}, committed were "
                f"{committed}"
            )

    def _accepted(self, asked: Asked, event: gc.CommitRequested, new: gc.NewOffset) -> None:
        place = _place(event.group_id, new.where)
        self._was_true(asked, place, new.offset)
        self.commits += 1
        if not event.member_id:
            return
        current, part = asked.current, (new.where.topic_id, new.where.partition)
        if current is None or current.epoch != event.member_epoch:
            raise RuleError(f"I18: commit {event} was accepted, the member was {current}")
        if part not in current.parts | current.pending:
            raise RuleError(f"I18: commit {event} was accepted, the member owned {current}")

    # ------------------------------------------------------------ members

    def log_start(self, key: ReplicaKey) -> int:
        """The highest log start that any leader has had: retention removed what is below."""
        starts = [
            replica.machine.marks.log_start_offset
            for broker in self.world.brokers.values()
            if (replica := broker.replicas.get(key)) is not None
        ]
        known = max([self._log_starts.get(key, 0), *starts])
        self._log_starts[key] = known
        return known

    def began(self, group_id: str, who: str, key: ReplicaKey, offset: int | None) -> None:
        """A member begins to read a partition at `offset`, None: where the log begins.

        Never beyond what is committed, or nobody reads what is between. If nothing is, it begins at
        the first record that it can see. Unless it was removed from the group and has not noticed,
        as after SIGSTOP: then its offsets may have been reset since it asked, and its commits are
        refused.
        """
        place = (group_id, key)
        if MemberKey(group_id, who) not in self._log._found:
            self._readings[who, key] = Reading(offset, offset or 0, _NO_EPOCH, offset or 0)
            return
        epoch, committed = self.rewinds.epoch(place), self.committed_offset(place)
        most = max(committed, self.log_start(key))
        if offset is not None and committed >= 0 and offset > most and not self.void:
            raise RuleError(f"I17: {who} begins at {offset} of {place}, committed is {committed}")
        self._readings[who, key] = Reading(offset, offset or 0, epoch, offset or 0)
        self.rewinds.reached(place, epoch, offset or 0)

    def sought(
        self, group_id: str, who: str, key: ReplicaKey, offset: int, rewind_epoch: int
    ) -> None:
        """The user seeks back, and commits in this rewind epoch from there on."""
        reading = self._readings[who, key]
        reading.handed, reading.finished = offset, min(reading.finished, offset)
        reading.epoch, reading.began = rewind_epoch, offset
        self.rewinds.sought((group_id, key), rewind_epoch, offset)

    def adopted(
        self, group_id: str, who: str, key: ReplicaKey, committed: int, rewind_epoch: int
    ) -> None:
        """A member has learned of a later rewind epoch, and of its offset, and commits in it: what
        it was handed since it began, at that offset or before, counts as read in it."""
        reading = self._readings[who, key]
        if reading.began > committed:
            raise RuleError(f"I18: {who} goes on from {committed} of {key}, began at {reading}")
        reading.epoch = rewind_epoch
        self.rewinds.reached((group_id, key), rewind_epoch, reading.handed or 0)

    def ended(self, who: str, key: ReplicaKey) -> None:
        """The member has given it up."""
        self._readings.pop((who, key), None)

    def came_back(self, who: str) -> None:
        """The member asks for more: it has processed all it was handed."""
        for (reader, _), reading in self._readings.items():
            if reader == who and reading.handed is not None:
                reading.finished = reading.handed

    def handed_out(self, group_id: str, who: str, key: ReplicaKey, first: int, end: int) -> None:
        """A member was handed out [first, end)."""
        reading = self._readings.get((who, key))
        if self.void:
            if reading is not None:
                reading.handed = end
            return
        if reading is None:
            raise RuleError(f"I18: {who} reads {key}, which it has let go of")
        expected = reading.handed
        skipped = expected is None or first > expected
        if expected is not None and first < expected:
            raise RuleError(f"I17: {who} got {first} of {key} after {expected}")
        if skipped and first > self.log_start(key):
            raise RuleError(f"I17: {who} got {first} of {key}, expected {expected}")
        if reading.handed is None:
            reading.began = first
        reading.handed = end
        place = (group_id, key)
        self.rewinds.reached(place, reading.epoch, end)
        self._coverage(place).add(first, end)
        owner = self._owners.get(place)
        if owner not in {None, who} and MemberKey(group_id, who) in self._log._found:
            raise RuleError(f"I18: {who} reads {place}, {owner} owns it; both are members")

    def commits_to(self, who: str, key: ReplicaKey, offset: int, *, automatic: bool) -> None:
        """A member is about to commit."""
        reading = self._readings.get((who, key))
        if self.void or reading is None:
            return
        reached = reading.finished if automatic else (reading.handed or 0)
        if offset > max(reached, self.log_start(key)):
            kind = "automatically" if automatic else "all it has"
            raise RuleError(f"I18: {who} commits {kind}: {offset} of {key}, it is at {reading}")

    def position(self, who: str, key: ReplicaKey) -> int:
        """End of what the member was handed."""
        reading = self._readings.get((who, key))
        return 0 if reading is None or reading.handed is None else reading.handed

    def _coverage(self, place: Place) -> Coverage:
        return self._covered.setdefault(place, Coverage())

    # ------------------------------------------------------------ transactions

    def has_ended(self, group_id: str, transaction: tuple[ProducerId, int]) -> bool:
        """Whether the group has stored how this transaction ended."""
        known = self._log._found.get(EndedKey(group_id, transaction[0]))
        return isinstance(known, EndedRecord) and known.producer_epoch >= transaction[1]

    # ------------------------------------------------------------ lag and the end

    def check_lag(self, place: Place) -> None:
        """I19: the lag by `core.lag` is the number of records that a group has yet to read."""
        group_id, key = place
        canon, committed = self.world.checks.canon(key), self.committed_offset(place)
        log_start, now_ms = self.log_start(key), self.world.scheduler.wall_ms
        position = fetch_from(committed, log_start, canon.end)
        unread = None if position is None else oldest_unread(canon.batches, position)
        told = partition_lag(committed, log_start, canon.end, unread, now_ms)
        offsets = range(max(committed, log_start), canon.end)
        real = None if committed < 0 else len(offsets)
        if told.records != real:
            raise RuleError(f"I19: lag of {group_id} in {key} is {real}, told was {told}")
        if real:
            oldest = next(batch for batch in canon.batches if batch.next_offset > offsets[0])
            if told.lag_ms != max(0, now_ms - oldest.header.first_timestamp_ms):
                raise RuleError(f"I19: {oldest.header} waits in {key}, told was {told}")

    def check_end(self, places: list[Place]) -> None:
        """I19: every group was handed everything that retention has left."""
        if self.void:
            return
        for place in places:
            covered, end = self._coverage(place), self.world.checks.canon(place[1]).end
            missing = set(range(max(covered.below, self.log_start(place[1])), end))
            missing -= covered.beyond
            if missing:
                raise RuleError(f"I19: {place} was never handed out {sorted(missing)[:9]}")
            self.check_lag(place)

    def forgive(self, key: ReplicaKey) -> None:
        """A loss beyond the promise."""
        self.void = True
        self.world.scheduler.note("checks", "groups are not checked any more", key)


def _durable(group: Group) -> tuple[Any, ...]:
    """The state that must survive a failover."""
    members = {
        member_id: (member.record, member.target, member.current)
        for member_id, member in group.members.items()
    }
    offsets = (group.offsets, group.pending)
    return group.record, members, offsets, group.owners, group.targets, group.instances


def _place(group_id: str, where: Any) -> Place:
    return group_id, ReplicaKey(where.topic_id, where.partition)


__all__ = ["OFFSETS_KEY", "Asked", "GroupChecks"]
