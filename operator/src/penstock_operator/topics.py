"""Carries out the topics' plans and updates their status, many at a time.

One pass over all Topics of a Cluster: one answer of the brokers has what exists, the plans
are pure (`plan.topics`), and only what differs is written. Thousands of Topics cost one listing
and no timer each. What the API server refuses of one Topic holds up no other one (I28).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final

from penstock.core.authorization import Kind, Resource
from penstock.core.manifest.topics import CreateTopic
from penstock.errors import ErrorCode, PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock.logs import EventLog
from penstock_operator.access import AccessRules, StoredRules, not_asked
from penstock_operator.brokers import Brokers
from penstock_operator.clock import now_text
from penstock_operator.conditions import conditions
from penstock_operator.events import Events
from penstock_operator.factors import Factors, Placement
from penstock_operator.kube import OF_ALL, Kube
from penstock_operator.model import (
    BrokerFacts,
    Object,
    Severity,
    TopicResource,
    TopicState,
    Wait,
)
from penstock_operator.move_model import MoveFacts
from penstock_operator.names import TOPIC_FINALIZER
from penstock_operator.objects import DesiredCluster
from penstock_operator.outdated import tell_dropped
from penstock_operator.pace import Due, Pace
from penstock_operator.plan.topics import (
    NOT_POLLED,
    PROTECTED_REASON,
    TopicPlan,
    plan_resources,
)
from penstock_operator.status import moving_row, protected_row

_AT_ONCE: Final = 16
_REFUSED_S: Final = 5.0
"""After which what the API server refused is tried again."""
_log = EventLog("penstock_operator.topics")


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the brokers have said in this pass."""

    topics: Mapping[str, TopicState]
    rules: StoredRules
    placement: Placement


@dataclass(frozen=True, slots=True)
class _Done:
    """The outcome for one Topic: why it is not as it should be, whether something was changed, and
    how far its moves are. `note`: what a user should know of one that is Ready."""

    waits: tuple[Wait, ...] = ()
    changed: bool = False
    moving: str = ""
    note: str = ""


class Topics:
    """The Topics of one Cluster."""

    def __init__(self, kube: Kube, brokers: Brokers, events: Events) -> None:
        self._kube, self._brokers, self._events = kube, brokers, events
        self._access = AccessRules(brokers, events)
        self._factors = Factors(brokers, events)
        self._pace = Pace()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._again_at: dict[str, float] = {}
        """When a Topic that was refused is tried again, by uid."""
        self.ready: dict[str, bool] = {}
        """Whether each Topic was Ready, by name, when it was looked at last."""

    async def reconcile(
        self,
        resources: Sequence[TopicResource],
        desired: DesiredCluster | None,
        cluster: Object | None,
        facts: BrokerFacts | None,
        problem: str,
        moves: MoveFacts | None = None,
        *,
        asleep: bool = False,
    ) -> bool:
        """True when nothing is left to do or to wait for. `asleep`: the Cluster hibernates.

        Raises KubernetesError, in a group, if the API server cannot be used at all.
        """
        paused = desired is not None and desired.paused
        facts = None if asleep else facts
        plans = plan_resources(
            resources, cluster, facts, problem, paused=paused, moves=moves, asleep=asleep
        )
        known = facts.topics if facts is not None else {}
        managed = [Resource(Kind.TOPIC, plan.topic) for plan in plans if plan.access is not None]
        rules = await self._access.stored(desired, managed)
        steps = [plan.factor for plan in plans if plan.factor is not None]
        placement = Placement(None)
        if desired is not None and steps:
            placement = await self._factors.look(desired, steps)
        seen = _Seen(known, rules, placement)
        self.ready = {
            plan.resource.name: self.ready.get(plan.resource.name, False) for plan in plans
        }
        now = monotonic()
        self._again_at = {uid: at for uid, at in self._again_at.items() if at > now}
        due = [plan for plan in plans if plan.resource.uid not in self._again_at]
        async with asyncio.TaskGroup() as group:
            done = [group.create_task(self._one(plan, desired, seen)) for plan in due]
        return len(due) == len(plans) and all(task.result() for task in done)

    async def _one(self, plan: TopicPlan, desired: DesiredCluster | None, seen: "_Seen") -> bool:
        async with self._slots:
            try:
                wait, changed = await self._carry_out(plan, desired)
                if plan.resource.deleting and wait is None:
                    return True
                done = _Done(() if wait is None else (wait,), changed)
                if desired is not None:
                    done = await self._change_factor(plan, desired, seen, done)
                    done = await self._give_access(plan, desired, seen, done)
                told = await self._report(plan, seen.topics.get(plan.topic), done)
            except KubernetesError as error:
                if error.is_missing:
                    return True  # deleted meanwhile
                if error.status in OF_ALL:
                    raise
                if not error.is_conflict:  # else it has changed, and is read again
                    await self._tell_refusal(plan, seen.topics.get(plan.topic), error)
                return False
            return told and not done.changed and all(w.reason in NOT_POLLED for w in done.waits)

    async def _tell_refusal(
        self, plan: TopicPlan, seen: TopicState | None, error: KubernetesError
    ) -> None:
        """The API server has refused a change of this Topic, and may refuse its status, too."""
        name = plan.resource.name
        _log.warning("topic not reconciled", topic=name, error=str(error))
        self._again_at[plan.resource.uid] = monotonic() + _REFUSED_S
        severity = Severity.PROGRESS if error.retriable else Severity.BLOCKED
        refused = Wait("ApiServerRefused", str(error), severity)
        try:
            await self._report(plan, seen, _Done((refused,)))
        except KubernetesError as again:
            if again.status in OF_ALL:
                raise
            _log.warning("status not written", topic=name, error=str(again))

    async def _change_factor(
        self, plan: TopicPlan, desired: DesiredCluster, seen: "_Seen", done: _Done
    ) -> _Done:
        if plan.factor is None:
            return done
        body = plan.resource.body
        made = await self._factors.carry_out(desired, body, plan.factor, seen.placement)
        waits = done.waits if made.wait is None else (*done.waits, made.wait)
        # What was read before the last move ended is read once more.
        changed = done.changed or bool(made.moves) or made.wait is None
        return replace(done, waits=waits, changed=changed, moving=made.progress)

    async def _give_access(
        self, plan: TopicPlan, desired: DesiredCluster, seen: "_Seen", done: _Done
    ) -> _Done:
        """A topic that was just created gets its rules in the same pass."""
        if plan.access is None or not (plan.topic in seen.topics or done.changed):
            return done
        wait, altered = await self._access.carry_out(
            desired,
            plan.resource.body,
            Resource(Kind.TOPIC, plan.topic),
            plan.access,
            seen.rules,
        )
        waits = done.waits if wait is None else (*done.waits, wait)
        note = not_asked(desired, plan.access)
        return replace(done, waits=waits, changed=done.changed or altered, note=note)

    async def _carry_out(
        self, plan: TopicPlan, desired: DesiredCluster | None
    ) -> tuple[Wait | None, bool]:
        """Why the topic does not match its spec, and whether something was changed."""
        wait, changed = plan.wait, False
        # The finalizer is set before the topic is created, and removed after it is deleted.
        if plan.finalizer is True:
            await self._set_finalizers(plan, (*plan.resource.finalizers, TOPIC_FINALIZER))
        try:
            if desired is not None:
                for step in plan.steps:
                    await self._brokers.take(desired, step)
                    made = isinstance(step, CreateTopic)
                    reason = "TopicCreated" if made else "TopicChanged"
                    await self._events.tell(plan.resource.body, "Topic", reason, str(step))
                    changed = True
                if plan.delete:
                    admin = await self._brokers.admin(desired)
                    await admin.delete_topic(plan.topic, topic_id=plan.delete)
        except PenstockError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return None, True  # seen in the next pass
            severity = Severity.PROGRESS if error.retriable else Severity.BLOCKED
            protected = error.code is ErrorCode.DELETION_PROTECTED
            reason = PROTECTED_REASON if protected else "BrokersRefused"
            return Wait(reason, error.message, severity), False
        if plan.finalizer is False:
            left = (each for each in plan.resource.finalizers if each != TOPIC_FINALIZER)
            await self._set_finalizers(plan, tuple(left))
        return wait, changed

    async def _set_finalizers(self, plan: TopicPlan, finalizers: tuple[str, ...]) -> None:
        metadata = plan.resource.body["metadata"]
        body: Object = {
            "metadata": {
                "finalizers": list(finalizers),
                "resourceVersion": metadata["resourceVersion"],
            }
        }
        await self._kube.merge("Topic", metadata["namespace"], plan.resource.name, body)

    async def _report(self, plan: TopicPlan, seen: TopicState | None, done: _Done) -> bool:
        """Whether the status says everything; else it is written later."""
        body = plan.resource.body
        before: Mapping[str, Any] = body.get("status") or {}
        waits = done.waits
        if done.changed and seen is None:
            waits = (Wait("Creating", f"topic {plan.topic} was just created"),)
        not_ready = waits[0] if waits else None
        self.ready[plan.resource.name] = not_ready is None
        generation = body["metadata"].get("generation", 1)
        status: Object = {
            "observedGeneration": generation,
            "conditions": conditions(
                not_ready, waits, generation, before.get("conditions") or (), now_text()
            ),
            "message": not_ready.message if not_ready else done.note,
            "topicId": seen.topic_id if seen else before.get("topicId", ""),
            "partitions": seen.partitions if seen else before.get("partitions", 0),
            "replicas": seen.replicas if seen else before.get("replicas", 0),
            **moving_row(before, done.moving),
            **protected_row(before, protected=None if seen is None else seen.protected),
        }
        metadata = body["metadata"]
        due = self._pace.due(metadata["uid"], before, status)
        if due is Due.NOW:
            answer = await self._kube.merge(
                "Topic", metadata["namespace"], metadata["name"], {"status": status}, status=True
            )
            self._pace.wrote(metadata["uid"], status, answer.get("status") or {})
            await tell_dropped(self._events, body, "Topic", status, answer)
        return due is not Due.LATER
