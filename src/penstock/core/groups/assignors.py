"""Assigns partitions: pure functions from members and topics to a target assignment.

    uniform   as equal as possible, moves as little as possible (sticky); the default
    range     partitions of each topic in order, the same numbers of co-subscribed topics together

Every partition of a subscribed topic goes to exactly one of its subscribers. Among members with
equal subscriptions the counts differ by one at most (range: by one per topic). Where racks are
known, a member gets partitions with a replica in its rack as far as that balance allows
(KIP-881). `uniform` keeps what a member had unless balance needs it elsewhere: a member that joins
takes its share and no other partition moves.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.core.types import TopicId

Part = tuple[TopicId, int]
Parts = frozenset[Part]


@dataclass(frozen=True, slots=True)
class AssignedMember:
    """A member, for assignors. `key` orders members: a static member's stays the same."""

    key: str
    topics: frozenset[TopicId]
    rack: str = ""
    had: Parts = frozenset()


@dataclass(frozen=True, slots=True)
class AssignedTopic:
    """`racks[i]`: racks with a replica of partition i; () = none known."""

    partitions: int
    racks: tuple[frozenset[str], ...] = ()

    def near(self, partition: int, rack: str) -> bool:
        """A replica of the partition is in this rack."""
        return bool(rack) and partition < len(self.racks) and rack in self.racks[partition]


Members = Mapping[str, AssignedMember]
Topics = Mapping[TopicId, AssignedTopic]
Assignor = Callable[[Members, Topics], dict[str, Parts]]


def assign(assignor: str, members: Members, topics: Topics) -> dict[str, Parts]:
    """The target of every member, by its id; topics that do not exist are ignored."""
    return _ASSIGNORS[assignor](members, topics)


# ---------------------------------------------------------------- uniform


def _uniform(members: Members, topics: Topics) -> dict[str, Parts]:
    order = sorted(members, key=lambda member_id: members[member_id].key)
    wanted = {m: frozenset(t for t in members[m].topics if t in topics) for m in order}
    if len(set(wanted.values())) == 1:
        return _uniform_equal(order, members, topics, wanted[order[0]])
    return _Balancing(order, members, topics, wanted).run()


def _uniform_equal(
    order: list[str], members: Members, topics: Topics, wanted: frozenset[TopicId]
) -> dict[str, Parts]:
    """All members want the same: quotas are known beforehand, one pass is enough."""
    every = [(t, i) for t in sorted(wanted) for i in range(topics[t].partitions)]
    least, extra = divmod(len(every), len(order))
    legal = set(every)
    kept: dict[str, list[Part]] = {}
    for member_id in order:
        had = sorted(members[member_id].had & legal)
        legal.difference_update(had)  # if two members had a partition, the first one keeps it
        kept[member_id] = had
    # The members with the most may keep one more: that moves the least.
    quota = dict.fromkeys(order, least)
    for member_id in sorted(order, key=lambda m: -len(kept[m]))[:extra]:
        quota[member_id] += 1
    for member_id, parts in kept.items():
        surplus = len(parts) - quota[member_id]
        if surplus > 0:
            rack = members[member_id].rack
            parts.sort(key=lambda part: not topics[part[0]].near(part[1], rack))
            del parts[quota[member_id] :]
    taken = {part for parts in kept.values() for part in parts}
    free = [part for part in every if part not in taken]
    room = {m: quota[m] - len(kept[m]) for m in order if quota[m] > len(kept[m])}
    for part in _near_first(free, room, members, topics, kept):
        member_id = next(iter(room))
        kept[member_id].append(part)
        _use(room, member_id)
    return {member_id: frozenset(parts) for member_id, parts in kept.items()}


def _near_first(
    free: list[Part],
    room: dict[str, int],
    members: Members,
    topics: Topics,
    given: dict[str, list[Part]],
) -> list[Part]:
    """Gives partitions to members in their racks while these have capacity; returns the others."""
    by_rack: dict[str, list[str]] = defaultdict(list)
    for member_id in room:
        if members[member_id].rack:
            by_rack[members[member_id].rack].append(member_id)
    if not by_rack:
        return free
    others = []
    for part in free:
        racks = topics[part[0]].racks
        near = racks[part[1]] if part[1] < len(racks) else ()
        # The rack with most capacity first; otherwise one rack's members would be full first.
        fit = [m for rack in sorted(near) for m in by_rack.get(rack, ()) if m in room]
        if not fit:
            others.append(part)
            continue
        member_id = max(fit, key=lambda m: room[m])
        given[member_id].append(part)
        _use(room, member_id)
    return others


def _use(room: dict[str, int], member_id: str) -> None:
    room[member_id] -= 1
    if not room[member_id]:
        del room[member_id]


@dataclass(slots=True)
class _Balancing:
    """Members want different topics: keep what they had, place the rest, then even out.

    A move goes from a member to one with at least two partitions less, so the sum of squares
    falls with each and the process ends; then no single move makes it more equal.
    """

    order: list[str]
    members: Members
    topics: Topics
    wanted: dict[str, frozenset[TopicId]]
    given: dict[str, set[Part]] = field(default_factory=dict)
    subscribers: dict[TopicId, list[str]] = field(default_factory=dict)

    def run(self) -> dict[str, Parts]:
        for member_id in self.order:
            for topic_id in self.wanted[member_id]:
                self.subscribers.setdefault(topic_id, []).append(member_id)
        self._keep()
        self._place()
        while self._even_out():
            pass
        return {member_id: frozenset(parts) for member_id, parts in self.given.items()}

    def _keep(self) -> None:
        taken: set[Part] = set()
        for member_id in self.order:
            wanted = self.wanted[member_id]
            kept = {
                (topic_id, partition)
                for topic_id, partition in self.members[member_id].had
                if topic_id in wanted and partition < self.topics[topic_id].partitions
            } - taken
            taken |= kept
            self.given[member_id] = kept

    def _place(self) -> None:
        """Topics with the fewest subscribers first: they have the least choice."""
        taken = {part for parts in self.given.values() for part in parts}
        for topic_id in sorted(self.subscribers, key=lambda t: (len(self.subscribers[t]), t)):
            for partition in range(self.topics[topic_id].partitions):
                if (topic_id, partition) not in taken:
                    best = self._emptiest(topic_id, partition)
                    self.given[best].add((topic_id, partition))

    def _emptiest(self, topic_id: TopicId, partition: int) -> str:
        topic = self.topics[topic_id]
        return min(
            self.subscribers[topic_id],
            key=lambda m: (
                len(self.given[m]),
                not topic.near(partition, self.members[m].rack),
            ),
        )

    def _even_out(self) -> bool:
        """One pass over the members, fullest first; False when nothing moved."""
        moved = False
        for member_id in sorted(self.order, key=lambda m: -len(self.given[m])):
            mine = self.given[member_id]
            for topic_id in sorted({topic_id for topic_id, _ in mine}):
                while (part := self._movable(member_id, topic_id)) is not None:
                    mine.discard(part)
                    self.given[self._emptiest(*part)].add(part)
                    moved = True
        return moved

    def _movable(self, member_id: str, topic_id: TopicId) -> Part | None:
        """A partition of a topic that is better off elsewhere; far from the member's rack first."""
        mine, rack = self.given[member_id], self.members[member_id].rack
        least = min(len(self.given[other]) for other in self.subscribers[topic_id])
        if least > len(mine) - 2:
            return None
        parts = (part for part in mine if part[0] == topic_id)
        return min(parts, key=lambda p: (self.topics[topic_id].near(p[1], rack), p), default=None)


# ---------------------------------------------------------------- range


def _range(members: Members, topics: Topics) -> dict[str, Parts]:
    order = sorted(members, key=lambda member_id: members[member_id].key)
    given: dict[str, list[Part]] = {member_id: [] for member_id in order}
    alike: dict[tuple[int, tuple[str, ...]], list[TopicId]] = defaultdict(list)
    for topic_id in sorted(topics):
        subscribers = tuple(m for m in order if topic_id in members[m].topics)
        if subscribers:
            alike[topics[topic_id].partitions, subscribers].append(topic_id)
    for (partitions, subscribers), together in alike.items():
        least, extra = divmod(partitions, len(subscribers))
        room = {m: least + (index < extra) for index, m in enumerate(subscribers)}
        room = {m: free for m, free in room.items() if free}
        rest: Iterable[int] = range(partitions)
        if any(members[m].rack for m in room):
            rest = _range_near(rest, room, members, [topics[t] for t in together], given, together)
        for partition in rest:
            member_id = next(iter(room))
            given[member_id] += [(topic_id, partition) for topic_id in together]
            _use(room, member_id)
    return {member_id: frozenset(parts) for member_id, parts in given.items()}


def _range_near(
    partitions: Iterable[int],
    room: dict[str, int],
    members: Members,
    found: list[AssignedTopic],
    given: dict[str, list[Part]],
    together: list[TopicId],
) -> list[int]:
    """Numbers whose partitions all have a replica in a member's rack go to it; the rest returns."""
    rest = []
    for partition in partitions:
        fit = (m for m in room if all(t.near(partition, members[m].rack) for t in found))
        member_id = next(fit, None)
        if member_id is None:
            rest.append(partition)
            continue
        given[member_id] += [(topic_id, partition) for topic_id in together]
        _use(room, member_id)
    return rest


_ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": _uniform, "range": _range}
