"""A coordinator's state: groups, members, offsets; and the records of each change.

    Book.put_* ──▶ changes the state and adds the record (the newest per key) for the Ready

`loading.py` goes the other way: from a log's records to the state that they add up to.

Durable state is changed only through `Book`, so that state and log cannot diverge (I16); temporary
state (streams, deadlines) is marked below and starts over with the next coordinator. `Group.owners`
ensures I18: a partition is in the current record of at most one member, as owned or still to be
given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.core.groups.assignors import AssignedMember, AssignedTopic
from penstock.core.groups.catalog import NO_PARTS, Catalog, Part, Parts
from penstock.core.groups.config import GroupConfig
from penstock.core.groups.contract import CommitRequested, Decision, Output
from penstock.core.groups.contract_views import GroupState
from penstock.core.groups.pattern import TopicPattern
from penstock.core.groups.records import (
    CurrentKey,
    CurrentRecord,
    EndedKey,
    EndedRecord,
    GroupKey,
    GroupRecord,
    Key,
    MemberKey,
    MemberRecord,
    OffsetKey,
    OffsetRecord,
    PendingKey,
    PendingRecord,
    TargetKey,
    TargetRecord,
    Value,
    encode_key,
    encode_value,
)
from penstock.core.types import ProducerId, TopicId
from penstock.errors import ClusterError, ErrorCode


@dataclass(slots=True)
class Member:
    """One member. Below `current`: temporary state, in ms of the machine's clock.

    number: of the newest assignment sent on this stream. revoked_by: the one that first revoked
    is pending. revoke_by_ms: when it is fenced for not giving up; None: nothing to give up.
    seen: it had a stream since this coordinator began.
    """

    member_id: str
    record: MemberRecord
    target: Parts = NO_PARTS
    current: CurrentRecord = field(default_factory=CurrentRecord)
    stream_id: int | None = None
    deadline_ms: int = 0
    number: int = 0
    revoked_by: int = 0
    revoke_by_ms: int | None = None
    seen: bool = False

    @property
    def key(self) -> str:
        """The key by which assignors order: the instance id, if there is one."""
        return self.record.instance_id or self.member_id

    @property
    def away(self) -> bool:
        """Certainly not running: a static member that left, or its stream broke here."""
        return self.current.left or (self.stream_id is None and self.seen)


class GuardKey(NamedTuple):
    """Commits wait apart for each transactional id that names a producer id: only its coordinator
    knows which of them has it, and no other may stand in the way of that one."""

    transaction: EndedKey
    transactional_id: str


@dataclass(slots=True)
class Guard:
    """Commits of a transaction that wait until the group has joined it; temporary.

    `number` distinguishes this guard from earlier ones; `deadline_ms` is the machine's clock.
    """

    number: int
    producer_epoch: int
    deadline_ms: int
    waiting: list[CommitRequested]


@dataclass(slots=True)
class Group:
    """One group. Below `names`: temporary state."""

    group_id: str
    record: GroupRecord = field(default_factory=GroupRecord)
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    offsets: dict[Part, OffsetRecord] = field(default_factory=dict)
    pending: dict[ProducerId, PendingRecord] = field(default_factory=dict)
    owners: dict[Part, str] = field(default_factory=dict)
    targets: dict[Part, str] = field(default_factory=dict)
    names: dict[TopicId, str] = field(default_factory=dict)
    assign_at_ms: int | None = None
    assigned_at_ms: int | None = None

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.record.epoch > self.record.assignment_epoch:
            return GroupState.ASSIGNING
        done = all(
            member.current.epoch == self.record.assignment_epoch
            and member.current.parts == member.target
            and not member.current.pending
            for member in self.members.values()
        )
        return GroupState.STABLE if done else GroupState.RECONCILING

    def unstable(self, part: Part) -> ProducerId | None:
        """The producer whose open transaction may change the offset of this partition."""
        for producer_id, record in self.pending.items():
            if part in record.offsets:
                return producer_id
        return None

    def named(self, parts: Iterable[Part]) -> dict[TopicId, str]:
        """The names of the topics of these partitions."""
        return {topic_id: self.names.get(topic_id, "") for topic_id, _ in parts}


@dataclass(slots=True)
class Book:
    """All groups, and the effects of the current event so far.

    now_ms: the machine's clock at this event; time_ms: the same since 1970.
    """

    config: GroupConfig = field(default_factory=GroupConfig)
    now_ms: int = 0
    time_ms: int = 0
    is_time_trusted: bool = True
    groups: dict[str, Group] = field(default_factory=dict)
    catalog: Catalog = field(default_factory=Catalog)
    streams: dict[int, tuple[str, str]] = field(default_factory=dict)
    ended: dict[EndedKey, EndedRecord] = field(default_factory=dict)
    guards: dict[GuardKey, Guard] = field(default_factory=dict)
    guard_number: int = 0
    records: dict[bytes, bytes | None] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    commits: int = 0
    rebalances: int = 0
    _patterns: dict[str, tuple[Catalog, frozenset[TopicId]]] = field(default_factory=dict)

    # ------------------------------------------------------------ reading

    def group(self, group_id: str) -> Group:
        """Raises ClusterError(UNKNOWN_GROUP)."""
        found = self.groups.get(group_id)
        if found is None:
            raise ClusterError(
                f"there is no group {group_id!r}; check the id", ErrorCode.UNKNOWN_GROUP
            )
        return found

    def member(self, stream_id: int) -> tuple[Group, Member] | None:
        """The stream's member; None if it no longer has one."""
        found = self.streams.get(stream_id)
        if found is None:
            return None
        group = self.groups[found[0]]
        return group, group.members[found[1]]

    def subscribed(self, record: MemberRecord) -> frozenset[TopicId]:
        """The existing topics that a member subscribes to."""
        names = self.catalog.names
        found = frozenset(names[name] for name in record.topics if name in names)
        return found | self._matching(record.pattern) if record.pattern else found

    def _matching(self, text: str) -> frozenset[TopicId]:
        known = self._patterns.get(text)
        if known is None or known[0] is not self.catalog:
            pattern = TopicPattern(text)
            found = frozenset(
                topic_id for name, topic_id in self.catalog.names.items() if pattern.matches(name)
            )
            live = {m.record.pattern for g in self.groups.values() for m in g.members.values()}
            for other in self._patterns.keys() - live:
                del self._patterns[other]
            known = self._patterns[text] = (self.catalog, found)
        return known[1]

    def assigned_members(self, group: Group) -> dict[str, AssignedMember]:
        """The group's members, for assignors."""
        return {
            member_id: AssignedMember(
                member.key, self.subscribed(member.record), member.record.rack, member.target
            )
            for member_id, member in group.members.items()
        }

    def assigned_topics(self, wanted: Iterable[TopicId]) -> dict[TopicId, AssignedTopic]:
        """Topics, for assignors."""
        topics = self.catalog.topics
        return {t: AssignedTopic(topics[t].partitions, topics[t].racks) for t in wanted}

    # ------------------------------------------------------------ durable changes

    def _note(self, key: Key, value: Value | None) -> None:
        self.records[encode_key(key)] = None if value is None else encode_value(value)

    def put_group(self, group: Group, record: GroupRecord) -> None:
        """A new group becomes known by its first record."""
        self.groups[group.group_id] = group
        group.record = record
        self._note(GroupKey(group.group_id), record)

    def put_member(self, group: Group, member: Member, record: MemberRecord) -> None:
        group.members[member.member_id] = member
        member.record = record
        if record.instance_id:
            group.instances[record.instance_id] = member.member_id
        self._note(MemberKey(group.group_id, member.member_id), record)

    def put_target(self, group: Group, member: Member, parts: Parts) -> None:
        member.target = parts
        self._learn(group, parts)
        record = TargetRecord(parts, group.named(parts))
        self._note(TargetKey(group.group_id, member.member_id), record)

    def put_current(
        self, group: Group, member: Member, current: CurrentRecord, parts: Parts, pending: Parts
    ) -> Parts:
        """Stores `current` with these partitions; returns those that the member no longer owns."""
        before = member.current.parts | member.current.pending
        after = parts | pending
        released = before - after
        for part in released:
            del group.owners[part]
        for part in after - before:
            assert part not in group.owners, f"{part} of {group.group_id} has an owner (I18)"
            group.owners[part] = member.member_id
        self._learn(group, after)
        names = group.named(after)
        member.current = replace(current, parts=parts, pending=pending, names=names)
        self._note(CurrentKey(group.group_id, member.member_id), member.current)
        return released

    def remove_member(self, group: Group, member: Member) -> Parts:
        """Removes a member; returns what it owned."""
        owned = member.current.parts | member.current.pending
        for part in owned:
            del group.owners[part]
        del group.members[member.member_id]
        if group.instances.get(member.record.instance_id) == member.member_id:
            del group.instances[member.record.instance_id]
        for part in member.target:
            if group.targets.get(part) == member.member_id:
                del group.targets[part]
        for kind in (MemberKey, TargetKey, CurrentKey):
            self._note(kind(group.group_id, member.member_id), None)
        return owned

    def put_offset(self, group: Group, part: Part, record: OffsetRecord | None) -> None:
        """None deletes it."""
        if record is None:
            group.offsets.pop(part, None)
        else:
            group.offsets[part] = record
        self._note(OffsetKey(group.group_id, *part), record)

    def put_pending(
        self, group: Group, producer_id: ProducerId, record: PendingRecord | None
    ) -> None:
        """None: the transaction has ended."""
        if record is None:
            group.pending.pop(producer_id, None)
        else:
            group.pending[producer_id] = record
        self._note(PendingKey(group.group_id, producer_id), record)

    def put_ended(self, key: EndedKey, record: EndedRecord | None) -> None:
        """Also for an unknown group. None deletes it."""
        self.ended.pop(key, None)
        if record is not None:
            self.ended[key] = record  # the newest comes last
        self._note(key, record)

    def remove_group(self, group: Group) -> None:
        """Removes a group without members, and its offsets."""
        assert not group.members, f"{group.group_id} has members"
        assert not group.pending, f"{group.group_id} has offsets in open transactions"
        for part in list(group.offsets):
            self.put_offset(group, part, None)
        del self.groups[group.group_id]
        self._note(GroupKey(group.group_id), None)

    def _learn(self, group: Group, parts: Iterable[Part]) -> None:
        topics = self.catalog.topics
        for topic_id in {topic_id for topic_id, _ in parts}:
            if topic_id in topics:
                group.names[topic_id] = topics[topic_id].name

    # ------------------------------------------------------------ for the Ready

    def say(self, output: Output) -> None:
        self.outputs.append(output)

    def decide(self, event: str, **fields: object) -> None:
        self.decisions.append(Decision(event, fields))
