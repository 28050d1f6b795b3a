"""Which of several operator processes reconciles: a Lease, taken by compare-and-swap.

The others stand by. A Lease that changes hands while its former holder still acts does no harm:
every write names the object it was decided upon, and restarts are decided from fresh answers.
Whose lease it is, is judged by one's own clock: how long its record has not changed.
"""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

from penstock.logs import EventLog
from penstock_operator.clock import now_micros
from penstock_operator.kube import Kube, KubeError
from penstock_operator.model import Object

DURATION_S: Final = 15.0
RENEW_S: Final = 4.0
_log = EventLog("penstock_operator.lease")


class LeaseLostError(Exception):
    """Another process has the Lease, or it could not be renewed in time."""


class Lease:
    """`acquire`, then keep `hold` running; `release` at the end."""

    def __init__(self, kube: Kube, namespace: str, name: str, holder: str) -> None:
        self._kube, self._namespace, self._name, self._holder = kube, namespace, name, holder
        self._seen: tuple[str, float] = ("", 0.0)

    async def acquire(self) -> None:
        """Returns when this process holds the Lease."""
        while True:
            try:
                if await self._try():
                    _log.info("lease taken", holder=self._holder)
                    return
            except KubeError as error:
                _log.warning("lease not read", error=str(error))
            await asyncio.sleep(RENEW_S / 2)

    async def hold(self) -> None:
        """Renews until cancelled. Raises LeaseLostError."""
        renewed = monotonic()
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                async with asyncio.timeout(DURATION_S / 2):
                    if not await self._try():
                        raise LeaseLostError("another operator has taken the lease")
                renewed = monotonic()
            except (KubeError, TimeoutError) as error:
                _log.warning("lease not renewed", error=str(error))
            if monotonic() - renewed > DURATION_S:
                raise LeaseLostError(f"the lease could not be renewed for {DURATION_S:.0f} s")

    async def release(self) -> None:
        """So that a standby need not wait. Raises nothing."""
        try:
            live = await self._kube.get("Lease", self._namespace, self._name)
            if live is not None and live["spec"].get("holderIdentity") == self._holder:
                await self._swap(live, "")
        except KubeError as error:
            _log.warning("lease not released", error=str(error))

    async def _try(self) -> bool:
        live = await self._kube.get("Lease", self._namespace, self._name)
        if live is None:
            body: Object = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": self._spec(self._holder, None),
            }
            try:
                await self._kube.create("Lease", self._namespace, body)
            except KubeError as error:
                if error.is_conflict:
                    return False
                raise
            return True
        holder = live["spec"].get("holderIdentity") or ""
        if holder not in {"", self._holder} and not self._is_stale(live):
            return False
        return await self._swap(live, self._holder)

    def _is_stale(self, live: Mapping[str, Any]) -> bool:
        version = live["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, monotonic())
        duration_s: float = live["spec"].get("leaseDurationSeconds") or DURATION_S
        return monotonic() - self._seen[1] > duration_s

    async def _swap(self, live: Object, holder: str) -> bool:
        body = {**live, "spec": self._spec(holder, live["spec"])}
        try:
            await self._kube.replace("Lease", self._namespace, body)
        except KubeError as error:
            if error.is_conflict:
                return False
            raise
        return True

    def _spec(self, holder: str, before: Mapping[str, Any] | None) -> Object:
        now = now_micros()
        same = before is not None and before.get("holderIdentity") == holder
        changes = 0 if before is None else int(before.get("leaseTransitions") or 0)
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(DURATION_S),
            "renewTime": now,
            "acquireTime": before["acquireTime"] if same and before is not None else now,
            "leaseTransitions": changes if same else changes + 1,
        }
