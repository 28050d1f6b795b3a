"""What the planner is given: brokers, partitions, the rate of copies, and a wish.

All of it is plain data that the caller has read; order does not matter, and nothing is looked up.
Sizes are bytes of one replica; all replicas of a partition are taken to be as large as each other.
"""

from dataclasses import dataclass

from penstock.core.types import NO_LEADER, BrokerId, MoveReason, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """A registered broker.

    `disk_bytes` and `free_bytes` are of its data volume; a disk of 0 bytes is unknown and never
    full. `reserve_bytes`: less free space than this and the broker refuses writes. `cordoned`:
    nothing new lands here; `leads` is False if it should not lead either. `fresh`: it registered
    with an empty directory and has not got its share yet.
    """

    id: BrokerId
    directory_id: str = ""
    rack: str = ""
    disk_bytes: int = 0
    free_bytes: int = 0
    reserve_bytes: int = 0
    alive: bool = True
    cordoned: bool = False
    leads: bool = True
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """A partition as it is stored.

    `replicas` is not empty, and its first is the preferred leader. `target`: the replicas it is
    moving to, () if it is not moving; the planner counts it as if it were there. `size_bytes`
    is None if nobody could tell: such a replica weighs 1. `bytes_per_second`: what its leader is
    sent.
    """

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...] = ()
    leader: BrokerId = NO_LEADER
    target: tuple[BrokerId, ...] = ()
    size_bytes: int | None = None
    bytes_per_second: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A cluster. `copy_rate` is what a broker may copy in, and out, in bytes/s; 0 = no limit."""

    brokers: tuple[BrokerFacts, ...]
    partitions: tuple[PartitionFacts, ...]
    copy_rate: int = 0


@dataclass(frozen=True, slots=True)
class Drain:
    """These brokers keep nothing. Nothing else moves."""

    brokers: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class Replace:
    """The volume of this broker will be replaced by an empty one, and the broker keeps its seats.

    So only partitions leave it that have no other live replica in sync to copy from afterwards.
    """

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class Spread:
    """These brokers get their share of replicas, from the others; () = the fresh ones."""

    brokers: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True)
class Factor:
    """Every partition of the topic has this many replicas, 1 or more."""

    topic: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Balance:
    """Replicas, bytes, topics and leaders are spread over all brokers that may be used."""


@dataclass(frozen=True, slots=True)
class Leaders:
    """Preferred leaders are spread; no replica moves."""


Wish = Drain | Replace | Spread | Factor | Balance | Leaders


def reason_of(wish: Wish) -> MoveReason:
    """What is stored with the moves of this wish."""
    match wish:
        case Drain():
            return MoveReason.DRAIN
        case Replace():
            return MoveReason.REPLACE
        case Factor():
            return MoveReason.FACTOR
        case _:
            return MoveReason.SPREAD
