"""What a controller and its metadata store exchange: documents as text with versions."""

from __future__ import annotations

from dataclasses import dataclass

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

    An atomic store has changed nothing. Others may have carried out stages and other changes
    before the conflict: read again.
    """

    def __init__(self, key: str, expected: str | None, found: str | None) -> None:
        super().__init__(
            f"metadata {key!r} has version {found}, expected {expected}; read it again",
            ErrorCode.STALE_PARTITION_VERSION,
        )


class StoreUnavailableError(ClusterError):
    """The store did not answer, or reported a failure.

    After `write` the outcome is unknown: none, a part or all of it may have been done, or may be
    done later. After `read_all` and the lease calls: try again later.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.CONTROLLER_UNAVAILABLE)
