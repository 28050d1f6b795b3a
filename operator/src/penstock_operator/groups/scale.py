"""How many consumers a group's backlog asks for: pure.

    wanted = ⌈backlog / lagPerReplica⌉, within minReplicas … min(maxReplicas, partitions)

Up at once. Down when fewer were enough for the stabilization window without a break, and then only
to the most that was wanted in that time, so that a lag that swings does not start and stop pods (as
Kubernetes' HorizontalPodAutoscaler does). Still, whatever the bounds say, when the numbers cannot
be trusted: the Cluster is not Ready, lag is unknown, a reset awaits the end of the members. A
Deployment at 0 with minReplicas of 1 or more was stopped by somebody, and stays (the
HorizontalPodAutoscaler's way to switch it off).
"""

from dataclasses import dataclass

from penstock.core.manifest.objects import ScaleTarget
from penstock_operator.groups.model import GroupFacts


@dataclass(frozen=True, slots=True)
class Memory:
    """Since when fewer are enough, by a monotonic clock, and the most that was wanted since."""

    since_ms: int
    most: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """`replicas` None: as it is. `note`: why it holds still, or why it changes."""

    replicas: int | None = None
    memory: Memory | None = None
    note: str = ""


def hold_still(*, ready: bool, reset_is_open: bool, facts: GroupFacts | None) -> str:
    """Why nothing may be decided now; empty if it may."""
    if not ready:
        return "scaling holds still: the Cluster is not Ready"
    if reset_is_open:
        return "scaling holds still: an offset reset awaits the end of the members"
    if facts is None or facts.backlog is None or not facts.reading:
        why = facts.lag_problem if facts is not None and facts.lag_problem else "no answer"
        return f"scaling holds still: lag is unknown ({why})"
    return ""


def decide(
    target: ScaleTarget, facts: GroupFacts, replicas: int, memory: Memory | None, now_ms: int
) -> Scaling:
    """What to do, given that nothing says to hold still. `replicas`: as they are."""
    assert facts.backlog is not None
    assert facts.reading > 0
    if replicas == 0 and target.min_replicas > 0:
        text = f"scaling is off: {target.kind} {target.name} was stopped; scale it to 1 to go on"
        return Scaling(note=text)
    ceiling = min(target.max_replicas, facts.reading)
    asked = -(-facts.backlog // target.lag_per_replica)
    wanted = min(max(asked, target.min_replicas), ceiling)
    why = f"{facts.backlog} records of lag, {target.lag_per_replica} per replica"
    if wanted > replicas:
        return Scaling(wanted, note=why)
    if wanted == replicas:
        return Scaling()
    if memory is None:
        memory = Memory(now_ms, wanted)
    memory = Memory(memory.since_ms, max(memory.most, wanted))
    window_s = target.stabilization_window_s
    if now_ms - memory.since_ms < window_s * 1000 or memory.most >= replicas:
        return Scaling(memory=memory)
    return Scaling(memory.most, note=f"{why}, for {window_s} s")
