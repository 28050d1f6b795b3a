"""What is known of moves between brokers, and what is said about them, as frozen data.

`MoveFacts` is part of a snapshot (`model.Observed`). The rest is what a plan tells the status:
brokers that are emptied, and a spread that could begin.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.client import BrokerChange, BrokerPlacement, MovesDescription
from penstock.client.admin.move_facts import ClusterFacts


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """What moves between brokers, and what is left on those that are to go.

    Attributes:
        moving: Moves and cordons, as the controller has stored them.
        seen: For the planner; None unless brokers are to go, or have not got their share.
        logs: How many logs each live broker lists, orphans included; as `seen`.
        proven: Brokers that hold nothing, twice, as documents and they themselves say.
        orphans: How many of `logs` belong to no replica.
    """

    moving: MovesDescription
    seen: ClusterFacts | None = None
    logs: Mapping[int, int] = field(default_factory=dict)
    proven: frozenset[int] = frozenset()
    orphans: Mapping[int, int] = field(default_factory=dict)

    def broker(self, broker_id: int) -> BrokerPlacement | None:
        """None: it is not registered."""
        return next((one for one in self.moving.brokers if one.broker_id == broker_id), None)

    def needs(self, broker_id: int) -> bool:
        """A partition has, copies or shall have a replica there."""
        known = () if self.seen is None else self.seen.facts.partitions
        return any(broker_id in {*one.replicas, *one.target} for one in known) or any(
            broker_id in {*one.replicas, *one.target, *one.adding} for one in self.moving.moves
        )

    def names(self, broker_id: int) -> bool:
        """The same, or it has a former replica to delete."""
        dropping = any(broker_id in one.dropping for one in self.moving.moves)
        return dropping or self.needs(broker_id)


class DrainStage(Enum):
    """How far a broker that is to go is. A broker that was let go is Stopping."""

    WAITING = "Waiting"
    DRAINING = "Draining"
    DELETING = "Deleting"
    NOT_ANSWERING = "NotAnswering"
    PROVING = "Proving"
    STOPPING = "Stopping"
    DELETING_VOLUME = "DeletingVolume"


@dataclass(frozen=True, slots=True)
class DrainState:
    """A broker that is to go.

    `replicas`: it still has; `moving`: of those, move away; `logs`: former replicas it has to
    delete, or, if `orphaned`, logs that nobody will ever tell it to delete. `bytes_left` to copy
    off it; None: not known. `bytes_per_second`: at which that is done; `seconds_left`: until then,
    None if nobody knows. `waiting_for`: what a move off it needs.
    """

    broker_id: int
    stage: DrainStage
    replicas: int = 0
    moving: int = 0
    logs: int = 0
    orphaned: bool = False
    bytes_left: int | None = None
    bytes_per_second: int = 0
    seconds_left: int | None = None
    waiting_for: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """A spread that can begin. `plan`: its id, the same as long as it is for the same brokers:
    they are what is approved. `minutes` None: as fast as brokers can."""

    plan: str
    moves: int
    copied_bytes: int
    minutes: int | None
    text: str


@dataclass(frozen=True, slots=True)
class SetThrottle:
    """Tells the controller how fast replicas move: bytes per second, 0 = no limit; None: the spec
    no longer says. `by`: the field of the spec."""

    copy_rate: int | None
    by: str


@dataclass(frozen=True, slots=True)
class MarkSpread:
    """Tells the controller that these brokers have their share of the replicas."""

    changes: tuple[BrokerChange, ...]
