"""Gives topics the replication factor of their resources: asks what there is, submits what moves.

What the planner has to know is asked once per pass, and only if a Topic needs it: every live broker
says what it stores. Topics are planned one after the other, each with the moves of those before:
two that find the same free disk must not fill it together. A few have their turn in one pass, and
what cannot be is not planned again every second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from penstock.client.admin.move_facts import ClusterFacts
from penstock.core.manifest.topics import ChangeReplicas
from penstock.core.types import MoveReason
from penstock.errors import PenstockError
from penstock.logs import EventLog
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.model import Object, Severity, Wait
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.factor import FactorPlan, plan_factor
from penstock_operator.plan.waves import taken
from penstock_operator.proofs import read_placement

BLOCKED_S: Final = 15.0
"""Until a factor that could not be is planned again."""
PLANS_MAX: Final = 4
"""Topics that are planned in one pass: nothing else of this operator goes on meanwhile."""
_log = EventLog("penstock_operator.factors")


@dataclass(slots=True)
class Placement:
    """Where replicas are, and will be by what this pass has submitted. `seen` None: it is not
    known, and `problem` says why. `planned`: topics that have had their turn."""

    seen: ClusterFacts | None
    problem: str = ""
    planned: int = 0


class Factors:
    """The replication factors of one Cluster's topics. `now_s`: a clock that never goes back."""

    def __init__(
        self, brokers: Brokers, events: Events, now_s: Callable[[], float] = monotonic
    ) -> None:
        self._brokers, self._events, self._now_s = brokers, events, now_s
        self._blocked: dict[ChangeReplicas, tuple[float, FactorPlan]] = {}

    async def look(self, desired: DesiredCluster, steps: list[ChangeReplicas]) -> Placement:
        """What the planner has to know for these."""
        now_s = self._now_s()
        self._blocked = {
            step: held
            for step, held in self._blocked.items()
            if step in steps and now_s - held[0] < BLOCKED_S
        }
        if all(step in self._blocked for step in steps):
            return Placement(None)
        try:
            seen, _ = await read_placement(await self._brokers.admin(desired))
        except PenstockError as error:
            return Placement(None, error.message)
        return Placement(seen)

    async def carry_out(
        self, desired: DesiredCluster, body: Object, step: ChangeReplicas, placement: Placement
    ) -> FactorPlan:
        """What was done; its moves are those that the controller has taken."""
        if step in self._blocked:
            return self._blocked[step][1]
        if placement.seen is None:
            text = f"replicas wait for the brokers to say what they store: {placement.problem}"
            return FactorPlan(wait=Wait("BrokersDoNotAnswer", text))
        plan = plan_factor(step, placement.seen, may_ask=placement.planned < PLANS_MAX)
        # Without waiting in between: all Topics are carried out at once.
        placement.seen = taken(placement.seen, plan.moves)
        placement.planned += plan.asked
        if not plan.moves:
            return self._held(step, plan)
        try:
            admin = await self._brokers.admin(desired)
            outcomes = await admin.alter_replicas(
                plan.moves, reason=MoveReason.FACTOR, change_factor=True
            )
        except PenstockError as error:
            return self._held(step, _refused(error))
        refused = [one.error for one in outcomes if one.error is not None]
        _log.info("replicas altered", topic=step.topic, moves=len(outcomes) - len(refused))
        if len(refused) == len(outcomes):
            return self._held(step, _refused(refused[0]))
        await self._events.tell(body, "Topic", "ChangingFactor", str(step))
        return plan

    def _held(self, step: ChangeReplicas, plan: FactorPlan) -> FactorPlan:
        """What is blocked is not planned again for a while: others have their turn."""
        if plan.wait is not None and plan.wait.severity is Severity.BLOCKED:
            self._blocked[step] = (self._now_s(), plan)
        return plan


def _refused(error: PenstockError) -> FactorPlan:
    severity = Severity.PROGRESS if error.retriable else Severity.BLOCKED
    return FactorPlan(wait=Wait("BrokersRefused", error.message, severity))
