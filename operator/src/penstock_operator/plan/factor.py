"""Another replication factor of a topic: what moves for it now, and how far it is. Pure.

    spec.replicas ─▶ ChangeReplicas ─▶ plan (core/balance) ─▶ moves, in waves, until all have it
                                  └─▶ taken back: what moves to the other number ends

Nothing is remembered: each look decides again from what the controller has stored, so a factor that
somebody else changed comes back, and another operator goes on.
"""

from dataclasses import dataclass

from penstock.client import MoveDescription, ReplicaMove
from penstock.client.admin.move_facts import ClusterFacts
from penstock.core import balance
from penstock.core.control.documents import FORMAT_MOVES
from penstock.core.manifest.topics import ChangeReplicas
from penstock.core.types import TopicPartition
from penstock_operator.model import Severity, Wait
from penstock_operator.plan.waves import has_room, next_wave, open_moves
from penstock_operator.progress import figures


@dataclass(frozen=True, slots=True)
class FactorPlan:
    """`moves`: to submit now. `wait`: why the topic has not the factor yet; None: it has.
    `progress`: how far it is, for people; empty if it has not begun. `asked`: the planner was."""

    moves: tuple[ReplicaMove, ...] = ()
    wait: Wait | None = None
    progress: str = ""
    asked: bool = False


def plan_factor(step: ChangeReplicas, seen: ClusterFacts, *, may_ask: bool = True) -> FactorPlan:
    """The next moves of a topic whose partitions shall have another number of replicas.

    `may_ask`: the planner, which costs time; without it nothing begins.
    """
    own = [one for one in seen.facts.partitions if one.partition.topic == step.topic]
    left = [one for one in own if _others(one, step.replicas)]
    if not left:
        return FactorPlan()
    if seen.moving.format < FORMAT_MOVES:
        text = (
            f"spec.replicas is {step.replicas}, but the topic has {_numbers(left)}, and replicas "
            f"do not move before the stored metadata has format {FORMAT_MOVES}: once every broker "
            "and controller runs this release, run penstock cluster finalize"
        )
        return FactorPlan(wait=Wait("FactorBlocked", text, Severity.BLOCKED))
    if seen.moving.paused:
        text = (
            "the metadata store is unavailable, and no move begins or ends before it is back: "
            f"{_progress(step, seen, len(own), left)}"
        )
        return FactorPlan(wait=Wait("MovesWait", text))
    moves: tuple[ReplicaMove, ...] = ()
    asks = _is_to_plan(step, seen, left) and may_ask
    if asks:
        made = balance.plan(seen.facts, balance.Factor(step.topic, step.replicas))
        if isinstance(made, balance.Infeasible):
            text = (
                f"spec.replicas is {step.replicas}, but the topic has {_numbers(left)}: "
                f"{made.reason}"
            )
            blocked = Wait("FactorBlocked", text, Severity.BLOCKED)
            return FactorPlan(wait=blocked, asked=True)
        moves = next_wave(made, seen, redirects=True)
    progress = _progress(step, seen, len(own), left)
    held = [one for one in _moving(seen, step.topic).values() if one.waiting_for]
    text = f"{progress}; {held[0].where} waits: {held[0].waiting_for}" if held else progress
    return FactorPlan(moves, Wait("ChangingFactor", text), progress, asks)


def _others(one: balance.PartitionFacts, replicas: int) -> bool:
    """It has, or moves to, another number."""
    return {len(one.replicas), len(one.target or one.replicas)} != {replicas}


def _is_to_plan(
    step: ChangeReplicas, seen: ClusterFacts, left: list[balance.PartitionFacts]
) -> bool:
    """Whether a partition is not on its way, and can be put on it."""
    room = has_room(open_moves(seen.moving.moves)[step.topic])
    return any(
        len(one.target) != step.replicas
        if one.target
        else room and len(one.replicas) != step.replicas
        for one in left
    )


def _progress(
    step: ChangeReplicas, seen: ClusterFacts, partitions: int, left: list[balance.PartitionFacts]
) -> str:
    """`replicas: 3 → 5, 12 of 24 partitions, 3.1 GiB left`."""
    done = partitions - len(left)
    text = f"replicas: {_numbers(left)} → {step.replicas}, {done} of {partitions} partitions"
    moving = _moving(seen, step.topic)
    sizes = [_bytes_left(one, step.replicas, moving.get(one.partition)) for one in left]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return text
    rate = sum(copy.bytes_per_second for one in moving.values() for copy in one.copies)
    return f"{text}{figures(sum(known), rate, ' left')}"


def _numbers(left: list[balance.PartitionFacts]) -> str:
    """How many replicas these partitions have: `3`, or `2, 3`."""
    return ", ".join(str(size) for size in sorted({len(one.replicas) for one in left}))


def _bytes_left(
    one: balance.PartitionFacts, replicas: int, moving: MoveDescription | None
) -> int | None:
    """What is still to copy; None: nobody says."""
    copied = () if moving is None else moving.copies
    if copied:
        return sum(copy.bytes_left for copy in copied)
    new = len(set(one.target) - set(one.replicas)) if one.target else replicas - len(one.replicas)
    if new <= 0:
        return 0
    return None if one.size_bytes is None else one.size_bytes * new


def _moving(seen: ClusterFacts, topic: str) -> dict[TopicPartition, MoveDescription]:
    return {one.where: one for one in seen.moving.moves if one.target and one.where.topic == topic}
