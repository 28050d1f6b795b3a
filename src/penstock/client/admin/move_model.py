"""What users of the admin ask for and are told about moves, cordons and formats."""

from dataclasses import dataclass
from enum import StrEnum

from penstock.core.types import MoveReason, TopicPartition
from penstock.errors import PenstockError


class MoveState(StrEnum):
    """Of a partition. Settled: its replicas are what they should be."""

    SETTLED = "settled"
    QUEUED = "queued"
    COPYING = "copying"


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """Which brokers shall have a partition's replicas; the first is the preferred leader.

    `expected`: the replicas as you know them, in any order: if there are others, nothing happens.
    An empty `target` cancels the partition's move; then `expected` is empty, too. `topic_id`: only
    if the topic has this id; "": any of that name.
    """

    where: TopicPartition
    target: tuple[int, ...] = ()
    expected: tuple[int, ...] = ()
    topic_id: str = ""


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
    """One broker that copies a partition, as the leader said it a moment ago.

    `limited_by`: what keeps it from being faster; empty: nothing known. `known_for_ms`: since the
    controller first heard of it. `stalled_for_ms`: since bytes were last copied; 0: they are copied
    now, or none are left.
    """

    broker_id: int
    bytes_left: int
    bytes_per_second: int
    limited_by: str
    known_for_ms: int = 0
    stalled_for_ms: int = 0

    @property
    def seconds_left(self) -> int | None:
        """At this pace, rounded up; None: nothing is copied now."""
        if not self.bytes_left:
            return 0
        return -(-self.bytes_left // self.bytes_per_second) if self.bytes_per_second else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDescription:
    """A partition that is not settled, has data to delete somewhere, or damaged replicas.

    `adding`: copy it, and are not replicas yet. `dropping`: have to delete their copy. `reason`
    None: settled. `waiting_for`: empty while it goes on. `copies`: those of
    `adding` of which the leader has said something lately. `leader` -1: none.
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

    @property
    def bytes_left(self) -> int | None:
        """To copy, to all brokers together; None: unknown, of one at least."""
        if not self.adding or len(self.copies) < len(self.adding):
            return None
        return sum(copy.bytes_left for copy in self.copies)

    @property
    def seconds_left(self) -> int | None:
        """Until the slowest of its copies ends, at this pace; None: nobody knows."""
        each = [copy.seconds_left for copy in self.copies]
        known = [seconds for seconds in each if seconds is not None]
        return max(known) if self.bytes_left is not None and len(known) == len(each) else None


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
    `copy_rate`: bytes per second that each broker copies of partitions that move, in and out; 0: no
    limit; None: each broker's own setting. `copy_rate_by`: what manages it; "": nothing does; None:
    the controller, of an older release, does not say. `controller_epoch` and `metadata_version`:
    as of `ClusterDescription`, of the metadata that this is about; 0: likewise.
    """

    moves: tuple[MoveDescription, ...]
    brokers: tuple[BrokerPlacement, ...]
    format: int
    newest_format: int
    paused: bool
    copy_rate: int | None = None
    copy_rate_by: str | None = None
    controller_epoch: int = 0
    metadata_version: int = 0


@dataclass(frozen=True, slots=True)
class FormatChange:
    """The same twice: the metadata had this format already."""

    before: int
    after: int
