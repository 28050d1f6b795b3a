"""The controller machine's inputs and outputs. One machine per controller process.

    shell: streams, RPCs, store, clock ──event──▶ ControllerMachine.handle(event, now_ms)
                                        ◀──Ready──

What the shell must do:

- `Loaded` first, and again whenever a `Ready` says `reload`: everything in the store, read
  consistently. Failing reads are retried by the shell.
- `writes` are carried out stage by stage (a stage starts when all of the previous stage is
  durable), then reported with the same `write_id`: `WriteDone`, `WriteConflict` (a version was
  not the expected one) or `WriteUnknown` (time-out, I/O error: it may have been done or not,
  in part or in full). Never two writes at once: the machine waits for the report.
- `replies`, `session_messages` and `metadata_version` of a `Ready` are about *earlier*, already
  durable writes. They may be sent at once, also while `writes` of the same `Ready` is running.
- `session_messages` go out in order per stream. When `metadata_version` is set, every stream
  with a session gets `machine.image(since)`, `since` being the version it was sent last (0 for
  a new stream: then the image is full). A slow stream skips versions, it never queues them.
- `StoreState` first, and again when it changes: whether writes go into a journal (`journal`).
- `stored_only`: the writes must reach the store. If they would go into a journal, do nothing and
  report `WriteNotSent`: a journal can be lost, and what is deleted on its word with it (I30).
- `Tick` every 50-100 ms. Time in which the controller did not run (a long gap) is not charged to
  the brokers.
- `deposed`: another controller has taken over. Close all streams, stop, start again as standby.
- `take_over_again`: a broker follows only the next controller epoch. Go on until the store has said
  again that this controller has the lease; then stop and take over again.

Invariants kept here: I1 (one leader per epoch, epochs never decrease, the leader is in the
ISR), I7 (who may lead), I21 (every change is a compare-and-swap; controller epoch monotonic).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from penstock.core.authorization import Resource, Rule
from penstock.core.control.documents import ClusterDocument, TopicDocument
from penstock.core.control.move_contract import (
    AlterBrokers,
    AlterCluster,
    AlterReplicas,
    AlterThrottle,
    Finalize,
    FormatChosen,
    ReplicasAltered,
    ReplicasReported,
    ReportReplicas,
)
from penstock.core.control.operator_contract import AcquireOperatorEpoch, OperatorEpochGiven
from penstock.core.quotas import QuotaRule
from penstock.core.types import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionState,
    TopicId,
    TopicPartition,
)
from penstock.core.value import value
from penstock.errors import PenstockError

# ---------------------------------------------------------------- events: store -> machine


@dataclass(frozen=True, slots=True)
class Loaded:
    """All documents with their store versions (opaque text). `cluster` None: a new store.

    `new_cluster_id` names the cluster then; it is ignored otherwise.
    """

    cluster: tuple[ClusterDocument, str] | None
    topics: tuple[tuple[TopicDocument, str], ...]
    new_cluster_id: str


@dataclass(frozen=True, slots=True)
class WriteDone:
    """All stages are durable. `versions`: the new store version of every put document.

    By store key: `CLUSTER_KEY`, `topic_key(name)`.
    """

    write_id: int
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WriteConflict:
    write_id: int


@dataclass(frozen=True, slots=True)
class WriteUnknown:
    write_id: int


@dataclass(frozen=True, slots=True)
class WriteNotSent:
    """Nothing of it has left the controller: what it asked for is certainly not stored."""

    write_id: int


@dataclass(frozen=True, slots=True)
class StoreState:
    """`journaling`: writes go into a journal on brokers, because the store is unavailable.

    Until the next one, or the end of the machine. Before the first, writes go to the store.
    """

    journaling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSeen:
    """What is in the store, read while nothing was written: store versions by key.

    `metadata_version`: of the adopted state when the read began. If it is still the same, no write
    is under way and the versions differ, somebody else has written: the machine reads again.
    """

    versions: Mapping[str, str]
    metadata_version: int


# ---------------------------------------------------------------- events: brokers -> machine


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    """First message of a session stream. Fields as in the protocol's Register.

    `stream_id` is the shell's number for the stream, never reused.
    """

    stream_id: int
    cluster_id: str
    broker_id: BrokerId
    incarnation: str
    host: str
    port: int
    rack: str
    directory_id: str
    data_intact: bool
    seen_controller_epoch: ControllerEpoch = ControllerEpoch(0)
    seen_metadata_version: int = 0
    external_host: str = ""
    external_port: int = 0
    replication_port: int = 0
    stream_port: int = 0
    internal_port: int = 0
    secure_port: int = 0
    secure_internal_port: int = 0
    certificate_port: int = 0
    external_certificate_port: int = 0
    features: tuple[str, ...] = ()
    promised_controller_epoch: ControllerEpoch = ControllerEpoch(0)
    software_version: str = ""
    formats: tuple[int, ...] = (1,)
    opening: bool = False
    generations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """What a leader says of one copy: `bytes_left` until it has caught up, at this pace."""

    topic_id: TopicId
    partition: int
    broker_id: BrokerId
    bytes_left: int
    bytes_per_second: int = 0
    limited_by: str = ""


@value(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    """`copies`: of partitions that the broker leads; empty: as before. `no_space_for_copies`: its
    own disk lets no partition move there. `opened`: its logs are, see `Register.opening`.
    `generation`: with `wants_stop`, of its data directory; "": it does not say."""

    stream_id: int
    metadata_version: int
    wants_stop: bool = False
    disk_full: bool = False
    copies: tuple[CopyProgress, ...] = ()
    no_space_for_copies: bool = False
    opened: bool = False
    generation: str = ""


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The stream ended, for any reason. The broker has a short grace period to come back."""

    stream_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """A leader's proposal for one partition, based on `version`.

    With all of `PartitionState.adding` in it, it asks for the switch to the new replicas. If that
    must wait, the rest is stored, and the outcome has the error MOVE_WAITS: ask again later.
    """

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    version: int
    isr: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterIsr:
    request_id: int
    cluster_id: str
    broker_id: BrokerId
    broker_session: int
    controller_epoch: ControllerEpoch
    changes: tuple[IsrChange, ...]


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    request_id: int
    cluster_id: str
    broker_id: BrokerId
    broker_session: int


# ---------------------------------------------------------------- events: admin -> machine


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """`topic_id`: a fresh UUID made by the shell, used if the topic is created.

    `partitions`, `replication_factor` 0 = the cluster's default. With `assignment` (one replica
    list per partition) both must be 0.
    """

    name: str
    topic_id: TopicId
    partitions: int = 0
    replication_factor: int = 0
    configs: Mapping[str, str] | None = None
    assignment: tuple[tuple[BrokerId, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTopics:
    request_id: int
    cluster_id: str
    topics: tuple[NewTopic, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """`topics`: (name, topic id or "" for any topic of this name)."""

    request_id: int
    cluster_id: str
    topics: tuple[tuple[str, TopicId], ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    """`partitions` is the new total."""

    request_id: int
    cluster_id: str
    topic: str
    partitions: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs:
    request_id: int
    cluster_id: str
    topic: str
    set_configs: Mapping[str, str]
    unset_configs: tuple[str, ...] = ()
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterAccess:
    """Replaces all rules of a topic, of a group, or of the cluster.

    `expected`: only if these are the rules; None: whatever they are.
    """

    request_id: int
    cluster_id: str
    resource: Resource
    rules: tuple[Rule, ...]
    validate_only: bool = False
    expected: tuple[Rule, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterQuotas:
    """Replaces all quotas. `expected`: only if these are the quotas; None: whatever they are."""

    request_id: int
    cluster_id: str
    rules: tuple[QuotaRule, ...]
    validate_only: bool = False
    expected: tuple[QuotaRule, ...] | None = None


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """Gives leadership to the preferred replicas, or moves all of it off one broker.

    `partitions` empty = all. `away_from` None = preferred election.
    """

    request_id: int
    cluster_id: str
    partitions: tuple[TopicPartition, ...] = ()
    away_from: BrokerId | None = None


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """Unregisters a broker that will not return. `directory_id` "": whatever directory it has."""

    request_id: int
    cluster_id: str
    broker_id: BrokerId
    directory_id: str = ""


@value(frozen=True, slots=True)
class Tick:
    """Time passed."""


Request = (
    AlterIsr
    | AllocateProducerIds
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | AlterAccess
    | AlterQuotas
    | ElectLeaders
    | UnregisterBroker
    | ReportReplicas
    | AlterReplicas
    | AlterBrokers
    | AlterCluster
    | AlterThrottle
    | Finalize
    | AcquireOperatorEpoch
)


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A request of an operator, decided only while `operator_epoch` counts (`fencing`)."""

    operator_epoch: int
    request: Request

    @property
    def request_id(self) -> int:
        return self.request.request_id


def unwrapped(
    asked: Request | OperatorRequest | BrokerRegistered,
) -> tuple[Request | BrokerRegistered, int]:
    """The request itself, and the epoch of the operator that makes it; 0: none does."""
    if isinstance(asked, OperatorRequest):
        return asked.request, asked.operator_epoch
    return asked, 0


Event = (
    Loaded
    | WriteDone
    | WriteConflict
    | WriteUnknown
    | WriteNotSent
    | StoreState
    | StoreSeen
    | BrokerRegistered
    | HeartbeatReceived
    | StreamClosed
    | Request
    | OperatorRequest
    | Tick
)

# ---------------------------------------------------------------- outputs: to the store


@dataclass(frozen=True, slots=True)
class PutCluster:
    """Compare-and-swap of the cluster document; `expected` None = must not exist."""

    document: ClusterDocument
    expected: str | None


@dataclass(frozen=True, slots=True)
class PutTopic:
    document: TopicDocument
    expected: str | None


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    name: str
    expected: str


DocumentWrite = PutCluster | PutTopic | RemoveTopic

# ---------------------------------------------------------------- outputs: to brokers, callers


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAccepted:
    """Answer with Registered; images follow. `broker_session` names the session in requests."""

    stream_id: int
    cluster_id: str
    controller_epoch: ControllerEpoch
    broker_session: int
    heartbeat_interval_ms: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class SessionRefused:
    """Send the error, then close the stream."""

    stream_id: int
    error: PenstockError


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    stream_id: int
    may_stop: bool


SessionMessage = SessionAccepted | SessionRefused | HeartbeatAnswered


@dataclass(frozen=True, slots=True)
class IsrOutcome:
    """One per change. `state`: what is stored now; None only if the partition is unknown."""

    change: IsrChange
    state: PartitionState | None
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class IsrAltered:
    """`metadata_version`: of the cluster, with the changes in it."""

    outcomes: tuple[IsrOutcome, ...]
    metadata_version: int = 0


@dataclass(frozen=True, slots=True)
class ProducerIds:
    """Half-open: first <= id < first + count. No other broker ever gets them."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    topic: str
    topic_id: TopicId
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """One per topic of the request, same order."""

    outcomes: tuple[TopicOutcome, ...]


@dataclass(frozen=True, slots=True)
class LeadersMoved:
    count: int


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out; there is no other result."""


Result = (
    IsrAltered
    | ProducerIds
    | TopicsChanged
    | LeadersMoved
    | ReplicasAltered
    | ReplicasReported
    | FormatChosen
    | OperatorEpochGiven
    | Done
)


@dataclass(frozen=True, slots=True)
class Reply:
    """Exactly one per request. An error means that nothing of the request was done."""

    request_id: int
    outcome: Result | PenstockError


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Decision:
    """For the log: an event name and the numbers behind the decision."""

    severity: Severity
    event: str
    fields: Mapping[str, object]


@value(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the shell must do now; see the module's docstring for the order.

    `write_id` > 0 exactly when `writes` is not empty. `stored_only`: see above. `stopped`: a
    defect ended the machine with this event (`core.defect`): close all streams, release the lease,
    end the process.
    """

    writes: tuple[tuple[DocumentWrite, ...], ...] = ()
    write_id: int = 0
    stored_only: bool = False
    reload: bool = False
    replies: tuple[Reply, ...] = ()
    session_messages: tuple[SessionMessage, ...] = ()
    metadata_version: int | None = None
    decisions: tuple[Decision, ...] = ()
    deposed: bool = False
    take_over_again: bool = False
    stopped: PenstockError | None = None
