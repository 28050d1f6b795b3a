"""When a healed world has settled: everything in sync, everyone answered, nobody behind (I24)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.types import ReplicaKey

if TYPE_CHECKING:
    from penstock_sim.world import World


def unsettled(world: World) -> str:
    """What is not as it must be once all is healed (I24); empty: nothing."""
    if not any(controller.active for controller in world.controllers.values()):
        return "no controller is active"
    if world.deletion is not None and world.deletion.comes_back():
        return "a broker knows of a topic that was deleted"
    for key in world.checked_keys:
        problem = _unsettled_partition(world, key)
        problem = problem or world.checks.moving.left_over(key, world.known(key))
        if world.damage is not None:
            problem = problem or world.damage.left_over(key, world.known(key))
        if problem:
            return f"{key}: {problem}; stored is {world.checks.stored[key]}"
    waiting = [producer.name for producer in world.producers if not producer.idle]
    behind = [
        consumer.name
        for consumer in world.consumers
        if consumer.position < world.checks.canon(consumer.key).end
    ]
    if waiting or behind:
        return f"producers {waiting} wait, consumers {behind} are behind"
    problem = "" if world.groups is None else world.groups.unsettled()
    if world.transactions is not None and not problem:
        problem = world.transactions.unsettled() or _behind(world)
    for part in (world.hibernation, world.operator, world.drainer, world.changes, world.rebirth):
        if part is not None and not problem:
            problem = part.unsettled()
    return problem


def _behind(world: World) -> str:
    if world.transaction_checks.void:
        return ""
    for reader in world.committed_readers:
        if reader.position < world.checks.canon(reader.key).end:
            return f"a reader of committed records is at {reader.position} of {reader.key}"
    return ""


def _unsettled_partition(world: World, key: ReplicaKey) -> str:
    """By what the leader knows, not by what is stored.

    A write that a deposed controller had under way may land in the store unseen by the new
    one; it is met by the next write of the topic.
    """
    replicas = [broker.replicas.get(key) for broker in world.members(key)]
    well = [one for one in replicas if one is not None and one.machine.error is None]
    if None in replicas:
        return "a replica is missing"
    marks = [replica.machine.marks for replica in well]
    leaders = [one for one in marks if one.is_leader]
    if len(leaders) != 1 or len(leaders[0].isr) < len(well):
        return f"the leaders are {leaders}"
    ends = {(one.log_end_offset, one.high_watermark) for one in marks}
    if len(ends) > 1 or leaders[0].high_watermark < leaders[0].log_end_offset:
        return f"logs end at {ends}"
    return ""
