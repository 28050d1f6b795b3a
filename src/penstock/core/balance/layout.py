"""The working copy of a plan: where every replica will be, what that makes, and what is allowed.

Brokers and partitions are numbered here in the order of their names, so that the order in which
facts come does not matter and the inner loops run on lists of integers. A partition that is
moving already counts as if it had its target, and only what is forced moves it again. The hard
goals are asked at one place, `may_place`: who may take replicas at all (`open`), one replica per
broker, racks, and disk. Disk counts copies at both ends: what leaves a broker frees nothing yet.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from penstock.core.balance.facts import BrokerFacts, Facts
from penstock.core.types import BrokerId

DISK_PERCENT = 80
"""What a plan may fill of a data volume."""
RESERVES_FREE = 2
"""This many times the reserve of a broker stays free."""
TIGHT_SHARE = 4
"""A broker whose room falls below one of this many parts of its limit is taken only if need be."""

_NO_LIMIT = 1 << 62

Entry = tuple[int, int, int, int]
"""Size, index in its topic, number of the topic, number of the partition: neighbours of equal
size come from different topics."""


class Layout:
    """Replicas of all partitions on all brokers, by number.

    `unlimited`: disks count as never full, to learn how much they would lack.
    """

    def __init__(
        self, facts: Facts, leaving: frozenset[BrokerId] = frozenset(), *, unlimited: bool = False
    ) -> None:
        self.facts = sorted(facts.partitions, key=lambda one: one.partition)
        self.brokers = _all_brokers(facts)
        self.number = {broker.id: at for at, broker in enumerate(self.brokers)}
        self.open = [
            broker.alive and not broker.cordoned and broker.id not in leaving
            for broker in self.brokers
        ]
        self.may_lead = [
            broker.alive and broker.leads and broker.id not in leaving for broker in self.brokers
        ]
        self.leaving = [broker.id in leaving for broker in self.brokers]
        self.unlimited = unlimited
        self.copy_rate = facts.copy_rate
        racks = sorted({broker.rack for broker in self.brokers})
        self.rack = [racks.index(broker.rack) for broker in self.brokers]
        self._open_racks = Counter(
            rack for rack, is_open in zip(self.rack, self.open, strict=True) if is_open
        )
        self._caps: dict[int, int] = {}
        self._count()

    def _count(self) -> None:
        names = sorted({one.partition.topic for one in self.facts})
        topics = {name: at for at, name in enumerate(names)}
        self.topic = [topics[one.partition.topic] for one in self.facts]
        self.size = [1 if one.size_bytes is None else one.size_bytes for one in self.facts]
        self.moving = [bool(one.target) for one in self.facts]
        self.present = [self._numbers(one.replicas) for one in self.facts]
        self.base = [self._numbers(one.target or one.replicas) for one in self.facts]
        self.placed = [list(replicas) for replicas in self.base]
        self.has_data = [
            frozenset(self.present[at]) | frozenset(self.base[at]) for at in range(len(self.facts))
        ]
        self.full_racks = [
            self._full_racks(at, len(replicas)) for at, replicas in enumerate(self.placed)
        ]
        self.touched: dict[int, None] = {}
        brokers = len(self.brokers)
        self.count = [0] * brokers
        self.bytes = [0] * brokers
        self.topic_count = [[0] * brokers for _ in names]
        self.on: list[list[Entry]] = [[] for _ in range(brokers)]
        self.limit = [_limit(broker) for broker in self.brokers]
        self.room = [
            limit - (broker.disk_bytes - broker.free_bytes)
            for limit, broker in zip(self.limit, self.brokers, strict=True)
        ]
        for partition, replicas in enumerate(self.placed):
            for broker in replicas:
                self._add(partition, broker)
                if broker not in self.present[partition]:
                    self.room[broker] -= self.size[partition]
        for entries in self.on:
            entries.sort()

    def _numbers(self, replicas: tuple[BrokerId, ...]) -> tuple[int, ...]:
        return tuple(self.number[one] for one in replicas)

    def _add(self, partition: int, broker: int) -> None:
        self.count[broker] += 1
        self.bytes[broker] += self.size[partition]
        self.topic_count[self.topic[partition]][broker] += 1
        if not self.moving[partition]:
            self.on[broker].append(self._entry(partition))

    def _entry(self, partition: int) -> Entry:
        index = self.facts[partition].partition.partition
        return self.size[partition], index, self.topic[partition], partition

    # ------------------------------------------------------------ what is allowed

    def cap(self, factor: int) -> int:
        """How many replicas of a partition a rack should have at most.

        ceil(factor / racks) where racks are of equal size; more if small racks cannot take that.
        """
        if factor not in self._caps:
            racks = self._open_racks.values()
            wanted = min(factor, self._open_racks.total())
            cap = 0
            while sum(min(cap, members) for members in racks) < wanted:
                cap += 1
            self._caps[factor] = max(cap, 1)
        return self._caps[factor]

    def in_rack(self, partition: int, rack: int) -> int:
        """How many replicas of the partition are there."""
        ranks = self.rack
        return sum([ranks[broker] == rack for broker in self.placed[partition]])

    def may_place(self, partition: int, target: int, source: int = -1) -> bool:
        """The hard goals allow a replica on `target`, taken from `source`; -1 = a further one."""
        replicas = self.placed[partition]
        if target in replicas or not self.open[target]:
            return False
        if (
            self.room[target] < self.size[partition] > 0
            and not self.unlimited
            and target not in self.has_data[partition]
        ):
            return False
        rack = self.rack[target]
        if source >= 0:
            return self.rack[source] == rack or not self.full_racks[partition] >> rack & 1
        return not self._full_racks(partition, len(replicas) + 1) >> rack & 1

    def _full_racks(self, partition: int, factor: int) -> int:
        """The racks that take no further replica of the partition, as bits.

        They have as many as they should, and as many as they had at the beginning.
        """
        if len(self._open_racks) < 2:
            return 0
        full = 0
        cap = self.cap(factor)
        used = [self.rack[broker] for broker in self.placed[partition]]
        began = [self.rack[broker] for broker in self.base[partition]]
        for rack in used:
            if used.count(rack) >= max(cap, began.count(rack)):
                full |= 1 << rack
        return full

    def rack_excess(self, partition: int) -> int:
        """Replicas of the partition beyond the cap of their racks."""
        replicas = self.placed[partition]
        cap = self.cap(len(replicas))
        if len(self._open_racks) < 2 or len(replicas) <= cap:
            return 0
        used = [self.rack[broker] for broker in replicas]
        return sum([max(0, used.count(rack) - cap) for rack in {*used}])

    def rack_change(self, partition: int, source: int, target: int) -> int:
        """What `rack_excess` gains if a replica moves; negative = better."""
        here, there = self.rack[source], self.rack[target]
        if here == there or len(self._open_racks) < 2:
            return 0
        cap = self.cap(len(self.placed[partition]))
        gained = self.in_rack(partition, there) >= cap
        return gained - (self.in_rack(partition, here) > cap)

    def best(self, partition: int, source: int = -1) -> int | None:
        """The broker that should take a replica: rack, disk, count, bytes, topic, id decide."""
        size, topic = self.size[partition], self.topic_count[self.topic[partition]]
        leaves = self.rack[source] if source >= 0 else -1
        options = [
            (
                self.in_rack(partition, self.rack[at]) - (self.rack[at] == leaves),
                (self.room[at] - size) * TIGHT_SHARE < self.limit[at],
                self.count[at],
                self.bytes[at],
                topic[at],
                at,
            )
            for at in range(len(self.brokers))
            if self.may_place(partition, at, source)
        ]
        return min(options)[-1] if options else None

    def givable(self, source: int, target: int, size: int) -> Iterator[int]:
        """Partitions of `source` that `may_place` allows on `target`, from those of about `size`
        bytes outwards.

        Most are not allowed, because `target` has a replica; so what all of them have in common is
        looked up once.
        """
        if not self.open[target]:
            return
        placed, has_data, full = self.placed, self.has_data, self.full_racks
        rack = self.rack[target]
        in_one_rack = self.rack[source] == rack
        room = _NO_LIMIT if self.unlimited else self.room[target]
        entries = self.on[source]
        above = bisect_left(entries, (size,))
        below, end = above - 1, len(entries)
        while below >= 0 or above < end:
            if below < 0 or (above < end and entries[above][0] - size <= size - entries[below][0]):
                held, _, _, partition = entries[above]
                above += 1
            else:
                held, _, _, partition = entries[below]
                below -= 1
            if (
                target not in placed[partition]
                and (in_one_rack or not full[partition] >> rack & 1)
                and (not room < held > 0 or target in has_data[partition])
            ):
                yield partition

    def around(self, broker: int, size: int, most: int) -> list[int]:
        """Partitions of a broker, from those of about `size` bytes outwards; at most so many."""
        entries = self.on[broker]
        above = bisect_left(entries, (size,))
        low, high = max(0, above - most), min(len(entries), above + most)
        near = entries[low:high]
        below, above = above - low - 1, above - low
        found = []
        for _ in range(min(most, len(near))):
            if below < 0 or (above < len(near) and near[above][0] - size <= size - near[below][0]):
                found.append(near[above][3])
                above += 1
            else:
                found.append(near[below][3])
                below -= 1
        return found

    # ------------------------------------------------------------ changes

    def move(self, partition: int, source: int, target: int) -> None:
        """A replica goes from one broker to another, with its position in the list."""
        replicas = self.placed[partition]
        replicas[replicas.index(source)] = target
        self._left(partition, source)
        self._joined(partition, target)
        self.full_racks[partition] = self._full_racks(partition, len(replicas))

    def add(self, partition: int, target: int) -> None:
        """A further replica."""
        replicas = self.placed[partition]
        replicas.append(target)
        self._joined(partition, target)
        self.full_racks[partition] = self._full_racks(partition, len(replicas))

    def drop(self, partition: int, source: int) -> None:
        """A replica less."""
        replicas = self.placed[partition]
        replicas.remove(source)
        self._left(partition, source)
        self.full_racks[partition] = self._full_racks(partition, len(replicas))

    def take_back(self, partition: int) -> None:
        """Its replicas are those that it has, in their order: its move ends without effect."""
        present, placed = self.present[partition], self.placed[partition]
        for broker in [one for one in placed if one not in present]:
            self._left(partition, broker)
        for broker in [one for one in present if one not in placed]:
            self._joined(partition, broker)
        self.placed[partition] = list(present)
        self.full_racks[partition] = self._full_racks(partition, len(present))

    def _joined(self, partition: int, broker: int) -> None:
        size = self.size[partition]
        self.touched[partition] = None
        self.count[broker] += 1
        self.bytes[broker] += size
        self.topic_count[self.topic[partition]][broker] += 1
        if broker not in self.has_data[partition]:
            self.room[broker] -= size
        if not self.moving[partition]:
            insort(self.on[broker], self._entry(partition))

    def _left(self, partition: int, broker: int) -> None:
        size = self.size[partition]
        self.touched[partition] = None
        self.count[broker] -= 1
        self.bytes[broker] -= size
        self.topic_count[self.topic[partition]][broker] -= 1
        if broker not in self.has_data[partition]:
            self.room[broker] += size
        if not self.moving[partition]:
            entries = self.on[broker]
            del entries[bisect_left(entries, self._entry(partition))]


def _all_brokers(facts: Facts) -> list[BrokerFacts]:
    """By id. A replica may name a broker that is not registered any more: it counts as dead."""
    known = {broker.id: broker for broker in facts.brokers}
    for one in facts.partitions:
        for broker in (*one.replicas, *one.target):
            if broker not in known:
                known[broker] = BrokerFacts(id=broker, alive=False)
    return [known[broker] for broker in sorted(known)]


def _limit(broker: BrokerFacts) -> int:
    """What may be used of the volume, in bytes; without limit if its size is unknown."""
    if not broker.disk_bytes:
        return _NO_LIMIT
    reserve = broker.disk_bytes - RESERVES_FREE * broker.reserve_bytes
    return min(broker.disk_bytes * DISK_PERCENT // 100, reserve)
