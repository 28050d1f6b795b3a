"""What users get about consumer groups: plain frozen data.

Offsets are positions in a partition: a committed offset is the next one to read. Times are
milliseconds since 1970 UTC.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from penstock.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset, or one to commit.

    Attributes:
        offset: The next record to read, 0 or more.
        metadata: Any text, at most 4,096 bytes.
        leader_epoch: Of the record before `offset`; -1 = not known.
        commit_time_ms: When the cluster stored it; 0 = not stored.
        rewind_epoch: How often readers had moved it back, from 1; 0 = not known. Consumers set it
            in what they commit.
        topic_id: Of the topic that it counts in; "" = not known. Consumers set it in what they
            commit, as the last two: a topic may be deleted and created again under its name.
        tenure: Which of the consumer's stays in the partition it was decided in; 0 = in none.
        goes_back: It has a later rewind epoch than what was committed, as far as known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    commit_time_ms: int = 0
    rewind_epoch: int = field(default=0, compare=False, repr=False)
    topic_id: str = field(default="", compare=False, repr=False)
    tenure: int = field(default=0, compare=False, repr=False)
    goes_back: bool = field(default=False, compare=False, repr=False)

    @property
    def order(self) -> tuple[int, int]:
        """Of two commits of a partition by one consumer, the newer one has the greater."""
        return self.rewind_epoch, self.offset


class RebalanceListener(Protocol):
    """Is called when partitions are assigned, revoked or lost; with an async consumer, methods may
    be async.

    All are called inside `poll`, `unsubscribe` and `close`, one after the other, in the caller's
    thread; they may use the consumer, but not poll it.
    """

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
        """These are read from now on; a seek here decides from where. If it raises, so does the
        poll, and the next one calls it again before it returns anything."""

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
        """These are about to go to other members: the last chance to commit them."""

    def on_lost(self, partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
        """These are already lost, and others may be reading them: a commit would be refused."""


class GroupState(Enum):
    """State of a group."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    state: GroupState
    members: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """`connected`: it has a stream. `target`: what it should own in the end."""

    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    rack: str
    member_epoch: int
    assignor: str
    topics: tuple[str, ...]
    pattern: str
    connected: bool
    assigned: tuple[TopicPartition, ...]
    pending_revocation: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """Partitions with offsets pending in an open transaction: fetching these raises
    UNSTABLE_OFFSETS until it ends."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator sees it. State DEAD: it does not exist.

    `empty_since_ms` 0 = it has members. `last_reset_ms` 0 = its offsets were never reset.
    `pending`: by producer id.
    """

    group_id: str
    state: GroupState
    group_epoch: int
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...]
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    empty_since_ms: int = 0
    last_reset_ms: int = 0
    last_reset_id: str = ""
    last_reset_reason: str = ""
    pending: tuple[PendingOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """What a reset does to one partition; -1 = no offset is (or was) committed."""

    old_offset: int
    new_offset: int
