"""What the controller is asked and told about moves, cordons and formats: a part of `contract`.

A *move* makes the replicas of one partition what they should be, its `target`:

    settled ──AlterReplicas──▶ queued ──a tick──▶ copying ──AlterIsr──▶ settled
       ▲                         │ cancel           │ cancel
       └─────────────────────────┴──────────────────┘

Who no longer has a replica, or has copied in vain, is in `dropping` until `ReportReplicas` says
that its data is deleted. `core.control.moves` decides.
"""

from dataclasses import dataclass
from enum import StrEnum

from penstock.core.types import BrokerId, MoveReason, ReplicaKey, TopicId
from penstock.errors import PenstockError

# ---------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class DroppedReplica:
    """`version`: the partition's, in the newest image that had the broker in `dropping`."""

    topic_id: TopicId
    partition: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReplicas:
    """What a broker says of its replicas. What is not so, by what is stored, is ignored.

    `dropped`: their data is deleted; said again until no image asks for it any more. While writes
    are journaled, and for any version but the stored one, it does not count. `damaged`: cannot
    serve all they once acknowledged, or have stopped. `sound`: were damaged, and are mended.
    `missing`: have nothing of the log, and lead in no epoch that had begun when this was found.
    """

    request_id: int
    cluster_id: str
    broker_id: BrokerId
    broker_session: int
    dropped: tuple[DroppedReplica, ...] = ()
    damaged: tuple[ReplicaKey, ...] = ()
    sound: tuple[ReplicaKey, ...] = ()
    missing: tuple[ReplicaKey, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChange:
    """`target`: all brokers that shall have the partition, the preferred leader first.

    `expected`: the replicas as the caller knows them, in any order. `cancel`: the partition's move
    ends instead, and both are empty. `topic_id` None: any topic of this name.
    """

    topic: str
    partition: int
    expected: tuple[BrokerId, ...] = ()
    target: tuple[BrokerId, ...] = ()
    cancel: bool = False
    topic_id: TopicId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicas:
    """Moves replicas. `change_factor`: targets may have more or fewer of them."""

    request_id: int
    cluster_id: str
    changes: tuple[ReplicaChange, ...]
    why: MoveReason = MoveReason.MANUAL
    change_factor: bool = False
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChange:
    """A new cordon, or that the broker is no longer fresh (`spread`).

    A cordon replaces the one before; with neither `placement` nor `leadership` there is none.
    `directory_id` "": whatever directory the broker has.
    """

    broker_id: BrokerId
    directory_id: str = ""
    placement: bool = False
    leadership: bool = False
    why: str = ""
    by: str = ""
    spread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterBrokers:
    """All changes, or with an error none."""

    request_id: int
    cluster_id: str
    changes: tuple[BrokerChange, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterThrottle:
    """How fast partitions move. `copy_rate`: bytes per second that each broker copies, in and out;
    0: no limit; None: each broker's own setting. `by`: what manages it from now on; "": a person
    asks."""

    request_id: int
    cluster_id: str
    copy_rate: int | None = None
    by: str = ""
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalize:
    """Chooses the format in which metadata is stored. `to` 0: the newest."""

    request_id: int
    cluster_id: str
    to: int = 0
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterCluster:
    """Begins or ends hibernation."""

    request_id: int
    cluster_id: str
    hibernating: bool
    validate_only: bool = False


# ---------------------------------------------------------------- results


class MoveState(StrEnum):
    """Of a partition: whether its replicas are what they should be."""

    SETTLED = "settled"
    QUEUED = "queued"
    COPYING = "copying"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOutcome:
    """One per change, with what is stored now. `replicas` empty: the partition is unknown."""

    change: ReplicaChange
    replicas: tuple[BrokerId, ...] = ()
    target: tuple[BrokerId, ...] = ()
    state: MoveState = MoveState.SETTLED
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class ReplicasAltered:
    """One per change, same order."""

    outcomes: tuple[ReplicaOutcome, ...]


@dataclass(frozen=True, slots=True)
class ReplicasReported:
    """`metadata_version`: of the cluster, with the changes in it.

    `stored`: all that this controller has decided is in the store itself, nothing in a journal.
    `seated`: damaged and missing ones that are in ISR or ELR still, so that their logs are kept.
    """

    metadata_version: int = 0
    stored: bool = False
    seated: tuple[ReplicaKey, ...] = ()


@dataclass(frozen=True, slots=True)
class FormatChosen:
    """The same twice: the cluster had it already."""

    before: int
    after: int
