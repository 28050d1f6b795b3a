"""The metadata store in memory: for tests, and for several controllers in one process.

Every `MemoryMetadataStore` is a client of a `SharedDocuments`, as pods are of an API server.
`fail_next` injects the failures of guarantees §3: the write is lost, or only its answer is.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from penstock_broker.controller.metadata_store.interface import (
    Change,
    Delete,
    Put,
    StoredText,
    StoreUnavailableError,
    WriteConflictError,
)


@dataclass(slots=True)
class SharedDocuments:
    """State of the clients. `now_ms` is the store's own clock, used for the lease only."""

    now_ms: Callable[[], int]
    documents: dict[str, StoredText] = field(default_factory=dict)
    writes: int = 0
    holder: str = ""
    held_until_ms: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Failure(Enum):
    """What happens to the next write."""

    LOST = "the request never arrives"
    UNANSWERED = "it is carried out, the answer is lost"


class MemoryMetadataStore:
    """Atomic, like the local store."""

    def __init__(self, shared: SharedDocuments) -> None:
        self._shared = shared
        self.fail_next: Failure | None = None

    def read_all(self) -> dict[str, StoredText]:
        with self._shared.lock:
            return dict(self._shared.documents)

    def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        failure, self.fail_next = self.fail_next, None
        if failure is Failure.LOST:
            raise StoreUnavailableError("planted: the write never arrived")
        with self._shared.lock:
            versions = self._write_locked([change for stage in stages for change in stage])
        if failure is Failure.UNANSWERED:
            raise StoreUnavailableError("planted: the answer was lost")
        return versions

    def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        with self._shared.lock:
            now_ms = self._shared.now_ms()
            if self._shared.holder not in {"", holder} and now_ms < self._shared.held_until_ms:
                return False
            self._shared.holder, self._shared.held_until_ms = holder, now_ms + duration_ms
            return True

    def release_lease(self, holder: str) -> None:
        with self._shared.lock:
            if self._shared.holder == holder:
                self._shared.holder = ""

    def close(self) -> None:
        """Nothing to release."""

    def _write_locked(self, changes: Sequence[Change]) -> dict[str, str]:
        documents = self._shared.documents
        for change in changes:
            found = documents.get(change.key)
            version = None if found is None else found.version
            if version != change.expected:
                raise WriteConflictError(change.key, change.expected, version)
        self._shared.writes += 1
        versions = {}
        for change in changes:
            match change:
                case Put():
                    versions[change.key] = str(self._shared.writes)
                    documents[change.key] = StoredText(change.text, versions[change.key])
                case Delete():
                    del documents[change.key]
        return versions
