"""What is known of brokers' volumes and of the nodes they are on, and what replaces one, as frozen
data. `BoundNode` is part of a snapshot (`model.Observed`), the rest are actions of a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class ClaimState:
    """A broker's volume claim. Sizes in bytes; `capacity` 0 = not bound yet.

    `volume`: the PersistentVolume that it is bound to; empty: none yet, so that nothing is stored
    there. `selected_node`: where the scheduler wants one to be made. `deleting`: it goes once no
    pod uses it. `emptied`: it is marked to go with its broker (`names.EMPTIED`). `version`: its
    resourceVersion, another one after each change. `owners`: its ownerReferences.
    """

    broker_id: int
    name: str
    uid: str
    requested: int
    capacity: int
    expandable: bool
    resizing: str = ""
    volume: str = ""
    selected_node: str = ""
    deleting: bool = False
    emptied: bool = False
    version: str = ""
    owners: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)


class NodeState(Enum):
    """Whether a Node object is there. GONE: it is not, but was within the last five minutes, or
    nobody has looked for as long. UNKNOWN is neither there nor absent."""

    THERE = "there"
    GONE = "gone"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BoundNode:
    """The only node where a broker's volume can be used, if its pod cannot be scheduled.

    `claim_uid`: of the claim that this was seen of. `node`: empty while it is UNKNOWN which one it
    is. `problem`: why it is UNKNOWN.
    """

    claim_uid: str
    node: str
    state: NodeState
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ReplaceVolume:
    """Deletes exactly this claim and this pod (by uid); the StatefulSet makes both again.

    `pod`, `pod_uid` empty: there is no pod. `why`: for an Event.
    """

    broker_id: int
    claim: str
    claim_uid: str
    pod: str
    pod_uid: str
    why: str


@dataclass(frozen=True, slots=True)
class DropClaim:
    """Deletes exactly this claim of a broker that was emptied and is gone, and only if nobody has
    changed it since (`version`)."""

    broker_id: int
    claim: str
    claim_uid: str
    version: str


@dataclass(frozen=True, slots=True)
class MarkClaim:
    """Writes onto a claim that it may go with its broker, or takes that back (`names.EMPTIED`)."""

    broker_id: int
    claim: str
    claim_uid: str
    emptied: bool


@dataclass(frozen=True, slots=True)
class OwnClaim:
    """Writes onto a claim whom it is deleted with: its ownerReferences, all of them. Only if nobody
    has changed it since (`version`)."""

    broker_id: int
    claim: str
    claim_uid: str
    version: str
    owners: tuple[Mapping[str, Any], ...] = field(hash=False)
