"""Carries out the topics' plans and updates their status, many at a time.

One pass over all Topics of a Cluster: one answer of the brokers has what exists, the plans
are pure (`plan.topics`), and only what differs is written. Thousands of Topics cost one listing
and no timer each.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.core.authorization import Kind, Resource
from penstock.core.manifest.topics import CreateTopic
from penstock.errors import ErrorCode, PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock_operator.access import AccessRules, StoredRules, not_asked
from penstock_operator.brokers import Brokers
from penstock_operator.clock import now_text
from penstock_operator.events import Events
from penstock_operator.kube import Kube
from penstock_operator.model import BrokerFacts, Object, Severity, TopicResource, TopicState, Wait
from penstock_operator.names import TOPIC_FINALIZER
from penstock_operator.objects import DesiredCluster
from penstock_operator.plan.topics import (
    NOT_POLLED,
    PROTECTED_REASON,
    TopicPlan,
    plan_resources,
)
from penstock_operator.status import conditions, protected_row

_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the brokers have said in this pass."""

    topics: Mapping[str, TopicState]
    rules: StoredRules


class Topics:
    """The Topics of one Cluster."""

    def __init__(self, kube: Kube, brokers: Brokers, events: Events) -> None:
        self._kube, self._brokers, self._events = kube, brokers, events
        self._access = AccessRules(brokers, events)
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def reconcile(
        self,
        resources: Sequence[TopicResource],
        desired: DesiredCluster | None,
        cluster: Object | None,
        facts: BrokerFacts | None,
        problem: str,
    ) -> bool:
        """True when nothing is left to do or to wait for."""
        paused = desired is not None and desired.paused
        plans = plan_resources(resources, cluster, facts, problem, paused=paused)
        known = facts.topics if facts is not None else {}
        managed = [Resource(Kind.TOPIC, plan.topic) for plan in plans if plan.access is not None]
        seen = _Seen(known, await self._access.stored(desired, managed))
        async with asyncio.TaskGroup() as group:
            done = [group.create_task(self._one(plan, desired, seen)) for plan in plans]
        return all(task.result() for task in done)

    async def _one(self, plan: TopicPlan, desired: DesiredCluster | None, seen: "_Seen") -> bool:
        async with self._slots:
            try:
                wait, changed = await self._carry_out(plan, desired)
                if plan.resource.deleting and wait is None:
                    return True
                found = seen.topics.get(plan.topic)
                waits = [] if wait is None else [wait]
                note = ""
                if desired is not None and plan.access is not None and (found or changed):
                    # A topic that was just created gets its rules in the same pass.
                    wait, altered = await self._access.carry_out(
                        desired,
                        plan.resource.body,
                        Resource(Kind.TOPIC, plan.topic),
                        plan.access,
                        seen.rules,
                    )
                    waits += [] if wait is None else [wait]
                    changed = changed or altered
                    note = not_asked(desired, plan.access)
                await self._report(plan, found, waits, note, changed=changed)
            except KubernetesError as error:
                if error.status == 404:
                    return True  # deleted meanwhile
                raise
            return all(wait.reason in NOT_POLLED for wait in waits) and not changed

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

    async def _report(
        self,
        plan: TopicPlan,
        seen: TopicState | None,
        waits: list[Wait],
        note: str,
        *,
        changed: bool,
    ) -> None:
        """`note`: what a user should know of a topic that is Ready."""
        body = plan.resource.body
        before: Mapping[str, Any] = body.get("status") or {}
        not_ready = waits[0] if waits else None
        if changed and seen is None:
            not_ready = Wait("Creating", f"topic {plan.topic} was just created")
            waits = [not_ready]
        generation = body["metadata"].get("generation", 1)
        status: Object = {
            "observedGeneration": generation,
            "conditions": conditions(
                not_ready, waits, generation, before.get("conditions") or (), now_text()
            ),
            "message": not_ready.message if not_ready else note,
            "topicId": seen.topic_id if seen else before.get("topicId", ""),
            "partitions": seen.partitions if seen else before.get("partitions", 0),
            "replicas": seen.replicas if seen else before.get("replicas", 0),
            **protected_row(before, protected=None if seen is None else seen.protected),
        }
        if status != {key: before.get(key) for key in status}:
            metadata = body["metadata"]
            await self._kube.merge(
                "Topic", metadata["namespace"], metadata["name"], {"status": status}, status=True
            )
