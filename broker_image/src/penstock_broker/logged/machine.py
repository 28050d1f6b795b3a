"""What a machine that lives on a log looks like to its host.

    load, load, … ─▶ start ─▶ handle(event, now_ms) ─▶ Ready: records, then what they entitle to say

The contract is the one that `penstock.core.groups.contract` spells out: the machine changes its
state when it hands out records, the world hears of it when they are committed, and a machine whose
append failed is thrown away, because its state may be ahead of the log (I16).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from penstock.errors import PenstockError

EventT_contra = TypeVar("EventT_contra", contravariant=True)
ReadyT_co = TypeVar("ReadyT_co", covariant=True)

Records = tuple[tuple[bytes, bytes | None], ...]
"""(key, value); value None removes the key."""


class Decision(Protocol):
    """For the broker's log: what was decided, with the numbers it was decided on."""

    @property
    def event(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, object]: ...


class Ready(Protocol):
    """One step. `records` stay together in one batch; `outputs` wait until they are committed."""

    @property
    def records(self) -> Records: ...
    @property
    def outputs(self) -> Sequence[object]: ...
    @property
    def decisions(self) -> Sequence[Decision]: ...
    @property
    def stopped(self) -> PenstockError | None:
        """A defect ended the machine (`core.defect`); `outputs` are errors then, told at once."""


class Machine(Protocol[EventT_contra, ReadyT_co]):
    """Pure: no await, no clock but `now_ms`. How it starts is its own: its host knows."""

    @property
    def next_wake_ms(self) -> int:
        """When it wants its tick; looked at ten times a second."""

    def load(self, key: bytes | None, value: bytes | None) -> None:
        """The next record of the log, before it starts. Raises ClusterError(DATA_CORRUPTED)."""

    def handle(self, event: EventT_contra, now_ms: int) -> ReadyT_co:
        """One event. Raises nothing: a defect is in the Ready, and the machine is over."""
