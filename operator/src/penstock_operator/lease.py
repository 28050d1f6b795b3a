"""Which of several operator processes reconciles: loops around the Lease of `penstock.kubernetes`.

The others stand by. It is harmless if the Lease changes hands while its former holder still acts:
every write names the object it was decided for, and brokers refuse former holders (`fence`).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Final, TypeVar

from penstock.core.control.documents import OperatorLease
from penstock.kubernetes.errors import KubernetesError
from penstock.kubernetes.lease import Holding, Lease
from penstock.logs import EventLog

DURATION_S: Final = 15.0
RENEW_S: Final = 4.0
FRESH_S: Final = 2.0
"""Of a renewal, at most, before an epoch is acquired for it."""
_Answer = TypeVar("_Answer")
_log = EventLog("penstock_operator.lease")


class LeaseLostError(Exception):
    """Another process has the Lease or may have had it, or it could not be renewed in time."""


class Leadership:
    """`acquire`, then keep `hold` running; `release` at the end."""

    def __init__(self, lease: Lease, holder: str) -> None:
        self._lease, self._holder = lease, holder
        self._taken: Holding | None = None
        # Its own thread: hanging requests elsewhere must not lose the Lease.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lease")

    async def acquire(self) -> None:
        """Returns when this process holds the Lease."""
        while True:
            try:
                self._taken = await self._in_thread(self._renew)
                if self._taken is not None:
                    _log.info("lease taken", holder=self._holder)
                    return
            except KubernetesError as error:
                _log.warning("lease not read", error=str(error))
            await asyncio.sleep(RENEW_S / 2)

    async def hold(self) -> None:
        """Renews until cancelled. Raises LeaseLostError."""
        renewed = monotonic()
        while True:
            await asyncio.sleep(RENEW_S)
            asked = monotonic()
            try:
                await self._still_held()
                renewed = asked
            except KubernetesError as error:
                _log.warning("lease not renewed", error=str(error))
            if monotonic() - renewed > DURATION_S:
                raise LeaseLostError(f"the lease could not be renewed for {DURATION_S:.0f} s")

    async def renewed(self) -> OperatorLease:
        """The Lease, renewed within the last FRESH_S by our own clock.

        Raises LeaseLostError, and KubernetesError if it could not be renewed so fast.
        """
        asked = monotonic()
        held = await self._still_held()
        took_s = monotonic() - asked
        if took_s > FRESH_S:
            raise KubernetesError(
                f"renewing the Lease took {took_s:.1f} s, the limit is {FRESH_S}", 0
            )
        return OperatorLease(
            uid=held.uid,
            created_s=held.created_s,
            transitions=held.transitions,
            holder=held.holder,
        )

    async def _still_held(self) -> Holding:
        """Renews. Raises LeaseLostError, and KubernetesError if the outcome is unknown."""
        held = await self._in_thread(self._renew)
        if held is None:
            raise LeaseLostError("another operator has taken over the lease")
        if held != self._taken:
            # Another operator may have had one in between, and may still ask for an epoch with it.
            raise LeaseLostError("the lease was deleted or given up, and taken again")
        return held

    def _renew(self) -> Holding | None:
        ours = self._lease.acquire(self._holder, int(DURATION_S * 1_000))
        return self._lease.held() if ours else None

    async def release(self) -> None:
        """So that a standby does not have to wait. Raises nothing."""
        try:
            await self._in_thread(partial(self._lease.release, self._holder))
        except KubernetesError as error:
            _log.warning("lease not released", error=str(error))
        self._thread.shutdown(wait=False)

    async def _in_thread(self, call: Callable[[], _Answer]) -> _Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
