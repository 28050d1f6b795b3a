"""The interface between a host and a machine whose state is a log.

    load, load, … ─▶ start ─▶ handle(event, now_ms) ─▶ Ready: records, outputs that need them

The contract is described in `penstock.core.groups.contract`: the machine changes its state when it
returns records, the outputs are sent when the records are committed, and a machine whose append
failed is discarded, because its state may be ahead of the log (I16).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from penstock.errors import PenstockError

EventT_contra = TypeVar("EventT_contra", contravariant=True)
ReadyT_co = TypeVar("ReadyT_co", covariant=True)

Records = tuple[tuple[bytes, bytes | None], ...]
"""(key, value); value None deletes the key."""


class Decision(Protocol):
    """For the broker's log: what was decided, and the numbers behind it."""

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
        """A defect ended the machine (`core.defect`); `outputs` are then errors, sent at once."""


class Machine(Protocol[EventT_contra, ReadyT_co]):
    """Pure: no await, no clock but `now_ms`. Each machine's host knows how to start it."""

    @property
    def next_wake_ms(self) -> int:
        """When the machine wants its tick; read ten times a second."""

    def load(self, key: bytes | None, value: bytes | None) -> None:
        """Takes a record of the log, before the start. Raises ClusterError(DATA_CORRUPTED)."""

    def set_wall(self, time_at_zero_ms: int, *, is_trusted: bool) -> None:
        """Before the start and every event: the time since 1970 at which `now_ms` was 0, and
        whether it may decide that something is removed."""

    def handle(self, event: EventT_contra, now_ms: int) -> ReadyT_co:
        """Takes one event. Raises nothing: a defect is in the Ready, and ends the machine."""
