"""Idle producers are forgotten, and the longest idle when a broker remembers too many.

    every minute ─▶ sizes of all tables ─▶ core: fair_limit ─▶ ProducersExpired ─▶ machines

Leaders and followers alike, each for itself: a table is state of the replica that has it.
"""

import asyncio
from typing import Final

from penstock.core.replication.contract import ProducersExpired
from penstock.core.replication.producers import PRODUCERS_PER_BROKER, fair_limit
from penstock_broker.replication.replicas import ReplicaSet

_INTERVAL_S: Final = 60.0
_SLICE: Final = 1_000
"""Replicas looked at before others have their turn."""


class ProducerExpiry:
    """Bounds what the replicas of a broker remember of idempotent producers (I23)."""

    def __init__(
        self, replicas: ReplicaSet, expiry_ms: int, *, total: int = PRODUCERS_PER_BROKER
    ) -> None:
        """`total`: for all replicas together."""
        self._replicas = replicas
        self._expiry_ms = expiry_ms
        self._total = total

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.expire()

    async def expire(self) -> None:
        """Looks at every replica once."""
        replicas = list(self._replicas.by_key.values())
        limit = fair_limit((one.machine.producer_count for one in replicas), self._total)
        event = ProducersExpired(self._expiry_ms, limit)
        for number, replica in enumerate(replicas, 1):
            if replica.machine.producer_count:
                self._replicas.handle(replica, event)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
