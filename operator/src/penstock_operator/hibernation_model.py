"""What is known of a Cluster's hibernation, and what is said about it, as frozen data.

`Rest` is part of a snapshot (`model.Observed`). What a plan tells the status is a `Record`: it is
also what the next pass, of any operator, knows of the ones before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Stage(Enum):
    """How far it is; the value is the word in the status.

        AWAKE ─▶ HIBERNATING ─▶ STOPPING ─▶ HIBERNATED ─▶ STARTING ─▶ WAKING ─▶ AWAKE
                      └──────▶ BLOCKED, awake, until the spec changes

    HIBERNATING: brokers refuse new work, and come to rest. STARTING: no broker answers yet.
    WAKING: brokers answer; leaders are elected once all are back.
    """

    AWAKE = ""
    HIBERNATING = "Hibernating"
    STOPPING = "Stopping"
    HIBERNATED = "Hibernated"
    STARTING = "Starting"
    WAKING = "Waking"
    BLOCKED = "Blocked"

    @property
    def is_down(self) -> bool:
        """No broker runs, or none is to run: nobody asks them anything."""
        return self in {Stage.STOPPING, Stage.HIBERNATED}


@dataclass(frozen=True, slots=True)
class Record:
    """`status.hibernation`. `since` "": from now on. `generation`: of the spec that was tried in
    vain, and `waiting_for`: why."""

    stage: Stage = Stage.AWAKE
    since: str = ""
    generation: int = 0
    waiting_for: str = ""

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "Record":
        row: Mapping[str, Any] = status.get("hibernation") or {}
        known = {stage.value: stage for stage in Stage}
        return cls(
            known.get(row.get("state", ""), Stage.AWAKE),
            row.get("since", ""),
            row.get("generation", 0),
            row.get("waitingFor", ""),
        )


@dataclass(frozen=True, slots=True)
class Rest:
    """What was seen of it.

    Attributes:
        record: Of the pass before.
        waited_s: Since `record.since`.
        proven: All registered brokers were quiet twice, and nothing was written in between.
        waiting_for: What keeps them from it, as they say; empty: they were not asked.
    """

    record: Record = field(default_factory=Record)
    waited_s: float = 0.0
    proven: bool = False
    waiting_for: str = ""


@dataclass(frozen=True, slots=True)
class Hibernate:
    """Asks the controller to put the cluster to sleep, or to wake it."""

    hibernating: bool
