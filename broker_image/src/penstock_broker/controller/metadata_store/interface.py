"""The seam between the controller and whatever keeps its documents.

    take-over, reload ──read_all──▶ every document, consistently
    Ready.writes ───────write─────▶ compare-and-swaps, stage by stage (I21)
    who is active ──────acquire_lease / release_lease (only avoids duplicate work, never safety)

All calls block and are bounded in time by the implementation. Those about documents come from
one thread, those about the lease from another one: a write that takes long must not cost the
lease. Versions are opaque: compare for equality only (Kubernetes' resourceVersion is one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import ClusterError, ErrorCode


@dataclass(frozen=True, slots=True)
class StoredText:
    """A document's text and the version a compare-and-swap must name."""

    text: str
    version: str


@dataclass(frozen=True, slots=True)
class Put:
    """Create (`expected` None: the key must not exist) or replace the version `expected`."""

    key: str
    text: str
    expected: str | None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the document if it has version `expected`."""

    key: str
    expected: str


Change = Put | Delete


class WriteConflictError(ClusterError):
    """A version was not the expected one.

    An atomic store has changed nothing. Another may have carried out stages and neighbours
    before the conflict: read again.
    """

    def __init__(self, key: str, expected: str | None, found: str | None) -> None:
        super().__init__(
            f"metadata {key!r} has version {found}, expected {expected}; read again",
            ErrorCode.STALE_PARTITION_VERSION,
        )


class StoreUnavailableError(ClusterError):
    """The store did not answer, or said that it failed.

    After `write` the outcome is unknown: none, a part or all of it may have passed, or may
    still pass later. After `read_all` and the lease calls: try again later.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.CONTROLLER_UNAVAILABLE)


class MetadataStore(Protocol):
    """Five methods. Keys: `cluster` and `topic/<name>`, text up to 1 MiB."""

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

    def release_lease(self, holder: str) -> None:
        """Gives the lease up early; nothing happens if `holder` does not have it."""
        ...

    def close(self) -> None: ...
