"""What is known about a ConsumerGroup and what may be done about it, as frozen data.

    View (its Cluster) ─┐
    GroupResource ──────┼─ plan ─▶ GroupPlan: finalizer, deletion, reset, waits
    Seen (the brokers) ─┘            scale ─▶ Scaling: replicas, or why not

Numbers that nobody could tell are None, never 0: what is decided on them then is to hold still.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
    def paused(self) -> bool:
        annotations: Mapping[str, str] = self.body["metadata"].get("annotations") or {}
        return annotations.get(PAUSED) == "true"

    @property
    def status(self) -> Mapping[str, Any]:
        return self.body.get("status") or {}


@dataclass(frozen=True, slots=True)
class View:
    """A Cluster as its groups see it.

    `gone`: there is none, or it is being deleted. `desired` None without that: its spec cannot be
    carried out, or it was not looked at yet; `problem` says so. `ready`: as its condition.
    """

    gone: bool
    desired: DesiredCluster | None = None
    ready: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    """Of all partitions together: records, and the age of the oldest in seconds."""

    records: int
    seconds: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group as its coordinator and the leaders tell it.

    Attributes:
        committed: Partitions of topics that exist; -1 = nothing is committed. None = unknown.
        lag: None = unknown, and `lag_problem` says why.
        reading: How many partitions the members share; those with offsets while it has none.
        backlog: Records not read yet in those; None = unknown.
        last_reset_id: Of the reset its coordinator carried out last; "" = none.
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
    """A Deployment's scale. `version`: its resourceVersion, so that a change hits just this."""

    replicas: int
    version: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One look. `facts` None: nobody could say, `problem` why. `scale`: a Wait = why not."""

    facts: GroupFacts | None = None
    problem: Wait | None = None
    scale: ScaleFacts | Wait | None = None


@dataclass(frozen=True, slots=True)
class CarryOut:
    """Moves the offsets; a dry run only says how they would be."""

    reset: OffsetReset


@dataclass(frozen=True, slots=True)
class WriteDown:
    """The coordinator has carried this out already, and the status does not say so yet."""

    record: Object


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """For one resource. `finalizer`: True to add, False to remove, None as it is.

    `delete`: forget the group, before the finalizer goes. `spec` None: nothing is to be decided
    about it now. `drop_pending`: status.pendingReset never happened and is not asked for any more.
    `note`: for people, though nothing is awaited.
    """

    resource: GroupResource
    spec: ConsumerGroupSpec | None = None
    finalizer: bool | None = None
    delete: bool = False
    reset: CarryOut | WriteDown | None = None
    drop_pending: bool = False
    waits: tuple[Wait, ...] = ()
    note: str = ""

    @property
    def acts(self) -> bool:
        changes = self.finalizer is not None or self.reset is not None
        return changes or self.delete or self.drop_pending

    @property
    def reset_is_open(self) -> bool:
        """A reset is about to be carried out, or awaits the end of the members."""
        asked = self.spec.offset_reset if self.spec else None
        if asked is None or asked.dry_run:
            return False
        return asked.id not in (self.resource.status.get("resetIds") or ())
