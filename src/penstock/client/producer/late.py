"""Says that records wait, long before they are given up: with `delivery_timeout_ms` at its default,
nothing would be heard for two minutes of brokers that refuse everything.
"""

import logging
from typing import Final

from penstock.client.producer.accumulator import PartitionQueue
from penstock.errors import PenstockError

LATE_MS: Final = 5_000
"""Longer than a failover takes, of which nobody has to hear."""
_TOLD: Final = -1
_log = logging.getLogger("penstock.client")


class LateDeliveries:
    """Once per partition, until something is stored there again."""

    def __init__(self, delivery_timeout_ms: int) -> None:
        self._timeout_ms = delivery_timeout_ms
        self._since_ms: dict[PartitionQueue, int] = {}

    def look(self, queue: PartitionQueue, trouble: PenstockError | None, at_ms: int) -> None:
        """Called again and again while records of a partition wait. `trouble`: the last failure
        since one was stored."""
        if trouble is None:
            self._since_ms.pop(queue, None)
            return
        since_ms = self._since_ms.setdefault(queue, at_ms)
        if since_ms != _TOLD and at_ms - since_ms >= LATE_MS:
            self._since_ms[queue] = _TOLD
            _log.warning(
                "%s: nothing was stored for %d s; records are sent again until %g s have passed "
                "(delivery_timeout_ms): %s",
                queue.where,
                LATE_MS // 1000,
                self._timeout_ms / 1000,
                trouble.message,
            )

    def rests(self, queue: PartitionQueue) -> None:
        """No record of this partition waits."""
        self._since_ms.pop(queue, None)
