"""The seams between the controller and whatever keeps its documents.

    take-over, reload ──read_all──▶ every document, consistently
    Ready.writes ───────write─────▶ compare-and-swaps, stage by stage (I21)
    who is active ──────acquire_lease / release_lease (only avoids duplicate work, never safety)
    store away ─────────hold (may go on without)

    ControllerRuntime ─▶ MetadataStore: JournaledStore ─▶ ThreadedStore ─▶ BlockingStore

Versions are opaque: compare for equality only (Kubernetes' resourceVersion is one).
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
    "BlockingStore",
    "Change",
    "Delete",
    "MetadataStore",
    "Put",
    "StoreUnavailableError",
    "StoredText",
    "WriteConflictError",
]


class MetadataStore(Protocol):
    """What the controller's loop awaits. Keys: `cluster` and `topic/<name>`, text up to 1 MiB.

    All calls are bounded in time by the implementation. One about documents at a time; those
    about the lease come beside it, and never wait for it: a write that takes long must not cost
    the lease. For who is cancelled the outcome is unknown, as after StoreUnavailableError.
    """

    @property
    def detached(self) -> bool:
        """Changes are being kept elsewhere: once the lease is renewed, take over anew."""
        ...

    async def read_all(self, *, take_over: bool = False) -> dict[str, StoredText]:
        """Every document by key, none older than any write that was confirmed before.

        `take_over`: of a controller that takes over, which is until it has read successfully.
        """
        ...

    async def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        """Carries out all changes; returns the new version of every key that was put.

        A stage begins when every change of the stage before is durable. No key occurs twice.
        Raises WriteConflictError, StoreUnavailableError (see there what may have happened).
        """
        ...

    async def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        """Takes or renews the lease; False: somebody else has it. `holder` names this process.

        A holder keeps it for `duration_ms` from the last success, or until it releases it.
        """
        ...

    async def hold(self) -> bool:
        """The lease cannot be renewed: may this controller go on deciding all the same?

        True: nobody else can decide now, and what is written is kept (`JournaledStore`). Asked
        after `acquire_lease` raised.
        """
        ...

    async def release_lease(self, holder: str) -> None:
        """Gives the lease up early; nothing happens if `holder` does not have it."""
        ...


class BlockingStore(Protocol):
    """A store whose calls block, for `ThreadedStore`: see there for threads, and above.

    Those about documents come from one thread, those about the lease from another one.
    """

    def read_all(self) -> dict[str, StoredText]: ...
    def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]: ...
    def acquire_lease(self, holder: str, duration_ms: int) -> bool: ...
    def release_lease(self, holder: str) -> None: ...
    def close(self) -> None: ...
