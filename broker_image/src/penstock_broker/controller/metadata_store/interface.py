"""The seams between the controller and the store of its documents.

    take-over, reload ──read_all──▶ every document, consistently
    Ready.writes ───────write─────▶ compare-and-swaps, stage by stage (I21)
    who is active ──────acquire_lease / release_lease (only avoids duplicate work, never safety)
    no store ───────────hold (may continue without it)

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

    The implementation bounds the time of every call. Call one about documents at a time; calls
    about the lease run beside it, and never wait for it: a slow write must not lose the lease. If
    the caller is cancelled, the outcome is unknown, as after StoreUnavailableError.
    """

    @property
    def detached(self) -> bool:
        """Brokers keep changes now: once the lease is renewed, take over again."""
        ...

    @property
    def journaling(self) -> bool:
        """A write that begins now goes to the brokers. False: it goes to the store, or fails."""
        ...

    async def read_all(self, *, take_over: bool = False) -> dict[str, StoredText]:
        """Every document by key, none older than any write that was confirmed before.

        `take_over`: the controller is taking over, and has not read successfully yet.
        """
        ...

    async def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        """Carries out all changes; returns the new version of every key that was put.

        A stage begins when every change of the previous stage is durable. No key occurs twice.
        Raises WriteConflictError, StoreUnavailableError (see there for the possible outcomes).
        """
        ...

    async def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        """Takes or renews the lease; False: another process has it. `holder` names this process.

        A holder keeps it for `duration_ms` from the last success, or until it releases it.
        """
        ...

    async def hold(self) -> bool:
        """The lease cannot be renewed: may this controller continue to decide nevertheless?

        True: no other controller can decide now, and writes are kept (`JournaledStore`). Call it
        after `acquire_lease` raised.
        """
        ...

    async def release_lease(self, holder: str) -> None:
        """Releases the lease early; does nothing if `holder` does not have it."""
        ...


class BlockingStore(Protocol):
    """A store whose calls block, for `ThreadedStore`; see `MetadataStore` for the methods.

    Calls about documents come from one thread, those about the lease from another.
    """

    def read_all(self) -> dict[str, StoredText]: ...
    def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]: ...
    def acquire_lease(self, holder: str, duration_ms: int) -> bool: ...
    def release_lease(self, holder: str) -> None: ...
    def close(self) -> None: ...
