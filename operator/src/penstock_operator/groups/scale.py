"""How many consumers a group's backlog needs: pure.

    wanted = ⌈backlog / lagPerReplica⌉, within minReplicas … min(maxReplicas, partitions)

Up at once. Down when fewer were enough during the whole stabilization window, and then only to the
highest number wanted in that time, so that a fluctuating lag does not start and stop pods (as in
Kubernetes' HorizontalPodAutoscaler). No change, whatever the bounds say, when the numbers cannot be
trusted: the Cluster is not Ready, lag is unknown, or a reset is waiting until all members have
left. A Deployment at 0 with minReplicas of 1 or more was stopped by a user, and stays stopped (as
with the HorizontalPodAutoscaler).
"""

from dataclasses import dataclass

from penstock.core.manifest.objects import ScaleTarget
from penstock_operator.groups.model import GroupFacts


@dataclass(frozen=True, slots=True)
class Memory:
    """Since when fewer are enough, by a monotonic clock, and the highest number wanted since."""

    since_ms: int
    most: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """`replicas` None: no change. `note`: why it changes, or why not."""

    replicas: int | None = None
    memory: Memory | None = None
    note: str = ""


def hold_still(*, ready: bool, reset_is_open: bool, facts: GroupFacts | None) -> str:
    """Why nothing can be decided now; empty if it can."""
    if not ready:
        return "scaling is on hold: the Cluster is not Ready"
    if reset_is_open:
        return "scaling is on hold: an offset reset is waiting until all members have left"
    if facts is None or facts.backlog is None or not facts.reading:
        why = facts.lag_problem if facts is not None and facts.lag_problem else "no answer"
        return f"scaling is on hold: lag is unknown ({why})"
    return ""


def decide(
    target: ScaleTarget, facts: GroupFacts, replicas: int, memory: Memory | None, now_ms: int
) -> Scaling:
    """What to do if `hold_still` has no objection. `replicas`: the current number."""
    assert facts.backlog is not None
    assert facts.reading > 0
    if replicas == 0 and target.min_replicas > 0:
        text = (
            f"scaling is off: {target.kind} {target.name} was scaled to 0; scale it to 1 "
            "to continue"
        )
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
