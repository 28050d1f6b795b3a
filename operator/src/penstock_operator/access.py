"""Makes rules of access those of `spec.access`, resource by resource.

The brokers' rules are asked for once per pass, of the resources that manage theirs. What goes wrong
here is reported beside the resource's other problems and holds up nothing else (I28).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.authorization import Kind, Resource, Rule
from penstock.core.manifest.access import plan_access
from penstock.errors import PenstockError
from penstock_operator.brokers import Brokers
from penstock_operator.events import Events
from penstock_operator.model import Object, Severity, Wait
from penstock_operator.objects import DesiredCluster

_AT_ONCE: Final = 100
"""Resources in one request: their rules, 32 KiB each at most, must fit an answer."""

_OBJECTS: Final = {
    Kind.TOPIC: "Topic",
    Kind.GROUP: "ConsumerGroup",
    Kind.CLUSTER: "Cluster",
}
"""The kind of object that manages rules of a resource."""


@dataclass(frozen=True, slots=True)
class StoredRules:
    """Rules of the resources that were asked about. `problem`: why they are not known, or ""."""

    rules: Mapping[Resource, tuple[Rule, ...]]
    problem: str = ""


class AccessRules:
    """The rules of one Cluster."""

    def __init__(self, brokers: Brokers, events: Events) -> None:
        self._brokers, self._events = brokers, events

    async def stored(
        self, desired: DesiredCluster | None, resources: Sequence[Resource]
    ) -> StoredRules:
        """What these resources have now; those without rules have none."""
        if desired is None or not resources:
            return StoredRules({})
        found: dict[Resource, tuple[Rule, ...]] = {}
        try:
            admin = await self._brokers.admin(desired)
            for start in range(0, len(resources), _AT_ONCE):
                found |= await admin.describe_access(resources[start : start + _AT_ONCE])
        except PenstockError as error:
            return StoredRules({}, error.message)
        return StoredRules(found)

    async def carry_out(
        self,
        desired: DesiredCluster,
        body: Object,
        resource: Resource,
        wanted: tuple[Rule, ...],
        stored: StoredRules,
    ) -> tuple[Wait | None, bool]:
        """Why the rules are not those of the resource, and whether they were changed."""
        if stored.problem:
            text = f"the brokers do not say who may do what: {stored.problem}"
            return Wait("AccessUnknown", text), False
        steps = plan_access({resource: wanted}, stored.rules)
        try:
            admin = await self._brokers.admin(desired)
            for step in steps:
                await admin.alter_access(step.resource, step.rules)
                await self._events.tell(body, _OBJECTS[resource.kind], "AccessChanged", str(step))
        except PenstockError as error:
            severity = Severity.PROGRESS if error.retriable else Severity.BLOCKED
            return Wait("AccessRefused", f"spec.access: {error.message}", severity), False
        note = not_asked(desired, wanted)
        if steps and note:
            await self._events.tell(
                body, _OBJECTS[resource.kind], "AccessNotAsked", note, warning=True
            )
        return None, bool(steps)


def not_asked(desired: DesiredCluster, wanted: tuple[Rule, ...] | None) -> str:
    """What a user should know who gives rules to a Cluster that does not obey them; or ""."""
    if not wanted or desired.has_tls:
        return ""
    return (
        f"the rules of spec.access are stored, but Cluster {desired.names.cluster} asks nobody who "
        "they are: only spec.security.mode Strict makes it obey them"
    )
