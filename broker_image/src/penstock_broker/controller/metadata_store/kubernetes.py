"""The metadata store on Kubernetes: one ConfigMap per document, one Lease, no other state.

    read_all ──▶ LIST by label, page by page, without resourceVersion (a quorum read)
    write ─────▶ per stage, up to 8 at a time:  POST     expected None     409 = conflict
                                                PUT      resourceVersion   409, 404 = conflict
                                                DELETE   precondition      409, 404 = conflict
    lease ─────▶ penstock.kubernetes.lease

A document's version is its object's resourceVersion. Several objects cannot change together: stages
are for that. After any other error, the outcome of a write is unknown (guarantees §4.3); the rest
of that write is not sent, and the caller reads again.

Objects are owned by the Cluster object or have no owner, as configured at start. A controller that
takes the lease corrects wrong owners at its first read, so that a Cluster that retains its metadata
never has it garbage-collected.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from penstock.kubernetes.api import Api, Timeouts
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.lease import Lease
from penstock.kubernetes.resources import Json
from penstock_broker.controller.metadata_store.interface import (
    Change,
    Delete,
    Put,
    StoredText,
    StoreUnavailableError,
    WriteConflictError,
)
from penstock_broker.controller.metadata_store.kubernetes_objects import (
    KEY_FIELD,
    TEXT_FIELD,
    ClusterObjects,
    is_version,
)
from penstock_broker.observability import EventLog

TIMEOUTS: Final = Timeouts(connect_s=2.0, total_s=5.0)
"""For requests about documents."""
_THREADS: Final = 8
_PAGE: Final = 100
"""Documents per LIST page: 100 of 1 MiB still fit into memory, 100 small ones are one answer."""
_events = EventLog("metadata-store")


class KubernetesMetadataStore:
    """One thread for documents, another for the lease. Owns `api`."""

    def __init__(
        self, api: Api, objects: ClusterObjects, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._objects = objects
        self._lease = Lease(api, objects.lease, clock)
        self._threads = ThreadPoolExecutor(_THREADS, "metadata-write")
        self._uids: dict[str, str] = {}
        self._holds_lease = False
        self._owners_checked = False

    # ------------------------------------------------------------ documents

    def read_all(self) -> dict[str, StoredText]:
        """See the seam. Raises StoreUnavailableError."""
        with _unavailable():
            return self._read_all()

    def _read_all(self) -> dict[str, StoredText]:
        check_owners = self._holds_lease and not self._owners_checked
        found: dict[str, StoredText] = {}
        uids: dict[str, str] = {}
        for item in self._list():
            metadata, data = item["metadata"], item.get("data") or {}
            key = data.get(KEY_FIELD)
            if key is None or metadata["name"] != self._objects.name_of(key):
                _events.warning("not a document of this cluster, ignored", name=metadata["name"])
                continue
            version = metadata["resourceVersion"]
            text = data.get(TEXT_FIELD, "")
            if check_owners and not self._objects.has_right_owner(metadata):
                version = self._correct_owner(key, text, version)
            found[key] = StoredText(text, version)
            uids[key] = metadata["uid"]
        self._uids = uids
        if check_owners:
            self._owners_checked = True
        return found

    def write(self, stages: Sequence[Sequence[Change]]) -> Mapping[str, str]:
        """See the seam. Raises WriteConflictError, StoreUnavailableError."""
        # All sizes before the first request: if one document is too large, nothing is written.
        write_id = str(uuid.uuid4())
        bodies = {
            change.key: self._objects.config_map(change.key, change.text, change.expected, write_id)
            for stage in stages
            for change in stage
            if isinstance(change, Put)
        }
        versions: dict[str, str] = {}
        for stage in stages:
            versions.update(self._carry_out(stage, bodies))
        return versions

    def _carry_out(self, stage: Sequence[Change], bodies: Mapping[str, Json]) -> dict[str, str]:
        """Carries out one stage; ends when every sent request is answered or has failed."""
        failures: list[WriteConflictError | StoreUnavailableError] = []
        versions: dict[str, str] = {}

        def one(change: Change) -> None:
            if failures:
                return  # the caller will read again: another request would only cost time
            try:
                version = self._change(change, bodies.get(change.key))
            except (WriteConflictError, StoreUnavailableError) as error:
                failures.append(error)
            else:
                if version is not None:
                    versions[change.key] = version

        if len(stage) == 1:
            one(stage[0])
        else:
            for _ in self._threads.map(one, stage):
                pass
        if failures:
            # Unknown outweighs conflict: the caller must expect the worse.
            raise next((e for e in failures if isinstance(e, StoreUnavailableError)), failures[0])
        return versions

    def _change(self, change: Change, body: Json | None) -> str | None:
        """Makes one request; returns the new version of a put."""
        path = f"{self._objects.config_maps}/{self._objects.name_of(change.key)}"
        if change.expected is not None and not is_version(change.expected):
            raise WriteConflictError(change.key, change.expected, "another")
        try:
            if isinstance(change, Delete):
                self._api.request("DELETE", path, body=self._options(change))
                self._uids.pop(change.key, None)
                return None
            if change.expected is None:
                made = self._api.request("POST", self._objects.config_maps, body=body)
            else:
                made = self._api.request("PUT", path, body=body)
        except KubernetesError as error:
            if error.is_conflict and change.expected is None:
                with _unavailable():
                    self._uncover(change.key)
            raise _failure(change, error) from None
        self._uids[change.key] = str(made["metadata"]["uid"])
        return str(made["metadata"]["resourceVersion"])

    def _uncover(self, key: str) -> None:
        """Somebody may have taken the labels of a document, or its key: then no list has it, and it
        cannot be made either. Raises StoreUnavailableError if others have that name."""
        name = self._objects.name_of(key)
        for item in self._api.list(
            self._objects.config_maps, fieldSelector=f"metadata.name={name}"
        ):
            metadata, data = item["metadata"], item.get("data") or {}
            listed, named = self._objects.is_listed(metadata), data.get(KEY_FIELD) == key
            if listed and named:
                return
            if not (listed or named):
                raise StoreUnavailableError(
                    f"ConfigMap {self._objects.namespace}/{name} is no document of this cluster, "
                    "and is where one must be: delete it"
                )
            self._replace(key, data.get(TEXT_FIELD, ""), metadata["resourceVersion"])
            _events.warning("labels or key of a document corrected", key=key, name=name)

    def _options(self, change: Delete) -> Json:
        preconditions = {"resourceVersion": change.expected}
        if change.key in self._uids:
            preconditions["uid"] = self._uids[change.key]
        return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}

    def _list(self) -> list[Json]:
        """All objects, as of one point in time."""
        selector = self._objects.selector
        return self._api.list(self._objects.config_maps, labelSelector=selector, limit=_PAGE)

    def _correct_owner(self, key: str, text: str, version: str) -> str:
        after = self._replace(key, text, version)
        _events.info("corrected the owner of a document", key=key, owner=self._objects.owner_uid)
        return after

    def _replace(self, key: str, text: str, version: str) -> str:
        """The same text, with all that the object must have beside it. Its version then."""
        body = self._objects.config_map(key, text, version, str(uuid.uuid4()))
        path = f"{self._objects.config_maps}/{self._objects.name_of(key)}"
        made = self._api.request("PUT", path, body=body)
        return str(made["metadata"]["resourceVersion"])

    # ------------------------------------------------------------ lease

    def acquire_lease(self, holder: str, duration_ms: int) -> bool:
        """See the seam. Raises StoreUnavailableError."""
        with _unavailable():
            held = self._lease.acquire(holder, duration_ms)
        if held and not self._holds_lease:
            self._owners_checked = False
        self._holds_lease = held
        return held

    def release_lease(self, holder: str) -> None:
        """See the seam. Raises StoreUnavailableError."""
        self._holds_lease = False
        with _unavailable():
            self._lease.release(holder)

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        self._api.close()


def _failure(change: Change, error: KubernetesError) -> WriteConflictError | StoreUnavailableError:
    """The seam's error for a change whose request failed."""
    if error.is_conflict:
        return WriteConflictError(change.key, change.expected, "another")
    # For a new document, 404 means that the namespace does not exist, which is not a conflict.
    if error.is_missing and change.expected is not None:
        return WriteConflictError(change.key, change.expected, None)
    return StoreUnavailableError(error.message)


@contextmanager
def _unavailable() -> Iterator[None]:
    """Raises the seam's error for every failed request."""
    try:
        yield
    except KubernetesError as error:
        raise StoreUnavailableError(error.message) from None
