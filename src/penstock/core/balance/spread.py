"""New brokers get their share: replicas go from the fullest of the old ones onto new ones only.

A broker's share is the mean of replicas, rounded down. Nothing moves between old brokers, nobody
gives to one that has as many, and of what one can give the replica goes that brings the new
broker's bytes closest to the mean.
"""

from typing import NamedTuple

from penstock.core.balance.layout import Layout
from penstock.core.balance.search import Asked, Key, pick

NEAR_PARTS = 20
"""Sizes that differ by less than one of this many parts of a broker's mean are equally good."""


class Gap(NamedTuple):
    """A broker that wants a replica of about `size` bytes; within `near` all are equally good."""

    target: int
    size: int
    near: int


def spread(layout: Layout, onto: list[int]) -> None:
    """Moves replicas until `onto` have their share, or the old ones can give nothing more."""
    if not onto:
        return
    members = [at for at, is_open in enumerate(layout.open) if is_open]
    old = [at for at in members if at not in onto]
    share = sum(layout.count[at] for at in members) // len(members)
    mean_bytes = sum(layout.bytes[at] for at in members) // len(members)
    near = max(1, mean_bytes // NEAR_PARTS)
    asked = Asked()
    while asked.again():
        waiting = set(onto)
        while waiting := {at for at in waiting if layout.count[at] < share}:
            target = min(waiting, key=lambda at: (layout.count[at], layout.bytes[at], at))
            lacking = share - layout.count[target]
            size = max(0, mean_bytes - layout.bytes[target]) // lacking
            givers = [at for at in old if layout.count[at] > layout.count[target] + 1]
            if not _take(layout, asked, givers, Gap(target, size, near)):
                waiting.remove(target)


def _take(layout: Layout, asked: Asked, givers: list[int], gap: Gap) -> bool:
    target = gap.target
    for source in sorted(givers, key=lambda at: (-layout.count[at], -layout.bytes[at], at)):

        def key(partition: int, source: int = source) -> Key:
            topic = layout.topic_count[layout.topic[partition]]
            away = abs(layout.size[partition] - gap.size)
            return away // gap.near, topic[target] - topic[source], away, partition

        if (source, target) in asked:
            continue
        partition = pick(layout, source, target, gap.size, key)
        if asked.note(source, target, found=partition is not None):
            assert partition is not None
            layout.move(partition, source, target)
            return True
    return False
