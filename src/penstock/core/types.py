"""Names for the numbers and strings that all parts use.

A `NewType` costs nothing at run time and lets mypy tell an offset from an epoch. Everything
here is plain data: no behaviour beyond what the value itself implies.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, NewType

from penstock.core.value import value

Offset = NewType("Offset", int)
"""Position of a record in a partition, 0 .. 2**63 - 1."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Counts leaderships of a partition, from 1; in a request 0 = unchecked; -1 = empty log."""
BrokerId = NewType("BrokerId", int)
"""0 .. 2**31 - 1; identifies a broker for ever, never derived from an address."""
TopicId = NewType("TopicId", str)
"""UUID text: a topic created again under an old name is another topic."""
ProducerId = NewType("ProducerId", int)
ControllerEpoch = NewType("ControllerEpoch", int)

NO_LEADER: Final = BrokerId(-1)
NO_EPOCH: Final = LeaderEpoch(-1)
NO_PRODUCER: Final = ProducerId(-1)
TRANSACTIONAL_PRODUCER_BIT: Final = 1 << 62
"""Set in the producer ids that transaction coordinators assign, and in no other: a plain
InitProducer cannot ask for the next epoch of one and take it over."""


def is_transactional_producer(producer_id: ProducerId) -> bool:
    """Assigned by a transaction coordinator. Ids have 63 bits, so that this is the top one."""
    return producer_id >= TRANSACTIONAL_PRODUCER_BIT


class Acks(IntEnum):
    """Which replicas store a record before it is acknowledged. Values are the protocol's."""

    NONE = 1
    LEADER = 2
    ALL = 3


class Sync(IntEnum):
    """What "stored" means: in the page cache (OS) or fsynced (DISK). Values are the protocol's."""

    OS = 1
    DISK = 2


class MoveReason(StrEnum):
    """Why a partition gets other replicas; the most urgent first."""

    REPLACE = "replace"
    DRAIN = "drain"
    FACTOR = "factor"
    MANUAL = "manual"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition, for users: topic name and index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class ReplicaKey(NamedTuple):
    """A partition, for brokers: topic id and index.

    A tuple, because it is a key: hashed and compared in C, some 30 times per batch on a leader.
    """

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and its epoch: they identify batches, and their transaction."""

    producer_id: ProducerId
    epoch: int


@value(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The controller's decisions about one partition.

    `version` counts every change of these fields; ISR changes are compare-and-swaps on it.
    `leader` is `NO_LEADER` while there is none. `replicas[0]` is the preferred leader.

    `adding`: brokers that copy the partition and are not replicas yet: never in the ISR, never
    elected. `dropping`: former ones that have to delete their copy and say so. Both are disjoint
    from `replicas` and from each other. `damaged`: replicas that cannot serve what they once
    acknowledged; they lead only if nobody else can.
    """

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    version: int
    adding: tuple[BrokerId, ...] = ()
    dropping: tuple[BrokerId, ...] = ()
    damaged: tuple[BrokerId, ...] = ()
