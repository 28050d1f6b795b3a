"""What a roll has ahead: who goes together, and about how long that takes, for people. Pure.

What is in sync just now, and what moves, does not count here: the same brokers in the same places
have the same outlook, so that a status with it does not change all the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median_high
from typing import Final

from penstock_operator.model import Observed
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.gates import trusted
from penstock_operator.plan.roll_groups import Group, sharing

STEP_S: Final = 5
"""What a restart takes besides the start of the pod: leaderships leave the broker, it stops, its
replicas catch up."""
_START_MAX_S: Final = 600
"""A pod that was ready later than this was not starting all the while: it has been ready before."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """`minutes` None: no pod has shown yet how long one takes to start."""

    groups: tuple[Group, ...]
    minutes: int | None

    def after(self, soak_s: int) -> "Outlook":
        """With the time for which the first broker shows another image; alone, it shows it to
        nobody."""
        if self.minutes is None or len(self.groups) < 2:
            return self
        return replace(self, minutes=self.minutes + ceil(soak_s / 60))

    def __str__(self) -> str:
        steps = f"in {len(self.groups)} step{'s' if len(self.groups) != 1 else ''}"
        return steps if self.minutes is None else f"{steps}, about {self.minutes} min"


def outlook(
    desired: DesiredCluster, observed: Observed, outdated: Sequence[int], *, is_first: bool
) -> Outlook | None:
    """None: it is not known where replicas are, or what moves."""
    facts = trusted(observed)
    if facts is None or observed.moves is None:
        return None
    together = sharing(facts, (), desired.spec.max_parallel.of(desired.spec.brokers))
    groups = together.groups(outdated, is_first=is_first)
    starts = [each.start_s for each in observed.pods.values() if 0 < each.start_s <= _START_MAX_S]
    if not starts:
        return Outlook(groups, None)
    return Outlook(groups, -(-len(groups) * (median_high(starts) + STEP_S) // 60))
