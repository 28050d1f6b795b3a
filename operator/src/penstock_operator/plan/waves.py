"""Moves in waves: as many at a time as the controller queues, the rest when those have ended.

A topic's open moves have to fit into its document, and the moves of others, too. So a plan is
submitted in parts, and made again for each: what moves already counts as done in it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.client import MoveDescription, ReplicaMove
from penstock.client.admin.move_facts import ClusterFacts
from penstock.core.balance import PartitionFacts, Plan
from penstock.core.limits import REPLICA_CHANGES_MAX
from penstock.core.types import BrokerId

WAVE: Final = 500
"""Open moves of one topic: the controller takes 1,000, and others may want some."""


def open_moves(moves: Sequence[MoveDescription]) -> Counter[str]:
    """How many partitions move, by topic."""
    return Counter(one.where.topic for one in moves if one.target)


def has_room(opened: int) -> bool:
    """Whether half a wave or more fits into a topic with so many open moves: planning costs."""
    return opened <= WAVE // 2


def next_wave(
    made: Plan, seen: ClusterFacts, *, redirects: bool = False
) -> tuple[ReplicaMove, ...]:
    """The moves of a plan that can be submitted now.

    `seen`: what the plan was made from. `redirects`: also of partitions that move elsewhere, which
    opens no further move.
    """
    opened = open_moves(seen.moving.moves)
    moving = {one.where for one in seen.moving.moves if one.target}
    wave: list[ReplicaMove] = []
    for move in made.moves:
        topic, is_moving = move.partition.topic, move.partition in moving
        if len(wave) == REPLICA_CHANGES_MAX:
            break
        if (is_moving and not redirects) or (not is_moving and opened[topic] >= WAVE):
            continue
        opened[topic] += not is_moving
        topic_id = seen.topic_ids.get(topic, "")
        wave.append(ReplicaMove(move.partition, move.target, move.expected, topic_id))
    return tuple(wave)


def taken(seen: ClusterFacts, moves: Sequence[ReplicaMove]) -> ClusterFacts:
    """The same with these moves submitted: what is planned next finds brokers and disks so used."""
    targets = {move.where: move.target for move in moves}
    partitions = tuple(
        replace(one, target=_target(one, targets[one.partition]))
        if one.partition in targets
        else one
        for one in seen.facts.partitions
    )
    return replace(seen, facts=replace(seen.facts, partitions=partitions))


def _target(one: PartitionFacts, target: tuple[int, ...]) -> tuple[BrokerId, ...]:
    """The same replicas need no move."""
    return () if set(target) == set(one.replicas) else tuple(BrokerId(each) for each in target)
