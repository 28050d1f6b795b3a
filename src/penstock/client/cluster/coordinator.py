"""Finds the broker that coordinates a group (or a transactional id), and asks it until it answers.

    call ──▶ address known? ──no──▶ Find…Coordinator at any broker
      ▲            │ yes
      └─ pause ◀── NOT_COORDINATOR, loading, no answer: forget the address, ask again

Every call here can be repeated: members are identified by member id and epoch, commits repeat the
same offsets, resets carry an id. Which calls there are: `penstock.client.group.coordinator`,
`penstock.client.transaction.coordinator`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock.client.clock import loop_time_s
from penstock.client.cluster.cluster import Cluster, is_silence
from penstock.client.cluster.connections import Connection
from penstock.errors import ClusterError, OverloadedError, PenstockError

Answer = TypeVar("Answer")
Attempt = Callable[[Connection, float], Awaitable[Answer]]
"""Asks once and waits up to the given number of seconds for the answer."""

PATIENCE_S: Final = 2.0
"""Timeout of the first attempt; doubles with each one. A frozen coordinator is replaced within that
time."""


class CoordinatorCalls(ABC):
    """Of one name. Owned by the client's event loop. `what` names it in errors."""

    def __init__(self, cluster: Cluster, what: str) -> None:
        self._what = what
        self._cluster = cluster
        self._address = ""

    @abstractmethod
    async def _find(self, connection: Connection, timeout_s: float) -> str:
        """The coordinator's address, as this broker knows it."""

    async def connection(self, timeout_s: float) -> Connection:
        """The coordinator, as far as known; raises what `Cluster.ask` raises."""
        if not self._address:
            self._address = await self._cluster.ask(self._find, timeout_s)
        return self._cluster.connections.to(self._address)

    def settle(self, address: str) -> None:
        """It is there: somebody else talks to it as the coordinator."""
        self._address = address

    def failed(self, error: PenstockError) -> None:
        """A call or stream ended with `error`: the broker may no longer be the coordinator."""
        if error.refresh_metadata:
            self._address = ""

    async def until_answered(self, attempt: "Attempt[Answer]", timeout_s: float) -> Answer:
        """The coordinator's answer; retried for `timeout_s`.

        Raises an error that a retry cannot cure, or the last error after `timeout_s`.
        """
        deadline = loop_time_s() + timeout_s
        pause_s = self._cluster.config.retry_backoff_ms / 1000
        patience_s = PATIENCE_S
        while True:
            left_s = max(deadline - loop_time_s(), 0.1)
            try:
                connection = await self.connection(left_s)
                return await attempt(connection, min(patience_s, left_s))
            except PenstockError as error:
                self.failed(error)
                if not (error.retriable or is_silence(error)):
                    raise
                if isinstance(error, OverloadedError):
                    pause_s = max(pause_s, error.throttle_ms / 1000)
                if loop_time_s() + pause_s >= deadline:
                    raise ClusterError(
                        f"{self._what}: {error.message} (tried for {timeout_s:g} s)",
                        error.code,
                    ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._cluster.config.retry_backoff_max_ms / 1000)
            patience_s *= 2
