"""Clusters for the planner: generated ones, and what submitting or ending moves makes of them.

The hard goals are checked here from the facts and the moves alone, without the planner's own
bookkeeping.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from penstock.core.balance import BrokerFacts, Drain, Facts, Move, PartitionFacts, Plan, Replace
from penstock.core.balance import Wish as AnyWish
from penstock.core.types import BrokerId, TopicPartition

GIB = 1 << 30
HUGE = 1 << 60


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def brokers(count: int, *, racks: int = 1, disk: int = 100 * GIB) -> tuple[BrokerFacts, ...]:
    """Alive, with empty disks; racks in turns."""
    return tuple(
        BrokerFacts(
            id=BrokerId(at),
            rack=f"r{at % racks}" if racks > 1 else "",
            disk_bytes=disk,
            free_bytes=disk,
        )
        for at in range(count)
    )


def part(name: str, replicas: Sequence[int], size: int | None = GIB) -> PartitionFacts:
    """A partition named as `topic/0`, all in sync, led by its first replica."""
    topic, _, index = name.partition("/")
    members = ids(*replicas)
    return PartitionFacts(
        partition=TopicPartition(topic, int(index)),
        replicas=members,
        isr=members,
        leader=members[0],
        size_bytes=size,
    )


def holding(members: Sequence[BrokerFacts], parts: Sequence[PartitionFacts]) -> Facts:
    """Disks hold what the replicas weigh."""
    held = Counter[BrokerId]()
    for one in parts:
        for broker in one.replicas:
            held[broker] += one.size_bytes or 0
    filled = (replace(one, free_bytes=one.disk_bytes - held[one.id]) for one in members)
    return Facts(brokers=tuple(filled), partitions=tuple(parts), copy_rate=40 << 20)


@st.composite
def clusters(draw: st.DrawFn, *, tight: bool = False) -> Facts:
    """1 to 6 brokers in 1 to 3 racks, some cordoned or dead, some partitions moving already."""
    count = draw(st.integers(1, 6))
    racks = draw(st.integers(1, 3))
    disk = draw(st.integers(20, 400)) if tight else HUGE
    members = [
        replace(
            one,
            alive=draw(st.integers(0, 9)) > 0,
            cordoned=draw(st.integers(0, 9)) == 0,
            leads=draw(st.integers(0, 9)) > 0,
            fresh=draw(st.booleans()),
            reserve_bytes=draw(st.integers(0, 10)) if tight else 0,
        )
        for one in brokers(count, racks=racks, disk=disk)
    ]
    parts: list[PartitionFacts] = []
    for topic in range(draw(st.integers(0, 4))):
        factor = draw(st.integers(1, min(3, count)))
        names = [f"t{topic}/{index}" for index in range(draw(st.integers(1, 5)))]
        parts.extend(draw(partitions(name, count, factor)) for name in names)
    return holding(members, parts)


@st.composite
def partitions(draw: st.DrawFn, name: str, brokers_count: int, factor: int) -> PartitionFacts:
    orders = st.permutations(range(brokers_count))
    replicas = ids(*draw(orders)[:factor])
    target = ids()
    if draw(st.integers(0, 5)) == 0:
        others = st.integers(1, min(3, brokers_count))
        target = ids(*draw(orders)[: draw(st.sampled_from([factor, draw(others)]))])
    in_sync = draw(st.integers(1, factor))
    return replace(
        part(name, replicas, draw(st.none() | st.integers(0, 20))),
        isr=replicas[:in_sync],
        leader=replicas[draw(st.integers(0, in_sync - 1))],
        target=() if set(target) == set(replicas) else target,
        bytes_per_second=draw(st.integers(0, 50)),
    )


def submitted(facts: Facts, moves: Sequence[Move]) -> Facts:
    """Right after the controller has taken these moves; nothing has been copied."""
    by_name = {move.partition: move for move in moves}
    return replace(
        facts,
        partitions=tuple(
            one if (move := by_name.get(one.partition)) is None else _taken(one, move)
            for one in facts.partitions
        ),
    )


def _taken(one: PartitionFacts, move: Move) -> PartitionFacts:
    assert move.expected == one.replicas
    if set(move.target) == set(one.replicas):
        return replace(one, replicas=move.target, target=())
    return replace(one, target=move.target)


def ended(facts: Facts) -> Facts:
    """All moves that run are done, the former copies deleted, everybody in sync."""
    change = Counter[BrokerId]()
    parts = []
    for one in facts.partitions:
        if one.target:
            change.update(dict.fromkeys(one.target, one.size_bytes or 0))
            change.subtract(dict.fromkeys(one.replicas, one.size_bytes or 0))
            one = replace(one, replicas=one.target, target=(), isr=one.target)  # noqa: PLW2901
            one = replace(one, leader=one.replicas[0])  # noqa: PLW2901
        parts.append(one)
    members = (replace(one, free_bytes=one.free_bytes - change[one.id]) for one in facts.brokers)
    return replace(facts, brokers=tuple(members), partitions=tuple(parts))


def leaving(wish: AnyWish) -> frozenset[BrokerId]:
    match wish:
        case Drain(gone):
            return frozenset(gone)
        case Replace(broker):
            return frozenset({broker})
        case _:
            return frozenset()


def check_hard_goals(facts: Facts, plan: Plan, wish: AnyWish) -> None:
    """They hold after every prefix of the plan's moves, however far the copies are."""
    usable = {
        one.id
        for one in facts.brokers
        if one.alive and not one.cordoned and one.id not in leaving(wish)
    }
    by_name = {one.partition: one for one in facts.partitions}
    copies = Counter[BrokerId]()
    for one in facts.partitions:
        copies.update({b: _weight(one) for b in one.target if b not in one.replicas})
    for move in plan.moves:
        before = by_name[move.partition]
        held = set(before.replicas) | set(before.target)
        assert len(set(move.target)) == len(move.target), f"{move}: a broker twice"
        assert set(move.target) - held <= usable, f"{move}: to one that may take nothing"
        _check_racks(facts, before, move, usable)
        copies.update({b: _weight(before) for b in set(move.target) - held})
        for broker in facts.brokers:
            new = broker.id in set(move.target) - held
            if new and broker.disk_bytes and _weight(before):
                _check_disk(broker, copies[broker.id])


def _weight(one: PartitionFacts) -> int:
    return 1 if one.size_bytes is None else one.size_bytes


def _check_disk(broker: BrokerFacts, coming: int) -> None:
    free = broker.free_bytes - coming
    assert free >= 2 * broker.reserve_bytes, f"{broker}: {free} free"
    used = broker.disk_bytes - free
    assert used * 10 <= broker.disk_bytes * 8, f"{broker}: {used} used"


def _check_racks(facts: Facts, before: PartitionFacts, move: Move, usable: set[BrokerId]) -> None:
    if set(move.target) == set(before.replicas):
        return  # it stays where it is
    rack = {one.id: one.rack for one in facts.brokers}
    sizes = Counter(rack[one] for one in usable)
    factor = len(move.target)
    cap = max(1, -(-factor // max(1, len(sizes))))
    while sum(min(cap, size) for size in sizes.values()) < min(factor, len(usable)):
        cap += 1  # a small rack cannot take its part
    was = Counter(rack[one] for one in before.target or before.replicas)
    now = Counter(rack[one] for one in move.target)
    for name, count in now.items():
        assert count <= max(cap, was[name]), f"{move}: {count} in rack {name!r}, at most {cap}"
