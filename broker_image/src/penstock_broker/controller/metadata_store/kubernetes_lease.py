"""Who is the active controller: a `coordination.k8s.io` Lease, changed by compare-and-swap.

The protocol of client-go's leader election. A holder renews by writing `renewTime`. Who wants
the lease looks at the object, and takes it when it has no holder or when *it has itself seen no
change for `leaseDurationSeconds`*: by its own monotonic clock, so that wall clocks of pods need
not agree. Times in the object are for people.

A holder renews with the version of its last write: one request per renewal. The lease decides
who works, never who may write: that is the documents' versions and the controller epoch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from penstock_broker.controller.metadata_store.interface import StoreUnavailableError
from penstock_broker.controller.metadata_store.kubernetes_api import Answer, Api, Timeouts
from penstock_broker.controller.metadata_store.kubernetes_objects import ClusterObjects

_ATTEMPTS: Final = 2
"""A holder whose object was labelled, or deleted, by somebody is still the holder."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The lease as it was last, and when this process first saw it so (own clock, seconds)."""

    body: Mapping[str, Any]
    version: str
    since_s: float

    @property
    def holder(self) -> str:
        return str(self.body.get("spec", {}).get("holderIdentity") or "")

    @property
    def ends_s(self) -> float:
        return self.since_s + float(self.body.get("spec", {}).get("leaseDurationSeconds") or 0)


class KubernetesLease:
    """One thread at a time. `clock` is monotonic, in seconds."""

    def __init__(
        self, api: Api, objects: ClusterObjects, timeouts: Timeouts, clock: Callable[[], float]
    ) -> None:
        self._api = api
        self._objects = objects
        self._timeouts = timeouts
        self._clock = clock
        self._path = f"{objects.leases}/{objects.lease_name}"
        self._seen: _Seen | None = None
        self._doubtful = True
        """The last write was not answered, or there was none: look before writing."""

    def acquire(self, holder: str, duration_ms: int) -> bool:
        """See `MetadataStore.acquire_lease`."""
        for _ in range(_ATTEMPTS):
            if self._doubtful or self._seen is None or self._seen.holder != holder:
                self._look()
            seen = self._seen
            if seen is not None and seen.holder not in {"", holder} and self._clock() < seen.ends_s:
                return False
            if self._swap(holder, math.ceil(duration_ms / 1000)):
                return True
        return False

    def release(self, holder: str) -> None:
        """See `MetadataStore.release_lease`."""
        self._look()
        if self._seen is not None and self._seen.holder == holder:
            self._swap("", 1)

    def _look(self) -> None:
        answer = self._request("GET", self._path, None)
        if answer.status == 404:
            self._seen = None
        elif answer.status != 200:
            raise _unexpected("GET", self._path, answer)
        elif self._seen is None or self._seen.version != answer.version:
            self._seen = _Seen(answer.body, answer.version, self._clock())
        self._doubtful = False

    def _swap(self, holder: str, duration_s: int) -> bool:
        """Writes if nobody else has since; False: somebody has."""
        # Counted from before the request: the others see the change later than this.
        before_s = self._clock()
        body = self._body(holder, duration_s)
        self._doubtful = True
        if self._seen is None:
            answer = self._request("POST", self._objects.leases, body)
        else:
            answer = self._request("PUT", self._path, body)
        if answer.status not in {200, 201}:
            return False
        self._seen = _Seen(answer.body, answer.version, before_s)
        self._doubtful = False
        return True

    def _body(self, holder: str, duration_s: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = {} if self._seen is None else self._seen.body.get("spec", {})
        is_new = self._seen is None or self._seen.holder != holder
        transitions = int(before.get("leaseTransitions") or 0)
        metadata: dict[str, Any] = {
            "name": self._objects.lease_name,
            "namespace": self._objects.namespace,
            "labels": self._objects.labels(),
            "ownerReferences": self._objects.owners,
        }
        if self._seen is not None:
            metadata["resourceVersion"] = self._seen.version
        spec: dict[str, Any] = {
            "leaseDurationSeconds": duration_s,
            "acquireTime": now if is_new else before.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": transitions + int(is_new and bool(holder)),
        }
        if holder:
            spec["holderIdentity"] = holder
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        return {**kind, "metadata": metadata, "spec": spec}

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        answer = self._api.request(method, path, body=body, timeouts=self._timeouts)
        if answer.status == 404 and method == "POST":
            raise _unexpected(method, path, answer)
        return answer


def _unexpected(method: str, path: str, answer: Answer) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{method} {path}: the API server answered {answer.status}: {answer.message}"
    )
