"""What was observed of a Cluster, and what can be done about it, as frozen data.

    Observed ─┐
              ├─ plan ─▶ Plan: actions (in tracks), waits (for what, and why)
    Desired ──┘

`Observed` is a snapshot: Kubernetes objects of one listing, and the brokers' own answers at one
moment. `brokers` None means that no broker answered; nothing risky is planned then. An action names
the object it was decided for (uid, version), so that performing it late does no harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock.client import BrokerChange, ReplicaMove
from penstock.core.manifest.objects import SecurityMode
from penstock.core.topic import DELETION_PROTECTION
from penstock.core.types import MoveReason
from penstock.kubernetes.certificate_ends import CertificateEnd
from penstock.kubernetes.rotation import RotationState
from penstock_operator.format_model import FinalizeFormat, FormatPending, FormatSaid
from penstock_operator.hibernation_model import Hibernate, Record, Rest
from penstock_operator.move_model import DrainState, MarkSpread, MoveFacts, Offer, SetThrottle
from penstock_operator.overruled import Overruled
from penstock_operator.volume_model import (
    BoundNode,
    ClaimState,
    DropClaim,
    MarkClaim,
    OwnClaim,
    ReplaceVolume,
)

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodState:
    """A broker's pod. `trouble`: why its container is not running, in Kubernetes' words, or "".

    `beside`: why another container, which a webhook has put there, is not; the broker's may run.
    `unschedulable`: no node can take it now.
    """

    broker_id: int
    name: str
    uid: str
    ready: bool
    terminating: bool
    template_hash: str
    image: str = ""
    node: str = ""
    rack: str = ""
    trouble: str = ""
    restarts: int = 0
    preparing: bool = False
    """It has a node, whose kubelet has not begun to run its container, nor failed to."""
    beside: str = ""
    beside_restarts: int = 0
    start_s: int = 0
    """From its creation until it was ready; 0: it is not."""
    ready_since: str = ""
    """Since when it is ready without a break, RFC 3339, by its node's clock; empty: it is not."""
    mode: SecurityMode | None = SecurityMode.DISABLED
    """What it was started as; None: nobody can tell."""
    unschedulable: bool = False


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker as the controller knows it."""

    broker_id: int
    host: str
    alive: bool
    rack: str = ""
    leaders: int = 0
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition as the brokers describe it. `min_isr`: of its topic."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_full(self) -> bool:
        return len(self.isr) >= len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is. `factors`: how many replicas each partition has. `config`: what is set on
    it, or (`inherited`) the cluster's defaults."""

    topic: str
    topic_id: str
    factors: tuple[int, ...]
    config: Mapping[str, str]
    inherited: frozenset[str] = frozenset()

    @property
    def partitions(self) -> int:
        return len(self.factors)

    @property
    def replicas(self) -> int:
        """That every partition has."""
        return min(self.factors)

    @property
    def protected(self) -> bool:
        """The brokers refuse to delete it."""
        return self.config.get(DELETION_PROTECTION) == "true"


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The brokers' answer. `controller_reachable` False: it may be stale, so decide nothing from
    it."""

    cluster_id: str
    controller_reachable: bool
    brokers: Mapping[int, BrokerState]
    partitions: tuple[PartitionState, ...]
    topics: Mapping[str, TopicState]
    hibernating: bool = False

    @property
    def not_full(self) -> tuple[PartitionState, ...]:
        """Partitions with a replica out of sync."""
        return tuple(each for each in self.partitions if not each.is_full)

    @property
    def offline(self) -> tuple[PartitionState, ...]:
        return tuple(each for each in self.partitions if each.leader < 0)

    @property
    def under_min_isr(self) -> tuple[PartitionState, ...]:
        return tuple(each for each in self.partitions if len(each.isr) < each.min_isr)


@dataclass(frozen=True, slots=True)
class PlaintextFacts:
    """Who called a broker in plaintext in the `watched_ms` since it started: for how many ms each
    host has been quiet, 0 while a call is open. Host "": further ones, together."""

    watched_ms: int
    idle_ms: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TopicResource:
    """A Topic object: its body, and whether it is being deleted."""

    name: str
    body: Object

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def deleting(self) -> bool:
        return bool(self.body["metadata"].get("deletionTimestamp"))

    @property
    def finalizers(self) -> tuple[str, ...]:
        return tuple(self.body["metadata"].get("finalizers") or ())


@dataclass(frozen=True, slots=True)
class AuthorityState:
    """A CA and its replacement, as others show them: we never read Secrets.

    Attributes:
        rotation: As controllers have written it; None: nothing.
        owners: ConfigMaps that own the Secrets of CAs, by name, which is also that of the Secret.
        is_due: It is past two thirds of its life.
    """

    rotation: RotationState | None = None
    owners: Mapping[str, Object] = field(default_factory=dict)
    is_due: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """A snapshot. `objects`: live objects by (kind, name), owned by the Cluster or with a
    conflicting name."""

    objects: Mapping[tuple[str, str], Object]
    pods: Mapping[int, PodState]
    claims: Mapping[int, ClaimState]
    brokers: BrokerFacts | None
    brokers_problem: str = ""
    moves: MoveFacts | None = None
    """None: `brokers` is, or the controller does not say (`moves_problem`)."""
    moves_problem: str = ""
    volumes: Mapping[int, BoundNode] = field(default_factory=dict)
    """By broker; only of those whose pod cannot be scheduled, and whose volume needs one node."""
    racks: Mapping[str, str] = field(default_factory=dict)
    """Rack of each node by its name; empty unless racks are configured."""
    controllers_problem: str = ""
    """Why a controller's pod is not running, naming the pod; empty if all are."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Why the pods of brokers cannot be created, for a while already."""
    stuck: Mapping[int, str] = field(default_factory=dict)
    """Why nodes do not start the pods of brokers, for a while already."""
    trust: str = ""
    """The CA's certificate (PEM), as controllers have published it; empty: they have not."""
    certificate_ends: Mapping[str, CertificateEnd] = field(default_factory=dict)
    """When the certificates of brokers and controllers end, as controllers have published it."""
    users_ca_problem: str = ""
    """Why brokers cannot use the users' CA, and what to do; empty: they can, or need none."""
    authority: AuthorityState = field(default_factory=AuthorityState)
    plaintext: Mapping[int, PlaintextFacts] | None = None
    """By broker; None: not asked, or not all of them say."""
    rest: Rest = field(default_factory=Rest)
    """How far hibernation is."""
    format_said: FormatSaid = field(default_factory=FormatSaid)
    """What the status says of an upgrade that is not finalized."""
    at: str = ""
    """When it was looked, RFC 3339."""
    recorded_cluster_id: str = ""
    """`status.clusterId` of the resource: the id that brokers must report."""
    stored: frozenset[int] = frozenset()
    """Brokers that have replicas by the stored metadata; read only while the brokers cannot say it,
    and there are claims of more of them than are made."""
    overruled: Mapping[tuple[str, str], Overruled] = field(default_factory=dict)
    """What came of applying objects, by kind and name, where it was not what we applied."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Kinds that could not be read now, and why. What is here of them is of an earlier reading, for
    the status: nothing is decided from it, because not known is not absent."""

    def knows(self, *kinds: str) -> bool:
        """Whether what is here of these kinds has just been read."""
        return not self.unknown.keys() & set(kinds)

    def live(self, kind: str, name: str) -> Object | None:
        return self.objects.get((kind, name))

    def last_broker(self, broker_set: str) -> int:
        """The highest id of a broker that the StatefulSet makes, that has a pod, or that has
        replicas on a volume that is there; -1: none.

        A StatefulSet that was orphaned to change its template does not exist for a moment; its
        pods do. One that was deleted, or made smaller by hand, leaves volumes with records.
        """
        live = self.live("StatefulSet", broker_set)
        made = 0 if live is None else int(live["spec"].get("replicas", 1))
        last = max([made - 1, *self.pods])
        kept = {
            broker_id
            for broker_id, claim in self.claims.items()
            if broker_id > last and not (claim.emptied or claim.deleting)
        }
        return max([last, *(kept & self.holders())]) if kept else last

    def holders(self) -> frozenset[int]:
        """Brokers that have replicas, as the brokers say, or else the stored metadata."""
        facts = self.brokers
        if facts is None or not facts.controller_reachable:
            return self.stored
        if self.recorded_cluster_id not in {"", facts.cluster_id}:
            return frozenset()
        return frozenset(one for each in facts.partitions for one in each.replicas)


# ── What may be done ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a whole object."""

    object: Object


@dataclass(frozen=True, slots=True)
class MakeAuthority:
    """Creates the Secret with a new CA, unless there is one: it is never read, nor replaced.
    `owner`: the ConfigMap that owns it; None: there is none yet."""

    secret: str
    owner: Object | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class GrowClaim:
    """Asks for a larger volume."""

    claim: str
    uid: str
    size: str


@dataclass(frozen=True, slots=True)
class OrphanSet:
    """Deletes the StatefulSet without its pods; the next plan creates it again, because its volume
    claim template must change, and is immutable."""

    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class MarkRack:
    """Labels a pod with the rack of its node."""

    pod: str
    rack: str


@dataclass(frozen=True, slots=True)
class MoveLeaders:
    """Asks the controller to move leaderships away from a broker that will stop."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class RestartPod:
    """Deletes exactly this pod (by uid); its StatefulSet re-creates it.

    Unless it is `forced`, it goes only while what was seen is fresh, or is still so: meanwhile
    another broker may have died. `follows`: another one of the same plan restarts at the same time;
    once that one is down, a second look holds this one back.
    """

    broker_id: int
    pod: str
    uid: str
    reason: str
    forced: bool = False
    follows: bool = False


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Writes down what a request by an annotation of the Cluster is for; `text` None: takes it
    back, because it is done or, with `reason` and `note` of an Event, for that reason. Not if the
    Cluster has changed meanwhile: it may ask for another."""

    annotation: str
    text: str | None
    reason: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ForgetBroker:
    """Asks the controller to unregister a broker that was removed by scaling down.

    `directory_id`: only if it has this data directory; "": with any.
    """

    broker_id: int
    directory_id: str = ""


@dataclass(frozen=True, slots=True)
class CordonBrokers:
    """Asks the controller to cordon brokers, or to lift cordons."""

    changes: tuple[BrokerChange, ...]
    note: str


@dataclass(frozen=True, slots=True)
class MoveReplicas:
    """Asks the controller to move replicas, or to cancel moves. `note`: for an Event; "": none."""

    moves: tuple[ReplicaMove, ...]
    reason: MoveReason = MoveReason.DRAIN
    note: str = ""


@dataclass(frozen=True, slots=True)
class RemoveObject:
    """Deletes an owned object that is no longer wanted."""

    kind: str
    name: str
    uid: str


Action = (
    Apply
    | MakeAuthority
    | GrowClaim
    | OrphanSet
    | MarkRack
    | MoveLeaders
    | RestartPod
    | RemoveObject
    | AnswerRequest
    | ForgetBroker
    | CordonBrokers
    | MoveReplicas
    | MarkSpread
    | ReplaceVolume
    | DropClaim
    | MarkClaim
    | OwnClaim
    | Hibernate
    | SetThrottle
    | FinalizeFormat
)


class Severity(Enum):
    """How a wait shows: progress happens by itself, or a person must act."""

    PROGRESS = "progress"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Wait:
    """What a Cluster is waiting for. `reason` is one CamelCase word, `message` plain words."""

    reason: str
    message: str
    severity: Severity = Severity.PROGRESS


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in order of importance (I28), and why the rest has to wait.

    Attributes:
        drains: Of brokers that are to go.
        offer: A spread that has not begun.
        hibernation: What the status says of it; None: it never was asked for.
        resting: Why nobody is served, if that is what the spec wants.
        format: Whether an upgrade waits to be finalized; None: what was said of it last.
    """

    actions: tuple[Action, ...] = ()
    waits: tuple[Wait, ...] = ()
    drains: tuple[DrainState, ...] = ()
    offer: Offer | None = None
    hibernation: Record | None = None
    resting: Wait | None = None
    format: FormatPending | None = None

    @property
    def is_down(self) -> bool:
        """No broker is there to be asked, as the spec wants it."""
        return self.hibernation is not None and self.hibernation.stage.is_down

    @property
    def is_idle(self) -> bool:
        return not self.actions and not self.waits
