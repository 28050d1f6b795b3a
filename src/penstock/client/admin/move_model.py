"""What users of the admin ask for and are told about moves, cordons and formats."""

from dataclasses import dataclass
from enum import StrEnum

from penstock.core.types import TopicPartition
from penstock.errors import PenstockError


class MoveReason(StrEnum):
    """Why replicas move; the most urgent first."""

    REPLACE = "replace"
    DRAIN = "drain"
    FACTOR = "factor"
    MANUAL = "manual"
    SPREAD = "spread"


class MoveState(StrEnum):
    """Of a partition. Settled: its replicas are what they should be."""

    SETTLED = "settled"
    QUEUED = "queued"
    COPYING = "copying"


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """Which brokers shall have a partition's replicas; the first is the preferred leader.

    `expected`: the replicas as you know them, in any order: if there are others, nothing happens.
    An empty `target` cancels the partition's move; then `expected` is empty, too.
    """

    where: TopicPartition
    target: tuple[int, ...] = ()
    expected: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOutcome:
    """What is stored now, of one partition; without an error, as it was asked for.

    `replicas` empty, `state` None: there is no such partition.
    """

    where: TopicPartition
    state: MoveState | None
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    error: PenstockError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyDescription:
    """One broker that copies a partition. `limited_by`: what keeps it from being faster."""

    broker_id: int
    bytes_left: int
    bytes_per_second: int
    limited_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDescription:
    """A partition that is not settled, has data to delete somewhere, or damaged replicas.

    `adding`: copy it, and are not replicas yet. `dropping`: have to delete their copy. `reason`
    None: settled. `waiting_for`: empty while it goes on. `copies`: as far as the leader has
    reported. `leader` -1: none.
    """

    where: TopicPartition
    topic_id: str
    state: MoveState
    reason: MoveReason | None
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    target: tuple[int, ...]
    adding: tuple[int, ...]
    dropping: tuple[int, ...]
    damaged: tuple[int, ...]
    waiting_for: str
    copies: tuple[CopyDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """`placement`: no new replica goes to the broker. `leadership`: it leads only what nobody else
    can. `why` and `by` are for people."""

    placement: bool
    leadership: bool
    why: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """A cordon in place of the one that the broker has, or (`spread`) that it is no longer fresh.

    `cordon` with neither placement nor leadership: none. `directory_id`: only if the broker has
    this data directory; "": with any.
    """

    broker_id: int
    cordon: Cordon | None = None
    directory_id: str = ""
    spread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlacement:
    """What matters of a registered broker for placing replicas.

    `fresh`: it has not got its share of the partitions yet. `software_version` empty: it has not
    registered with this controller yet.
    """

    broker_id: int
    directory_id: str
    rack: str
    alive: bool
    fresh: bool
    cordon: Cordon | None
    software_version: str
    formats: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesDescription:
    """`format`: of the stored metadata; `newest_format`: that the controller could write.

    `paused`: the metadata store is unavailable; nothing begins or ends, but copies go on.
    """

    moves: tuple[MoveDescription, ...]
    brokers: tuple[BrokerPlacement, ...]
    format: int
    newest_format: int
    paused: bool


@dataclass(frozen=True, slots=True)
class FormatChange:
    """The same twice: the metadata had this format already."""

    before: int
    after: int
