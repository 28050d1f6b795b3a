"""The seam between the controller and whatever keeps its documents.

    take-over, reload ──read_all──▶ every document, consistently
    Ready.writes ───────write─────▶ compare-and-swaps, stage by stage (I21)
    who is active ──────acquire_lease / release_lease (only avoids duplicate work, never safety)
    store away ─────────hold (may go on without)

All calls block and are bounded in time by the implementation. Those about documents come from
one thread, those about the lease from another one: a write that takes long must not cost the
lease. Versions are opaque: compare for equality only (Kubernetes' resourceVersion is one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.core.control.storage import (
    Change,
    Delete,
    Put,
    StoredText,
    StoreUnavailableError,
    WriteConflictError,
)

__all__ = [
    "Change",
    "Delete",
    "MetadataStore",
    "Put",
    "StoreUnavailableError",
    "StoredText",
    "Undetachable",
    "WriteConflictError",
]


class Undetachable:
    """For stores whose changes are nowhere else: without the store nothing is decided."""

    detached = False

    def begin_take_over(self) -> None:
        """Nothing to forget."""

    def hold(self) -> bool:
        """No."""
        return False


class MetadataStore(Protocol):
    """Keys: `cluster` and `topic/<name>`, text up to 1 MiB."""

    @property
    def detached(self) -> bool:
        """Changes are being kept elsewhere: once the lease is renewed, take over anew."""
        ...

    def begin_take_over(self) -> None:
        """The next `read_all` is the first of a controller that takes over."""
        ...

    def read_all(self) -> dict[str, StoredText]:
        """Every document by key, none older than any write that was confirmed before."""
        ...

    def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        """Carries out all changes; returns the new version of every key that was put.

        A stage begins when every change of the stage before is durable. No key occurs twice.
        Raises WriteConflictError, StoreUnavailableError (see there what may have happened).
        """
        ...

    def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        """Takes or renews the lease; False: somebody else has it. `holder` names this process.

        A holder keeps it for `duration_ms` from the last success, or until it releases it.
        """
        ...

    def hold(self) -> bool:
        """The lease cannot be renewed: may this controller go on deciding all the same?

        True: nobody else can decide now, and what is written is kept (`JournaledStore`). From
        the lease's thread, after `acquire_lease` raised.
        """
        ...

    def release_lease(self, holder: str) -> None:
        """Gives the lease up early; nothing happens if `holder` does not have it."""
        ...

    def close(self) -> None: ...
