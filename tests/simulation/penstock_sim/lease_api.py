"""The Lease of the operators, as an API server has it: compare-and-swap, and answers that get lost.

    penstock.kubernetes.lease.Lease ── find, POST, PUT ─▶ LeasePort of one process ─▶ LeaseServer

It counts tenures: a new one begins when the Lease passes to another process, or is made again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.kubernetes.errors import KubernetesError

if TYPE_CHECKING:
    from penstock.kubernetes.resources import Json

_CONFLICT: Final = 409
_UNHEARD: Final = 0.02
_LOST: Final = 0.02


class LeaseServer:
    """Keeps one Lease. `wall_ms`: its clock. `grants`: who has got it, and in which tenure."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._lease: Json | None = None
        self._writes = 0
        self._made = 0
        self._last: tuple[object, ...] = ()
        self.tenure = 0

    def find(self) -> Json | None:
        return copy.deepcopy(self._lease)

    def delete(self) -> None:
        """A person does it: it is made again by whoever asks next."""
        self._lease = None

    def write(self, process: str, body: Mapping[str, Any]) -> tuple[Json, int]:
        """The Lease, and the tenure in which the process has it: 0 if it has given it up."""
        known = self._lease
        version = None if known is None else known["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion") != version:
            raise KubernetesError("the Lease was written meanwhile", _CONFLICT)
        self._writes += 1
        made = known["metadata"] if known is not None else self._new()
        spec = dict(body["spec"])
        metadata = {**body["metadata"], **made, "resourceVersion": str(self._writes)}
        self._lease = {"metadata": metadata, "spec": spec}
        if not spec.get("holderIdentity"):
            return copy.deepcopy(self._lease), 0
        now = (process, metadata["uid"], spec["leaseTransitions"])
        if now != self._last:
            self._last = now
            self.tenure += 1
        return copy.deepcopy(self._lease), self.tenure

    def _new(self) -> dict[str, str]:
        self._made += 1
        created = datetime.fromtimestamp(self._wall_ms() // 1000, UTC)
        return {
            "uid": f"lease-{self._made}",
            "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


class LeasePort:
    """`penstock.kubernetes.api.Api` of one process, as far as a Lease needs it.

    tenure: the last one that the process was given, whether it has heard of it or not.
    """

    def __init__(self, server: LeaseServer, process: str, chance: Random) -> None:
        self._server = server
        self._process = process
        self._chance = chance
        self.tenure = 0
        self.cut = False

    def find(self, _path: str, **_options: Any) -> Json | None:
        """See `Api`."""
        self._may_fail(_UNHEARD)
        return self._server.find()

    def request(
        self, _method: str, _path: str, *, body: Mapping[str, Any], **_options: Any
    ) -> Json:
        """See `Api`."""
        self._may_fail(_UNHEARD)
        written, tenure = self._server.write(self._process, body)
        self.tenure = tenure or self.tenure
        self._may_fail(_LOST)
        return written

    def _may_fail(self, chance: float) -> None:
        if self.cut or self._chance.random() < chance:
            raise KubernetesError("no answer", 0)
