"""Requests about groups that change nothing, and their answers: fetch, list, describe.

Like all outputs of `contract`, an answer is sent once the high watermark has passed everything
appended before: it reports nothing that a failover could undo (I16).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.core.groups.catalog import NamedPartition, Parts, Subscription
from penstock.core.groups.records import AppliedReset
from penstock.core.types import ProducerId, TopicId
from penstock.errors import PenstockError

# ---------------------------------------------------------------- asked


@dataclass(frozen=True, slots=True)
class FetchRequested:
    """`partitions` empty: all. `allow_unstable`: also what an open transaction may change."""

    request_id: int
    group_id: str
    partitions: tuple[NamedPartition, ...] = ()
    allow_unstable: bool = False


@dataclass(frozen=True, slots=True)
class ListRequested:
    request_id: int
    states: frozenset[GroupState] = frozenset()


@dataclass(frozen=True, slots=True)
class DescribeRequested:
    request_id: int
    group_id: str
    include_offsets: bool = False


# ---------------------------------------------------------------- answered


class GroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAnswer:
    """One committed offset; -1: none."""

    topic: str
    topic_id: TopicId
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    commit_time_ms: int = 0
    rewind_epoch: int = 1
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    offsets: tuple[OffsetAnswer, ...]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    state: GroupState
    members: int


@dataclass(frozen=True, slots=True)
class Listed:
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    rack: str
    member_epoch: int
    subscription: Subscription
    assignor: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    connected: bool
    assigned: Parts
    pending: Parts
    target: Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedPending:
    """Offsets that count once this transaction commits."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int
    parts: Parts
    names: Mapping[TopicId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    group_id: str
    state: GroupState
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedMember, ...] = ()
    offsets: tuple[OffsetAnswer, ...] = ()
    empty_since_ms: int = 0
    last_reset: AppliedReset | None = None
    pending: tuple[DescribedPending, ...] = ()
    names: Mapping[TopicId, str] = field(default_factory=dict)
