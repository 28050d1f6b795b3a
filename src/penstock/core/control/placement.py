"""Where the replicas of new partitions go: spread over racks, then over brokers; leaders too.

With racks of equal size (or none) the brokers form a ring, with alternating racks: a1 b1 c1 a2 b2 …
Partition i gets the `factor` brokers from position i x factor on. Consecutive windows cover the
ring evenly, so replicas per broker differ by at most one, and any window holds at most
ceil(factor / racks) brokers of a rack because the ring repeats with that period. When factor
and ring share a divisor g the windows start at every g-th broker only; every ring / g
partitions the leader moves one position within its window, so that leaders differ by at most one
as well. Brokers with the least load come first in the ring: a topic of one partition goes to the
least loaded broker.

With unequal racks each replica goes to the rack that has the fewest of this partition's replicas
and still has a free broker, and there to the broker with the least load.

Deterministic: the same cluster and request give the same answer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import gcd
from typing import Self

from penstock.core.types import BrokerId


@dataclass(slots=True)
class Load:
    """Replicas and preferred leaderships per broker, of the whole cluster and of the topic."""

    replicas: Counter[BrokerId] = field(default_factory=Counter)
    leaders: Counter[BrokerId] = field(default_factory=Counter)
    topic_replicas: Counter[BrokerId] = field(default_factory=Counter)
    topic_leaders: Counter[BrokerId] = field(default_factory=Counter)

    @classmethod
    def of(cls, partitions: Iterable[Sequence[BrokerId]]) -> Self:
        """The cluster's counts, of no topic: of all partitions at once, as there may be many."""
        placed = list(partitions)
        return cls(
            Counter(chain.from_iterable(placed)), Counter(replicas[0] for replicas in placed)
        )

    def add(self, replicas: Sequence[BrokerId]) -> None:
        """Counts one partition."""
        self.replicas.update(replicas)
        self.leaders[replicas[0]] += 1
        self.topic_replicas.update(replicas)
        self.topic_leaders[replicas[0]] += 1

    def for_topic(self, partitions: Sequence[Sequence[BrokerId]] = ()) -> "Load":
        """The same cluster counts, shared; the topic's own from its existing `partitions`."""
        load = Load(self.replicas, self.leaders)
        for replicas in partitions:
            load.topic_replicas.update(replicas)
            load.topic_leaders[replicas[0]] += 1
        return load

    def rank(self, broker_id: BrokerId) -> tuple[int, int, int, int, int]:
        """Smaller = should get the next replica."""
        return (
            self.topic_replicas[broker_id],
            self.topic_leaders[broker_id],
            self.replicas[broker_id],
            self.leaders[broker_id],
            broker_id,
        )

    def leader_rank(self, broker_id: BrokerId) -> tuple[int, int, int]:
        """Smaller = should lead next."""
        return self.topic_leaders[broker_id], self.leaders[broker_id], broker_id


def place(
    rack_of: Mapping[BrokerId, str], partitions: int, factor: int, load: Load
) -> list[tuple[BrokerId, ...]]:
    """Replica lists for `partitions` new partitions; the first of each is the preferred leader.

    `rack_of`: the brokers that may be used; "" is a rack like any other. Needs
    1 <= factor <= number of brokers. `load` is updated with what was placed.
    """
    assert 1 <= factor <= len(rack_of)
    racks: dict[str, list[BrokerId]] = {}
    for broker_id in sorted(rack_of, key=load.rank):
        racks.setdefault(rack_of[broker_id], []).append(broker_id)
    if len({len(members) for members in racks.values()}) == 1:
        placed = _place_on_ring(list(racks.values()), partitions, factor)
        for replicas in placed:
            load.add(replicas)
        return placed
    return [_place_one(racks, factor, load) for _ in range(partitions)]


def _place_on_ring(
    racks: list[list[BrokerId]], partitions: int, factor: int
) -> list[tuple[BrokerId, ...]]:
    ring = [members[turn] for turn in range(len(racks[0])) for members in racks]
    size = len(ring)
    divisor = gcd(size, factor)
    placed = []
    for index in range(partitions):
        window = [ring[(index * factor + step) % size] for step in range(factor)]
        lead = (index // (size // divisor)) % divisor
        placed.append((*window[lead:], *window[:lead]))
    return placed


def _place_one(
    racks: Mapping[str, Sequence[BrokerId]], factor: int, load: Load
) -> tuple[BrokerId, ...]:
    chosen: list[BrokerId] = []
    used: Counter[str] = Counter()
    for _ in range(factor):
        free = {
            rack: [member for member in members if member not in chosen]
            for rack, members in racks.items()
        }
        rack = min(
            (rack for rack, members in free.items() if members),
            key=lambda name: (used[name], min(load.rank(member) for member in free[name])),
        )
        chosen.append(min(free[rack], key=load.rank))
        used[rack] += 1
    leader = min(chosen, key=load.leader_rank)
    replicas = (leader, *(member for member in chosen if member != leader))
    load.add(replicas)
    return replicas
