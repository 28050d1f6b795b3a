"""Carries out one group's plan: deletion, finalizer, offset reset, replicas.

Each step is safe to repeat. The order of steps ensures that a reset is applied once and recorded,
wherever the operator dies:

    status.pendingReset (old → new) ─▶ ResetOffsets with the id ─▶ status.lastReset, resetIds

The coordinator refuses to apply an id again; the plan finds the id there and does the last step.
"""

from penstock.client import AsyncAdmin
from penstock.core.types import TopicPartition
from penstock.errors import ErrorCode, PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock_operator.clock import now_text
from penstock_operator.events import Events
from penstock_operator.groups import reset as resets
from penstock_operator.groups.model import (
    CarryOut,
    GroupFacts,
    GroupPlan,
    GroupResource,
    ScaleFacts,
    WriteDown,
)
from penstock_operator.groups.observe import not_allowed
from penstock_operator.groups.scale import Scaling
from penstock_operator.kube import Kube
from penstock_operator.model import Object, Severity, Wait
from penstock_operator.names import GROUP_FINALIZER

KIND = "ConsumerGroup"


class Carrier:
    """Performs the actions of `Groups`."""

    def __init__(self, kube: Kube, events: Events) -> None:
        self._kube, self._events = kube, events

    async def set_finalizer(self, plan: GroupPlan) -> GroupResource:
        """Adds or removes it as planned; returns the updated object. Raises KubernetesError."""
        resource = plan.resource
        kept = [each for each in resource.finalizers if each != GROUP_FINALIZER]
        wanted = [*kept, GROUP_FINALIZER] if plan.finalizer else kept
        version = resource.body["metadata"]["resourceVersion"]
        body: Object = {"metadata": {"finalizers": wanted, "resourceVersion": version}}
        made = await self._kube.merge(KIND, resource.namespace, resource.name, body)
        return GroupResource(made)

    async def delete(self, plan: GroupPlan, admin: AsyncAdmin) -> Wait | None:
        """Deletes the group; returns why it could not."""
        group_id = plan.resource.group_id
        try:
            await admin.delete_group(group_id)
        except PenstockError as error:
            return None if error.code is ErrorCode.UNKNOWN_GROUP else refused(error)
        note = f"group {group_id} was deleted with its offsets"
        await self._events.tell(plan.resource.body, KIND, "GroupDeleted", note)
        return None

    # ── Resets ────────────────────────────────────────────────────────────────────────────

    async def reset(
        self,
        resource: GroupResource,
        step: CarryOut | WriteDown,
        facts: GroupFacts,
        admin: AsyncAdmin,
    ) -> tuple[GroupResource, Object | Wait]:
        """The updated object, and what to write into its status, or why the reset was not applied.
        Raises KubernetesError."""
        if isinstance(step, WriteDown):
            return resource, resets.done(step.record, resource.status)
        try:
            offsets = await _offsets(step, facts, admin)
            record = resets.record_of(step.reset, offsets, now_text())
            if step.reset.dry_run:
                return resource, {"dryRun": record}
            resource = await self._write(resource, {"pendingReset": record})
            await admin.reset_offsets(
                resource.group_id,
                {where: new for where, (_, new) in offsets.items()},
                reset_id=step.reset.id,
                reason=f"{KIND} {resource.namespace}/{resource.name}: {record['request']}",
            )
        except KubernetesError:
            raise  # it is not certain that the intent is stored, so nothing was reset
        except PenstockError as error:
            return resource, refused(error)
        return resource, resets.done(record, resource.status)

    async def tell_reset(self, resource: GroupResource, written: Object) -> None:
        """Called after it is in the status."""
        for key, reason in (("lastReset", "OffsetsReset"), ("dryRun", "OffsetsResetDryRun")):
            if key in written:
                note = f"offset reset {resets.told(written[key])}"
                await self._events.tell(resource.body, KIND, reason, note)

    async def _write(self, resource: GroupResource, status: Object) -> GroupResource:
        where = (KIND, resource.namespace, resource.name)
        return GroupResource(await self._kube.merge(*where, {"status": status}, status=True))

    # ── Scaling ───────────────────────────────────────────────────────────────────────────

    async def scale(self, plan: GroupPlan, seen: ScaleFacts, scaling: Scaling) -> Wait | None:
        """Returns why it could not. Raises KubernetesError, also if something else scaled it first
        (409)."""
        assert plan.spec is not None
        assert plan.spec.scale_target is not None
        assert scaling.replicas is not None
        target, resource = plan.spec.scale_target, plan.resource
        where = (target.kind, resource.namespace, target.name)
        try:
            await self._kube.set_scale(*where, scaling.replicas, version=seen.version)
        except KubernetesError as error:
            if error.status == 403:
                return not_allowed(target.kind)
            raise
        note = f"{target.kind} {target.name} from {seen.replicas} to {scaling.replicas} replicas"
        await self._events.tell(resource.body, KIND, "Scaled", f"{note}: {scaling.note}")
        return None


async def _offsets(
    step: CarryOut, facts: GroupFacts, admin: AsyncAdmin
) -> dict[TopicPartition, tuple[int, int]]:
    """Old and new offsets of every requested partition. Raises PenstockError."""
    assert facts.committed is not None
    committed = dict(facts.committed)
    if step.reset.topics:
        topics = await admin.describe_topics(step.reset.topics)
        wanted = (
            TopicPartition(name, each.partition)
            for name, topic in topics.items()
            for each in topic.partitions
        )
        committed = {where: committed.get(where, -1) for where in wanted}
    moves = await admin.plan_reset(resets.reset_to(step.reset), committed)
    return {where: (committed[where], each.offset) for where, each in moves.items()}


def refused(error: PenstockError) -> Wait:
    """A refusal of the brokers, as a wait if it may change later, or as blocked if a person must
    act."""
    may_pass = error.retriable or error.code is ErrorCode.GROUP_NOT_EMPTY
    severity = Severity.PROGRESS if may_pass else Severity.BLOCKED
    return Wait("BrokersRefused", error.message, severity)
