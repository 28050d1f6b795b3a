"""The epoch that an operator's changes name, one per Cluster (I35, `core.control.fencing`).

    first change ─▶ renew our Lease ─▶ AcquireOperatorEpoch ─▶ every change names the epoch
    refused: another operator has acquired one ─▶ the pass ends; nothing more is asked
        ─▶ our Lease is renewed once more, or this process ends ─▶ start over

An operator that was frozen does not know it. So what it decided before is refused by the brokers'
controller, and it begins again with what is true now, if it still is the operator.
"""

import asyncio
from functools import partial
from typing import Final, Protocol

from penstock.client import AsyncAdmin
from penstock.core.control.documents import OperatorLease
from penstock.errors import ClusterError, ErrorCode
from penstock.kubernetes.errors import KubernetesError
from penstock.logs import EventLog
from penstock_operator.lease import LeaseLostError

_log: Final = EventLog("penstock_operator.fence")


class FencedError(Exception):
    """Another operator has taken over this Cluster; its text is what the brokers said."""


class LeaseHolder(Protocol):
    """The Lease of this process."""

    async def renewed(self) -> OperatorLease:
        """The Lease, renewed just now.

        Raises LeaseLostError if another process has it or may have had it, KubernetesError if that
        is not known.
        """


class Fence:
    """Of one Cluster. Used by one event loop."""

    def __init__(self, held: LeaseHolder | None) -> None:
        """`held` None: there is one operator, by other means, and nothing is fenced."""
        self._held = held
        self._epoch = 0
        self._lost = ""
        self._acquiring = asyncio.Lock()

    def guard(self, admin: AsyncAdmin) -> None:
        """Makes all changes by `admin` name the epoch."""
        if self._held is not None:
            admin.name_operator(partial(self._current, admin, self._held), self._refused)

    def check(self) -> None:
        """Raises FencedError once an epoch was refused, until `start_over`."""
        if self._lost:
            raise FencedError(self._lost)

    async def start_over(self) -> None:
        """With a Lease that was renewed after the refusal. Raises as `LeaseHolder.renewed`."""
        if self._held is not None:
            await self._held.renewed()
        self._epoch, self._lost = 0, ""

    async def _current(self, admin: AsyncAdmin, held: LeaseHolder) -> int:
        """Raises PenstockError. 0 while the cluster has no epochs: asked for again each time."""
        async with self._acquiring:
            if self._lost:
                raise _stale()
            if self._epoch == 0:
                try:
                    self._epoch = await _acquire(admin, held)
                except LeaseLostError as error:
                    self._lost = str(error)
                    raise _stale() from None
            return self._epoch

    def _refused(self, why: str) -> None:
        self._lost = why


async def _acquire(admin: AsyncAdmin, held: LeaseHolder) -> int:
    try:
        lease = await held.renewed()
    except KubernetesError as error:
        raise ClusterError(
            f"the operator changes nothing before its Lease is renewed: {error}",
            ErrorCode.CONTROLLER_UNAVAILABLE,
        ) from error
    try:
        epoch = await admin.acquire_operator_epoch(lease)
    except ClusterError as error:
        # What we send is valid: so a broker or controller of the release before does not know it.
        if error.code is ErrorCode.INVALID_REQUEST:
            _log.info("no operator epoch", reason=error.message)
            return 0
        raise
    if epoch:
        _log.info("operator epoch acquired", epoch=epoch, transitions=lease.transitions)
    return epoch


def _stale() -> ClusterError:
    return ClusterError(
        "another operator has taken over this Cluster", ErrorCode.STALE_OPERATOR_EPOCH
    )
