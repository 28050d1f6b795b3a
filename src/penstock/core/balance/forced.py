"""What a wish demands of single partitions: leave a broker, gain replicas, lose some.

Largest first, because what is large finds room least easily; each to the best broker of that
moment. A step that finds no broker ends everything: a drain that cannot end should not begin.
"""

from collections import Counter

from penstock.core.balance.layout import Layout
from penstock.core.types import BrokerId


def largest_first(layout: Layout, partitions: list[int]) -> list[int]:
    """The order in which they look for brokers."""
    return sorted(partitions, key=lambda one: (-layout.size[one], one))


def drain(layout: Layout, leaving: frozenset[BrokerId]) -> int | None:
    """Everything leaves these brokers; a partition that finds no broker, or None."""
    gone = {layout.number[broker] for broker in leaving}
    held = [at for at, replicas in enumerate(layout.placed) if gone.intersection(replicas)]
    for partition in largest_first(layout, held):
        for source in [one for one in layout.placed[partition] if one in gone]:
            if not _leave(layout, partition, source):
                return partition
    return None


def leave(layout: Layout, partitions: list[int], broker: BrokerId) -> int | None:
    """These partitions leave the broker; one that finds no other, or None."""
    for partition in largest_first(layout, partitions):
        if not _leave(layout, partition, layout.number[broker]):
            return partition
    return None


def _leave(layout: Layout, partition: int, source: int) -> bool:
    target = layout.best(partition, source)
    if target is None:
        return False
    layout.move(partition, source, target)
    return True


def only_here(layout: Layout, broker: BrokerId) -> list[int]:
    """Partitions on this broker that no other live broker could copy it from again."""
    at = layout.number[broker]
    return [
        partition
        for partition, replicas in enumerate(layout.placed)
        if at in replicas
        and not any(
            other != at
            and layout.brokers[other].alive
            and layout.brokers[other].id in layout.facts[partition].isr
            for other in replicas
        )
    ]


def change_factor(layout: Layout, topic: str, replicas: int) -> int | None:
    """Every partition of the topic gets this many; one that finds no broker, or None.

    One that has this many, and moves to another number, stays where it is.
    """
    own = [at for at, one in enumerate(layout.facts) if one.partition.topic == topic]
    for partition in largest_first(layout, own):
        if len(layout.present[partition]) == replicas != len(layout.placed[partition]):
            layout.take_back(partition)
        while len(layout.placed[partition]) > replicas:
            layout.drop(partition, _superfluous(layout, partition))
        while len(layout.placed[partition]) < replicas:
            target = layout.best(partition)
            if target is None:
                return partition
            layout.add(partition, target)
    return None


def _superfluous(layout: Layout, partition: int) -> int:
    """The replica to drop: not in sync, in the crowded rack, on the fullest broker; not the leader
    if another can go."""
    facts = layout.facts[partition]
    racks = Counter(layout.rack[broker] for broker in layout.placed[partition])
    return max(
        layout.placed[partition],
        key=lambda at: (
            layout.brokers[at].id != facts.leader,
            not layout.brokers[at].alive or layout.brokers[at].id not in facts.isr,
            racks[layout.rack[at]],
            layout.count[at],
            layout.bytes[at],
            at,
        ),
    )
