"""Elects one of several processes: a `coordination.k8s.io` Lease, changed by compare-and-swap.

The protocol is that of client-go's leader election. The holder renews the Lease by writing
`renewTime`. A candidate takes it when it has no holder, or when *the candidate itself has seen no
change for `leaseDurationSeconds`* by its own monotonic clock, so the clocks of pods need not
agree. The times in the object are for people.

A holder renews with the version of its last write: one request per renewal. The Lease avoids
duplicate work and is no fence: two processes may believe for a moment that they hold it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

from penstock.kubernetes.api import Api, Timeouts
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.resources import Json, LeaseObject, path_of

TIMEOUTS: Final = Timeouts(connect_s=1.0, total_s=2.0)
"""Short, so that a renewal that hangs leaves time for another."""
_ATTEMPTS: Final = 2
"""Another client may label or delete the object: its holder stays the holder."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The Lease as last seen, and since when it has been so (own clock, seconds)."""

    body: Json
    since_s: float

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.body.get("spec") or {}

    @property
    def holder(self) -> str:
        return str(self.spec.get("holderIdentity") or "")


@dataclass(frozen=True, slots=True)
class Holding:
    """A holding of a Lease: no other one has the same uid and transitions, unless its process had
    the same name.

    `created_s`: when the Lease was, in seconds since 1970. `transitions`: its holders so far.
    """

    uid: str
    created_s: int
    transitions: int
    holder: str


class Lease:
    """One thread at a time. `clock` is monotonic, in seconds."""

    def __init__(
        self, api: Api, where: LeaseObject, clock: Callable[[], float] = monotonic
    ) -> None:
        self._api = api
        self._where = where
        self._clock = clock
        self._collection = path_of("Lease", where.namespace)
        self._path = path_of("Lease", where.namespace, where.name)
        self._seen: _Seen | None = None
        self._doubtful = True
        """The last write was not answered, or there was none: read before writing."""

    def acquire(self, holder: str, duration_ms: int) -> bool:
        """Takes or renews the Lease; False if another process holds it.

        `holder` names this process. It holds the Lease for `duration_ms` from the start of a call
        that returned True, or until it releases it. Raises KubernetesError: the outcome is unknown.
        """
        duration_s = math.ceil(duration_ms / 1000)
        for _ in range(_ATTEMPTS):
            if self._doubtful or self._seen is None or self._seen.holder != holder:
                self._read()
            if self._is_taken(holder, duration_s):
                return False
            if self._swap(holder, duration_s):
                return True
        return False

    def release(self, holder: str) -> None:
        """Gives the Lease up early if `holder` has it. Raises KubernetesError."""
        self._read()
        if self._seen is not None and self._seen.holder == holder:
            self._swap("", 1)

    def held(self) -> Holding:
        """What this process holds: after an `acquire` that returned True."""
        assert self._seen is not None
        metadata = self._seen.body["metadata"]
        created = datetime.fromisoformat(str(metadata["creationTimestamp"]))
        return Holding(
            uid=str(metadata["uid"]),
            created_s=int(created.timestamp()),
            transitions=int(self._seen.spec.get("leaseTransitions") or 0),
            holder=self._seen.holder,
        )

    def _is_taken(self, holder: str, duration_s: int) -> bool:
        seen = self._seen
        if seen is None or seen.holder in {"", holder}:
            return False
        lasts_s = float(seen.spec.get("leaseDurationSeconds") or duration_s)
        return self._clock() < seen.since_s + lasts_s

    def _read(self) -> None:
        found = self._api.find(self._path, timeouts=TIMEOUTS)
        if found is None:
            self._seen = None
        else:
            seen = _Seen(found, self._clock())
            if self._seen is None or self._seen.version != seen.version:
                self._seen = seen
        self._doubtful = False

    def _swap(self, holder: str, duration_s: int) -> bool:
        """Writes the Lease; False if it was written by another since it was read."""
        # Time counts from before the request: the others see the change later than this.
        before_s = self._clock()
        where = ("POST", self._collection) if self._seen is None else ("PUT", self._path)
        body = self._body(holder, duration_s)
        self._doubtful = True
        try:
            written = self._api.request(*where, body=body, timeouts=TIMEOUTS)
        except KubernetesError as error:
            if error.is_conflict:  # also if it was deleted since it was read
                return False
            raise
        self._seen = _Seen(written, before_s)
        self._doubtful = False
        return True

    def _body(self, holder: str, duration_s: int) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before: Mapping[str, Any] = {} if self._seen is None else self._seen.spec
        is_new = self._seen is None or self._seen.holder != holder
        metadata: Json = {
            "name": self._where.name,
            "namespace": self._where.namespace,
            "labels": dict(self._where.labels),
            "ownerReferences": list(self._where.owners),
        }
        if self._seen is not None:
            metadata["resourceVersion"] = self._seen.version
        spec: Json = {
            "leaseDurationSeconds": duration_s,
            "acquireTime": now if is_new else before.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0)
            + int(is_new and bool(holder)),
        }
        if holder:
            spec["holderIdentity"] = holder
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        return {**kind, "metadata": metadata, "spec": spec}
