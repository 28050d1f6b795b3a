"""One pass over one group: observe, plan, carry out, scale, report; never more than one risky step.

Pass (what all groups of one pass share) ─▶ at(resource, track) ─▶ Looked: the object after the
                                                                   pass, when to look again
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.client import AsyncAdmin
from penstock.errors import PenstockError
from penstock.kubernetes.errors import KubernetesError
from penstock_operator.access import AccessRules, StoredRules, not_asked
from penstock_operator.clock import now_text
from penstock_operator.events import Events
from penstock_operator.groups.carry import KIND, Carrier, refused
from penstock_operator.groups.model import GroupPlan, GroupResource, ScaleFacts, Seen, View
from penstock_operator.groups.observe import see_group, see_scale
from penstock_operator.groups.plan import plan_group
from penstock_operator.groups.report import group_status, scale_status, worth_writing
from penstock_operator.groups.scale import Memory, decide, hold_still
from penstock_operator.kube import Kube
from penstock_operator.model import Object, Severity, Wait
from penstock_operator.outdated import dropped, tell_dropped
from penstock_operator.pace import AGAIN_S

SOON_MS: Final = 1_000
MEMBERS_MS: Final = 2_000
AGAIN_MS: Final = int(AGAIN_S * 1_000)
_NOT_EMPTY: Final = "GroupNotEmpty"


@dataclass(slots=True)
class Track:
    """What is remembered of a resource: only what another operator does not need.

    Times by a monotonic clock. `written_ms` None: no write is remembered. `dropped`: what was
    written then and not stored, by an older CRD: to write the same again would not help.
    """

    next_ms: int = 0
    written_ms: int | None = None
    memory: Memory | None = None
    dropped: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Looked:
    """`after_ms` None: after the usual interval."""

    resource: GroupResource
    after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """The brokers in this pass. `admin` None: they cannot be asked. `rules`: what they said of the
    groups whose resources manage rules of access."""

    admin: AsyncAdmin | None
    access: AccessRules
    rules: StoredRules


class Pass:
    """What all groups of one pass share."""

    def __init__(
        self, kube: Kube, events: Events, view: View, owners: Mapping[str, str],
        asked: Asked, clock_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        self._kube, self._events, self._clock_ms = kube, events, clock_ms
        self._carrier = Carrier(kube, events)
        self._view, self._owners, self._asked = view, owners, asked
        self._admin = asked.admin

    async def at(self, resource: GroupResource, track: Track) -> Looked:
        """Raises KubernetesError."""
        seen = await self._see(resource)
        plan = plan_group(resource, self._view, self._owners, seen)
        waits = list(plan.waits)
        wait = await self._apply_access(plan)
        if wait is None and plan.delete:
            assert self._admin is not None
            wait = await self._carrier.delete(plan, self._admin)
        if wait is not None:
            waits.append(wait)
            if resource.deleting:
                return await self._report(plan, resource, track, (seen, waits, {}))
        if plan.finalizer is not None:
            resource = await self._carrier.set_finalizer(plan)
        if resource.deleting and not waits:
            return Looked(resource)
        status: Object = {"pendingReset": None} if plan.drop_pending else {}
        if plan.reset is not None:
            assert self._admin is not None
            assert seen.facts is not None
            resource, done = await self._carrier.reset(
                resource, plan.reset, seen.facts, self._admin
            )
            if isinstance(done, Wait):
                waits.append(done)
            else:
                status = done
        if not resource.deleting:
            status |= await self._scale(plan, seen, track, waits)
        return await self._report(plan, resource, track, (seen, waits, status))

    async def tell_refusal(
        self, resource: GroupResource, track: Track, error: KubernetesError
    ) -> GroupResource:
        """The API server has refused a change of this group. Its figures stay as they were.

        Raises KubernetesError: it may refuse the status, too.
        """
        severity = Severity.PROGRESS if error.retriable else Severity.BLOCKED
        wait = Wait("ApiServerRefused", str(error), severity)
        if severity is Severity.BLOCKED:
            await self._events.tell(resource.body, KIND, wait.reason, wait.message, warning=True)
        status = group_status(resource, Seen(), [wait], "", now_text())
        del status["lag"]
        return await self._write(resource, track, status)

    async def _apply_access(self, plan: GroupPlan) -> Wait | None:
        """Makes the group's rules those of the plan; returns why they are not."""
        if plan.access is None or self._admin is None:
            return None
        assert self._view.desired is not None
        resource = plan.resource
        wait, _ = await self._asked.access.carry_out(
            self._view.desired, resource.body, resource.access, plan.access, self._asked.rules
        )
        return wait

    async def _see(self, resource: GroupResource) -> Seen:
        if self._admin is None:
            return Seen()
        try:
            facts = await see_group(self._admin, resource.group_id)
        except PenstockError as error:
            text = f"the group's coordinator does not answer: {error.message}"
            return Seen(problem=Wait("BrokersDoNotAnswer", text, refused(error).severity))
        return Seen(facts, scale=await see_scale(self._kube, resource))

    async def _scale(self, plan: GroupPlan, seen: Seen, track: Track, waits: list[Wait]) -> Object:
        """Scales; returns its part of the status, and adds obstacles to `waits`."""
        target = plan.spec.scale_target if plan.spec else None
        if target is None or not isinstance(seen.scale, ScaleFacts):
            track.memory = None
            return scale_status(seen, "")
        note = hold_still(
            ready=self._view.ready, reset_is_open=plan.reset_is_open, facts=seen.facts
        )
        if note:
            track.memory = None
            return scale_status(seen, note)
        assert seen.facts is not None
        replicas = seen.scale.replicas
        scaling = decide(target, seen.facts, replicas, track.memory, self._clock_ms())
        if scaling.replicas is None:
            track.memory = scaling.memory
            return scale_status(seen, scaling.note)
        wait = await self._carrier.scale(plan, seen.scale, scaling)
        track.memory = None
        if wait is not None:
            waits.append(wait)
            return scale_status(seen, "")
        return {"scale": {"replicas": scaling.replicas, "message": ""}}

    async def _report(
        self,
        plan: GroupPlan,
        resource: GroupResource,
        track: Track,
        what: tuple[Seen, list[Wait], Object],
    ) -> Looked:
        """Writes Events, and the status if it is worth a write."""
        seen, waits, more = what
        for wait in waits:
            if wait.severity is Severity.BLOCKED or wait.reason == _NOT_EMPTY:
                await self._events.tell(
                    resource.body, KIND, wait.reason, wait.message, warning=True
                )
        note = plan.note
        if not note and self._view.desired is not None:
            note = not_asked(self._view.desired, plan.access)
        status = group_status(resource, seen, waits, note, now_text()) | more
        written = await self._write(resource, track, status)
        if written is not resource:
            resource = written
            await self._carrier.tell_reset(resource, more)
        if any(wait.reason == _NOT_EMPTY for wait in waits):
            return Looked(resource, MEMBERS_MS)
        changed = plan.reset is not None or plan.finalizer is not None
        return Looked(resource, SOON_MS if changed and not waits else None)

    async def _write(self, resource: GroupResource, track: Track, status: Object) -> GroupResource:
        """The same one if its status is not worth a write."""
        now_ms = self._clock_ms()
        since_ms = None if track.written_ms is None else now_ms - track.written_ms
        known = track.dropped if since_ms is not None and since_ms < AGAIN_MS else {}
        news = {key: value for key, value in status.items() if known.get(key) != value}
        if not worth_writing(resource.status, news, since_ms):
            return resource
        where = (KIND, resource.namespace, resource.name)
        made = await self._kube.merge(*where, {"status": status}, status=True)
        track.written_ms = now_ms
        lost = dropped(status, made.get("status") or {})
        track.dropped = {key: status[key] for key in lost}
        await tell_dropped(self._events, resource.body, KIND, status, made)
        return GroupResource(made)
