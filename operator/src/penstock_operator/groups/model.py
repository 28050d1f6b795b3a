"""What is known about a ConsumerGroup and what can be done about it, as frozen data.

    View (its Cluster) ─┐
    GroupResource ──────┼─ plan ─▶ GroupPlan: finalizer, deletion, reset, waits
    Seen (the brokers) ─┘            scale ─▶ Scaling: replicas, or why not

Unknown numbers are None, never 0: the decision then is to change nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.authorization import Kind, Resource, Rule
from penstock.core.manifest.objects import ConsumerGroupSpec, OffsetReset
from penstock.core.types import TopicPartition
from penstock.kubernetes.names import PAUSED
from penstock_operator.model import Object, Wait
from penstock_operator.objects import DesiredCluster

NO_GROUP: Final = "Dead"
"""State of a group that does not exist."""


@dataclass(frozen=True, slots=True)
class GroupResource:
    """A ConsumerGroup object."""

    body: Object

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.body["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def generation(self) -> int:
        return int(self.body["metadata"].get("generation", 1))

    @property
    def group_id(self) -> str:
        return str(self.body["spec"].get("groupId") or self.name)

    @property
    def deleting(self) -> bool:
        return bool(self.body["metadata"].get("deletionTimestamp"))

    @property
    def finalizers(self) -> tuple[str, ...]:
        return tuple(self.body["metadata"].get("finalizers") or ())

    @property
    def manages_access(self) -> bool:
        return self.body["spec"].get("access") is not None

    @property
    def access(self) -> Resource:
        """What rules of access are about."""
        return Resource(Kind.GROUP, self.group_id)

    @property
    def paused(self) -> bool:
        annotations: Mapping[str, str] = self.body["metadata"].get("annotations") or {}
        return annotations.get(PAUSED) == "true"

    @property
    def status(self) -> Mapping[str, Any]:
        return self.body.get("status") or {}


@dataclass(frozen=True, slots=True)
class View:
    """A Cluster as its groups see it.

    `gone`: it does not exist, or is being deleted. Otherwise, `desired` None means that its spec
    cannot be applied or was not read yet; `problem` says which. `ready`: as its condition.
    `asleep`: it hibernates, and no broker is there to be asked.
    """

    gone: bool
    desired: DesiredCluster | None = None
    ready: bool = False
    problem: str = ""
    asleep: bool = False


@dataclass(frozen=True, slots=True)
class Lag:
    """Over all partitions: records, and the age of the oldest in seconds."""

    records: int
    seconds: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group as its coordinator and the partition leaders describe it.

    Attributes:
        committed: Partitions of topics that exist; -1 = no committed offset. None = unknown.
        lag: None = unknown, and `lag_problem` says why.
        reading: How many partitions the members share; without members, those with offsets.
        backlog: Records not read yet in those; None = unknown.
        last_reset_id: Of the last reset that its coordinator applied; "" = none.
        last_reset_ms: When, since 1970.
    """

    state: str
    members: int = 0
    committed: Mapping[TopicPartition, int] | None = field(default_factory=dict)
    lag: Lag | None = None
    lag_problem: str = ""
    reading: int = 0
    backlog: int | None = None
    last_reset_id: str = ""
    last_reset_ms: int = 0


@dataclass(frozen=True, slots=True)
class ScaleFacts:
    """A Deployment's scale. `version`: its resourceVersion, so that only this state is changed."""

    replicas: int
    version: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation. `facts` None: unknown, and `problem` says why. `scale`: a Wait = why not."""

    facts: GroupFacts | None = None
    problem: Wait | None = None
    scale: ScaleFacts | Wait | None = None


@dataclass(frozen=True, slots=True)
class CarryOut:
    """Moves the offsets; a dry run only computes the new ones."""

    reset: OffsetReset


@dataclass(frozen=True, slots=True)
class WriteDown:
    """The coordinator has already applied this, but the status does not say so yet."""

    record: Object


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """For one resource. `finalizer`: True to add, False to remove, None as it is.

    `delete`: delete the group, before the finalizer is removed. `spec` None: nothing is decided
    about it now. `drop_pending`: status.pendingReset was never applied and is no longer
    requested. `note`: for people, even if the group is not waiting for anything. `access`: the
    rules that the group must have; None = leave them. They wait for nothing else, not even for the
    group to exist: whoever is removed from a manifest must be out.
    """

    resource: GroupResource
    spec: ConsumerGroupSpec | None = None
    finalizer: bool | None = None
    delete: bool = False
    reset: CarryOut | WriteDown | None = None
    drop_pending: bool = False
    waits: tuple[Wait, ...] = ()
    note: str = ""
    access: tuple[Rule, ...] | None = None

    @property
    def acts(self) -> bool:
        changes = self.finalizer is not None or self.reset is not None
        return changes or self.delete or self.drop_pending

    @property
    def reset_is_open(self) -> bool:
        """A reset is about to be applied, or is waiting until all members have left."""
        asked = self.spec.offset_reset if self.spec else None
        if asked is None or asked.dry_run:
            return False
        return asked.id not in (self.resource.status.get("resetIds") or ())
