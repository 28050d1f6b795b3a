"""Which brokers may restart together: never two of one partition (I25).

    first by id whose partitions are in sync ─▶ + others of its rack, none of which has a partition
                                                in common with those taken ─▶ at most `most`

A partition that moves counts for the brokers it goes to as well: it may switch at any moment. A
broker that holds a partition without a replica to spare, by its topic's own settings, goes alone,
and so does the first one of a new template: a bad one takes down one broker. Pure.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.client import MoveDescription
from penstock_operator.model import BrokerFacts, PartitionState

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """What decides who may go together, besides what is in sync just now.

    Attributes:
        most: So many brokers at once.
        racks: Of each broker; "" = none.
        shared: The brokers that have a partition in common with each broker, itself among them.
        alone: Brokers that hold a partition without a replica to spare.
    """

    most: int
    racks: Mapping[int, str] = field(default_factory=dict)
    shared: Mapping[int, Collection[int]] = field(default_factory=dict)
    alone: Collection[int] = ()

    def group(self, ready: Sequence[int]) -> Group:
        """The first of `ready`, and those of the others that may go with it; empty: none is."""
        taken: list[int] = []
        barred: set[int] = set()
        for broker_id in ready:
            if len(taken) == self.most:
                break
            if taken and (
                broker_id in self.alone
                or broker_id in barred
                or self._rack(broker_id) != self._rack(taken[0])
            ):
                continue
            taken.append(broker_id)
            if broker_id in self.alone:
                break
            barred.update(self.shared.get(broker_id, ()))
        return tuple(taken)

    def groups(self, outdated: Sequence[int], *, is_first: bool) -> tuple[Group, ...]:
        """How all of them go, one group after the other, if all replicas are in sync each time.

        `is_first`: no broker has their new template yet.
        """
        left, made = list(outdated), list[Group]()
        while left:
            made.append(tuple(left[:1]) if is_first and not made else self.group(left))
            left = [one for one in left if one not in made[-1]]
        return tuple(made)

    def _rack(self, broker_id: int) -> str:
        return self.racks.get(broker_id, "")


def sharing(facts: BrokerFacts, moves: Iterable[MoveDescription], most: int) -> Sharing:
    """`moves`: what moves, looked up after `facts`: what has switched in between counts, too."""
    bound: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for one in moves:
        where = one.where.topic, one.where.partition
        bound[where] |= {*one.replicas, *one.target, *one.adding, *one.dropping}
    shared: defaultdict[int, set[int]] = defaultdict(set)
    alone: set[int] = set()
    for each in facts.partitions:
        held = bound[each.topic, each.partition] | set(each.replicas)
        for broker_id in held:
            shared[broker_id] |= held
        if len(each.replicas) - 1 < max(1, each.min_isr):
            alone |= held
    racks = {broker_id: state.rack for broker_id, state in facts.brokers.items()}
    return Sharing(most, racks, shared, alone)


def lagging(facts: BrokerFacts, broker_ids: Collection[int]) -> dict[int, list[PartitionState]]:
    """By broker: partitions it holds of which a replica is out of sync, or is so soon, because its
    broker has no session. Brokers without such partitions are not in it."""
    found: dict[int, list[PartitionState]] = {}
    live = {broker_id for broker_id, state in facts.brokers.items() if state.alive}
    for each in facts.partitions:
        if each.is_full and live.issuperset(each.isr):
            continue
        for broker_id in each.replicas:
            if broker_id in broker_ids:
                found.setdefault(broker_id, []).append(each)
    return found


def missing(facts: BrokerFacts, broker_ids: Collection[int]) -> tuple[PartitionState, ...]:
    """Partitions in which one of these brokers is out of sync."""
    return tuple(
        each
        for each in facts.not_full
        if any(one in broker_ids and one not in each.isr for one in each.replicas)
    )
